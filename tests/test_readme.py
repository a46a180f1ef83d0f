"""What the README and the pages behind it say works, and was measured."""

import json
import re
import subprocess
import sys
from pathlib import Path

from icgd.cli.show import count_text, error_text, three_digits
from icgd_papers.runner import stored_results, stored_rows
from icgd_papers.studies.cot_cost import best_points, crossing, exponent
from icgd_papers.theorems.book import papers

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = "\n".join(
    (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8") for name in ("choosing", "proofs")
)
"""The pages that hold the numbers which the README leaves out."""

COUNTED = ("layers_per_step", "max_heads", "d_model", "n_registers", "nonzeros", "sparse_flops")
BOUNDED = ("step_error", "step_bound", "domain_bound", "run_error")
RESULTS = json.loads((ROOT / "benchmarks" / "results.json").read_text(encoding="utf-8"))


def test_the_example_runs_and_its_certificate_says_something(capsys):
    [example] = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    assert len([line for line in example.splitlines() if line]) <= 11
    names: dict[str, object] = {}
    exec(example, names)
    report = names["report"]
    assert report.verdict.name == "HOLDS"
    assert float(report.step_bounds.max()) < 1e-9
    assert "every measured error is within its proved bound" in capsys.readouterr().out
    chosen = names["compiled"].summary()
    assert f'{chosen.construction}, "because {chosen.chosen_because}"' in PAGES


def test_it_is_short_and_no_lab_notebook():
    assert len(README.split()) <= 500
    prose = re.sub(
        r"```.*?```|\(https?:.*?\)|^    .*?$|arXiv:[\d.]+", "", README, flags=re.S | re.M
    )
    assert len(re.findall(r"\d+", prose)) <= 20


def test_the_commands_for_a_table_work_as_shown(tmp_path):
    lines = re.findall(r"^    icgd (.*)$", README, flags=re.MULTILINE)
    for line in lines:
        if line.startswith("compile "):  # the steps of a short run are the same steps
            problem = (tmp_path / "problem.toml").read_text()
            assert "\nsteps = 100\n" in problem
            (tmp_path / "problem.toml").write_text(problem.replace("steps = 100", "steps = 5"))
        command = [sys.executable, "-m", "icgd.cli.app", *line.split()]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    header, first, *rest = (tmp_path / "predictions.csv").read_text().splitlines()
    assert header.endswith("mpg,predicted mpg")
    assert first.startswith("Mazda RX4,")
    assert len(rest) == 31


def test_files_that_it_points_to_exist():
    targets = re.findall(r"\]\(([^)]+)\)", README)
    assert "docs/images/demo.png" in targets
    files = [target for target in targets if not target.startswith("https://")]
    missing = [target for target in files if not (ROOT / target).exists()]
    assert missing == []


def test_the_papers_are_those_of_the_theorem_book():
    for paper in papers().values():
        link = f" [arXiv:{paper.arxiv}](https://arxiv.org/abs/{paper.arxiv})."
        words = f"{paper.authors or 'Authors unknown'}. *{paper.title}*. {paper.venue}."
        assert f"- **{paper.key}**: {words}{link if paper.arxiv else ''}\n" in README


def test_the_figures_of_bounds_and_fits_are_those_of_the_last_benchmark():
    median = RESULTS["bounds"][0]["median bound / measured"]
    assert f"(b) is {median:.1f} times the measured error in the median" in PAGES
    fits = [row["ratio"] for row in RESULTS["fits"]]
    page = (ROOT / "docs" / "approximation" / "relu_sum.md").read_text(encoding="utf-8")
    assert f"{min(fits):.2f} to {max(fits):.2f} times the asymptotic optimum" in page


def test_what_pages_say_without_a_number_was_measured():
    errors = [row[f"{how} error"] for row in RESULTS["functional"] for how in ("dense", "fused")]
    assert max(errors) <= 1e-12
    [times] = [row["times"] for row in RESULTS["schedules"] if row["condition"] == 100]
    assert times >= 300
    fixed = [row["ratio"] for row in RESULTS["training"] if row["A"] == "0"]
    assert max(fixed) <= 0.5
    rows = RESULTS["recursion_weights"]
    assert {row["verdict"] for row in rows} <= {"HOLDS", "HOLDS_EMPTY"}
    assert max(row["largest weight error"] for row in rows if row["units"] == "sigmoid") <= 1e-3
    rows = RESULTS["chain_weights"]
    for dense, _ in zip(rows[::2], rows[1::2], strict=True):
        assert dense["largest weight error"] <= 1e-8
    assert RESULTS["chain_blocks"][0]["fitted exponent"] < 0.1
    short, _ = RESULTS["chain_memory"]
    assert (short["blocks"], short["blocks kept"]) == (20_000, 9)
    assert short["KiB grown"] < 1024
    for row in RESULTS["linear_coefficients"]:
        assert row["relative difference"] <= 1e-6
        assert row["largest dense step error"] <= 1e-11
    assert all(row["holds"] for row in RESULTS["linear_guarantees"])


def test_what_is_said_of_the_cost_of_a_chain_was_measured():
    path = ROOT / "results" / "cot-cost" / "laptop.json"
    page = (ROOT / "docs" / "reproductions" / "cot.md").read_text(encoding="utf-8")
    shown = [f"relu-stack, {how}" for how in ("dense", "fused")]
    shown += [f"cot-network, {how}" for how in ("dense", "fused", "b = 1, dense")]
    for row in stored_results(path)["summary"]:
        over, what, time, _, operations, memory, _ = row.values()
        if over in {"depth", "width"} and what in shown:
            assert f"| {over} | {what} | {time} | {operations} | {memory} |" in page
    depths = stored_rows(path).filter(axis="depth")
    names = ("relu-stack", "cot-network")
    flops = [best_points(depths.filter(name=x, backend="dense"), "FLOPs") for x in names]
    size, _ = crossing(*flops)
    alone = depths.filter(name="cot-network, b = 1", backend="dense")
    of_one, _ = crossing(flops[0], best_points(alone, "FLOPs"))
    assert f"N = {size:.0f}" in page
    assert f"N = {of_one:.0f}" in page
    exponents = [exponent(points) for points in flops]
    growth = " and ".join(f"N^{x:.2f}" for x in exponents)
    assert growth in page
    assert exponents[0] > 1.9
    assert exponents[1] < 1.01
    deepest = depths.filter(size=64, backend="fused")
    stack, chain = (deepest.filter(name=name)["seconds"].item() for name in names)
    slower = chain / stack
    assert f"{slower:.0f} times as long as fused relu-stack" in page


def test_what_is_said_of_the_mask_was_measured():
    path = ROOT / "results" / "cot-cost" / "laptop.json"
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    page = (ROOT / "docs" / "reproductions" / "cot.md").read_text(encoding="utf-8")
    readings = [r for r in rows if (r["axis"], r["backend"]) == ("length", "dense")]
    for size in (64, 1024, 16_384, 65_536):
        three = [row for row in readings if row["size"] == size]  # two, all, and not cached
        flops = [f"{row['flops_measured'] / 1e6:.1f} million" for row in three]
        times = [f"{1e3 * row['seconds']:.1f}" for row in three]
        assert f"| {size:,} | {' | '.join(flops + times)} |" in page


def test_its_comparison_is_the_last_one_measured():
    path = ROOT / "docs" / "images" / "comparison.json"
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    names = ["relu-stack", "softmax-stack", "recursion", "cot-network"]
    assert [row["construction"] for row in rows] == names
    for row in rows:
        counts = [count_text(row[name]) for name in COUNTED]
        bounds = [row[name] for name in BOUNDED]
        errors = ["no information" if bound is None else error_text(bound) for bound in bounds]
        assert row["backend"] == "literal"
        cells = (
            row["construction"],
            row["backend"],
            *counts,
            *errors,
            three_digits(row["over_descent"]),
        )
        assert f"| {' | '.join(cells)} |" in PAGES


def test_no_benchmark_was_over_its_limit():
    names = ("speed", "softmax_speed", "recursion_speed", "chain_speed", "memory", "fits")
    rows = [row for name in names for row in RESULTS[name] if row["limit"]]
    assert rows
    assert [row for row in rows if row["ratio"] > row["limit"]] == []


LINEAR = (ROOT / "docs" / "constructions" / "linear_stack.md").read_text(encoding="utf-8")


def test_the_page_of_linear_models_has_an_example_that_runs():
    example, *_ = re.findall(r"```python\n(.*?)```", LINEAR, flags=re.DOTALL)
    names: dict[str, object] = {}
    exec(example, names)
    assert names["report"].verdict.holds
    assert names["report"].empty == ("domain_trajectory",)  # as the page says
    assert 10 < names["run"].stopped_after < 200
    assert names["run"].predictions.shape == (2, 1)

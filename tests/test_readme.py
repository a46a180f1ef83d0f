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
    (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    for name in ("choosing", "proofs", "limits", "training/models")
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
    assert len(README.split()) <= 600
    prose = re.sub(
        r"```.*?```|\(https?:.*?\)|^    .*?$|arXiv:[\d.]+", "", README, flags=re.S | re.M
    )
    assert len(re.findall(r"\d+", prose)) <= 20


def test_the_commands_for_a_table_work_as_shown(tmp_path):
    lines = re.findall(r"^    icgd (.*)$", README, flags=re.MULTILINE)
    rows = [f"{a},{a * b % 7},{b},{a - b},{a + 2 * b}" for a in range(5) for b in range(4)]
    (tmp_path / "cars.csv").write_text("a,b,c,d,price\n" + "\n".join(rows) + "\n")
    (tmp_path / "new.csv").write_text("a,b,c,d\n1,2,3,-1\n")
    for line in lines:
        command = [sys.executable, "-m", "icgd.cli.app", *line.split()]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "predictions.csv").read_text().startswith("a,b,c,d,price\n1")


def test_files_that_it_points_to_exist():
    targets = re.findall(r"\]\(([^)]+)\)", README)
    assert "docs/images/drawing_relu_stack.png" in targets
    files = [target for target in targets if not target.startswith("https://")]
    missing = [target for target in files if not (ROOT / target).exists()]
    assert missing == []


def test_the_papers_are_those_of_the_theorem_book():
    for paper in papers().values():
        link = f" [arXiv:{paper.arxiv}](https://arxiv.org/abs/{paper.arxiv})."
        words = f"{paper.authors or 'Authors unknown'}. *{paper.title}*. {paper.venue}."
        assert f"- **{paper.key}**: {words}{link if paper.arxiv else ''}\n" in README


def test_its_figures_are_those_of_the_last_benchmark():
    speed = RESULTS["speed"]
    for activation in ("tanh", "relu"):
        for tasks in (1, 256):
            rows = [r for r in speed if (r["activation"], r["tasks"]) == (activation, tasks)]
            for key in ("ratio", "ratio, all steps kept"):
                assert ", ".join(f"{row[key]:.2f}" for row in rows) in PAGES
    median = RESULTS["bounds"][0]["median bound / measured"]
    assert f"(b) is {median:.1f} times the measured error in the median" in PAGES
    weights = next(row for row in RESULTS["weights"] if row["pieces"] == 128)
    assert f"within {weights['largest weight error']:.1e} of real gradient descent" in PAGES
    softmax = next(row for row in RESULTS["softmax_weights"] if row["registers"] == 92)
    assert f"within {softmax['largest weight error']:.1e} of real gradient descent" in PAGES
    ratios = [row["ratio"] for row in RESULTS["softmax_speed"]]
    assert f"takes {min(ratios):.2f} to {max(ratios):.2f} times as long" in PAGES
    fits = [row["ratio"] for row in RESULTS["fits"]]
    assert f"{min(fits):.2f} to {max(fits):.2f} times the asymptotic optimum" in PAGES


def test_its_figures_of_kernels_are_those_of_the_last_benchmark():
    errors = [row[f"{how} error"] for row in RESULTS["functional"] for how in ("dense", "fused")]
    assert f"to {max(errors):.1e} at every token" in PAGES
    assert max(errors) <= 1e-12
    [times] = [row["times"] for row in RESULTS["schedules"] if row["condition"] == 100]
    assert f"leave {times:.0f} times less" in PAGES
    assert times >= 300
    fixed = [row["ratio"] for row in RESULTS["training"] if row["A"] == "0"]
    assert f"takes {min(fixed):.2f} to {max(fixed):.2f} of the time" in PAGES
    assert max(fixed) <= 0.5


def test_its_figures_of_recursion_are_those_of_the_last_benchmark():
    rows = RESULTS["recursion_weights"]
    assert {row["verdict"] for row in rows} <= {"HOLDS", "HOLDS_EMPTY"}
    errors = {
        row["units"]: row["largest weight error"]
        for row in rows
        if (row["widths"], row["backend"]) == ("2-3-3-1", "dense")
    }
    assert f"within {errors['sigmoid']:.1e} of real gradient descent" in PAGES
    assert f"with 200 relus for each function within {errors['relu']:.1e}" in PAGES
    assert max(row["largest weight error"] for row in rows if row["units"] == "sigmoid") <= 1e-3
    corner = max(row["clip, at a corner"] for row in rows if row["units"] == "sigmoid")
    assert f"200 sigmoids err by up to {corner:.1e}" in PAGES
    speed = RESULTS["recursion_speed"]
    ratios = [row["ratio"] for row in speed if row["limit"] == 10.0]
    assert f"takes {min(ratios):.1f} to {max(ratios):.1f} times as long" in PAGES
    dear = {
        (row["widths"], row["activation"]): row["ratio"] for row in speed if row["limit"] != 10.0
    }
    deep, kinked = dear["8-32-32-32-1", "tanh"], dear["8-32-32-1", "relu"]
    assert f"{deep:.0f} times for four layers" in PAGES
    assert f"{kinked:.0f} times for a relu network" in PAGES


def test_the_figures_of_chains_are_those_of_the_last_benchmark():
    page = (ROOT / "docs" / "constructions" / "cot_network.md").read_text(encoding="utf-8")
    rows = RESULTS["chain_weights"]
    for dense, fused in zip(rows[::2], rows[1::2], strict=True):
        errors = [f"{row['largest weight error']:.1e}" for row in (dense, fused)]
        name = f"{dense['N, d, rounds']} | {dense['network']}"
        assert f"| {name} | {' | '.join(errors)} |" in page
        assert dense["largest weight error"] <= 1e-8
    exponent = RESULTS["chain_blocks"][0]["fitted exponent"]
    assert f"fitted exponent {exponent:.2f}" in page
    assert exponent < 0.1
    assert f"takes {RESULTS['chain_speed'][0]['ratio']:.1f} times as long" in page
    short, whole = RESULTS["chain_memory"]
    assert (short["blocks"], short["blocks kept"]) == (20_000, 9)
    assert f"grows by {short['KiB grown']} KiB" in page
    assert f"by {whole['KiB grown'] / 1024:.0f} MiB" in page
    assert short["KiB grown"] < 1024


def test_what_is_said_of_the_cost_of_a_chain_was_measured():
    path = ROOT / "results" / "cot-cost" / "laptop.json"
    page = (ROOT / "docs" / "reproductions" / "cot.md").read_text(encoding="utf-8")
    for row in stored_results(path)["summary"]:
        assert f"| {' | '.join(row.values())} |" in page
    depths = stored_rows(path).filter(axis="depth")
    names = ("relu-stack", "cot-network")
    flops = [best_points(depths.filter(name=x, backend="dense"), "FLOPs") for x in names]
    size, _ = crossing(*flops)
    construction = (ROOT / "docs" / "constructions" / "cot_network.md").read_text(encoding="utf-8")
    alone = depths.filter(name="cot-network, b = 1", backend="dense")
    of_one, _ = crossing(flops[0], best_points(alone, "FLOPs"))
    for text in (page, construction, PAGES):
        assert f"N = {size:.0f}" in text
        assert f"N = {of_one:.0f}" in text
    exponents = [exponent(points) for points in flops]
    growth = " and ".join(f"N^{x:.2f}" for x in exponents)
    assert growth in page
    assert growth in construction
    assert exponents[0] > 1.9
    assert exponents[1] < 1.01
    deepest = depths.filter(size=64, backend="fused")
    stack, chain = (deepest.filter(name=name)["seconds"].item() for name in names)
    slower = chain / stack
    assert f"{slower:.0f} times as long as fused relu-stack" in page
    assert f"{slower:.0f} times as long as fused relu-stack" in construction


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


def test_the_figures_of_linear_models_are_those_of_the_last_benchmark():
    rows = RESULTS["linear_coefficients"]
    errors = ("relative difference", "largest dense step error", "its bound (b)")
    for row in rows:
        cells = [row["scikit-learn"], row["construction"], f"{row['steps']:,}"]
        cells += [f"{row[name]:.1e}" for name in errors]
        assert f"| {' | '.join(cells)} | {row['processor seconds']:.2g} |" in LINEAR
        assert row["relative difference"] <= 1e-6
        assert row["largest dense step error"] <= 1e-11
    largest = max(row["relative difference"] for row in rows)
    assert f"scikit-learn's coefficients to {largest:.1e}" in PAGES
    ratios = [row["ratio"] for row in RESULTS["linear_speed"]]
    assert f"{min(ratios):.1f} to {max(ratios):.1f} times as much time" in LINEAR


def test_the_promises_to_linear_models_are_those_of_the_last_benchmark():
    names = ("distance", "by contraction", "distance bound", "excess", "excess bound")
    for row in RESULTS["linear_guarantees"]:
        numbers = " | ".join("none" if row[name] is None else f"{row[name]:.2g}" for name in names)
        line = f"| {row['scikit-learn']} | {row['theorem']} | {row['steps']:,} | {numbers} |"
        assert line in LINEAR
        assert row["holds"]


def test_the_sizes_of_linear_models_are_those_of_the_last_benchmark():
    for row in RESULTS["linear_sizes"]:
        if "C=1)" in row["scikit-learn"]:
            continue  # as large as with another penalty
        counts = [f"{row['heads']:,}", str(row["tokens of a mean"]), count_text(row["weights"])]
        flops = [count_text(row["FLOPs of a step"]), f"{row['direct FLOPs']:,}"]
        cells = [row["scikit-learn"], str(row["examples"]), *counts, *flops]
        assert f"| {' | '.join(cells)} |" in LINEAR
    for row in RESULTS["linear_means"]:
        error = f"{row['error']:.1e}" if row["error"] else "0"
        assert f"| `{row['link']}` | {row['tokens']} | {error} |" in LINEAR


def test_the_page_of_certificates_shows_the_last_measurement():
    page = (ROOT / "docs" / "certificates.md").read_text(encoding="utf-8")
    for row in RESULTS["rigorous"]:
        cells = (
            f"{row['widths']}, n = {row['n']}",
            row["labels"],
            f"{row['steps']:,}",
            row["construction"],
            *(f"{row[name]:.1e}" for name in ("measured", "proved")),
            row["method"],
            f"{row['bits']:,}",
            f"{row['proof, CPU s']:.2g}",
            f"{row['ratio']:.0f}",
        )
        assert f"| {' | '.join(cells)} |" in page

"""What the README shows works as shown."""

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
RESULTS = json.loads((ROOT / "benchmarks" / "results.json").read_text(encoding="utf-8"))


def test_the_example_runs_and_its_verdict_holds(capsys):
    examples = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    assert len(examples) == 1
    names: dict[str, object] = {}
    exec(examples[0], names)
    report = names["report"]
    assert report.verdict.name == "HOLDS"
    assert float(report.step_errors.max()) < 1e-4
    assert "every measured error is within its proved bounds" in capsys.readouterr().out


def test_files_that_it_points_to_exist():
    targets = re.findall(r"\]\(([^)]+)\)", README)
    assert "docs/images/demo.png" in targets
    missing = [target for target in targets if not (ROOT / target).exists()]
    assert missing == []


def test_its_figures_are_those_of_the_last_benchmark():
    speed = RESULTS["speed"]
    for activation in ("tanh", "relu"):
        for tasks in (1, 256):
            rows = [r for r in speed if (r["activation"], r["tasks"]) == (activation, tasks)]
            for key in ("ratio", "ratio, all steps kept"):
                assert ", ".join(f"{row[key]:.2f}" for row in rows) in README
    median = RESULTS["bounds"][0]["median bound / measured"]
    assert f"(b) is {median:.1f} times the measured error in the median" in README
    weights = next(row for row in RESULTS["weights"] if row["pieces"] == 128)
    assert f"within {weights['largest weight error']:.1e} of real gradient descent" in README
    softmax = next(row for row in RESULTS["softmax_weights"] if row["registers"] == 92)
    assert f"within {softmax['largest weight error']:.1e} of real gradient descent" in README
    ratios = [row["ratio"] for row in RESULTS["softmax_speed"]]
    assert f"takes {min(ratios):.2f} to {max(ratios):.2f} times as long" in README
    fits = [row["ratio"] for row in RESULTS["fits"]]
    assert f"{min(fits):.2f} to {max(fits):.2f} times the asymptotic optimum" in README


def test_its_figures_of_kernels_are_those_of_the_last_benchmark():
    errors = [row[f"{how} error"] for row in RESULTS["functional"] for how in ("dense", "fused")]
    assert f"to {max(errors):.1e} at every token" in README
    assert max(errors) <= 1e-12
    [times] = [row["times"] for row in RESULTS["schedules"] if row["condition"] == 100]
    assert f"leave {times:.0f} times less" in README
    assert times >= 300
    fixed = [row["ratio"] for row in RESULTS["training"] if row["A"] == "0"]
    assert f"takes {min(fixed):.2f} to {max(fixed):.2f} of the time" in README
    assert max(fixed) <= 0.5


def test_no_benchmark_was_over_its_limit():
    rows = [row for name in ("speed", "softmax_speed", "memory", "fits") for row in RESULTS[name]]
    assert rows
    assert [row for row in rows if row["ratio"] > row["limit"]] == []

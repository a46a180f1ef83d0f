"""What the README shows works as shown."""

import re
from pathlib import Path

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


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
    missing = [target for target in targets if not (Path(__file__).parents[1] / target).exists()]
    assert missing == []

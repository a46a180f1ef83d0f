"""Results that are in the repository."""

import json
from pathlib import Path
from typing import Any

import pytest

RESULTS = Path(__file__).parents[2] / "results"


def committed(figure: str) -> dict[str, Any]:
    """The numbers of a figure's laptop preset; the test is skipped until they are committed."""
    path = RESULTS / figure / "laptop.json"
    if not path.exists():
        pytest.skip(f"results/{figure} is not there yet: icgd reproduce {figure} makes it")
    return json.loads(path.read_text(encoding="utf-8"))

"""Results that are in the repository."""

from pathlib import Path
from typing import Any

import pytest

from icgd_papers.results import stored_numbers

RESULTS = Path(__file__).parents[2] / "results"


def committed(figure: str) -> dict[str, Any]:
    """The numbers of a figure's laptop preset; the test is skipped until they are committed."""
    path = RESULTS / figure / "laptop.json"
    if not path.exists():
        pytest.skip(f"results/{figure} is not there yet: icgd reproduce {figure} makes it")
    return stored_numbers(path)

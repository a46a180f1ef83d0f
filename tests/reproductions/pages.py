"""The tables of a page of docs/, and the summaries of committed results."""

import json
from pathlib import Path

ROOT = Path(__file__).parents[2]


def table(page: str, heading: str) -> list[dict[str, str]]:
    """The first table below a heading, a dictionary for each row."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    section = text.split(f"\n## {heading}", 1)[1].split("\n## ", 1)[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    names, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [dict(zip(names, row, strict=True)) for row in rows if len(row) == len(names)]


def summary(figure: str) -> list[dict[str, str]]:
    """The summary of a figure's committed results."""
    path = ROOT / "results" / figure / "laptop.json"
    found: list[dict[str, str]] = json.loads(path.read_text(encoding="utf-8"))["summary"]
    return found

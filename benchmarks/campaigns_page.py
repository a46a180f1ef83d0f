"""Write docs/campaigns.md from the counts of the last campaigns.

    python -m benchmarks.campaigns_page

`make campaign` counts them again, in less than an hour on two cores, and then writes the page.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from icgd.weights.files import whole_file

ROOT = Path(__file__).parents[1]
COUNTS, PAGE = ROOT / "tests" / "campaigns" / "counts", ROOT / "docs" / "campaigns.md"

HEAD = """\
# Campaigns

A campaign tries hostile cases by the thousand: files that were damaged, processes that are \
killed, settings at the ends of what is allowed. Every case ends in an outcome, and each outcome \
that is not allowed fails the campaign. What is allowed is in the tables, with what it means.

`make campaign` tries all cases in less than an hour on two cores, and writes this page from \
`tests/campaigns/counts/`. `make test` tries a sample of each campaign.
"""


def main() -> None:
    with whole_file(PAGE) as temporary:
        temporary.write_text(page(read_counts()), encoding="utf-8")
    print(f"Written to {PAGE.relative_to(ROOT)}")


def read_counts() -> dict[str, Any]:
    """The counts of every campaign, by its name."""
    paths = sorted(COUNTS.glob("*.json"))
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in paths}


def page(campaigns: Mapping[str, Any]) -> str:
    """The whole page."""
    total = sum(each["cases"] for each in campaigns.values())
    wrong = sum(map(_not_allowed, campaigns.values()))
    words = f"The last campaigns had {total:,} cases; {wrong:,} had an outcome that is not allowed."
    sections = [_section(name, each) for name, each in campaigns.items()]
    return "\n".join([HEAD, f"{words}\n", *sections])


def _not_allowed(campaign: Mapping[str, Any]) -> int:
    found = campaign["outcomes"].items()
    return sum(n for outcome, n in found if outcome not in campaign["allowed"])


def _section(name: str, campaign: Mapping[str, Any]) -> str:
    longest = f"the longest took {campaign['longest_seconds']:.1f} s"
    lines = [
        f"| {outcome} | {n:,} | {campaign['allowed'].get(outcome, '**not allowed**')} |"
        for outcome, n in campaign["outcomes"].items()
    ]
    head = f"## {campaign['title']}\n\n`{name}`: {campaign['cases']:,} cases, {longest}.\n"
    return "\n".join([head, "| outcome | cases | meaning |", "| --- | --- | --- |", *lines, ""])


if __name__ == "__main__":
    main()

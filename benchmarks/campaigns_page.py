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

A campaign tries hostile cases by the thousand: damaged files, killed processes, extreme \
settings. Every case must end in an outcome that is allowed; *refused* is an error of icgd that \
leaves nothing behind. A proved distance is compared with that from training in 60 digits \
(*at most twice*); *too near* is a kink at which norms give way to balls. \
`tests/campaigns/counts/` says what the others mean. `make campaign` tries all cases in less than \
an hour on two cores and writes this page; `make test` tries a sample.
"""


def main() -> None:
    with whole_file(PAGE) as temporary:
        temporary.write_text(page(read_counts()), encoding="utf-8")
    print(f"Written to {PAGE.relative_to(ROOT)}")


def read_counts() -> dict[str, Any]:
    """Read the counts of every campaign, by its name."""
    paths = sorted(COUNTS.glob("*.json"))
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in paths}


def page(campaigns: Mapping[str, Any]) -> str:
    """Return the whole page."""
    total = sum(each["cases"] for each in campaigns.values())
    wrong = sum(map(_not_allowed, campaigns.values()))
    words = f"The last campaigns had {total:,} cases; {wrong:,} had an outcome that is not allowed."
    lines = ["| what is tried | cases | outcomes |", "| --- | --- | --- |"]
    lines += [_row(each) for each in campaigns.values()]
    return "\n".join([HEAD, f"{words}\n", *lines, ""])


def _not_allowed(campaign: Mapping[str, Any]) -> int:
    found = campaign["outcomes"].items()
    return sum(n for outcome, n in found if outcome not in campaign["allowed"])


def _row(campaign: Mapping[str, Any]) -> str:
    counts = [
        f"{outcome}: {n:,}" if outcome in campaign["allowed"] else f"**{outcome}: {n:,}**"
        for outcome, n in campaign["outcomes"].items()
        if n
    ]
    return f"| {campaign['title']} | {campaign['cases']:,} | {'; '.join(counts)} |"


if __name__ == "__main__":
    main()

"""Write the tables of figures in docs/reproductions/wu.md again, from the committed results.

    python -m benchmarks.wu_page

The first table below the heading of a figure is replaced by the summary of its results.
"""

from __future__ import annotations

from benchmarks.cheng_page import ROOT, with_tables
from icgd.weights.files import whole_file

PAGE = ROOT / "docs" / "reproductions" / "wu.md"
FIGURES = {
    "### Figure 1": "wu-fig1",
    "### Figure 2": "wu-fig2",
    "### Figure 3": "wu-fig3",
    "### Figure 4": "wu-fig4",
    "### Figure 5": "wu-fig5",
    "### FLOPs": "wu-flops",
    "### Is it gradient descent?": "wu-mechanism",
    "### What the paper does not say": "wu-choices",
}
"""The figure whose table stands below a heading that begins so."""


def main() -> None:
    text = with_tables(PAGE.read_text(encoding="utf-8"), FIGURES)
    with whole_file(PAGE) as temporary:
        temporary.write_text(text, encoding="utf-8")
    print(f"Written to {PAGE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()

"""The four papers whose statements are checked."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Paper:
    """A paper; what is not known of it is None."""

    key: str
    title: str
    authors: str | None
    venue: str | None
    arxiv: str | None


WU = Paper(
    key="wu",
    title="In-Context Deep Learning via Transformer Models",
    authors=None,
    venue="ICML 2025",
    arxiv=None,
)
WANG = Paper(
    key="wang",
    title="In-Context Learning on Function Classes Unveiled for Transformers",
    authors=None,
    venue="ICML 2024",
    arxiv=None,
)
CHENG = Paper(
    key="cheng",
    title=(
        "Transformers Implement Functional Gradient Descent to Learn Non-Linear Functions"
        " In Context"
    ),
    authors="Xiang Cheng, Yuxin Chen, Suvrit Sra",
    venue="ICML 2024",
    arxiv=None,
)
COT = Paper(
    key="cot", title="Chain-of-Thought Gradient Descent", authors=None, venue=None, arxiv=None
)

PAPERS = {paper.key: paper for paper in (WU, WANG, CHENG, COT)}
"""The papers by the names that icgd gives them."""

"""The four papers whose statements are checked."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Paper:
    """A paper; what is not known of it is None. `earlier_title` is that of an earlier version."""

    key: str
    title: str
    authors: str | None
    venue: str | None
    arxiv: str | None
    earlier_title: str | None = None


WU = Paper(
    key="wu",
    title="In-Context Deep Learning via Transformer Models",
    authors="Weimin Wu, Maojiang Su, Jerry Yao-Chieh Hu, Zhao Song, Han Liu",
    venue="ICML 2025, PMLR 267",
    arxiv="2411.16549",
    earlier_title=(
        "Transformers are Deep Optimizers: Provable In-Context Learning for Deep Model Training"
    ),
)
WANG = Paper(
    key="wang",
    title="In-Context Learning on Function Classes Unveiled for Transformers",
    authors="Zhijie Wang, Bo Jiang, Shuai Li",
    venue="ICML 2024",
    arxiv=None,
    earlier_title="Transformers Perform In-Context Learning Through Neural Networks",
)
CHENG = Paper(
    key="cheng",
    title=(
        "Transformers Implement Functional Gradient Descent to Learn Non-Linear Functions"
        " In Context"
    ),
    authors="Xiang Cheng, Yuxin Chen, Suvrit Sra",
    venue="ICML 2024, PMLR 235",
    arxiv="2312.06528",
)
COT = Paper(
    key="cot",
    title="Chain-of-Thought Gradient Descent",
    authors=None,
    venue="Anonymous submission",
    arxiv=None,
)

PAPERS = {paper.key: paper for paper in (WU, WANG, CHENG, COT)}
"""The papers by the names that icgd gives them."""

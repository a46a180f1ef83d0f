"""The theorem book: all statements of all papers."""

from __future__ import annotations

from icgd_papers.theorems.cheng.registry import STATEMENTS as CHENG
from icgd_papers.theorems.cot.registry import STATEMENTS as COT
from icgd_papers.theorems.statement import Statement
from icgd_papers.theorems.wang.registry import STATEMENTS as WANG
from icgd_papers.theorems.wu.registry import STATEMENTS as WU

STATEMENTS: dict[str, Statement] = {
    statement.key: statement for part in (WU, WANG, CHENG, COT) for statement in part
}
"""Every statement by its key."""

"""The theorem book: all statements of all papers."""

from __future__ import annotations

from icgd.theorems.cheng.registry import STATEMENTS as CHENG
from icgd.theorems.cot.registry import STATEMENTS as COT
from icgd.theorems.statement import Statement
from icgd.theorems.wang.registry import STATEMENTS as WANG
from icgd.theorems.wu.registry import STATEMENTS as WU

STATEMENTS: dict[str, Statement] = {
    statement.key: statement for part in (WU, WANG, CHENG, COT) for statement in part
}
"""Every statement by its key."""

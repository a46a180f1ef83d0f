"""What the checks find, each once for all tests."""

from functools import cache

from icgd_papers.theorems.cot.registry import STATEMENTS
from icgd_papers.theorems.statement import Finding

BY_KEY = {statement.key: statement for statement in STATEMENTS}


@cache
def finding_of(key: str, seed: int = 0) -> Finding:
    check = BY_KEY[key].check
    assert check is not None, f"{key} has no check"
    return check(seed)

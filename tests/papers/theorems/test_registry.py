"""What every statement of the book must have, whatever it says."""

from collections import Counter

from icgd_papers.theorems.cheng.registry import STATEMENTS as CHENG
from icgd_papers.theorems.cot.registry import STATEMENTS as COT
from icgd_papers.theorems.registry import STATEMENTS
from icgd_papers.theorems.wang.registry import STATEMENTS as WANG
from icgd_papers.theorems.wu.registry import STATEMENTS as WU

PARTS = {"wu": WU, "wang": WANG, "cheng": CHENG, "cot": COT}
ALL = [statement for part in PARTS.values() for statement in part]


def test_no_two_statements_share_a_key():
    assert [key for key, n in Counter(each.key for each in ALL).items() if n > 1] == []
    assert list(STATEMENTS.values()) == ALL


def test_every_statement_stands_in_the_registry_of_its_paper():
    wrong = [each.key for paper, part in PARTS.items() for each in part if each.paper != paper]
    assert wrong == []


def test_every_statement_is_a_whole_sentence_and_has_a_formula():
    assert [each.key for each in ALL if not each.claim.endswith(".")] == []
    assert [each.key for each in ALL if not each.formula] == []
    assert [each.key for each in ALL if each.correction and not each.correction.endswith(".")] == []


def test_a_statement_has_a_check_or_a_reason_why_it_has_none():
    assert [each.key for each in ALL if (each.check is None) == (each.reason is None)] == []
    assert [each.key for each in ALL if each.correction and each.check is None] == []

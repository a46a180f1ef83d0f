import json

import pytest

from icgd.cli import theorems
from icgd.reproductions.cheng_theory import N_STATEMENTS, QUICK
from icgd.training.assumptions import Check


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(theorems, "Sizes", lambda: QUICK)


def test_every_statement_is_listed_with_what_was_measured_and_allowed(command):
    ran = command("theorems", "--json")
    assert ran.code == 0
    found = json.loads(ran.stdout)
    assert len(found) == N_STATEMENTS
    assert all(check["holds"] and check["measured"] <= check["tolerance"] for check in found)


def test_the_table_ends_with_the_verdict(command, monkeypatch):
    right, wrong = Check("A: one", 0.5, 1.0, "units"), Check("B: one", 2.0, 1.0, "units")
    monkeypatch.setattr(theorems, "checks", lambda sizes, seed: [right, wrong])
    ran = command("theorems")
    assert ran.code == 1
    assert "one (units)" in ran.stdout
    assert "FAILS" in ran.stdout
    assert ran.stdout.rstrip().endswith("1 of 2 hold.")

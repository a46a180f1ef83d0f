from math import sqrt

import pytest

from icgd_papers.theorems.wang import barron
from icgd_papers.theorems.wang.barron import LOTTERY, lemma_5


def test_the_lottery_is_held_against_the_constant_of_the_proof(monkeypatch):
    monkeypatch.setattr(type(LOTTERY), "drawn_distance", lambda self, n, repeats, seed: 7.0 / n)
    found = lemma_5(seed=0).right
    assert [each.measured for each in found] == [7.0 / n for n in (1, 16, 256, 40_000)]
    constant = 8.114781933  # sqrt(2) 2 (1 + sqrt(2 / pi)) 4 exp(-1/2) / (2 pi S)
    assert [each.allowed for each in found] == pytest.approx(
        [constant / sqrt(n) for n in (1, 16, 256, 40_000)]
    )
    assert barron.LEMMA_5.check is lemma_5

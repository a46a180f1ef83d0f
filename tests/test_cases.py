"""What the fast tests leave to the slow ones: no function, loss or depth of any construction."""

import pytest

from tests import cases
from tests.cases import BATCHED, FEW, SMALL, covering, every_construction, serves, traits


def shown(of: tuple[cases.Case, ...]) -> set[tuple[str, object]]:
    return set().union(*map(traits, of))


@every_construction
@pytest.mark.parametrize("matrix", [SMALL, FEW, (*SMALL, *BATCHED)], ids=["small", "few", "all"])
def test_the_fast_cases_show_all_that_the_matrix_shows(construction, matrix):
    served = tuple(case for case in matrix if serves(construction, case))
    fast = covering(served)
    assert shown(fast) == shown(served)
    assert len(set(fast)) == len(fast) <= 12


def test_the_matrix_shows_every_function_and_depth():
    assert {("activation", name) for name in cases.KNOWN} <= shown(SMALL)
    assert {("loss", name) for name in cases.ONE_VARIABLE_LOSSES} <= shown(SMALL)
    assert {("depth", depth) for depth in (1, 2, 3, 4)} <= shown(SMALL)


def test_what_is_not_covering_is_slow_unless_the_whole_matrix_is_wanted():
    def n_fast(*args, **settings):
        return sum(
            not param.marks for param in cases.every_construction_on(*args, **settings).args[1]
        )

    everything = n_fast(SMALL, whole=True)
    assert everything == len(cases.every_construction_on(SMALL).args[1])
    assert n_fast(SMALL, FEW) == n_fast(FEW) < n_fast(SMALL) < everything / 2

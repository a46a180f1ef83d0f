"""Bounds (a) and (b) in 500 random cases of relu-stack, 215 of softmax-stack and 200 of recursion,
and how tight (b) is.

Both backends and precisions; and cases whose steps jump far across the box. One small group of
cases of each construction is run at all times, the others with the slow tests.
"""

from dataclasses import dataclass, replace
from random import Random
from statistics import median

import hypothesis
import jaxtyping
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import icgd
from icgd.constructions.base import AbstractConstruction
from icgd.errors import SettingError
from icgd.problems.functions import ACTIVATIONS, UNIT_ACTIVATIONS

N_GROUPS, N_SOFTMAX_GROUPS, N_RECURSION_GROUPS = 20, 8, 8
N_FAST = 1


def cases_in(group: int) -> int:
    """Return how many cases a group has: fewer if it is run at all times."""
    return 12 if group < N_FAST else 25


FAR_JUMPS = 1e9  # steps that cross the box many times over

names = st.sampled_from(sorted(ACTIVATIONS))
widths = st.lists(st.integers(1, 5), min_size=2, max_size=5).map(tuple)
outputs = st.one_of(st.just("identity"), names)
losses = st.sampled_from(["squared", "logistic", "huber"])


@pytest.fixture(autouse=True)
def _without_checks_of_shapes():
    """The matrix of cases has checked them; here they would take most of the time."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


def groups(n_groups: int) -> pytest.MarkDecorator:
    """Parametrise a test over groups of cases, of which the first `N_FAST` are run at all times."""
    numbers = [
        pytest.param(group, marks=[] if group < N_FAST else pytest.mark.slow)
        for group in range(n_groups)
    ]
    return pytest.mark.parametrize("group", numbers)


def descriptions(largest_step: float, largest_box: float) -> st.SearchStrategy:
    """Problems with boxes and inputs up to `largest_box`."""
    updates = st.tuples(st.floats(0.01, largest_step), st.floats(0.05, largest_box))
    domains = st.tuples(st.floats(0.5, largest_box), st.floats(0.5, 2.0))
    return st.tuples(st.tuples(widths, names, outputs), losses, updates, domains)


def problem_of(target: tuple, loss: str, update: tuple, domain: tuple) -> icgd.Problem:
    return icgd.Problem(icgd.MLP(*target), loss, icgd.GradientStep(*update), icgd.Domain(*domain))


def data_for(problem: icgd.Problem, n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs over the whole domain; labels that suit every loss."""
    generator = torch.Generator().manual_seed(seed)
    widths, domain = problem.target.widths, problem.domain
    x = domain.x * (2 * torch.rand(n, widths[0], generator=generator, dtype=torch.float64) - 1)
    y = torch.rand(n, widths[-1], generator=generator, dtype=torch.float64)
    return x, y * min(1.0, domain.y)


@dataclass(frozen=True)
class Kind:
    """Cases of one construction: how finely it approximates, and on which problems."""

    construction: AbstractConstruction
    fineness: dict[str, st.SearchStrategy]
    largest_box: float
    backends: tuple[str, ...]
    n_steps: int


RELU_STACK = Kind(
    icgd.ReluStack(), {"pieces": st.integers(2, 64)}, 4.0, ("fused", "fused", "dense"), n_steps=2
)
# The registers for full accuracy grow with box and domain, and with them the time of a case.
SOFTMAX_STACK = Kind(
    icgd.SoftmaxStack(),
    {"registers": st.one_of(st.none(), st.integers(32, 64))},
    1.0,
    ("fused", "dense"),
    n_steps=2,
)


def bound_over_measured(
    group: int, n_cases: int, largest_step: float, kind: Kind = RELU_STACK
) -> list[float]:
    """Check every bound in `n_cases` cases; how far bound (b) lay above each measured error."""
    ratios: list[float] = []

    @hypothesis.seed(group)
    @settings(max_examples=n_cases, deadline=None, derandomize=False, database=None)
    @given(
        description=descriptions(largest_step, kind.largest_box),
        n=st.integers(1, 8),
        fineness=st.fixed_dictionaries(kind.fineness),
        backend=st.sampled_from(kind.backends),
        dtype=st.sampled_from(["float64", "float64", "float32"]),
        seed=st.integers(0, 2**16),
    )
    def bounds_hold(description, n, fineness, backend, dtype, seed) -> None:
        problem = problem_of(*description)
        assume(kind.construction.why_not(problem) is None)  # not every one looks kinks up
        made_for = {"dtype": dtype} if "dtype" in kind.construction.settings() else {}
        construction = replace(kind.construction, **fineness, **made_for)
        compiled = icgd.compile(problem, construction, n_steps=kind.n_steps)
        ratios.extend(checked(compiled, n, seed, backend, dtype))

    bounds_hold()
    return ratios


def checked(compiled: icgd.Compiled, n: int, seed: int, backend: str, dtype: str) -> list[float]:
    """Check every bound on `n` random examples; bound (b) over the error, unless that is 0."""
    x, y = data_for(compiled.problem, n, seed)
    report = icgd.verify(compiled, x, y, seed=seed, backend=backend, dtype=dtype)
    assert (report.step_errors <= report.step_bounds).all()
    assert (report.step_errors <= report.certificate.domain_step).all()
    assert (report.trajectory_errors <= report.trajectory_bounds).all()
    assert (report.trajectory_errors <= report.certificate.domain_trajectory).all()
    assert report.verdict.holds
    measured = float(report.step_errors.max())
    return [float(report.step_bounds.max()) / measured] if measured > 0 else []


@groups(N_GROUPS)
def test_bounds_hold_in_every_random_case_and_are_tight_in_the_median(group: int):
    ratios = bound_over_measured(group, cases_in(group), largest_step=1.0)
    assert len(ratios) >= cases_in(group) // 2  # the others had no error at all
    assert median(ratios) <= 1000


@groups(2)
def test_bounds_hold_when_a_step_jumps_far_across_the_box(group: int):
    assert bound_over_measured(N_GROUPS + group, cases_in(group), largest_step=FAR_JUMPS)


@groups(N_SOFTMAX_GROUPS)
def test_bounds_of_softmax_stack_hold_in_every_random_case_and_are_tight_in_the_median(group: int):
    n_cases = cases_in(group)
    ratios = bound_over_measured(100 + group, n_cases, largest_step=1.0, kind=SOFTMAX_STACK)
    assert len(ratios) >= n_cases // 2
    assert median(ratios) <= 500


def test_bounds_of_softmax_stack_hold_when_a_step_jumps_far_across_the_box():
    assert bound_over_measured(100 + N_SOFTMAX_GROUPS, 15, FAR_JUMPS, SOFTMAX_STACK)


RUNS_OF_A_PROBLEM = 5


def random_recursion(random: Random, dtype: str) -> icgd.Compiled:
    """Any network with any units of any number that can serve it; two tries in three succeed."""
    while True:
        widths = tuple(random.randint(1, 3) for _ in range(random.randint(2, 4)))
        update = icgd.GradientStep(random.uniform(0.01, 1.0), random.uniform(0.1, 1.5))
        domain = icgd.Domain(random.uniform(0.5, 1.5), random.uniform(0.5, 2.0))
        target = icgd.MLP(widths, random.choice(sorted(ACTIVATIONS)))
        loss = random.choice(["squared", "logistic", "huber"])
        try:
            return icgd.compile(
                icgd.Problem(target, loss, update, domain),
                n_steps=2,
                construction="recursion",
                units=random.randint(24, 64),
                unit_activation=random.choice([None, *UNIT_ACTIVATIONS]),
                dtype=dtype,
            )
        except SettingError:  # no kinks in these units, or a box too large for so few
            continue


@groups(N_RECURSION_GROUPS)
def test_bounds_of_recursion_hold_in_every_random_case_and_are_tight_in_the_median(group: int):
    """A fit takes longer than a run, so that every problem meets several data sets."""
    random, ratios, n_problems = Random(group), [], cases_in(group) // RUNS_OF_A_PROBLEM
    for number in range(n_problems):
        dtype = "float32" if number == 0 else "float64"
        compiled = random_recursion(random, dtype)
        for run in range(RUNS_OF_A_PROBLEM):
            backend = "dense" if run % 2 else "fused"
            n, seed = random.randint(1, 8), random.randrange(2**16)
            ratios += checked(compiled, n, seed, backend, dtype)
    assert len(ratios) >= n_problems * RUNS_OF_A_PROBLEM // 2
    assert median(ratios) <= 1000

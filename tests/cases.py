"""The problems of the test matrix: every activation with every loss, over depths 1 to 4."""

from dataclasses import dataclass, replace
from functools import cache

import pytest
import torch
from torch import Tensor

from icgd.constructions.base import AbstractConstruction
from icgd.constructions.registry import CONSTRUCTIONS
from icgd.problems.data import Domain, Task, as_task
from icgd.problems.functions import ACTIVATIONS, OWN, SmoothFunction
from icgd.problems.kernel_machine import KernelHead, KernelMachine
from icgd.problems.mlp import MLP
from icgd.problems.optimisers import GradientStep
from icgd.problems.problem import Problem
from icgd.problems.steps import FunctionalStep
from icgd.program.stack import StackProgram


@dataclass(frozen=True, eq=False)
class Case:
    """A problem with data for it; with a leading axis for a batch of tasks."""

    name: str
    problem: Problem
    x: Tensor
    y: Tensor
    queries: Tensor
    seed: int

    def __repr__(self) -> str:
        return self.name

    @property
    def is_exact(self) -> bool:
        """Whether every function is piecewise linear, so that only steps are approximated."""
        target = self.problem.target
        values = [target.layer_activation(layer).value for layer in range(1, target.depth + 1)]
        slopes = [part.function for part in self.problem.loss_function.slope_terms or ()]
        return not any(isinstance(function, SmoothFunction) for function in values + slopes)

    def task(self, dtype: str = "float64") -> Task:
        return as_task(
            self.problem, self.x, self.y, queries=self.queries, seed=self.seed, dtype=dtype
        )


def make_case(
    target: MLP,
    loss: str,
    *,
    step_size: float = 0.5,
    box: float = 3.0,
    domain: Domain | None = None,
    n_examples: int = 5,
    n_queries: int = 2,
    tasks: tuple[int, ...] = (),
    seed: int = 0,
) -> Case:
    """Normal inputs cut off at the domain; labels between 0 and 1, those of classes are shares."""
    domain = domain or Domain(x=2.0, y=2.0)
    generator = torch.Generator().manual_seed(seed)
    float64 = {"generator": generator, "dtype": torch.float64}
    widths = "-".join(str(width) for width in target.widths)
    output = "" if target.output_activation == "identity" else f"-{target.output_activation}"
    biases = "-biases" if target.biases else ""
    x = torch.randn(*tasks, n_examples, target.widths[0], **float64)
    y = torch.rand(*tasks, n_examples, target.widths[-1], **float64)
    return Case(
        name=f"{target.activation}-{widths}{output}-{loss}{biases}",
        problem=Problem(target, loss, GradientStep(step_size, box), domain),
        x=x.clamp(-domain.x, domain.x),
        y=y / y.sum(-1, keepdim=True) if loss == "cross_entropy" else y * min(1.0, domain.y),
        queries=torch.rand(*tasks, n_queries, target.widths[0], **float64) * domain.x,
        seed=seed,
    )


def exact_step(problem: Problem, weights: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """One step of the oracle on these examples."""
    return problem.oracle.step(Task(x, y, x[..., :0, :], weights), weights)


def batch_of(case: Case, n_tasks: int) -> Case:
    """Other data for the same problem, `n_tasks` at once."""
    problem = case.problem
    data = make_case(
        problem.target,
        problem.loss,
        domain=problem.domain,
        n_examples=case.x.shape[-2],
        tasks=(n_tasks,),
        seed=case.seed,
    )
    return replace(data, problem=problem)


def tasks_of(batch: Task) -> list[Task]:
    """The tasks of a batch, one by one."""
    parts = (batch.x, batch.y, batch.queries, batch.initial)
    return [Task(*parts) for parts in zip(*parts, strict=True)]


SHAPES = ((3, 2), (2, 3, 1), (3, 4, 4, 2), (2, 3, 3, 3, 2))
KNOWN = tuple(name for name in ACTIVATIONS if name not in OWN)
"""Activations that every construction serves; those that a text defines have tests of their own."""

SMOOTH = tuple(
    name for name, activation in ACTIVATIONS.items() if isinstance(activation.value, SmoothFunction)
)
ONE_VARIABLE_LOSSES = ("squared", "logistic", "huber")


def _small(activation: str, loss: str, number: int) -> Case:
    """Depth 1, 2, 3 or 4 in turn; networks of odd depth have an activation at the output too."""
    widths = SHAPES[number % 4]
    output = "identity" if len(widths) % 2 else activation
    return make_case(MLP(widths, activation, output), loss, seed=3 + number)


def _with_biases(case: Case) -> Case:
    """The same problem with biases."""
    target = replace(case.problem.target, biases=True)
    problem = replace(case.problem, target=target)
    return replace(case, name=f"{case.name}-biases", problem=problem)


TINY = make_case(
    MLP((1, 1), "tanh", "tanh"), "squared", step_size=2.0, box=1.0, n_examples=2, seed=8
)
"""One weight and two examples, for the table of universal; every step leads to another level."""

SMALL = (
    *(
        _small(activation, loss, row + column)
        for row, activation in enumerate(KNOWN)
        for column, loss in enumerate(ONE_VARIABLE_LOSSES)
    ),
    TINY,
    *(
        _with_biases(_small(activation, loss, number))
        for number, (activation, loss) in enumerate((("relu", "huber"), ("silu", "logistic")), 1)
    ),
)

FEW = tuple(case for case in SMALL if case.problem.target.activation in {"relu", "tanh", "silu"})
"""For behaviour that does not depend on the function."""


def _in_box(case: Case, box: float) -> Case:
    """The same problem in another box, with smaller inputs."""
    target, loss = case.problem.target, case.problem.loss
    return make_case(target, loss, box=box, domain=Domain(x=1.0, y=2.0), seed=case.seed)


NARROW = {case: _in_box(case, 0.5) for case in SMALL}
"""The same problems in a smaller box and domain."""

ROOMY = {case: _in_box(case, 1.0) for case in SMALL}
"""In a box that few weights come near to."""


def _batched(case: Case) -> Case:
    """The same problem with steps on two examples."""
    update = replace(case.problem.update, batch_size=2)
    return replace(case, name=f"{case.name}-2", problem=replace(case.problem, update=update))


BATCHED = tuple(_batched(NARROW[SMALL[number]]) for number in (1, 11, 15))
"""2-3-1 relu, tanh and gelu, each with another loss, in steps on some of the examples."""

SUITED = {"softmax-stack": NARROW, "recursion": ROOMY}


def suited(construction: AbstractConstruction, case: Case) -> Case:
    """The case as large as the construction can take in a test.

    The registers of softmax-stack grow with the largest preactivation, and what it loses to
    rounding with the largest slope: narrow cases need 32 to 68 registers instead of up to 240. So
    do the units of recursion, whose corners of the box are soft if its units have no kinks.
    """
    return SUITED.get(construction.name, {}).get(case, case)


def over(cases: tuple[Case, ...]) -> pytest.MarkDecorator:
    """Parametrise a test over `cases`."""
    return pytest.mark.parametrize("case", cases, ids=lambda case: case.name)


def every_construction_on(
    cases: tuple[Case, ...], fast: tuple[Case, ...] | None = None, *, whole: bool = False
) -> pytest.MarkDecorator:
    """Parametrise a test over every construction and the `cases` that it can serve.

    Fast are as few as are `covering` them, or those of them that are given as `fast`; the others
    are slow, unless the `whole` matrix is wanted at all times.
    """
    pairs = []
    for name, construction in CONSTRUCTIONS.items():
        served = tuple(case for case in cases if serves(construction, case))
        telling = tuple(case for case in served if fast is None or case in fast)
        at_all_times = served if whole else covering(telling)
        pairs += [
            pytest.param(
                construction,
                suited(construction, case),
                id=f"{case.name}-{name}",
                marks=[] if case in at_all_times else pytest.mark.slow,
            )
            for case in served
        ]
    return pytest.mark.parametrize(("construction", "case"), pairs)


@cache
def serves(construction: AbstractConstruction, case: Case) -> bool:
    return construction.why_not(case.problem) is None


@cache
def covering(cases: tuple[Case, ...]) -> tuple[Case, ...]:
    """A few of the cases that show all that the cases show, the most telling ones first."""
    missing, found = set().union(*map(traits, cases)), []
    while missing:
        found.append(max(cases, key=lambda case: len(missing & traits(case))))
        missing -= traits(found[-1])
    return tuple(found)


def traits(case: Case) -> set[tuple[str, object]]:
    """What a construction may depend on; where all functions are exact, the depth adds nothing."""
    problem = case.problem
    return {
        ("activation", problem.target.activation),
        ("output", problem.target.output_activation),
        ("loss", problem.loss),
        ("depth", None if case.is_exact else problem.target.depth),
        ("batch", problem.gradient_step.batch_size),
        ("biases", problem.target.biases),
    }


every_construction = pytest.mark.parametrize(
    "construction", CONSTRUCTIONS.values(), ids=lambda construction: construction.name
)


def build(
    construction: AbstractConstruction,
    case: Case,
    n_steps: int = 3,
    pieces: int = 128,
    dtype: str = "float64",
) -> StackProgram:
    """The construction's program for a case; skips the test if it cannot serve the problem.

    softmax-stack has no pieces, but as many registers as give full accuracy in `dtype`.
    """
    if reason := construction.why_not(case.problem):
        pytest.skip(reason)
    wanted = {"pieces": pieces, "dtype": dtype}
    settings = {name: wanted[name] for name in construction.settings() if name in wanted}
    return _built(replace(construction, **settings), case, n_steps)


@cache
def _built(construction: AbstractConstruction, case: Case, n_steps: int) -> StackProgram:
    """Many tests read the same one."""
    return construction.build(case.problem, n_steps)


ROTATION = ((0.6, 0.8, 0.0), (-0.8, 0.6, 0.0), (0.0, 0.0, 0.5))
SUM = KernelMachine(
    3, (KernelHead("linear", ROTATION, 0.5), KernelHead("matern", ROTATION[:2], 2.0, 2.5)), 2
)
"""Two heads, one of which sees two directions only, for labels of two coordinates."""


SKEW = ((0.3, -0.5, 0.1), (0.2, 0.4, 0.0), (0.0, -0.3, 0.6))
LEARNT = (
    (KernelHead("exp", ROTATION, 0.5, None, SKEW), KernelHead("rbf", SKEW, 2.0)),
    (KernelHead("rbf", SKEW[:2], 1.0, None, ROTATION[:2]), KernelHead("polynomial")),
    (KernelHead("softmax", SKEW, 1.5, None, ROTATION),),
)
"""The heads of three steps, which differ; some have other keys than queries."""


def kernel_case(machine: KernelMachine, update: FunctionalStep, *, name: str, seed: int) -> Case:
    """Normal inputs and labels for functional descent, cut off at the domain."""
    generator = torch.Generator().manual_seed(seed)
    x, queries = (
        torch.randn(n, machine.input_width, generator=generator, dtype=torch.float64).clamp(-2, 2)
        for n in (7, 3)
    )
    y = torch.randn(7, machine.output_width, generator=generator, dtype=torch.float64)
    problem = Problem(machine, "squared", update, Domain(x=2.0, y=4.0))
    return Case(name, problem, x, y, queries, seed)


KERNEL_CASES = (
    *(
        kernel_case(KernelMachine(3, kernel), FunctionalStep(size), name=kernel, seed=row)
        for row, (kernel, size) in enumerate(
            {
                "linear": 0.05,
                "relu": 0.05,
                "exp": 1e-3,
                "rbf": 0.3,
                "laplace": 0.4,
                "matern": 0.3,
                "polynomial": 2e-3,
                "softmax": 0.7,
            }.items()
        )
    ),
    kernel_case(SUM, FunctionalStep((0.1, 0.02, 0.05), noise=0.3), name="sum-noise", seed=20),
    kernel_case(
        SUM, FunctionalStep(0.05, transforms=(0.01, ROTATION, -0.02)), name="sum-moved", seed=21
    ),
    kernel_case(
        KernelMachine(3, "rbf"), FunctionalStep(0.2, 0.1, (ROTATION,)), name="rbf-moved", seed=22
    ),
    kernel_case(
        KernelMachine(3, "exp", 2),
        FunctionalStep((0.02, 0.1, 0.3), heads=LEARNT),
        name="learnt",
        seed=23,
    ),
    kernel_case(
        KernelMachine(3, "exp"),
        FunctionalStep(0.02, 0.1, (0.01,), LEARNT),
        name="learnt-moved",
        seed=24,
    ),
    kernel_case(
        KernelMachine(3, "rbf"), FunctionalStep(0.3, 0.1, momentum=0.6), name="heavy-ball", seed=25
    ),
    kernel_case(
        SUM,
        FunctionalStep((0.1, 0.02, 0.05), 0.3, momentum=(0.0, 0.4, 0.9)),
        name="sum-heavy-ball",
        seed=26,
    ),
    kernel_case(
        KernelMachine(3, "matern", 2),
        FunctionalStep(0.2, momentum=(0.0, 0.28, 0.43), nesterov=True),
        name="nesterov",
        seed=27,
    ),
    kernel_case(
        KernelMachine(3, "exp"),
        FunctionalStep(0.02, 0.1, (0.01,), LEARNT, momentum=0.5, nesterov=True),
        name="nesterov-moved",
        seed=28,
    ),
)
"""Every kernel; a sum of kernels; steps that differ, noise, and steps that move the inputs; steps
with a kernel each, whose queries and keys differ; momentum of both kinds."""

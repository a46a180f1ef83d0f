"""A function learnt layer by layer, and how fast: the picture of functional descent.

Left, a transformer fits points on a line: its function after a few layers, and the kernel
regression that it tends to. Right, what is left along the worst eigenvector of a kernel of
condition number 100, with the best constant step and with Chebyshev steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from icgd.pictures import plotting
from icgd.pictures.plotting import BLUE, FAINT, INK, ORANGE, RED, Axes, Figure
from icgd.pipeline import compile
from icgd.problems.data import Domain
from icgd.problems.kernel_machine import KernelHead, KernelMachine
from icgd.problems.problem import Problem
from icgd.problems.spectrum import spectrum
from icgd.problems.steps import FunctionalStep, best_constant_step, chebyshev_steps

CONDITION = 100.0


@dataclass(frozen=True)
class Sizes:
    """How much is computed."""

    n_examples: int = 14
    n_queries: int = 201
    n_layers: int = 150
    shown: tuple[int, ...] = (1, 8, 150)
    most_layers: int = 40
    n_eigenvalues: int = 65


@dataclass(frozen=True)
class Result:
    """Points, the function at the queries after the shown layers, and what is left over layers."""

    x: tuple[float, ...]
    y: tuple[float, ...]
    queries: tuple[float, ...]
    values: dict[int, tuple[float, ...]]
    limit: tuple[float, ...]
    constant: tuple[float, ...]
    chebyshev: tuple[float, ...]


def measure(sizes: Sizes = Sizes()) -> Result:  # noqa: B008 - a constant
    """Run the compiled transformers."""
    generator = torch.Generator().manual_seed(5)
    x = torch.linspace(-1.0, 1.0, sizes.n_examples, dtype=torch.float64)[:, None]
    y = torch.sin(4 * x) * (1 + x) / 2
    y = y + 0.1 * torch.randn(x.shape, generator=generator, dtype=x.dtype)
    queries = torch.linspace(-1.1, 1.1, sizes.n_queries, dtype=torch.float64)[:, None]
    machine, noise = KernelMachine(1, KernelHead("rbf", ((4.0,),))), 0.02
    found = spectrum(machine, x, noise)
    step = best_constant_step(found.low, found.high)
    problem = Problem(machine, "squared", FunctionalStep(step, noise), Domain(1.1, 2.0))
    compiled = compile(problem, n_steps=sizes.n_layers)
    task = compiled.task(x, y, queries=queries)
    run = compiled.run_task(task)
    values = run.parameters[:, sizes.n_examples :]
    return Result(
        x=_plain(x),
        y=_plain(y),
        queries=_plain(queries),
        values={layer: _plain(values[layer]) for layer in sizes.shown},
        limit=_plain(problem.function_oracle.limit(task)),
        constant=_left(sizes, constant=True),
        chebyshev=_left(sizes, constant=False),
    )


def _plain(values: Tensor) -> tuple[float, ...]:
    return tuple(values.flatten().tolist())


def _left(sizes: Sizes, *, constant: bool) -> tuple[float, ...]:
    """The largest error along any eigenvector after 1, 2, ... layers.

    Every number of layers has Chebyshev steps of its own.
    """
    layers = range(1, sizes.most_layers + 1)
    if constant:
        steps = (best_constant_step(1.0, CONDITION),) * sizes.most_layers
        return tuple(_worst(sizes, steps)[layer] for layer in layers)
    return tuple(_worst(sizes, chebyshev_steps(1.0, CONDITION, layer))[-1] for layer in layers)


def _worst(sizes: Sizes, steps: tuple[float, ...]) -> list[float]:
    """What is left after every layer, of labels along all eigenvectors of a linear kernel."""
    eigenvalues = torch.linspace(1.0, CONDITION, sizes.n_eigenvalues, dtype=torch.float64)
    machine = KernelMachine(sizes.n_eigenvalues, "linear")
    problem = Problem(machine, "squared", FunctionalStep(steps), Domain(CONDITION**0.5, 1.0))
    y = torch.ones(sizes.n_eigenvalues, dtype=torch.float64)
    run = compile(problem, n_steps=len(steps)).run(torch.diag(eigenvalues.sqrt()), y)
    return [float(left) for left in (y - run.parameters).abs().amax(-1)]


def draw(result: Result) -> Figure:
    """The two panels."""
    figure, panels = plotting.new_figure(13.0, 4.8, 2)
    _draw_function(panels[0], result)
    _draw_rates(panels[1], result)
    return figure


def _draw_function(panel: Axes, result: Result) -> None:
    plotting.describe(panel, "One layer is one step of descent on a function", "x", "f(x)")
    panel.plot(result.queries, result.limit, color=ORANGE, linewidth=7, alpha=0.5)
    names = [("broad: kernel regression", ORANGE)]
    for (layer, values), colour in zip(result.values.items(), (FAINT, RED, BLUE), strict=False):
        panel.plot(result.queries, values, color=colour, linewidth=1.8)
        names.append((f"{layer} layer{'s' * (layer > 1)}", colour))
    panel.plot(result.x, result.y, "o", color=INK, markersize=6)
    for line, (name, colour) in enumerate(names):  # the upper left corner is free
        plotting.note(panel, name, (-1.1, 0.8 - 0.12 * line), colour)


def _draw_rates(panel: Axes, result: Result) -> None:
    plotting.describe(panel, "Chebyshev steps learn far faster", "layers", "largest error left")
    panel.set_yscale("log")
    layers = range(1, len(result.constant) + 1)
    for left, colour in ((result.constant, RED), (result.chebyshev, BLUE)):
        panel.plot(layers, left, color=colour, linewidth=2.2)
    last = len(result.constant)
    ratio = result.constant[-1] / result.chebyshev[-1]
    middle = (result.constant[-1] * result.chebyshev[-1]) ** 0.5
    panel.plot((last, last), (result.constant[-1], result.chebyshev[-1]), ":", color=FAINT)
    plotting.tag(panel, f"{ratio:.0f} times less", (last - 0.6, middle), ha="right")
    plotting.note(panel, "best constant step", (0.5 * last, 0.95), RED)
    plotting.note(panel, "Chebyshev steps", (0.25 * last, 0.02), BLUE)

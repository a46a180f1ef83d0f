r"""Proposition 3.1: every layer is a step of functional gradient descent.

With h[i, j] = K(u_i, w_j), B = C = I and V = diag(0, -r_l) the label of the query after layer l is

    TF_l(x) = -f_l(x),    f_0 = 0,    f_{l+1} = f_l + r_l sum_i (y_i - f_l(x_i)) K(., x_i).   (9)
"""

from __future__ import annotations

import warnings
from math import e

import torch
from torch import Tensor

from icgd.errors import DivergenceWarning
from icgd.pipeline import compile
from icgd.problems.data import Domain, Task, as_task
from icgd.problems.kernel_machine import KERNELS, KernelHead, KernelMachine, kernel_named
from icgd.problems.problem import Problem
from icgd.problems.steps import FunctionalStep
from icgd_papers.theorems.cheng.written_out import (
    WIDTH,
    agreement,
    descent_layers,
    exponential,
    hidden,
    softmax,
    sphere_points,
    stream,
    wave,
)
from icgd_papers.theorems.statement import Comparison, Finding, Statement

N_EXAMPLES = 30
N_LAYERS = 60
STEP = 0.02
"""A step size that suits exp attention on 12 examples: below 1 over the largest eigenvalue."""


def sphere_task(machine: KernelMachine, update: FunctionalStep, points: Tensor) -> Task:
    """A task on these points; the last fifth of them are queries."""
    n_examples = 4 * len(points) // 5
    y = wave(points[:n_examples])[:, None]
    problem = Problem(machine, "squared", update, Domain(1.0, 1.0))
    return as_task(problem, points[:n_examples], y, queries=points[n_examples:])


def every_layer(heads: tuple[KernelHead, ...], seed: int, n_layers: int = N_LAYERS) -> Comparison:
    """Compare the literal transformer of these heads with functional descent, layer by layer."""
    points = sphere_points(5 * N_EXAMPLES // 4, seed)
    machine = KernelMachine(WIDTH, heads)
    step = FunctionalStep(1.0 / float(torch.linalg.matrix_norm(machine.gram(points), ord=2)))
    task = sphere_task(machine, step, points)
    compiled = compile(Problem(machine, "squared", step, Domain(1.0, 1.0)), n_steps=n_layers)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DivergenceWarning)  # relu has negative eigenvalues
        values = compiled.run_task(task, backend="literal").parameters
    names = " + ".join(head.kernel for head in heads)
    case = f"{names}: {n_layers} layers of the literal transformer beside functional descent"
    return agreement(case, values, compiled.problem.oracle.train(task, n_layers))


def same_point(seed: int) -> Comparison:
    """Equation (22): an example's label is y_i plus what a query at x_i would hold."""
    x = sphere_points(12, seed)
    x[-1] = x[0]
    rows = descent_layers(stream(x, hidden(wave(x))), exponential, STEP, 20)
    case = "(22): the label of an example beside that of a query at the same point"
    return agreement(case, rows[:, 0], wave(x)[0] + rows[:, -1])


def proposition_3_1(seed: int) -> Finding:
    """Try every kernel that icgd knows, and equation (22) of the proof."""
    kernels = [name for name, kernel in KERNELS.items() if not kernel.is_own]
    right = (every_layer((KernelHead(kernel),), seed) for kernel in kernels)
    return Finding(right=(*right, same_point(seed)))


def equation_24(seed: int) -> Finding:
    """Compare the transformer with the recursion, once with f(x_i) and once with f(x)."""
    x = sphere_points(12, seed)
    y, kernel = wave(x)[:-1], exponential(x.mT, x.mT)[:-1]
    rows = descent_layers(stream(x, hidden(wave(x))), exponential, STEP, 20)
    f = [torch.zeros(12, dtype=torch.float64)]
    printed = [torch.zeros((), dtype=torch.float64)]
    for _ in range(20):
        f.append(f[-1] + STEP * (y - f[-1][:-1]) @ kernel)
        printed.append(printed[-1] + STEP * (y - printed[-1]) @ kernel[:, -1])
    case = "exp, 20 layers: the query's label beside minus the recursion with f(x{})"
    return Finding(
        right=(agreement(case.format("_i"), rows[:, -1], -torch.stack(f)[:, -1]),),
        printed=(agreement(case.format(""), rows[:, -1], -torch.stack(printed)),),
    )


def equation_10(seed: int) -> Finding:
    """Compare softmax attention, written out, with the descent that divides by the kernels' sum."""
    x = sphere_points(12, seed)
    y, kernel = wave(x)[:-1], exponential(x.mT, x.mT)[:-1]
    tau = 1 / kernel.sum(0)
    rows = descent_layers(stream(x, hidden(wave(x))), softmax, 0.5, 20)
    f = torch.zeros(12, dtype=torch.float64)
    history = [f]
    for _ in range(20):
        f = f + 0.5 * tau * ((y - f[:-1]) @ kernel)
        history.append(f)
    case = "20 layers of softmax attention beside descent with the factor tau"
    return Finding(right=(agreement(case, rows[:, -1], -torch.stack(history)[:, -1]),))


def remark_3_2(seed: int) -> Finding:
    """Compare the two kernels on points of the unit sphere."""
    x = sphere_points(40, seed)
    exp, rbf = (kernel_named(name).matrix(x, x) for name in ("exp", "rbf"))
    return Finding(
        right=(agreement("all pairs of 40 points: exp beside e times rbf", exp, e * rbf),)
    )


def appendix_i_2(seed: int) -> Finding:
    """Compare gradient descent on theta by autograd with linear attention, layer by layer."""
    x = sphere_points(12, seed)
    examples, y = x[:-1], wave(x)[:-1]
    rows = descent_layers(stream(x, hidden(wave(x))), lambda U, W: U.mT @ W, 0.1, 30)
    theta = torch.zeros(WIDTH, dtype=torch.float64, requires_grad=True)
    predictions = [theta.detach() @ x[-1]]
    for _ in range(30):
        risk = (examples @ theta - y).square().sum() / 2
        (slope,) = torch.autograd.grad(risk, theta)
        theta = (theta - 0.1 * slope).detach().requires_grad_()
        predictions.append(theta.detach() @ x[-1])
    case = "30 layers of linear attention beside gradient descent on theta"
    return Finding(right=(agreement(case, rows[:, -1], -torch.stack(predictions)),))


STATEMENTS = (
    Statement(
        "cheng",
        "Proposition 3.1",
        "If attention computes a kernel, each layer is one step of gradient descent in the space of"
        " functions of that kernel.",
        "TF_l(x) = -f_l(x), f_{l+1} = f_l + r_l sum_i (y_i - f_l(x_i)) K(., x_i)",
        proposition_3_1,
    ),
    Statement(
        "cheng",
        "Equation (10)",
        "Softmax attention takes the steps of the exponential kernel, each divided by the sum of"
        " the kernel over the examples.",
        "f_{l+1} = f_l + r_l tau sum_i (y_i - f_l(x_i)) K(., x_i), tau = 1 / sum_j K(., x_j)",
        equation_10,
    ),
    Statement(
        "cheng",
        "Remark 3.2",
        "On the unit sphere the exponential kernel is a multiple of the Gaussian kernel.",
        "exp(<u, w>) = e exp(-|u - w|^2 / 2) for |u| = |w| = 1",
        remark_3_2,
    ),
)

EQUATION_24 = Statement(
    "cheng",
    "Equation (24)",
    "One more layer changes the query's label by a step of functional descent.",
    "TF_{l+1}(x) = -f_l(x) - r_l sum_i (y_i - f_l(x_i)) K(x_i, x)",
    equation_24,
    correction="The error of example i is y_i - f_l(x_i); the line below (24) prints f_l(x).",
)

APPENDIX_I_2 = Statement(
    "cheng",
    "Appendix I.2",
    "With the linear kernel functional descent is gradient descent on the coefficients of a linear"
    " function.",
    "f_l(x) = <theta_l, x>, theta_{l+1} = theta_l - r_l grad R(theta_l)",
    appendix_i_2,
)

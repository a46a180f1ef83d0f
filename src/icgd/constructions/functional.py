r"""functional: kernel attention performs functional gradient descent, one layer per step.

cheng, Propositions 3.1 and D.1. The residual stream of a token holds its input and a residual r:
r_i = y_i - f_l(x_i) at an example, -f_l(x_q) at a query. Kernel attention with B = C = G and
V = diag(A, -step_size) attends to the examples only and adds

    -step_size * sum_j K(x, x_j) r_j

to the residual of every token. That is one step of gradient descent on the squared loss
(1/2) sum_j (f(x_j) - y_j)^2 in the reproducing kernel Hilbert space of K, whose gradient is
-sum_j (y_j - f(x_j)) K(., x_j):

    f_{l+1} = f_l + step_size * sum_j (y_j - f_l(x_j)) K(., x_j)

So one layer is exactly one step, up to rounding. A sum of kernels takes one head per summand.
Noise adds noise * I to the kernel matrix of the examples, by a head in which every example attends
to itself. A transform A changes the inputs too (GD++). Each step may have its own kernel, and
queries and keys may have different transforms, B != C, as in layers found by training.

Momentum m needs the change of the last step, which a slot v holds:

    change = m v - step_size * sum_j K(x, x_j) r_j,    r += change,    v += change - v

The kernel heads write to both slots. One more head, in which every token attends to itself, adds
m v to r and (m - 1) v to v, so a step with momentum is still one layer. Nesterov's step reads
r_j + m v_j in place of r_j, which only changes W_V.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import ClassVar

from icgd.constructions.base import AbstractConstruction, require_few_steps
from icgd.problems.kernel_machine import KernelMachine
from icgd.problems.problem import Problem
from icgd.program.kernel_instructions import VELOCITY, DescendFunction, KernelTerm
from icgd.program.layout import IS_EXAMPLE, Layout, Role, Slot
from icgd.program.program import Layer
from icgd.program.stack import StackProgram

MOST_LAYERS = 2 * 10**5
"""The largest number of steps with separate layers; more take minutes and gigabytes."""


@dataclass(frozen=True)
class Functional(AbstractConstruction):
    """One layer per step, for any kernel; there are no settings.

    Example:
        >>> import icgd
        >>> machine, step = icgd.KernelMachine(2), icgd.FunctionalStep(0.5)
        >>> problem = icgd.Problem(machine, "squared", step, icgd.Domain(x=1.0, y=1.0))
        >>> icgd.compile(problem, icgd.Functional(), n_steps=4).summary().n_layers
        4
    """

    name: ClassVar[str] = "functional"
    target: ClassVar[type] = KernelMachine

    def objection(self, problem: Problem) -> str | None:
        return None

    def build(self, problem: Problem, n_steps: int) -> StackProgram:
        machine, update = problem.machine, problem.functional_step
        update.require_steps(n_steps)
        require_few_steps(update, n_steps, MOST_LAYERS)
        has_momentum = update.momentum is not None
        are_equal = update.is_constant or n_steps == 0
        block = []
        for step in range(1) if are_equal else range(n_steps):
            heads = update.machine_of(step, machine).heads
            descend = DescendFunction(
                terms=tuple(KernelTerm(**asdict(head)) for head in heads),
                step_size=update.size_of(step),
                noise=update.noise,
                transform=update.transform_of(step, machine.input_width),
                velocity=VELOCITY if has_momentum else None,
                momentum=update.momentum_of(step),
                ahead=update.lookahead_of(step),
            )
            block.append(Layer("descend", (descend,)))
        velocity = Slot(VELOCITY, (machine.output_width,), Role.VELOCITY)
        layout = Layout(
            (
                Slot("x", (machine.input_width,), Role.INPUT),
                Slot("y", (machine.output_width,), Role.RESIDUAL),
                *([velocity] if has_momentum else []),
                Slot(IS_EXAMPLE, (1,), Role.CONSTANT),
            )
        )
        return StackProgram(
            construction=self.name,
            layout=layout,
            functions=(),
            block=tuple(block),
            n_steps=n_steps,
            prediction=(),
            steps_per_block=1 if are_equal else n_steps,
        )

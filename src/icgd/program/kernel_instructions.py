"""The instruction of kernel attention: a step of descent in function space."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from icgd.errors import ProgramError
from icgd.program.instructions import Instruction, LayerKind, Read
from icgd.program.layout import IS_EXAMPLE
from icgd.program.meaning import FunctionDomain, Value
from icgd.program.wires import (
    ITSELF_AT_EXAMPLES,
    ITSELF_AT_TOKENS,
    AxisFactor,
    Heads,
    Kernel,
    Rows,
    Wire,
    Wiring,
)

if TYPE_CHECKING:
    from icgd.program.program import AbstractProgram

VELOCITY = "velocity"
"""The slot of the last step's change, at every token."""


@dataclass(frozen=True)
class KernelTerm:
    """`weight * K(G u, G w)` for the kernel called `kernel`; G is the `transform`, default I.

    With a `key_transform` H it is `weight * K(G u, H w)`, for an example w.
    """

    kernel: str
    transform: Rows | None
    weight: float
    shape: float | None
    key_transform: Rows | None = None

    @property
    def matrices(self) -> tuple[Rows | None, ...]:
        """The matrices that multiply the inputs in queries and in keys."""
        return self.transform, self.transform if self.key_transform is None else self.key_transform

    def formula(self) -> str:
        """Return the term as text."""
        shape = "" if self.shape is None else f"[{self.shape:g}]"
        inputs = "(x, x_j)" if self.transform is None else "(G x, G x_j)"
        inputs = inputs if self.key_transform is None else "(G x, H x_j)"
        return f"{self.weight:g} {self.kernel}{shape}{inputs}"


@dataclass(frozen=True)
class DescendFunction(Instruction):
    """Take one step of descent in function space at every token; sums are over the examples j.

    residual -= step_size * (sum_j K(x, x_j) residual_j + noise * residual)
    x        += A sum_j K(x, x_j) x_j

    K is the sum of `terms`. The noise term applies to examples only, and x moves only if there is a
    `transform` A. The step is exact up to rounding.

    If there is a slot `velocity` v, which holds the last change of the residual, then

    s         = residual + ahead * v
    v         = momentum * v - step_size * (sum_j K(x, x_j) s_j + noise * s)
    residual += v
    """

    terms: tuple[KernelTerm, ...]
    step_size: float
    noise: float
    transform: Rows | None
    inputs: Read = "x"
    residual: Read = "y"
    velocity: Read | None = None
    momentum: float = 0.0
    ahead: float = 0.0
    kind = LayerKind.KERNEL
    constants = (IS_EXAMPLE,)

    def __post_init__(self) -> None:
        if self.velocity is None and (self.momentum or self.ahead):
            raise ProgramError(
                f"DescendFunction: has momentum={self.momentum:g} and ahead={self.ahead:g}, but no "
                "slot for the velocity; give one."
            )

    def writes(self) -> tuple[str, ...]:
        velocity = () if self.velocity is None else (self.velocity,)
        moved = () if self.transform is None else (self.inputs,)
        return self.residual, *velocity, *moved

    def read_at_examples(self) -> dict[str, float]:
        """Return the slots that are read at examples, besides the inputs, with their factors."""
        ahead = {self.velocity: self.ahead} if self.velocity and self.ahead else {}
        return {self.residual: 1.0, **ahead}

    def meaning(
        self, slots: Mapping[str, Value], domain: FunctionDomain[Value]
    ) -> dict[str, Value]:
        read = domain.combine(
            [(factor, slots[name]) for name, factor in self.read_at_examples().items()]
        )
        kernel = domain.kernel(self.terms, slots[self.inputs])
        change = domain.combine([(-self.step_size, domain.read_examples(kernel, read))])
        if self.noise:
            noise = domain.combine([(-self.step_size * self.noise, read)])
            change = domain.add(change, domain.where(IS_EXAMPLE, (), noise, domain.zero(noise)))
        written: dict[str, Value] = {}
        if self.velocity is not None:
            kept_velocity = domain.combine([(self.momentum, slots[self.velocity])])
            written[self.velocity] = change = domain.add(kept_velocity, change)
        written[self.residual] = domain.add(slots[self.residual], change)
        if self.transform is not None:
            points = domain.read_examples(kernel, slots[self.inputs])
            moved = domain.constant_map(self.transform, points)
            written[self.inputs] = domain.add(slots[self.inputs], moved)
        return written

    def wires(self, program: AbstractProgram) -> Wiring:
        """Return heads of every kernel, with a weighted V = diag(A, -step_size), and of the noise.

        With a velocity, all heads write it too; in one more head every token attends to itself and
        adds the momentum.
        """
        width, labels = (program.layout.width_of(name) for name in (self.inputs, self.residual))
        read = tuple(Wire(s, ("k",), "k", c) for s, c in self.read_at_examples().items())
        learnt = (self.residual,) if self.velocity is None else (self.residual, self.velocity)

        def scores(matrix: Rows | None) -> tuple[Wire, ...]:
            """Return wires of the features G x, or x itself; at least as many as inputs."""
            if matrix is None:
                return (Wire(self.inputs, ("j",), "j"),)
            rows = (*matrix, *((0.0,) * width,) * (width - len(matrix)))
            return (Wire(self.inputs, ("j",), "direction", AxisFactor(("direction", "j"), rows)),)

        def add(scale: float) -> tuple[Wire, ...]:
            """Return outputs that add `scale` times the values to the learnt slots."""
            return tuple(Wire(slot, ("k",), "k", scale) for slot in learnt)

        heads = []
        for number, term in enumerate(self.terms, start=1):
            query, key = map(scores, term.matrices)
            value, output = read, add(-self.step_size * term.weight)
            if self.transform is not None:
                matrix = AxisFactor(("to", "from"), self.transform)
                value += (Wire(self.inputs, ("from",), "from", start=labels),)
                output += (Wire(self.inputs, ("to",), "from", (term.weight, matrix), labels),)
            label, kernel = f"kernel {number}, {term.kernel}", Kernel(term.kernel, term.shape)
            heads.append(Heads({}, query, key, value, output, label, pattern=kernel))
        if self.noise > 0:
            output = add(-self.step_size * self.noise)
            heads.append(Heads({}, (), (), read, output, "noise", pattern=ITSELF_AT_EXAMPLES))
        if self.velocity is not None:
            value = (Wire(self.velocity, ("k",), "k"),)
            momentum_terms = {self.residual: self.momentum, self.velocity: -1.0 + self.momentum}
            output = tuple(
                Wire(slot, ("k",), "k", factor) for slot, factor in momentum_terms.items()
            )
            heads.append(Heads({}, (), (), value, output, "momentum", pattern=ITSELF_AT_TOKENS))
        return heads

    def formula(self) -> str:
        residual, velocity = self.residual, self.velocity
        read = f"({residual} + {self.ahead:g} {velocity})" if self.ahead else residual
        noise = f" + {self.noise:g} {read}" if self.noise else ""
        step = f"{self.step_size:g} (sum_j K {read}_j{noise})"
        if velocity is None:
            change = f"{residual} -= {step}"
        else:
            change = f"{velocity} = {self.momentum:g} {velocity} - {step}; {residual} += {velocity}"
        moved = "" if self.transform is None else f"; {self.inputs} += A sum_j K {self.inputs}_j"
        return f"{change}{moved}, K = {' + '.join(term.formula() for term in self.terms)}"

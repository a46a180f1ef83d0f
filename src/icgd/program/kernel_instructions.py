"""The instruction of kernel attention: a step of descent in function space."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from icgd.program.instructions import IS_EXAMPLE, Instruction, LayerKind
from icgd.program.meaning import Domain, Value
from icgd.program.uses import Read

VELOCITY = "velocity"
"""The slot of what the last step changed, at every token."""


@dataclass(frozen=True)
class KernelTerm:
    """`weight * K(G u, G w)` for the kernel called `kernel`; G is the `transform`, default I.

    With a `key_transform` H it is `weight * K(G u, H w)`, for an example w.
    """

    kernel: str
    transform: tuple[tuple[float, ...], ...] | None
    weight: float
    shape: float | None
    key_transform: tuple[tuple[float, ...], ...] | None = None

    @property
    def matrices(self) -> tuple[tuple[tuple[float, ...], ...] | None, ...]:
        """What queries and keys are multiplied by."""
        return self.transform, self.transform if self.key_transform is None else self.key_transform

    def formula(self) -> str:
        """The term as text."""
        shape = "" if self.shape is None else f"[{self.shape:g}]"
        inputs = "(x, x_j)" if self.transform is None else "(G x, G x_j)"
        inputs = inputs if self.key_transform is None else "(G x, H x_j)"
        return f"{self.weight:g} {self.kernel}{shape}{inputs}"


@dataclass(frozen=True)
class DescendFunction(Instruction):
    """Take one step of descent in function space at every token; sums are over the examples j.

    residual -= step_size * (sum_j K(x, x_j) residual_j + noise * residual)
    x        += A sum_j K(x, x_j) x_j

    K is the sum of `terms`. The noise counts at examples only, and x moves only if there is a
    `transform` A. The step is exact up to rounding.

    If there is a slot `velocity` v, which holds how the residual changed in the last step, then

    s         = residual + ahead * v
    v         = momentum * v - step_size * (sum_j K(x, x_j) s_j + noise * s)
    residual += v
    """

    terms: tuple[KernelTerm, ...]
    step_size: float
    noise: float
    transform: tuple[tuple[float, ...], ...] | None
    inputs: Read = "x"
    residual: Read = "y"
    velocity: Read | None = None
    momentum: float = 0.0
    ahead: float = 0.0
    kind = LayerKind.KERNEL
    constants = (IS_EXAMPLE,)

    def writes(self) -> tuple[str, ...]:
        moved = () if self.transform is None else (self.inputs,)
        return *self.learnt, *moved

    @property
    def learnt(self) -> tuple[str, ...]:
        """The slots that a step adds its change to."""
        return (self.residual,) if self.velocity is None else (self.residual, self.velocity)

    def read_at_examples(self) -> dict[str, float]:
        """What is read of an example, besides its inputs: slots and their factors."""
        ahead = {self.velocity: self.ahead} if self.velocity and self.ahead else {}
        return {self.residual: 1.0, **ahead}

    def formula(self) -> str:
        kernel = " + ".join(term.formula() for term in self.terms)
        moved = "" if self.transform is None else f"; {self.inputs} += A sum_j K {self.inputs}_j"
        return f"{self._step_formula()}{moved}, K = {kernel}"

    def meaning(self, slots: Mapping[str, Value], domain: Domain[Value]) -> dict[str, Value]:
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
            kept = domain.combine([(self.momentum, slots[self.velocity])])
            written[self.velocity] = change = domain.add(kept, change)
        written[self.residual] = domain.add(slots[self.residual], change)
        if self.transform is not None:
            points = domain.read_examples(kernel, slots[self.inputs])
            moved = domain.constant_map(self.transform, points)
            written[self.inputs] = domain.add(slots[self.inputs], moved)
        return written

    def _step_formula(self) -> str:
        residual, velocity = self.residual, self.velocity
        read = f"({residual} + {self.ahead:g} {velocity})" if self.ahead else residual
        noise = f" + {self.noise:g} {read}" if self.noise else ""
        descent = f"{self.step_size:g} (sum_j K {read}_j{noise})"
        if velocity is None:
            return f"{residual} -= {descent}"
        return f"{velocity} = {self.momentum:g} {velocity} - {descent}; {residual} += {velocity}"

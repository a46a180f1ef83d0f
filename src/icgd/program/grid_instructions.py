r"""Instructions of grid attention: heads that read tokens made by a linear map along the sequence.

The tokens of head h are multiples of one column, points[g] times it for the keys and values[g]
times it for the values, with an offset for each. So a head whose query holds the coefficients w
meets the tokens of example i with the scores points[g] <w, x_i> + offsets[g], and returns the mean
of values[g] x_i: a function of <w, x_i>, times x_i.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from icgd.program.instructions import ONE, Instruction, LayerKind

LABEL = "label"
"""The function by which a head reads the label of an example: the identity on the domain of y."""


def _score(weights: tuple[str, ...], inputs: tuple[str, ...], number: str) -> str:
    pairs = zip(weights, inputs, strict=True)
    return " + ".join(
        weight if read == ONE else f"<{weight}, {read}{number}>" for weight, read in pairs
    )


@dataclass(frozen=True)
class DescendExamples(Instruction):
    """Add `scale * sum_i (mean(z_i) - y_i) inputs_i` to the `weights`, z_i = <weights, inputs_i>.

    And `decay` times the first of the weights to themselves, by a head that reads one column alone.

    One head an example returns mean(z_i) inputs_i, another y_i inputs_i. If the mean is the
    identity, as `joins_label` says, one head does both: its query is [weights; -1]. Scores are at
    most `reach` in size, or the run is stopped.
    """

    mean: str
    weights: tuple[str, ...]
    inputs: tuple[str, ...]
    label: str
    scale: float
    decay: float
    reach: float
    n_examples: int
    joins_label: bool
    kind: ClassVar[LayerKind] = LayerKind.GRID

    def reads(self) -> tuple[str, ...]:
        return (*self.weights, *self.inputs, self.label, ONE)

    def writes(self) -> tuple[str, ...]:
        return self.weights

    def functions(self) -> tuple[str, ...]:
        return (self.mean,) if self.joins_label else (self.mean, LABEL)

    def formula(self) -> str:
        score = _score(self.weights, self.inputs, "_i")
        inputs = ", ".join(f"{name}_i" if name != ONE else "1" for name in self.inputs)
        left = f"{self.mean}({score}) - {self.label}_i"
        decay = f"; {self.weights[0]} += {self.decay:g} * {self.weights[0]}" if self.decay else ""
        return f"{', '.join(self.weights)} += {self.scale:g} * sum_i ({left}) ({inputs}){decay}"


@dataclass(frozen=True)
class PredictMean(Instruction):
    """Set `write = mean(<weights, inputs>)` at every token: one head, whose tokens hold weights.

    Scores are at most `reach` in size, or the run is stopped.
    """

    mean: str
    weights: tuple[str, ...]
    inputs: tuple[str, ...]
    reach: float
    write: str
    kind: ClassVar[LayerKind] = LayerKind.GRID

    def reads(self) -> tuple[str, ...]:
        return (*self.weights, *self.inputs, ONE)

    def writes(self) -> tuple[str, ...]:
        return (self.write,)

    def functions(self) -> tuple[str, ...]:
        return (self.mean,)

    def formula(self) -> str:
        return f"{self.write} = {self.mean}({_score(self.weights, self.inputs, '')})"


@dataclass(frozen=True)
class ShrinkSlot(Instruction):
    """Move every coordinate of `slot` towards 0 by `threshold`, and no further, then clip it.

    With b = `bound` that is w - clip(w, threshold) - relu(w - threshold - b) + relu(-w - threshold
    - b), six ReLUs for each coordinate.
    """

    slot: str
    threshold: float
    bound: float
    kind: ClassVar[LayerKind] = LayerKind.MLP

    def reads(self) -> tuple[str, ...]:
        return (self.slot, ONE)

    def writes(self) -> tuple[str, ...]:
        return (self.slot,)

    def formula(self) -> str:
        clipped = f"clip to [-{self.bound:g}, {self.bound:g}]"
        return f"shrink {self.slot} by {self.threshold:g}, {clipped}"

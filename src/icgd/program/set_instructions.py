r"""Instructions that project weights onto closed convex sets, exactly, by hidden units.

One layer projects onto a box in an orthonormal basis (`problems/sets.py` has the mathematics), with
two units for each row q of the basis:

    P(w) = w - sum_q q relu(<q, w> - high) + sum_q q relu(low - <q, w>)

The simplex of a row takes more layers. A unit relu(b - a), added to a and subtracted from b, puts
the larger number first, so that a sorting network sorts a copy of the row. One layer computes the
mean excesses of the largest entries, a tournament their maximum theta, and another layer
w - relu(w) + relu(-w) + relu(w - theta).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from icgd.program.instructions import Changed, Instruction, LayerKind, Read, Written
from icgd.program.layout import ONE
from icgd.program.meaning import StackDomain, Value
from icgd.program.wires import SIGN, AxisFactor, Rows, Units, Wire, Wiring

if TYPE_CHECKING:
    from icgd.program.program import AbstractProgram


@dataclass(frozen=True)
class Faces:
    """The set low <= basis @ w <= high for the flattened weights w in some columns of a matrix.

    With `each_row` w are the weights of each row. Without a basis the set is low <= w <= high. The
    rows of the basis are orthonormal.
    """

    columns: tuple[int, int]
    low: tuple[float, ...]
    high: tuple[float, ...]
    basis: Rows | None = None
    each_row: bool = False

    def fit(self, shape: tuple[int, ...]) -> bool:
        """Return whether the faces fit a matrix of this shape."""
        start, stop = self.columns
        width = (1 if self.each_row else shape[0]) * (stop - start)
        n_faces = width if self.basis is None else len(self.basis)
        return (
            0 <= start < stop <= shape[1]
            and (start == 0 or stop - start == 1)
            and not (self.each_row and (self.basis is None or start > 0))
            and len(self.low) == len(self.high) == n_faces
            and all(len(row) == width for row in self.basis or ())
        )

    def formula(self) -> str:
        ends = f"[{min(self.low):g}, {max(self.high):g}]"
        if self.basis is None:
            return f"intervals in {ends}"
        return f"{ends} along {len(self.low)} axes{' of each row' * self.each_row}"


@dataclass(frozen=True)
class ProjectSlot(Instruction):
    """Project the matrix in `slot` onto {w : low <= basis @ w <= high}, for all its faces, exactly.

    A register with the scale s, in slot `scale`, holds weights times s, so its faces are multiplied
    by s: the midpoints by s, and half of their distances by |s|, which is in slot `unit`.
    """

    slot: Changed
    faces: tuple[Faces, ...]
    unit: Read
    scale: Read
    kind = LayerKind.MLP

    def meaning(self, slots: Mapping[str, Value], domain: StackDomain[Value]) -> dict[str, Value]:
        value = slots[self.slot]
        for faces in self.faces:
            value = domain.project(value, faces)
        return {self.slot: value}

    def wires(self, program: AbstractProgram) -> Wiring:
        """Return -relu(y - high) + relu(low - y), y = basis @ w, for every row of the basis."""
        shape = program.layout.slot(self.slot).shape
        return [
            self._units(faces, shape, sign, number)
            for number, faces in enumerate(self.faces, start=1)
            for sign in (1.0, -1.0)
        ]

    def _units(self, faces: Faces, shape: tuple[int, ...], sign: float, number: int) -> Units:
        """Return the units of the high faces for sign 1, or of the low ones for sign -1."""
        (n_rows, width), (start, stop) = shape, faces.columns
        column: str | int = start or "k"  # a bias is one column
        at: tuple[str | int, ...] = ("row", column)
        axes, basis = {"face": len(faces.low)}, tuple[AxisFactor, ...]()
        if faces.basis is None:
            axes = {"row": n_rows, "k": stop - start}
        elif faces.each_row:
            axes, basis = {"row": n_rows, **axes}, (AxisFactor(("face", "k"), faces.basis),)
        elif column != "k":
            basis = (AxisFactor(("face", "row"), faces.basis),)
        else:  # the whole matrix, with 0 for its bias
            zeros, at = (0.0,) * (width - stop), ("k",)
            rows = (in_rows(row, stop) for row in faces.basis)
            padded = tuple(tuple(n for row in matrix for n in (*row, *zeros)) for matrix in rows)
            basis = (AxisFactor(("face", "k"), padded),)

        def numbers(values: Iterable[float]) -> AxisFactor:
            if faces.basis is None:
                return AxisFactor(("row", "k"), in_rows(tuple(values), stop - start))
            return AxisFactor(("face",), tuple(values))

        pairs = [*zip(faces.low, faces.high, strict=True)]
        lowered_by: tuple[Wire, ...]
        if self.unit == self.scale:
            ends = (-high if sign > 0 else low for low, high in pairs)
            lowered_by = (Wire(self.unit, factor=numbers(ends)),)
        else:
            lowered_by = (
                Wire(self.scale, factor=numbers(-sign * (low + high) / 2 for low, high in pairs)),
                Wire(self.unit, factor=numbers(-(high - low) / 2 for low, high in pairs)),
            )
        end = "high" if sign > 0 else "low"
        places = ", ".join(f"{axis} {{{axis}}}" for axis in axes)
        return Units(
            axes=axes,
            reads=(Wire(self.slot, at, factor=(sign, *basis)), *lowered_by),
            shift=0.0,
            writes=(Wire(self.slot, at, factor=(-sign, *basis)),),
            label=f"project {self.slot}, beyond the {end} end of set {number}: {places}",
        )

    def formula(self) -> str:
        unit = "" if self.unit == ONE else f" {self.unit}"
        sets = " and ".join(faces.formula() for faces in self.faces)
        return f"project {self.slot} onto {sets}{unit}"


def in_rows(numbers: tuple[float, ...], width: int) -> Rows:
    """Split numbers into rows of this width."""
    return tuple(numbers[at : at + width] for at in range(0, len(numbers), width))


@dataclass(frozen=True)
class CopyColumns(Instruction):
    """Set `write` to the first columns of `source`, as many as `write` has."""

    source: Read
    write: Written
    kind = LayerKind.MLP

    def meaning(self, slots: Mapping[str, Value], domain: StackDomain[Value]) -> dict[str, Value]:
        n_columns = domain.layout.slot(self.write).shape[1]
        return {self.write: domain.take(slots[self.source], range(n_columns))}

    def wires(self, program: AbstractProgram) -> Wiring:
        """Return relu(w) - relu(-w)."""
        rows, columns = program.layout.slot(self.write).shape
        return Units(
            axes={"sign": 2, "row": rows, "column": columns},
            reads=(Wire(self.source, ("row", "column"), factor=SIGN),),
            shift=0.0,
            writes=(Wire(self.write, ("row", "column"), factor=SIGN),),
            label=f"copy {self.source}[{{row}}, {{column}}], relu({{sign}} w)",
        )

    def formula(self) -> str:
        return f"{self.write} = first columns of {self.source}"


@dataclass(frozen=True)
class SortRows(Instruction):
    """Put the larger entry of each pair of columns first in every row, exactly."""

    slot: Changed
    pairs: tuple[tuple[int, int], ...]
    kind = LayerKind.MLP

    def meaning(self, slots: Mapping[str, Value], domain: StackDomain[Value]) -> dict[str, Value]:
        return {self.slot: domain.exchange(slots[self.slot], self.pairs)}

    def wires(self, program: AbstractProgram) -> Wiring:
        """Return relu(second - first), added to the first and subtracted from the second."""
        n_rows, _ = program.layout.slot(self.slot).shape
        return tuple(
            Units(
                axes={"row": n_rows},
                reads=(Wire(self.slot, ("row", j)), Wire(self.slot, ("row", i), factor=-1.0)),
                shift=0.0,
                writes=(Wire(self.slot, ("row", i)), Wire(self.slot, ("row", j), factor=-1.0)),
                label=f"sort columns {i + 1} and {j + 1} of {self.slot}, row {{row}}",
            )
            for i, j in self.pairs
        )

    def formula(self) -> str:
        pairs = ", ".join(f"{i + 1} and {j + 1}" for i, j in self.pairs)
        return f"sort columns {pairs} of {self.slot}"


@dataclass(frozen=True)
class MeanExcess(Instruction):
    """Set `write[:, j] = (sum of the first j columns of source - total) / j`, j = 1, 2, ..."""

    source: Read
    total: float
    write: Written
    kind = LayerKind.MLP
    constants = (ONE,)

    def meaning(self, slots: Mapping[str, Value], domain: StackDomain[Value]) -> dict[str, Value]:
        return {self.write: domain.mean_excess(slots[self.source], self.total)}

    def wires(self, program: AbstractProgram) -> Wiring:
        """Return +-relu(+-excess) for every entry."""
        rows, columns = program.layout.slot(self.write).shape
        return Units(
            axes={"sign": 2, "row": rows, "column": columns},
            reads=(
                Wire(
                    self.source,
                    ("row", "entry"),
                    factor=(SIGN, AxisFactor(("column", "entry"), running_means(columns))),
                ),
                Wire(
                    ONE,
                    factor=(
                        SIGN,
                        AxisFactor(
                            ("column",), tuple(-self.total / (j + 1) for j in range(columns))
                        ),
                    ),
                ),
            ),
            shift=0.0,
            writes=(Wire(self.write, ("row", "column"), factor=SIGN),),
            label=f"mean excess of {{column}} in row {{row}} of {self.source}, {{sign}}",
        )

    def formula(self) -> str:
        return f"{self.write}[j] = (sum of {self.source}[1..j] - {self.total:g}) / j"


def running_means(width: int) -> Rows:
    """Return the matrix whose rows average the first 1, 2, ... entries."""
    return tuple(
        tuple(1.0 / (row + 1) if column <= row else 0.0 for column in range(width))
        for row in range(width)
    )


@dataclass(frozen=True)
class ThresholdRows(Instruction):
    """Set the first columns of `slot` to relu(w - theta), theta the first column of `threshold`.

    There are as many of these columns as `threshold` has. The result lies between 0 and `most`.
    """

    slot: Changed
    threshold: Read
    most: float
    kind = LayerKind.MLP

    def meaning(self, slots: Mapping[str, Value], domain: StackDomain[Value]) -> dict[str, Value]:
        after = domain.threshold(slots[self.slot], slots[self.threshold], self.most)
        return {self.slot: after}

    def wires(self, program: AbstractProgram) -> Wiring:
        """Return -relu(w) + relu(-w) + relu(w - theta)."""
        rows, columns = program.layout.slot(self.threshold).shape
        weight = Wire(self.slot, ("row", "column"))
        return (
            Units(
                axes={"sign": 2, "row": rows, "column": columns},
                reads=(Wire(self.slot, ("row", "column"), factor=SIGN),),
                shift=0.0,
                writes=(Wire(self.slot, ("row", "column"), factor=(-1.0, SIGN)),),
                label=f"wipe {self.slot}[{{row}}, {{column}}], relu({{sign}} w)",
            ),
            Units(
                axes={"row": rows, "column": columns},
                reads=(weight, Wire(self.threshold, ("row", 0), factor=-1.0)),
                shift=0.0,
                writes=(weight,),
                label=f"{self.slot}[{{row}}, {{column}}] above its threshold",
            ),
        )

    def formula(self) -> str:
        return f"{self.slot} = relu({self.slot} - {self.threshold}[1])"

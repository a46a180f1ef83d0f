"""Generate Python loops from recordings, for numba to compile.

The generated module has a function `run` that takes many steps of many tasks. Its text contains
only structure: sizes, strides and the order of operations. Factors, bounds and tables are
arguments, so that programs that differ only in their numbers share one compiled module.
`native.py` compiles it.

Elementwise operations of one shape are fused into one loop, and only results that other loops read
are stored. Views become strides. Results are placed in memory whose contents are no longer needed,
and the new value of a slot overwrites the old one as soon as nothing else reads it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import inf, prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from icgd.backends.engine import OPERATIONS, LookUp, Running, Units, View, table_of, units_of
from icgd.backends.look_up import CellsByExponent, CellsBySearch, EqualCells
from icgd.backends.recorder import AS_SUCH, Op, Recording
from icgd.problems.functions import LEAK
from icgd.problems.losses import loss_named
from icgd.program.meaning import NOWHERE, PerStep

ALIGNED = 8
"""Results start at multiples of this many numbers: 64 bytes of float64, a line of the cache."""


BY_ENTRY = ("add_outer", "add_rows")
"""Products that are added to their first argument, and may be written over it."""

MOST_UNROLLED = 16
"""Up to so many columns are taken by a line each. The k^2 differences of k classes read a table of
columns instead: numba would compile a line for each of 10,000 for minutes."""


class NoLoopError(Exception):
    """Raised for an operation that has no loop; the whole run then uses torch."""


class Place(NamedTuple):
    """The location of a result: an array, the offset of its first entry, and a stride per axis.

    A constant result has no array; `number` is its text.
    """

    array: str
    first: int
    strides: tuple[int, ...]
    number: str = ""

    def at(self, *index: str) -> str:
        """Return the source text of an entry."""
        if self.number:
            return self.number
        terms = [f"{i} * {s}" for i, s in zip(index, self.strides, strict=True) if s]
        return f"{self.array}[{' + '.join([str(self.first), *terms])}]"


def dense(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a contiguous array; axes of length 1 have stride 0."""
    strides = [prod(shape[axis + 1 :]) for axis in range(len(shape))]
    return tuple(stride if n > 1 else 0 for stride, n in zip(strides, shape, strict=True))


def is_dense(place: Place, shape: Sequence[int]) -> bool:
    """Return whether `place` is contiguous."""
    return not place.number and place.strides == dense(shape)


@dataclass
class Text:
    """Lines of generated Python, and the current indentation."""

    lines: list[str] = field(default_factory=list)
    depth: int = 1

    def say(self, line: str) -> None:
        self.lines.append("    " * self.depth + line)

    def loops(self, shape: Iterable[int], names: str = "ijkl") -> list[str]:
        """Open a loop for each axis and return the index names; `end` closes the loops."""
        indices = list(names[: len(tuple(shape))])
        for index, n in zip(indices, shape, strict=True):
            self.say(f"for {index} in range({n}):")
            self.depth += 1
        return indices

    def end(self, n: int) -> None:
        self.depth -= n


FUNCTIONS: dict[str, str] = {
    "identity": "{0}",
    "identity'": "real(1.0)",
    "double": "real(2.0) * {0}",
    "negate": "-{0}",
    "clip": "clamp({0}, real(-1.0), real(1.0))",
    "relu": "clamp({0}, real(0.0), real(inf))",
    "relu'": "real({0} > 0.0)",
    "leaky_relu": f"{{0}} * (real(1.0) if {{0}} > 0.0 else real({LEAK}))",
    "leaky_relu'": f"real(1.0) if {{0}} > 0.0 else real({LEAK})",
    "tanh": "real(tanh({0}))",
    "tanh'": "real(cosh({0})) ** -2",
    "sigmoid": "real(sigmoid({0}))",
    "sigmoid'": "real(sigmoid({0}) * sigmoid(-{0}))",
    "softplus": "real(max({0}, 0.0) + log1p(exp(-abs({0}))))",
    "softplus'": "real(sigmoid({0}))",
    "silu": "real({0} * sigmoid({0}))",
    "silu'": "real(sigmoid({0}) + {0} * sigmoid({0}) * sigmoid(-{0}))",
    "gelu": "real({0} * normal_distribution({0}))",
    "gelu'": "real(normal_distribution({0}) + {0} * normal_density({0}))",
    "elu": "{0} if {0} > 0.0 else real(expm1({0}))",
    "cos": "real(cos({0}))",
}
"""The source text of each function; a run that needs any other one uses torch."""


HELPERS = """\
from math import cos, cosh, erfc, exp, expm1, inf, log1p, pi, sqrt, tanh

from icgd.backends.native import bits_of, inlined, product


@inlined
def clamp(value, low, high):  # what is not a number stays so
    return low if value < low else (high if value > high else value)


@inlined
def sigmoid(z):
    return 1.0 / (1.0 + exp(-z))


@inlined
def normal_density(z):
    return exp(-z * z / 2) / sqrt(2 * pi)


@inlined
def normal_distribution(z):
    return erfc(-z / sqrt(2.0)) / 2


@inlined
def cell_of(edges, number):  # how many edges are not above a number
    low, high = 0, len(edges)
    while low < high:
        middle = (low + high) // 2
        if number < edges[middle]:
            high = middle
        else:
            low = middle + 1
    return low

"""


class Loops:
    """The generated module for the steps of a program on tasks of one size.

    `state` names the slots that steps change, weights first, and `data` those with a row for each
    example. `source` is the text of the module; `numbers` and `tables` are its arguments.
    """

    def __init__(
        self,
        recordings: Sequence[Recording],
        run: Running,
        state: Sequence[str],
        data: Sequence[str],
        *,
        in_batches: bool,
    ) -> None:
        self.run, self.dtype = run, run.like.dtype
        self.numbers: list[float] = []
        self.tables: list[Tensor] = []
        self.products: dict[tuple[Any, ...], str] = {}
        self.n_work = 0
        shapes = {name: op.shape for r in recordings for name, op in r.inputs.items()}
        self.slots: dict[str, Place] = {}
        self.n_state = 0
        for name in state:
            self.slots[name] = Place("state", self.n_state, dense(shapes[name]))
            self.n_state += prod(shapes[name])
        self.slots |= {name: Place(name, 0, dense(shapes[name])) for name in data}
        steps = [_Step(self, recording) for recording in recordings]
        widths = {name: shapes[name][1] for name in data}
        self.source = self._module(steps, widths, in_batches)

    def number(self, value: float) -> str:
        """Register a number and return its source text, which depends on `step` if it does."""
        first = len(self.numbers)
        if isinstance(value, PerStep):
            self.numbers += value.numbers
            return f"numbers[{first} + step % {len(value.numbers)}]"
        self.numbers.append(value)
        return f"numbers[{first}]"

    def table(self, table: Tensor) -> str:
        """Register an array and return its name."""
        for place, registered in enumerate(self.tables):
            if registered is table:
                return f"table{place}"
        self.tables.append(table)
        return f"table{len(self.tables) - 1}"

    def product(self, *sizes: Any) -> str:
        """Register a product of these sizes and strides and return the name of its function."""
        return self.products.setdefault(sizes, f"multiply{len(self.products)}")

    def _module(self, steps: Sequence[_Step], widths: dict[str, int], in_batches: bool) -> str:
        tables = [f"table{place}" for place in range(len(self.tables))]
        arrays = ", ".join(["state", "work", "numbers", "step", *widths, *tables])
        first = "step * batch_size % n_examples" if in_batches else "0"
        text = [
            f"from numpy import {str(self.dtype).removeprefix('torch.')} as real",
            HELPERS,
            *(f"{name} = product{sizes}" for sizes, name in self.products.items()),
        ]
        for place, step in enumerate(steps):
            text += ["", "", "@inlined", f"def step{place}({arrays}):", "    bad = 0"]
            text += [*step.numbers, *step.text.lines, "    return bad"]
        # Steps of a block alternate: one conditional expression selects the function.
        alternatives = " else ".join(
            f"step{n}({arrays}) if step % {len(steps)} == {n}" for n in range(len(steps) - 1)
        )
        last = f"step{len(steps) - 1}({arrays})"
        text += [
            "",
            "",
            f"def run(tasks, work, states, {''.join(f'all_{name}, ' for name in widths)}numbers,"
            f" {''.join(f'{name}, ' for name in tables)}start, n_steps, n_examples, batch_size,"
            " rows, every, moves, failed):",
            "    n_weights = rows.shape[2]",
            "    before = work[len(work) - n_weights :]",
            "    for task in range(tasks[0], tasks[1]):",
            "        state = states[task]",
            "        for step in range(start, start + n_steps):",
            f"            first = {first}",
            *(f"            {n} = all_{n}[task, first * {w} :]" for n, w in widths.items()),
            "            if moves.shape[1]:",
            "                before[:] = state[:n_weights]",
            f"            bad = {f'{alternatives} else {last}' if alternatives else last}",
            "            if bad:",
            "                failed[task] = step",
            "                break",
            "            if (step + 1) % every == 0:",
            "                rows[task, (step + 1) // every, :] = state[:n_weights]",
            "            if moves.shape[1]:",
            "                moved = real(0.0)",
            "                for k in range(n_weights):",
            "                    size = abs(state[k] - before[k])",
            "                    if not size <= moved and moved == moved:  # keeps a NaN",
            "                        moved = size",
            "                moves[task, step - start] = moved",
            "",
        ]
        return "\n".join(text)


class _Step:
    """The generated text of one step, and the allocation of its results."""

    def __init__(self, loops: Loops, recording: Recording) -> None:
        self.loops, self.recording, self.text = loops, recording, Text()
        self.numbers: list[str] = []
        self.places: dict[Op, Place] = {}
        self.free: list[tuple[int, int]] = [(0, 2**60)]
        self.n_names = 0
        self.owner: dict[Op, Op] = {}
        for op in recording.ops:
            is_view = isinstance(OPERATIONS.get(op.name), View) and not hasattr(self, _entry(op))
            self.owner[op] = self.owner[op.args[0]] if is_view else op
        groups = self._groups()
        self._find_homes(groups)
        for number, group in enumerate(groups):
            self._write(group)
            for op in [op for op, last in self.last_use.items() if last == number]:
                self._release(op)
        for name, op in recording.outputs.items():
            target = loops.slots[name]
            if (source := self.place(op)) != target:
                index = self.text.loops(op.shape)
                self.text.say(f"{target.at(*index)} = {source.at(*index)}")
                self.text.end(len(index))

    def _groups(self) -> list[list[Op]]:
        """Return the operations of each loop: elementwise ones of one shape, or a single other one.

        A greedy fusion: each loop takes in every pending elementwise operation of its shape whose
        arguments are computed before it or within it.
        """
        computed = {op for op in self.recording.ops if op.name in ("input", "fill")}
        pending = [op for op in self.recording.ops if self.owner[op] is op and op not in computed]
        groups = []
        while pending:
            group = [pending.pop(0)]
            if hasattr(self, _entry(group[0])):
                for op in list(pending):
                    is_ready = all(arg in group or self.owner[arg] in computed for arg in op.args)
                    if hasattr(self, _entry(op)) and op.shape == group[0].shape and is_ready:
                        group.append(op)
                        pending.remove(op)
            elif not hasattr(self, f"_loop_{group[0].name}"):
                raise NoLoopError(group[0].name)
            computed.update(group)
            groups.append(group)
        return groups

    def _find_homes(self, groups: Sequence[Sequence[Op]]) -> None:
        """Find the last reader of each result, and the results to compute in their slot."""
        outputs, inputs = self.recording.outputs, self.recording.inputs
        group_of = {op: number for number, group in enumerate(groups) for op in group}
        self.last_use: dict[Op, float] = {}
        self.readers: dict[Op, set[Op]] = {}
        for number, group in enumerate(groups):
            for op in group:
                for arg in op.args:
                    self.last_use[self.owner[arg]] = number
                    self.readers.setdefault(self.owner[arg], set()).add(op)
        self.home: dict[Op, Place] = {}
        for name, op in outputs.items():
            slot, before = self.loops.slots[name], inputs[name]
            if self.owner[op].name == "input" and op is not before:
                raise NoLoopError(f"a slot that takes over {op.options[0]}")
            # Nothing may read the old value after the new one is written. A reader in the same loop
            # is safe if it reads only the entry that this iteration overwrites.
            number = group_of.get(op, -1)
            is_free = op.shape == before.shape and all(
                group_of[reader] < number
                or (group_of[reader] == number and self._reads_by_entry(reader, before))
                for reader in self.readers.get(before, ())
            )
            if number >= 0 and is_free and op not in self.home:
                self.home[op] = slot
            else:
                self.last_use[self.owner[op]] = inf

    def _reads_by_entry(self, reader: Op, before: Op) -> bool:
        """Return whether entry i of the result depends on no entry of `before` other than i."""
        positions = [n for n, arg in enumerate(reader.args) if self.owner[arg] is before]
        if any(reader.args[position] is not before for position in positions):
            return False  # a view reorders the entries
        return hasattr(self, _entry(reader)) or (reader.name in BY_ENTRY and positions == [0])

    # Places.

    def place(self, op: Op) -> Place:
        """Return the location of a result; a view has that of its source with other strides."""
        if op in self.places:
            return self.places[op]
        if op.name == "input":
            if op.options[0] not in self.loops.slots:
                raise NoLoopError(f"slot {op.options[0]}")
            return self.loops.slots[op.options[0]]
        if op.name == "fill":
            return Place("", 0, (0,) * len(op.shape), f"real({op.options[0]!r})")
        source, shape = self.place(op.args[0]), op.args[0].shape
        array, first, strides, number = source
        match op.name:
            case "transpose":
                strides = strides[::-1]
            case "columns" | "guard_reach":
                pass
            case "rows":
                first += op.options[0] * strides[0]
            case "with_axes":
                for axis in op.options:
                    strides = (*strides[:axis], 0, *strides[axis:])
            case "expand":
                strides = tuple(0 if n == 1 else s for n, s in zip(shape, strides, strict=True))
            case "reshape" if number or strides == dense(shape):
                strides = (0,) * len(op.shape) if number else dense(op.shape)
            case _:
                raise NoLoopError(op.name)
        # Axes cut to length 1 have stride 0, as in `dense`.
        strides = tuple(s if n > 1 else 0 for s, n in zip(strides, op.shape, strict=True))
        return Place(array, first, strides, number)

    def _new_place(self, op: Op) -> Place:
        self.places[op] = self.home.get(op) or self._room(op.shape)
        return self.places[op]

    def _room(self, shape: Sequence[int]) -> Place:
        """Allocate from the first free range that is large enough."""
        size = -(-prod(shape) // ALIGNED) * ALIGNED
        number = next(number for number, (_, n) in enumerate(self.free) if n >= size)
        first, n = self.free[number]
        self.free[number : number + 1] = [(first + size, n - size)] if n > size else []
        self.loops.n_work = max(self.loops.n_work, first + size)
        return Place("work", first, dense(shape))

    def _release(self, op: Op) -> None:
        place = self.places.get(op)
        if place is not None and place.array == "work":
            self._give_back(place, op.shape)

    def _give_back(self, place: Place, shape: Sequence[int]) -> None:
        size = -(-prod(shape) // ALIGNED) * ALIGNED
        # Merge adjacent ranges, so that large results still find room.
        merged: list[tuple[int, int]] = []
        for first, n in sorted([*self.free, (place.first, size)]):
            if merged and sum(merged[-1]) == first:
                merged[-1] = (merged[-1][0], merged[-1][1] + n)
            else:
                merged.append((first, n))
        self.free = merged

    # Loops over entries.

    def number(self, value: float) -> str:
        """Assign a number to a variable before all loops, and return its name."""
        name = self._name()
        self.numbers.append(f"    {name} = {self.loops.number(value)}")
        return name

    def _name(self) -> str:
        self.n_names += 1
        return f"v{self.n_names}"

    def let(self, expression: str) -> str:
        """Assign an expression to a variable, and return its name."""
        name = self._name()
        self.text.say(f"{name} = {expression}")
        return name

    def _write(self, group: Sequence[Op]) -> None:
        """Write the loop of a group: load its arguments, compute in variables, store results."""
        if not hasattr(self, _entry(group[0])):
            getattr(self, f"_loop_{group[0].name}")(group[0])
            return
        shape, text = group[0].shape, self.text
        args = {arg: self.place(arg) for op in group for arg in op.args if arg not in group}
        stored = [op for op in group if not self.readers.get(op, set()) <= set(group)]
        stored += [op for op in group if op in self.recording.outputs.values() and op not in stored]
        places = {op: self._new_place(op) for op in stored}
        is_flat = all(
            p.number or p.strides == dense(shape) for p in (*args.values(), *places.values())
        )
        index = text.loops([prod(shape)], "e") if is_flat else text.loops(shape)
        # Cells hold for one iteration: later loops must look theirs up again.
        variables, self.cells = dict[Op, str](), dict[tuple[str, int], tuple[str, str]]()

        def at(place: Place) -> str:
            if place.number or not is_flat:
                return place.at(*([] if place.number else index[len(index) - len(place.strides) :]))
            return f"{place.array}[{place.first} + e]"

        for arg, place in args.items():
            variables[arg] = place.number or self.let(at(place))
        for op in group:
            expression = getattr(self, _entry(op))(op, *(variables[arg] for arg in op.args))
            variables[op] = self.let(expression)
        for op, place in places.items():
            text.say(f"{at(place)} = {variables[op]}")
        text.end(len(index))

    def _entry_combine(self, op: Op, *args: str) -> str:
        *factors, constant = op.options
        terms = self._terms(factors, args)
        return " + ".join(terms if constant == 0.0 else [*terms, self.number(constant)])

    def _terms(self, factors: Iterable[float], values: Iterable[str]) -> list[str]:
        signs = {1.0: "", -1.0: "-"}
        pairs = zip(factors, values, strict=True)
        return [f"{signs[f] if f in signs else f'{self.number(f)} * '}{v}" for f, v in pairs]

    def _entry_multiply(self, op: Op, left: str, right: str) -> str:
        return f"{left} * {right}"

    def _entry_kink(self, op: Op, value: str) -> str:
        return f"clamp({value}, real(0.0), real(inf))"

    def _entry_leaky(self, op: Op, value: str) -> str:
        return f"{value} if {value} > real(0.0) else {self.number(op.options[0])} * {value}"

    def _entry_clip(self, op: Op, value: str) -> str:
        bound = self.number(op.options[0])
        return f"clamp({value}, -{bound}, {bound})"

    def _entry_ramp(self, op: Op, value: str) -> str:
        (fit,) = op.options
        (start, end), slope, foot = fit.knots, fit.slopes[1], fit(fit.knots[0])
        shifted = f" - {self.number(slope * start)}" if start else ""
        low, high = map(self.number, sorted((0.0, slope * (end - start))))
        ramp = f"clamp({self.number(slope)} * {value}{shifted}, {low}, {high})"
        return f"{ramp} + {self.number(foot)}" if foot else ramp

    def _entry_evaluate(self, op: Op, value: str) -> str:
        return self._function(op.options[0], value)

    def _function(self, name: str, value: str) -> str:
        if name not in FUNCTIONS:
            raise NoLoopError(name)
        return f"({FUNCTIONS[name].format(value)})"

    def _entry_loss_slope(self, op: Op, prediction: str, label: str) -> str:
        slope_terms = loss_named(op.options[0]).slope_terms
        if slope_terms is None:
            raise NoLoopError(op.options[0])
        terms = []
        for term in slope_terms:
            argument = self._terms((term.prediction, term.label), (prediction, label))
            terms.append(self._function(term.function.name, self.let(" + ".join(argument))))
        return " + ".join(terms)

    def _entry_guard_root(self, op: Op, value: str) -> str:
        self.text.say(f"bad |= not {value} <= {self.number(op.options[0].high)}")
        return value

    def _entry_pieces(self, op: Op, argument: str) -> str:
        """Return a piecewise polynomial; functions of one argument share its cell."""
        operation = OPERATIONS[op.name]
        if not isinstance(operation, LookUp):
            raise NoLoopError(op.name)
        table, place = table_of(operation, op, self.recording.ops, self.loops.run)
        if (argument, id(table)) not in self.cells:
            self.cells[argument, id(table)] = self._cell(table, argument)
        cell, at = self.cells[argument, id(table)]
        name, width = self.loops.table(table.rows), table.rows.shape[1]
        first = place * table.n_powers
        # Horner's rule; the constant term comes first in a row.
        *lower, value = (f"{name}[{cell} * {width} + {first + n}]" for n in range(table.n_powers))
        for coefficient in reversed(lower):
            value = f"({value}) * {at} + {coefficient}"
        return value

    _entry_polynomials = _entry_pieces

    def _cell(self, table: Any, argument: str) -> tuple[str, str]:
        """Return variables for the cell of an argument and the position to evaluate at.

        A NaN gets cell 0 and stays a NaN: `int` of it would be an arbitrary index.
        """
        finder = table.finder
        if finder.func is EqualCells:
            per_unit, first, last = map(self.number, finder.args[1:])
            position = self.let(f"{argument} * {per_unit} + {first}")
            position = self.let(f"min({position}, {last}) if {position} > real(0.0) else real(0.0)")
            cell = self.let(f"int({position})")
            if not finder.keywords.get("at_position"):
                return cell, argument
            inside = f"{position} - real({cell}) if {argument} == {argument} else {argument}"
            return cell, self.let(inside)
        if finder.func is CellsByExponent:
            shift, first, last = (
                f"int({self.number(float(number))})" for number in finder.args[1:]
            )
            at = self.let(f"real(0.0) if {argument} < real(0.0) else {argument}")
            number = self.let(f"int(bits_of({at}) >> {shift})")
            return self.let(f"min(max({number}, {first} - 1), {last}) - {first} + 1"), at
        if finder.func is CellsBySearch:
            return self.let(f"cell_of({self.loops.table(finder.args[1])}, {argument})"), argument
        raise NoLoopError(finder.func.__name__)

    # Sums of units.

    def _entry_units(self, op: Op, *values: str) -> str:
        return self._sum_of(units_of(self.loops.run, *op.options), *values)

    def _entry_units_near_kinks(self, op: Op, exact: str, *values: str) -> str:
        return self._unless_coarse(units_of(self.loops.run, *op.options), exact, *values)

    def _entry_clip_by_units(self, op: Op, value: str) -> str:
        bound, units = self.number(op.options[0]), units_of(self.loops.run, op.options[1], (1.0,))
        return self._unless_coarse(units, f"clamp({value}, -{bound}, {bound})", value, base=value)

    def _unless_coarse(self, units: Units, exact: str, *values: str, base: str = "") -> str:
        """Return a variable: the exact value, or base + the sum of units where that is coarse."""
        result = self.let(exact)
        self.text.say(f"if {self._is_coarse(units, values[-1])}:")
        self.text.depth += 1
        total = self._sum_of(units, *values)
        self.text.say(f"{result} = {f'{base} + {total}' if base else total}")
        self.text.end(1)
        return result

    def _is_coarse(self, units: Units, value: str) -> str:
        if units.fit.error > AS_SUCH:
            return "True"
        bands = ((self.number(low), self.number(high)) for low, high in units.bands)
        return " or ".join(f"{low} <= {value} <= {high}" for low, high in bands) or "False"

    def _sum_of(self, units: Units, *values: str) -> str:
        """Return a variable with the sum of units."""
        arrays = (units.offsets, units.coefficients, *units.directions)
        offsets, coefficients, *directions = map(self.loops.table, arrays)
        total, reaches = self.let("real(0.0)"), map(self.number, units.reaches)
        z = [self.let(f"{value} / {reach}") for value, reach in zip(values, reaches, strict=True)]
        (m,) = self.text.loops([len(units.offsets)], "m")
        terms = [f"{value} * {line}[{m}]" for value, line in zip(z, directions, strict=True)]
        argument = self.let(" + ".join([f"{offsets}[{m}]", *terms]))
        value = self._function(units.fit.activation, argument)
        self.text.say(f"{total} += {coefficients}[{m}] * {value}")
        self.text.end(1)
        return total if units.gain == 1.0 else self.let(f"{self.number(units.gain)} * {total}")

    # Loops over matrices.

    def _multiply(
        self,
        op: Op,
        left: Place,
        right: Place,
        sizes: Sequence[int],
        base: Place | None = None,
        share: float | None = None,
        moves: tuple[int, int, int] | None = None,
    ) -> None:
        """Write out = [base +] [share *] left @ right.

        With `moves`, write one product per token; they are the offsets from token to token of the
        result, of left and of right.
        """
        _, depth, n_columns = sizes
        # The innermost loop runs over columns: copy `right` if they are not adjacent in memory.
        copied = right
        if n_columns > 1 and right.strides[-1] != 1:
            copied = self._room((depth, n_columns))
            i, j = self.text.loops((depth, n_columns))
            self.text.say(f"{copied.at(i, j)} = {right.at(i, j)}")
            self.text.end(2)
        out = self._new_place(op)
        if any(p.number for p in (left, right)) or (
            base is not None and not is_dense(base, op.shape)
        ):
            raise NoLoopError(f"{op.name} of constants")
        name = self.loops.product(
            *sizes,
            left.strides[-2:],
            copied.strides[-2],
            n_columns,
            base is not None,
            share is not None,
        )
        added = base or out
        scale = "real(1.0)" if share is None else self.number(share)
        firsts = [out.first, left.first, copied.first]
        texts = [str(first) for first in firsts]
        if moves is not None:
            self.text.loops([op.shape[0]], "t")
            texts = [f"{first} + t * {move}" for first, move in zip(firsts, moves, strict=True)]
        self.text.say(
            f"{name}({out.array}, {texts[0]}, {left.array}, {texts[1]}, {copied.array}, {texts[2]},"
            f" {added.array}, {added.first}, {scale})"
        )
        self.text.end(moves is not None)
        if copied is not right:
            self._give_back(copied, (depth, n_columns))

    def _loop_times(self, op: Op) -> None:
        left, right = map(self.place, op.args)
        self._multiply(op, left, right, (*op.args[0].shape, op.shape[1]))

    def _loop_add_outer(self, op: Op) -> None:
        weights, left, right = op.args
        is_zero = weights.name == "fill" and weights.options == (0.0,)
        base = None if is_zero else self.place(weights)
        sizes = (*left.shape, op.shape[1])
        self._multiply(op, self.place(left), self.place(right), sizes, base, op.options[0])

    def _loop_matmul(self, op: Op) -> None:
        left, right = map(self.place, op.args)
        if len(op.shape) != 3 or right.strides[-1] != 1:
            raise NoLoopError(op.name)
        n_rows, n_columns = op.shape[1:]
        moves = (n_rows * n_columns, left.strides[0], right.strides[0])
        self._multiply(op, left, right, (n_rows, op.args[0].shape[2], n_columns), moves=moves)

    def _loop_add_rows(self, op: Op) -> None:
        _, left, matrix = op.args
        places = [self.place(arg) for arg in op.args]
        if not all(is_dense(p, arg.shape) for p, arg in zip(places, op.args, strict=True)):
            raise NoLoopError(op.name)
        depth, n_columns = prod(left.shape), matrix.shape[-1]
        along = places[1]._replace(strides=(0, 1))
        down = places[2]._replace(strides=(n_columns, 1))
        self._multiply(op, along, down, (1, depth, n_columns), places[0], op.options[0])

    def _loop_constant_map(self, op: Op) -> None:
        run, (value,) = self.loops.run, op.args
        matrix = torch.tensor(op.options, dtype=torch.float64).to(run.like).mT.contiguous()
        right = Place(self.loops.table(matrix), 0, dense(matrix.shape))
        self._multiply(op, self.place(value), right, (*value.shape, op.shape[1]))

    def _loop_beside(self, op: Op) -> None:
        sources = [self.place(arg) for arg in op.args]
        out, done = self._new_place(op), 0
        for arg, source in zip(op.args, sources, strict=True):
            index = self.text.loops(arg.shape)
            target = out._replace(first=out.first + done)
            self.text.say(f"{target.at(*index)} = {source.at(*index)}")
            self.text.end(len(index))
            done += arg.shape[-1]

    def _loop_take(self, op: Op) -> None:
        source = self.place(op.args[0])
        out = self._new_place(op)
        if len(op.options) > MOST_UNROLLED:
            columns = torch.tensor(op.options, dtype=self.loops.run.like.dtype)
            i, k = self.text.loops(op.shape)
            self.text.say(f"column = int({self.loops.table(columns)}[{k}])")
            self.text.say(
                f"{out.at(i, k)} = {source.at(i, 'column')} if column >= 0 else real(0.0)"
            )
            self.text.end(2)
            return
        (i,) = self.text.loops(op.shape[:1])
        for column, taken in enumerate(op.options):
            value = "real(0.0)" if taken == NOWHERE else source.at(i, str(taken))
            self.text.say(f"{out.at(i, str(column))} = {value}")
        self.text.end(1)

    def _loop_scale_columns(self, op: Op) -> None:
        source, out = self.place(op.args[0]), self._new_place(op)
        factor, last = map(self.number, op.options)
        i, j = self.text.loops(op.shape)
        chosen = f"({factor} if {j} < {op.shape[1] - 1} else {last})"
        self.text.say(f"{out.at(i, j)} = {chosen} * {source.at(i, j)}")
        self.text.end(2)

    def _loop_softmax(self, op: Op) -> None:
        source = self.place(op.args[0])
        out, text, (n_rows, n_columns) = self._new_place(op), self.text, op.shape
        (i,) = text.loops([n_rows])
        text.say(f"largest = {source.at(i, '0')}")
        text.loops([n_columns], "j")
        text.say(f"largest = max(largest, {source.at(i, 'j')})")
        text.end(1)
        text.say("total = real(0.0)")
        text.loops([n_columns], "j")
        text.say(f"share = exp({source.at(i, 'j')} - largest)")
        text.say(f"{out.at(i, 'j')} = share")
        text.say("total += share")
        text.end(1)
        text.loops([n_columns], "j")
        text.say(f"{out.at(i, 'j')} /= total")
        text.end(2)


def _entry(op: Op) -> str:
    return f"_entry_{op.name}"

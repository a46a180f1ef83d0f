"""The parts of programs as text to read, and as JSON data to save and load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from inspect import isabstract, isclass
from itertools import accumulate
from typing import Any, get_args

from icgd.program import (
    chain_instructions,
    grid_instructions,
    instructions,
    kernel_instructions,
    table_instructions,
    unit_instructions,
)
from icgd.program.functions import Function, GridMean, LatticeFunction
from icgd.program.instructions import Argument, Combination, Instruction, Summand
from icgd.program.kernel_instructions import KernelTerm
from icgd.program.layout import Layout, Role, Slot
from icgd.program.program import Layer
from icgd.program.ridge import Band, RidgeSum, RidgeUnit

VERBS = (
    instructions,
    kernel_instructions,
    table_instructions,
    unit_instructions,
    grid_instructions,
    chain_instructions,
)
"""The files that hold instructions."""

INSTRUCTIONS: dict[str, type[Instruction]] = {
    name: verb
    for module in VERBS
    for name, verb in vars(module).items()
    if isclass(verb) and issubclass(verb, Instruction) and not isabstract(verb)
}
"""All instructions by name."""

FUNCTIONS: dict[str, type[Function]] = {kind.__name__: kind for kind in get_args(Function)}
"""All kinds of function by name."""


def listing(title: str, sections: Mapping[str, Sequence[str]]) -> str:
    """The sections that are not empty, each below its heading."""
    lines = [title]
    for heading, section in sections.items():
        lines += ["", heading, *section] if section else []
    return "\n".join(lines) + "\n"


def slot_lines(layout: Layout) -> list[str]:
    """A line for each slot: where it starts, its name, its shape and its role."""
    starts = accumulate((slot.width for slot in layout.slots), initial=0)
    return [_slot_line(start, slot) for start, slot in zip(starts, layout.slots, strict=False)]


def _slot_line(start: int, slot: Slot) -> str:
    shape = " x ".join(str(size) for size in slot.shape)
    return f"  {start:>5}  {slot.name:<20} {shape:<9} {slot.role.name.lower()}"


def function_lines(functions: Sequence[Function]) -> list[str]:
    """A line for each function: how finely it is approximated, where, and how well."""
    return [_function_line(function) for function in functions]


def _function_line(function: Function) -> str:
    error = "exact" if function.is_exact else f"error at most {function.error:.3g}"
    if isinstance(function, RidgeSum) and function.bands:
        error += f", near kinks {function.largest_error:.3g}"
    return f"  {function.name:<12} {_how_and_where(function)}, {error}"


def _how_and_where(function: Function) -> str:
    if isinstance(function, LatticeFunction):
        where = (
            "everywhere" if function.saturates else f"on [-{function.reach:g}, {function.reach:g}]"
        )
        return f"{function.fineness}, {function.spacing:.3g} apart, {where}"
    if isinstance(function, GridMean):
        return f"{function.fineness} on [-{function.reach:g}, {function.reach:g}]"
    if isinstance(function, RidgeSum):
        box = " x ".join(f"[-{width:g}, {width:g}]" for width in function.half_widths)
        return f"{function.fineness} on {box}"
    n_terms = len(function.terms())
    terms = f"{n_terms} term{'s' * (n_terms != 1)}"
    return f"{function.fineness}, {terms} on [{function.low:g}, {function.high:g}]"


def layer_lines(layers: Sequence[Layer]) -> list[str]:
    """A line for each instruction, the layers numbered from 1."""
    lines: list[str] = []
    for number, layer in enumerate(layers, start=1):
        formulas = [instruction.formula() for instruction in layer.instructions]
        lines.append(f"  {number:>3} {layer.kind.value:<10} {formulas[0]}")
        lines += [f"  {'':>3} {'':<10} {formula}" for formula in formulas[1:]]
    return lines


def slots_data(layout: Layout) -> list[dict[str, Any]]:
    """The slots, in order."""
    return [
        {"name": slot.name, "shape": list(slot.shape), "role": slot.role.name}
        for slot in layout.slots
    ]


def functions_data(functions: Sequence[Function]) -> list[dict[str, Any]]:
    """The functions with the names of their kinds."""
    return [{"kind": type(function).__name__, **asdict(function)} for function in functions]


def layers_data(layers: Sequence[Layer]) -> list[dict[str, Any]]:
    """The layers, whose instructions have the names of their verbs."""
    return [_layer_data(layer) for layer in layers]


def _layer_data(layer: Layer) -> dict[str, Any]:
    instructions = [
        {"verb": type(instruction).__name__, **asdict(instruction)}  # type: ignore[call-overload]
        for instruction in layer.instructions
    ]
    return {"title": layer.title, "kind": layer.kind.value, "instructions": instructions}


def read_layout(slots: Sequence[Mapping[str, Any]]) -> Layout:
    """What `slots_data` described."""
    return Layout(tuple(Slot(s["name"], tuple(s["shape"]), Role[s["role"]]) for s in slots))


def read_layers(layers: Sequence[Mapping[str, Any]]) -> tuple[Layer, ...]:
    """What `layers_data` described."""
    return tuple(_layer(entry) for entry in layers)


def _layer(data: Mapping[str, Any]) -> Layer:
    return Layer(data["title"], tuple(_instruction(entry) for entry in data["instructions"]))


def read_functions(functions: Sequence[Mapping[str, Any]]) -> tuple[Function, ...]:
    """What `functions_data` described."""
    return tuple(_function(entry) for entry in functions)


def _function(data: Mapping[str, Any]) -> Function:
    fields = _with_tuples(data)
    kind = FUNCTIONS[fields.pop("kind")]
    if kind is RidgeSum:
        fields["units"] = tuple(RidgeUnit(**_with_tuples(unit)) for unit in fields["units"])
        fields["bands"] = tuple(Band(**band) for band in fields["bands"])
    return kind(**fields)


def _instruction(data: Mapping[str, Any]) -> Instruction:
    fields = _with_tuples(data)
    verb = INSTRUCTIONS[fields.pop("verb")]
    if "summands" in fields:
        fields["summands"] = tuple(
            Summand(_combination(part["argument"]), part["function"]) for part in fields["summands"]
        )
    if "terms" in fields:
        fields["terms"] = tuple(
            KernelTerm(**{**term, "transform": _rows(term["transform"])})
            for term in fields["terms"]
        )
        fields["transform"] = _rows(fields["transform"])
    if isinstance(fields.get("argument"), Mapping):
        argument = dict(fields["argument"])
        fields["argument"] = Argument(_combination(argument.pop("inputs")), **argument)
    for name in ("left", "score", "value", "key", "source", "upstream"):
        if isinstance(fields.get(name), Mapping):
            fields[name] = _combination(fields[name])
    return verb(**fields)


def _rows(matrix: Sequence[Sequence[float]] | None) -> tuple[tuple[float, ...], ...] | None:
    return None if matrix is None else tuple(tuple(row) for row in matrix)


def _combination(data: Mapping[str, Any]) -> Combination:
    return Combination(**_with_tuples(data))


def _with_tuples(data: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: tuple(value) if isinstance(value, list | tuple) else value
        for key, value in data.items()
    }

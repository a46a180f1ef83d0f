"""Programs as text to read, and as JSON data to save and load."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from icgd.program.functions import ReluSum
from icgd.program.instructions import (
    AccumulateOuterProduct,
    ApplyUnits,
    ClipSlots,
    Instruction,
    MapSlots,
    MultiplySlots,
    PullBack,
    Summand,
    WipeSlots,
)
from icgd.program.layout import Layout, Role, Slot
from icgd.program.program import Layer, StackProgram

INSTRUCTIONS: dict[str, type[Instruction]] = {
    verb.__name__: verb
    for verb in (
        ApplyUnits,
        AccumulateOuterProduct,
        MultiplySlots,
        PullBack,
        MapSlots,
        ClipSlots,
        WipeSlots,
    )
}


def listing(program: StackProgram) -> str:
    """The program as a readable listing: slots, functions, then every layer."""
    layout = program.layout
    lines = [f"program {program.construction}, {program.n_layers} layers, d_model {layout.width}"]
    lines += ["", "slots"]
    lines += [_slot_line(layout, slot) for slot in layout.slots]
    lines += ["", "functions"]
    lines += [_function_line(function) for function in program.functions]
    lines += ["", f"block, {program.n_steps} times"]
    lines += _layer_lines(program.block)
    lines += ["", "prediction"]
    lines += _layer_lines(program.prediction)
    return "\n".join(lines) + "\n"


def _slot_line(layout: Layout, slot: Slot) -> str:
    place = layout.range_of(slot.name)
    shape = " x ".join(str(size) for size in slot.shape)
    return f"  {place.start:>5}  {slot.name:<20} {shape:<9} {slot.role.name.lower()}"


def _function_line(function: ReluSum) -> str:
    pieces, terms = _counted(function.n_pieces, "piece"), _counted(len(function.terms()), "term")
    error = "exact" if function.is_exact else f"error at most {function.error:.3g}"
    where = f"on [{function.low:g}, {function.high:g}]"
    return f"  {function.name:<12} {pieces}, {terms} {where}, {error}"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def _layer_lines(layers: tuple[Layer, ...]) -> list[str]:
    lines: list[str] = []
    for number, layer in enumerate(layers, start=1):
        formulas = [instruction.formula() for instruction in layer.instructions]
        lines.append(f"  {number:>3} {layer.kind.value:<10} {formulas[0]}")
        lines += [f"  {'':>3} {'':<10} {formula}" for formula in formulas[1:]]
    return lines


def to_data(program: StackProgram) -> dict[str, Any]:
    """The program as JSON-ready data."""
    return {
        "construction": program.construction,
        "n_steps": program.n_steps,
        "slots": [
            {"name": slot.name, "shape": list(slot.shape), "role": slot.role.name}
            for slot in program.layout.slots
        ],
        "functions": [asdict(function) for function in program.functions],
        "block": [_layer_data(layer) for layer in program.block],
        "prediction": [_layer_data(layer) for layer in program.prediction],
    }


def _layer_data(layer: Layer) -> dict[str, Any]:
    instructions = [
        {"verb": type(instruction).__name__, **asdict(instruction)}  # type: ignore[call-overload]
        for instruction in layer.instructions
    ]
    return {"title": layer.title, "kind": layer.kind.value, "instructions": instructions}


def from_data(data: Mapping[str, Any]) -> StackProgram:
    """The program that `to_data` described."""
    slots = [Slot(s["name"], tuple(s["shape"]), Role[s["role"]]) for s in data["slots"]]
    return StackProgram(
        construction=data["construction"],
        layout=Layout(tuple(slots)),
        functions=tuple(ReluSum(**_with_tuples(entry)) for entry in data["functions"]),
        block=tuple(_layer(entry) for entry in data["block"]),
        n_steps=data["n_steps"],
        prediction=tuple(_layer(entry) for entry in data["prediction"]),
    )


def _layer(data: Mapping[str, Any]) -> Layer:
    return Layer(data["title"], tuple(_instruction(entry) for entry in data["instructions"]))


def _instruction(data: Mapping[str, Any]) -> Instruction:
    fields = _with_tuples(data)
    verb = INSTRUCTIONS[fields.pop("verb")]
    if "summands" in fields:
        fields["summands"] = tuple(Summand(**_with_tuples(part)) for part in fields["summands"])
    return verb(**fields)


def _with_tuples(data: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: tuple(value) if isinstance(value, list | tuple) else value
        for key, value in data.items()
    }

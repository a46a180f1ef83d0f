"""Programs as text to read, and as JSON data to save and load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from icgd.program.chain import ChainMask, ChainProgram, Program
from icgd.program.chain_instructions import (
    ActivateWhere,
    CopyWhere,
    LookUpProduct,
    MarkFlat,
    MultiplyEntries,
    MultiplyMatrices,
    PassBack,
)
from icgd.program.functions import Function, GridMean, LatticeFunction, ReluSum
from icgd.program.grid_instructions import DescendExamples, PredictMean, ShrinkSlot
from icgd.program.instructions import (
    AccumulateOuterProduct,
    AddGradient,
    AddProduct,
    ApplyUnits,
    Argument,
    AverageExamples,
    ClipSlots,
    Combination,
    DescendFunction,
    Instruction,
    KernelTerm,
    LookUp,
    LookUpStep,
    MapSlots,
    MultiplySlots,
    Project,
    PullBack,
    Summand,
    WipeSlots,
)
from icgd.program.layout import Layout, Role, Slot
from icgd.program.program import Layer, StackProgram
from icgd.program.ridge import Band, RidgeSum, RidgeUnit
from icgd.program.unit_instructions import (
    ActivateUnits,
    AddGatedJacobian,
    AddGatedProduct,
    AddJacobian,
    AddOuterProduct,
    ClipByUnits,
    CopyToQueries,
    PassOn,
    PushJacobian,
    SlopeOfLoss,
    StartJacobian,
    WipeByUnits,
)

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
        LookUp,
        Project,
        AddProduct,
        AddGradient,
        AverageExamples,
        LookUpStep,
        DescendFunction,
        ActivateUnits,
        PassOn,
        StartJacobian,
        PushJacobian,
        AddOuterProduct,
        AddJacobian,
        AddGatedProduct,
        AddGatedJacobian,
        SlopeOfLoss,
        CopyToQueries,
        ClipByUnits,
        WipeByUnits,
        DescendExamples,
        PredictMean,
        ShrinkSlot,
        CopyWhere,
        PassBack,
        ActivateWhere,
        MarkFlat,
        MultiplyMatrices,
        LookUpProduct,
        MultiplyEntries,
    )
}

FUNCTIONS: dict[str, type[Function]] = {
    kind.__name__: kind for kind in (ReluSum, LatticeFunction, GridMean, RidgeSum)
}


def listing(program: Program) -> str:
    """The program as a readable listing: slots, functions, then every layer."""
    if isinstance(program, ChainProgram):
        return _chain_listing(program)
    layout = program.layout
    lines = [f"program {program.construction}, {program.n_layers} layers, d_model {layout.width}"]
    if program.n_registers:
        lines[0] += f", {program.n_registers} registers"
    if program.activation != "relu":
        lines[0] += f", {program.activation} units"
    lines += ["", "slots"]
    lines += [_slot_line(layout, slot) for slot in layout.slots]
    if program.functions:
        lines += ["", "functions"]
        lines += [_function_line(function) for function in program.functions]
    lines += ["", f"block, {program.n_repeats} times"]
    lines += _layer_lines(program.block)
    if program.prediction:
        lines += ["", "prediction"]
        lines += _layer_lines(program.prediction)
    return "\n".join(lines) + "\n"


def _chain_listing(program: ChainProgram) -> str:
    layout = program.layout
    blocks = f"{program.n_blocks} blocks of {program.rows.width} rows"
    lines = [f"program {program.construction}, {blocks}, d_model {layout.width}"]
    lines += ["", "slots"]
    lines += [_slot_line(layout, slot) for slot in layout.slots]
    lines += ["", "functions"]
    lines += [_function_line(function) for function in program.functions]
    lines += ["", f"block t, from block t - 1 and {_far_blocks(program.mask)}"]
    lines += _layer_lines(program.layers)
    return "\n".join(lines) + "\n"


def _far_blocks(mask: ChainMask) -> str:
    """The second block that a block reads, in words: 3, 5, .. 2N - 1 blocks back, or data."""
    backs = ", ".join(f"t - {back}" for back in range(3, mask.reach + 1, 2))
    return f"block {backs} or data" if backs else "data"


def _slot_line(layout: Layout, slot: Slot) -> str:
    place = layout.range_of(slot.name)
    shape = " x ".join(str(size) for size in slot.shape)
    return f"  {place.start:>5}  {slot.name:<20} {shape:<9} {slot.role.name.lower()}"


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


def _layer_lines(layers: tuple[Layer, ...]) -> list[str]:
    lines: list[str] = []
    for number, layer in enumerate(layers, start=1):
        formulas = [instruction.formula() for instruction in layer.instructions]
        lines.append(f"  {number:>3} {layer.kind.value:<10} {formulas[0]}")
        lines += [f"  {'':>3} {'':<10} {formula}" for formula in formulas[1:]]
    return lines


def to_data(program: Program) -> dict[str, Any]:
    """The program as JSON-ready data."""
    if isinstance(program, ChainProgram):
        return _chain_data(program)
    return {
        "construction": program.construction,
        "n_steps": program.n_steps,
        "steps_per_block": program.steps_per_block,
        "activation": program.activation,
        "paper_layers": program.paper_layers,
        "made_for": program.made_for,
        "slots": _slots_data(program.layout),
        "functions": _functions_data(program.functions),
        "block": [_layer_data(layer) for layer in program.block],
        "prediction": [_layer_data(layer) for layer in program.prediction],
    }


def _chain_data(program: ChainProgram) -> dict[str, Any]:
    return {
        "construction": program.construction,
        "n_steps": program.n_steps,
        "batch_size": program.batch_size,
        "shapes": [list(shape) for shape in program.shapes],
        "kinds": list(program.kinds),
        "rows": _slots_data(program.rows),
        "slots": _slots_data(program.layout),
        "functions": _functions_data(program.functions),
        "layers": [_layer_data(layer) for layer in program.layers],
    }


def _slots_data(layout: Layout) -> list[dict[str, Any]]:
    return [
        {"name": slot.name, "shape": list(slot.shape), "role": slot.role.name}
        for slot in layout.slots
    ]


def _functions_data(functions: Sequence[Function]) -> list[dict[str, Any]]:
    return [{"kind": type(function).__name__, **asdict(function)} for function in functions]


def _layer_data(layer: Layer) -> dict[str, Any]:
    instructions = [
        {"verb": type(instruction).__name__, **asdict(instruction)}  # type: ignore[call-overload]
        for instruction in layer.instructions
    ]
    return {"title": layer.title, "kind": layer.kind.value, "instructions": instructions}


def from_data(data: Mapping[str, Any]) -> Program:
    """The program that `to_data` described."""
    if "rows" in data:
        return _chain(data)
    return StackProgram(
        construction=data["construction"],
        layout=_layout(data["slots"]),
        functions=tuple(_function(entry) for entry in data["functions"]),
        block=tuple(_layer(entry) for entry in data["block"]),
        n_steps=data["n_steps"],
        steps_per_block=data["steps_per_block"],
        activation=data["activation"],
        paper_layers=data["paper_layers"],
        made_for=data.get("made_for"),  # older files do not say
        prediction=tuple(_layer(entry) for entry in data["prediction"]),
    )


def _chain(data: Mapping[str, Any]) -> ChainProgram:
    functions = [_function(entry) for entry in data["functions"]]
    return ChainProgram(
        construction=data["construction"],
        rows=_layout(data["rows"]),
        layout=_layout(data["slots"]),
        functions=tuple(f for f in functions if isinstance(f, LatticeFunction)),
        layers=tuple(_layer(entry) for entry in data["layers"]),
        shapes=tuple((rows, columns) for rows, columns in data["shapes"]),
        kinds=tuple(data["kinds"]),
        batch_size=data["batch_size"],
        n_steps=data["n_steps"],
    )


def _layout(slots: Sequence[Mapping[str, Any]]) -> Layout:
    return Layout(tuple(Slot(s["name"], tuple(s["shape"]), Role[s["role"]]) for s in slots))


def _layer(data: Mapping[str, Any]) -> Layer:
    return Layer(data["title"], tuple(_instruction(entry) for entry in data["instructions"]))


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

"""The parts of programs as text to read, and as JSON data to save and load."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import lru_cache, partial
from inspect import isabstract, isclass
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from icgd.errors import ProgramError
from icgd.program import (
    chain_instructions,
    instructions,
    kernel_instructions,
    linear_instructions,
    network_instructions,
    set_instructions,
    unit_instructions,
)
from icgd.program.functions import Function, GridMean, LatticeFunction, ReluSum, RidgeSum
from icgd.program.instructions import Instruction
from icgd.program.layout import Layout, Role, Slot
from icgd.program.program import AbstractProgram, Layer

Part = TypeVar("Part")
Reader = Callable[[Any, str], Any]
"""A function of JSON data and their place, for messages, to the part that they describe."""

_hints = lru_cache(get_type_hints)

INSTRUCTION_MODULES = (
    instructions,
    network_instructions,
    set_instructions,
    unit_instructions,
    linear_instructions,
    kernel_instructions,
    chain_instructions,
)
"""The modules that define instructions."""

INSTRUCTIONS: dict[str, type[Instruction]] = {
    name: verb
    for module in INSTRUCTION_MODULES
    for name, verb in vars(module).items()
    if isclass(verb) and issubclass(verb, Instruction) and not isabstract(verb)
}
"""All instructions by name."""

FUNCTIONS: dict[str, type[Function]] = {
    kind.__name__: kind for kind in (ReluSum, LatticeFunction, GridMean, RidgeSum)
}
"""All kinds of function by name."""

KEYS = {"layout": "slots", "knot_unit": "grid"}
"""Fields that have another name in data."""


def listing(program: AbstractProgram, title: str, stages: Mapping[str, Sequence[Layer]]) -> str:
    """Return a program as text: its slots, its functions, and the instructions of every stage."""
    sections: dict[str, list[str]] = {"slots": [], "functions": function_lines(program.functions)}
    for slot in program.layout.slots:
        start = program.layout.range_of(slot.name).start
        shape, role = " x ".join(map(str, slot.shape)), slot.role.name.lower()
        sections["slots"].append(f"  {start:>5}  {slot.name:<20} {shape:<9} {role}")
    for heading, layers in stages.items():
        sections[heading] = lines = []
        for number, layer in enumerate(layers, start=1):
            first, *others = (instruction.formula() for instruction in layer.instructions)
            lines.append(f"  {number:>3} {layer.kind.value:<10} {first}")
            lines += [f"  {'':>3} {'':<10} {formula}" for formula in others]
    text = [title]
    for heading, lines in sections.items():
        text += ["", heading, *lines] if lines else []
    return "\n".join(text) + "\n"


def function_lines(functions: Sequence[Function]) -> list[str]:
    """Return a line for each function: the fineness, domain and error of its approximation."""
    lines = []
    for function in functions:
        error = "exact" if function.is_exact else f"error at most {function.error:.3g}"
        if function.largest_error > function.error:
            error += f", near kinks {function.largest_error:.3g}"
        lines.append(f"  {function.name:<12} {function.in_words()}, {error}")
    return lines


def program_data(program: AbstractProgram) -> dict[str, Any]:
    """Return the fields of a program as JSON data."""
    return _data_of_fields(program, ())


def data_of(part: object) -> Any:
    """Return a part of a program as JSON data; a dataclass becomes a dict of its fields."""
    if isinstance(part, tuple):
        return [data_of(entry) for entry in part]
    if isinstance(part, Layout):
        return data_of(part.slots)
    if isinstance(part, Role):
        return part.name
    if not is_dataclass(part):
        return part
    label = {}  # the type or kind, besides the fields
    if isinstance(part, Instruction):
        label["verb"] = type(part).__name__
    elif isinstance(part, Layer):
        label["kind"] = part.kind.value
    elif isinstance(part, Function):
        label["kind"] = type(part).__name__
    return label | _data_of_fields(part, None)


def _data_of_fields(part: Any, left_out: object) -> dict[str, Any]:
    """Return the data of the fields, without those whose value and default equal `left_out`."""
    values = {field: getattr(part, field.name) for field in fields(part)}
    return {
        KEYS.get(field.name, field.name): data_of(value)
        for field, value in values.items()
        if not (value == left_out == field.default)
    }


def read_program(kind: Callable[..., Part], data: Mapping[str, Any]) -> Part:
    """Return the program from its `program_data`; older files lack fields that have defaults."""
    return _built(kind, {key: data[key] for key in _readers(kind) if key in data}, "program")


def read(hint: Any, data: Any) -> Any:
    """Return the part of type `hint` from its `data_of`."""
    return _reader(hint)(data, "data")


@lru_cache
def _reader(hint: Any) -> Reader:
    """Return the function that reads a part of type `hint` from its `data_of`."""
    kinds = get_args(hint)
    if get_origin(hint) is tuple:
        return partial(_list, _reader(kinds[0])) if kinds[-1] is ... else partial(_some, kinds)
    if kinds:
        return partial(_optional, _reader(kinds[0]))
    return READERS[hint] if hint in READERS else partial(_built, hint)


def _of_kind(kind: Any, expected: str, data: Any, where: str) -> Any:
    """Return the data if they have this type; True and False are not numbers."""
    if not isinstance(data, kind) or (isinstance(data, bool) and kind is not bool):
        raise ProgramError(f"{where}: is {data!r:.40}, expected {expected}")
    return data


def _number(data: Any, where: str) -> float:
    try:
        return float(_of_kind((float, int), "a number", data, where))
    except OverflowError:
        raise ProgramError(f"{where}: is a number too large for a float") from None


def _optional(read: Reader, data: Any, where: str) -> Any:
    return None if data is None else read(data, where)


def _list(read: Reader, data: Any, where: str) -> tuple[Any, ...]:
    if read is _number and isinstance(data, list) and set(map(type, data)) == {float}:
        return tuple(data)  # a fast path for most of a program's data
    entries = _of_kind((list, tuple), "a list", data, where)
    return tuple(read(entry, f"{where}[{place}]") for place, entry in enumerate(entries))


def _some(kinds: tuple[Any, ...], data: Any, where: str) -> tuple[Any, ...]:
    """Return a tuple with an entry of each type."""
    if len(entries := _of_kind((list, tuple), "a list", data, where)) != len(kinds):
        raise ProgramError(f"{where}: has {len(entries)} entries, expected {len(kinds)}")
    return tuple(_reader(kind)(entry, where) for kind, entry in zip(kinds, entries, strict=True))


def _built(kind: Callable[..., Part], data: Any, where: str) -> Part:
    """Return an instance of a dataclass, whose constructor refuses data without a field."""
    readers, values = _readers(kind), {}
    for key, value in _of_kind(dict, f"the fields of {kind.__name__}", data, where).items():
        if key not in readers:
            raise ProgramError(f"{where}: has {key!r}, which is no field of {kind.__name__}")
        name, read = readers[key]
        values[name] = read(value, f"{kind.__name__}.{name}")
    return kind(**values)


@lru_cache
def _readers(kind: Callable[..., Part]) -> dict[str, tuple[str, Reader]]:
    """Return the name and the reader of every field, by its key in data."""
    return {KEYS.get(name, name): (name, _reader(hint)) for name, hint in _hints(kind).items()}


def _labelled(kinds: Mapping[str, type], label: str, data: Any, where: str) -> Any:
    """Return an instance of the class that the data name under `label`."""
    values = dict(_of_kind(dict, f"data with a {label}", data, where))
    return _built(kinds[values.pop(label)], values, where)


def _layout(data: Any, where: str) -> Layout:
    return Layout(_reader(tuple[Slot, ...])(data, where))


def _role(data: Any, where: str) -> Role:
    return Role[_of_kind(str, "the name of a role", data, where)]


def _layer(data: Any, where: str) -> Layer:
    values = dict(_of_kind(dict, "the fields of Layer", data, where))
    kind, layer = values.pop("kind", None), _built(Layer, values, where)
    if layer.instructions and kind != layer.kind.value:
        raise ProgramError(
            f"{where}: is of kind {kind!r}, expected {layer.kind.value!r}, the kind of its "
            "instructions"
        )
    return layer


READERS: dict[Any, Reader] = {
    float: _number,
    int: partial(_of_kind, int, "a whole number"),
    bool: partial(_of_kind, bool, "true or false"),
    str: partial(_of_kind, str, "a text"),
    Layout: _layout,
    Role: _role,
    Layer: _layer,
    **dict.fromkeys(
        (Instruction, *INSTRUCTIONS.values()), partial(_labelled, INSTRUCTIONS, "verb")
    ),
    Function: partial(_labelled, FUNCTIONS, "kind"),
    LatticeFunction: partial(_labelled, {"LatticeFunction": LatticeFunction}, "kind"),
}
"""The readers of types whose data are not a dict of fields."""

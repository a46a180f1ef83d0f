"""Named slots of the residual stream, and the layout that assigns them coordinates.

Registers are constant tokens in front of the examples, to which softmax heads attend. The first one
is the memory: it holds the trained weights themselves, and has the value 0 in every look-up. Each
other register represents a lattice point g = -half .. half. It holds the weights times its scale
g / half, the offset of its scores, and its value of every function that is looked up. All these
constants follow from the program's functions. Slots of registers are 0 at other tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from math import prod
from typing import Any

from icgd.errors import LayoutError, did_you_mean, quoted

ONE = "one"
"""The slot that holds 1 in every token."""

IS_EXAMPLE, IS_QUERY = "is_example", "is_query"
"""The flags of the two kinds of token that carry data."""

IS_FIRST = "is_first"
"""The flag of the first token that carries data."""

TOKENS_PER_EXAMPLE = "tokens_per_example"
"""The slot that holds n_tokens / n_examples in every token."""

RATES = "rates"
"""The slot that holds the rate of an example, repeated for every output."""

N_TOKENS = "n_tokens"
"""The slot that holds the number of tokens in every token."""

OUT_OF_BATCH = "out_of_batch"
"""The flag of examples outside the batch of this step."""

N_EXAMPLES = "n_examples"
"""The slot that holds the number of examples in every token."""

PLACE = "place"
"""The slot that holds an example's place, counted from the start of the current batch."""

EXAMPLE_SHARE = "example_share"
"""The slot that holds n_tokens / n_examples in every example and 0 in every query."""

IS_REGISTER, IS_MEMORY = "is_register", "is_memory"
"""The flags of all registers, and of the first one."""

SCALE, SCALE_SIZE, SCALE_SIGN = "scale", "scale_size", "scale_sign"
"""The factor of a register's copy of the weights, its absolute value and its sign."""

OFFSET = "offset"
"""The part -g^2 / 2 of a register's score that does not depend on the argument. The memory has the
scale of the last register, and an offset lower by MASKED than that of any other."""

SINK = "sink"
"""The memory's score that leaves a share of SHARE |scale| to examples of total weight 1."""

REGISTER_SLOTS = (IS_REGISTER, IS_MEMORY, SCALE, SCALE_SIZE, SCALE_SIGN, OFFSET, SINK)
"""The constant slots of registers, apart from the values of functions."""

SHARE = 2.0**-40
"""The share of the softmax that examples get in a register of scale 1: see `AddGradient`."""

MASKED = 4096.0
"""A score this much lower than another gets a softmax weight of exactly 0."""

LOG_EXAMPLES = "log_examples"
"""The slot that holds log n_examples in every token."""


def value_slot(name: str) -> str:
    """Return the slot in which registers hold their values of function `name`."""
    return f"value of {name}"


class Role(Enum):
    """The purpose of a slot, with its description as the value."""

    INPUT = "input of an example or a query"
    LABEL = "label of an example; after the run, the prediction at a query"
    RESIDUAL = "label minus the function learnt so far; at a query, minus the function"
    VELOCITY = "change of the learnt function or of the weights in the last step, 0 in the prompt"
    PARAMETER = "weights of the target network, equal in every token"
    SCRATCH = "intermediate result, zero at the start and the end of every step"
    SHARED = "intermediate result about the weights, equal in every token, zero between steps"
    TURN = "whose turn it is: the prompt sets it, and every step moves it on"
    CONSTANT = "constant that the prompt sets"


@dataclass(frozen=True)
class Slot:
    """A named group of coordinates; a matrix has two axes and is stored row by row."""

    name: str
    shape: tuple[int, ...]
    role: Role

    @property
    def width(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True)
class Layout:
    """Ordered named slots of the residual stream, whose width is d_model."""

    slots: tuple[Slot, ...]
    names: tuple[str, ...] = field(init=False, repr=False, compare=False)
    width: int = field(init=False, repr=False, compare=False)
    _by_name: dict[str, Slot] = field(init=False, repr=False, compare=False)
    _ranges: dict[str, slice] = field(init=False, repr=False, compare=False)
    _by_role: dict[Role, tuple[Slot, ...]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        by_name: dict[str, Slot] = {}
        ranges: dict[str, slice] = {}
        end = 0
        for slot in self.slots:
            if slot.name in by_name:
                raise LayoutError(
                    f"Layout names slot {quoted(slot.name)} twice; slot names must be unique."
                )
            by_name[slot.name] = slot
            ranges[slot.name] = slice(end, end := end + slot.width)
        by_role = {role: tuple(s for s in self.slots if s.role is role) for role in Role}
        derived = {"names": tuple(by_name), "width": end, "_by_name": by_name, "_ranges": ranges}
        # A frozen dataclass refuses assignments.
        vars(self).update(derived, _by_role=by_role)

    def slot(self, name: str) -> Slot:
        """Return the slot called `name`."""
        if (slot := self._by_name.get(name)) is None:
            raise LayoutError(
                f"Layout has no slot {quoted(name)}; it has {', '.join(self.names)}."
                f"{did_you_mean(name, self.names)}"
            )
        return slot

    def width_of(self, *names: str) -> int:
        """Return the total number of coordinates of the slots."""
        return sum(self.slot(name).width for name in names)

    def range_of(self, name: str) -> slice:
        """Return coordinates of slot `name`, for use as `stream[..., layout.range_of(name)]`."""
        return self._ranges[self.slot(name).name]

    def split(self, parameters: Any) -> dict[str, Any]:
        """Return views of a tensor (..., parameter) as the matrices of the weights, by slot."""
        if not (slots := self.having(Role.PARAMETER)):
            return {}
        vectors = parameters.split_with_sizes([slot.width for slot in slots], dim=-1)
        tasks, pairs = parameters.shape[:-1], zip(slots, vectors, strict=True)
        return {slot.name: vector.view(*tasks, *slot.shape) for slot, vector in pairs}

    def having(self, role: Role) -> tuple[Slot, ...]:
        """Return the slots of one role, in order."""
        return self._by_role[role]

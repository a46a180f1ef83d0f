"""A hand-made program with registers, and streams of random content for it."""

from functools import cache
from math import log

import torch
from torch import Tensor

from icgd.approximation.lattice import fit_on_lattice, identity, line_lattice, square
from icgd.approximation.relu_sum import fit_relu_sum
from icgd.problems.functions import function_named
from icgd.program.layout import REGISTER_SLOTS, Layout, Role, Slot
from icgd.program.stack import StackProgram

REACH = 6.0
N_EXAMPLES, N_QUERIES = 3, 2
SMOOTH = tuple(function_named(name) for name in ("tanh", "tanh'", "normal_distribution"))
VALUES = ("identity", "square", *(function.name for function in SMOOTH))

# Slots between those in use, so that a wrong offset shows.
LAYOUT = Layout(
    (
        Slot("column", (2, 1), Role.PARAMETER),
        Slot("x", (5,), Role.INPUT),
        Slot("matrix", (2, 5), Role.PARAMETER),
        Slot("between", (1,), Role.SCRATCH),
        Slot("left", (2,), Role.SCRATCH),
        Slot("right", (2,), Role.SCRATCH),
        Slot("write", (2,), Role.SCRATCH),
        Slot("other", (2,), Role.SCRATCH),
        Slot("wide", (5,), Role.SCRATCH),
        *(
            Slot(name, (1,), Role.CONSTANT)
            for name in ("log_examples", *REGISTER_SLOTS, "is_query", "one", "is_example")
        ),
        *(Slot(f"value of {name}", (1,), Role.CONSTANT) for name in VALUES),
    )
)


@cache
def program(half: int = 15) -> StackProgram:
    """Lines, squares and look-ups over 2 half + 1 grid tokens, and sums of ReLUs."""
    lines = (identity(line_lattice(1.0, half)), square(line_lattice(2.0, half)))
    sums = [fit_relu_sum(function_named(name), -50.0, 50.0, 9, 0.25) for name in ("clip", "relu")]
    functions = (*lines, *fit_on_lattice(SMOOTH, REACH, half), *sums)
    return StackProgram("by hand", LAYOUT, functions, (), 0, ())


class Slots:
    """A stream's slots by name, a row for each token."""

    def __init__(self, stream: Tensor) -> None:
        self.stream = stream

    def __getitem__(self, name: str) -> Tensor:
        return self.stream[:, LAYOUT.range_of(name)]

    def __setitem__(self, name: str, values: Tensor) -> None:
        self.stream[:, LAYOUT.range_of(name)] = values


def prompt(half: int = 15, dtype: torch.dtype = torch.float64) -> Tensor:
    """Registers, examples, queries: inputs and scratch between -1 and 1, but for the memory.

    Its scratch is 0, as every layer leaves it. The weights are times the registers' scales.
    """
    generator = torch.Generator().manual_seed(3)
    registers = program(half).registers()
    first = len(registers["scale"])
    n_tokens = first + N_EXAMPLES + N_QUERIES
    stream = 2 * torch.rand(n_tokens, LAYOUT.width, generator=generator, dtype=torch.float64) - 1
    slots = Slots(stream)
    stream[0] = 0.0
    for slot in LAYOUT.having(Role.CONSTANT):
        slots[slot.name] = torch.zeros(n_tokens, 1)
    slots["one"] = torch.ones(n_tokens, 1)
    slots["is_example"][first : first + N_EXAMPLES] = 1.0
    slots["is_query"][first + N_EXAMPLES :] = 1.0
    slots["log_examples"] = slots["one"] * log(N_EXAMPLES)
    for name, values in registers.items():
        slots[name][:first, 0] = torch.tensor(values, dtype=torch.float64)
    for slot in LAYOUT.having(Role.PARAMETER):
        weights = 2 * torch.rand(slot.width, generator=generator, dtype=torch.float64) - 1
        slots[slot.name] = weights * slots["scale"]
    for name in ("write", "other", "wide"):
        slots[name] = torch.zeros(n_tokens, LAYOUT.slot(name).width)
    return stream.to(dtype)


def examples(half: int = 15) -> slice:
    first = 2 * half + 2
    return slice(first, first + N_EXAMPLES)

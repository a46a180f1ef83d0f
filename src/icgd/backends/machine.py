"""The machine of a fused run: all slots as buffers, which are allocated once and reused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, singledispatch
from typing import Any, TypeVar

import torch
from torch import Tensor

from icgd.backends.look_up import Evaluation, Operation
from icgd.backends.prompt import split_parameters, turns
from icgd.errors import ProgramError
from icgd.program import instructions as verbs
from icgd.program import uses
from icgd.program.functions import Function
from icgd.program.instructions import RATES, Argument, Combination, Instruction
from icgd.program.layout import Role
from icgd.program.program import Layer
from icgd.program.stack import StackProgram
from icgd.program.update_instructions import OUT_OF_BATCH
from icgd.program.uses import Use
from icgd.shapes import Inputs, Labels, Parameters, Queries, Rates

AnyInstruction = TypeVar("AnyInstruction", bound=Instruction)


def nothing() -> None:
    """What fills a buffer that is always full."""


class ArgumentBuffer:
    """The product W p of a matrix and inputs, or the inputs alone, ready for functions of it."""

    def __init__(self, argument: Argument, machine: Machine, functions: Sequence[Function]) -> None:
        inputs, self._combine = combined(argument.inputs, machine.slots)
        self._product: Operation | None = None
        if argument.weights is not None:
            if argument.has_bias and not argument.transposed:
                inputs, self._combine = machine.above_one(inputs, self._combine)
            factor = machine.factor(argument)
            self.value = value = machine.buffer(machine.n_tokens, factor.shape[-1])
            self._product = lambda: torch.matmul(inputs, factor, out=value)
        else:
            self.value = inputs
        evaluation = Evaluation(functions, self.value)
        self._prepare, self.operation = evaluation.prepare, evaluation.operation

    def compute(self) -> None:
        """Compute the argument, and what its functions share."""
        self._combine()
        if self._product:
            self._product()
        self._prepare()


def combined(combination: Combination, slots: Mapping[str, Tensor]) -> tuple[Tensor, Operation]:
    """A buffer for the combination, and what fills it; a single slot is its own buffer."""
    (name, factor), *others = combination.terms()
    if not others and factor == 1.0 and slots[name].is_contiguous():
        return slots[name], nothing
    first, rest = slots[name], [(slots[slot], coefficient) for slot, coefficient in others]
    value = torch.empty_like(first, memory_format=torch.contiguous_format)

    def combine() -> None:
        torch.mul(first, factor, out=value)
        for slot, coefficient in rest:
            value.add_(slot, alpha=coefficient)

    return value, combine


def _variants(program: StackProgram) -> dict[int, tuple[Any, ...]]:
    """For every instruction that ends the first step, those in its place in all steps."""
    ends = [[part for layer in end for part in layer.instructions] for end in program.schedule]
    parts = zip(*ends, strict=True)
    return {id(variants[0]): variants for variants in parts if len(set(variants)) > 1}


def combined_in_steps(
    combinations: Sequence[Combination], slots: Mapping[str, Tensor], machine: Machine
) -> tuple[Tensor, Operation]:
    """A buffer for a combination whose coefficients may change with the step; what fills it."""
    table = [combination.coefficients for combination in combinations]
    first, *rest = [slots[name] for name in combinations[0].slots]
    value = torch.empty_like(first, memory_format=torch.contiguous_format)

    def combine() -> None:
        factor, *factors = table[machine.step] if len(table) > 1 else table[0]
        torch.mul(first, factor, out=value)
        for slot, coefficient in zip(rest, factors, strict=True):
            value.add_(slot, alpha=coefficient)

    return value, combine


class Machine:
    """The slots of some tasks as buffers, and the operations that run on them.

    Registers are tokens only of a traced run: otherwise nobody reads what happens in them, and
    the weights are kept once.
    """

    def __init__(
        self,
        program: StackProgram,
        parameters: Parameters,
        x: Inputs,
        y: Labels,
        queries: Queries,
        *,
        rates: Rates | None = None,
        traced: bool = False,
    ) -> None:
        self.program = program
        self.batch_size = program.batch_size
        self.traced = traced
        n_registers = program.n_registers if traced else 0
        n_examples, n_queries = x.shape[-2], queries.shape[-2]
        self.examples = slice(n_registers, n_registers + n_examples)
        self.queries = slice(self.examples.stop, self.examples.stop + n_queries)
        self.batch = tuple(x.shape[:-2])
        self.n_tokens = self.queries.stop
        nothing = x.new_zeros(*self.batch, n_registers, x.shape[-1])
        self.slots = {"x": torch.cat([nothing, x, queries], dim=-2)}
        self.slots["y"] = self.buffer(self.n_tokens, y.shape[-1])
        self.slots["y"][..., self.examples, :] = y
        if rates is not None:
            self.slots[RATES] = self.buffer(self.n_tokens, y.shape[-1])
            self.slots[RATES][..., self.examples, :] = rates
        self._weights: list[Tensor] = []
        # A matrix of its own for each weight slot: products are several times slower on views.
        for name, matrix in split_parameters(program.layout, parameters).items():
            self.slots[name] = matrix.clone(memory_format=torch.contiguous_format)
            self._weights.append(self.slots[name].flatten(-2))
        for slot in program.layout.having(Role.SCRATCH):
            self.slots[slot.name] = self.buffer(self.n_tokens, slot.width)
        for slot in program.layout.having(Role.SHARED) + program.layout.having(Role.VELOCITY):
            self.slots[slot.name] = x.new_zeros(*self.batch, *slot.shape)
        self.waiting = self._turns() if traced else None
        self._arguments: dict[Argument, ArgumentBuffer] = {}
        self._shared: dict[str, Tensor] = {}
        self.step = 0
        """The number of steps taken so far, by which instructions of a schedule differ."""
        self._variants = _variants(program)

    def variants(self, instruction: AnyInstruction) -> tuple[AnyInstruction, ...]:
        """What an instruction of the first step is in each step, or itself if all are alike."""
        return self._variants.get(id(instruction), (instruction,))

    def _turns(self) -> Tensor | None:
        """Fill the slots of batches as the prompt does; return the flag of those that wait."""
        if self.batch_size is None:
            return None
        for slot in self.program.layout.having(Role.TURN):
            self.slots[slot.name] = column = self.buffer(self.n_tokens, 1)
            column[..., self.examples, 0] = turns(self.program, slot.name, self.examples).to(column)
        return self.slots[OUT_OF_BATCH][..., self.examples, :]

    def part(self, name: str, tokens: slice) -> Tensor:
        """A slot at some tokens; or the whole of one that all tokens share."""
        role = self.program.layout.slot(name).role
        slot = self.slots[name]
        return slot if role in (Role.SHARED, Role.PARAMETER) else slot[..., tokens, :]

    def velocities(self) -> dict[str, Tensor]:
        """What a step takes over from the step before it, beside the parameters."""
        return {
            slot.name: self.slots[slot.name] for slot in self.program.layout.having(Role.VELOCITY)
        }

    def read_parameters(self, write: Parameters) -> None:
        """Write the current weights into a parameter vector."""
        torch.cat(self._weights, dim=-1, out=write)

    def buffer(self, n_rows: int, width: int) -> Tensor:
        """A buffer of zeros for every task."""
        return self.slots["x"].new_zeros(*self.batch, n_rows, width)

    def shared(self, name: str, n_rows: int, width: int) -> Tensor:
        """A buffer that all steps share: an operation needs it no longer than it runs."""
        if name not in self._shared:
            self._shared[name] = self.buffer(n_rows, width)
        return self._shared[name]

    def factor(self, argument: Argument) -> Tensor:
        """The matrix by which the rows of an argument's inputs are multiplied."""
        matrix = self.slots[argument.weights or ""]
        if not argument.transposed:
            return matrix.mT
        return matrix[..., :-1] if argument.has_bias else matrix

    def above_one(self, inputs: Tensor, fill: Operation) -> tuple[Tensor, Operation]:
        """A buffer for inputs, which `fill` computes, beside a constant 1; and what fills it."""
        value = self.buffer(inputs.shape[-2], inputs.shape[-1] + 1).add_(1.0)
        own = value[..., :-1]

        def copy() -> None:
            fill()
            own.copy_(inputs)

        return value, copy

    def tokens_where(self, flag: str) -> slice:
        """The tokens at which a flag is 1."""
        places = {verbs.IS_EXAMPLE: self.examples, verbs.IS_QUERY: self.queries}
        return (places | {verbs.ONE: slice(0, self.n_tokens)})[flag]

    def at(self, *names: str) -> list[Tensor]:
        """The slots of these names."""
        return [self.slots[name] for name in names]

    def operations(self, layers: Iterable[Layer]) -> list[Operation]:
        """The layers' instructions as operations, in order.

        An argument is computed once for all its functions, and again only after its weights or
        its inputs were written.
        """
        operations: list[Operation] = []
        fresh: set[Argument] = set()
        readers: dict[str, set[Argument]] = {}
        for instruction in (part for layer in layers for part in layer.instructions):
            argument = argument_of(instruction)
            if argument is not None and argument not in fresh:
                operations.append(self.argument(argument).compute)
                fresh.add(argument)
                for name in argument.slots():
                    readers.setdefault(name, set()).add(argument)
            operations.append(operation(instruction, self))
            for name in instruction.writes():
                fresh -= readers.pop(name, set())
        return operations

    def argument(self, argument: Argument) -> ArgumentBuffer:
        """The buffer of an argument, prepared for all functions that the program applies to it."""
        if argument not in self._arguments:
            functions = list(self._functions.get(argument, ()))
            self._arguments[argument] = ArgumentBuffer(argument, self, functions)
        return self._arguments[argument]

    @cached_property
    def _functions(self) -> dict[Argument, dict[Function, None]]:
        """The functions that the program applies to every argument, each once."""
        found: dict[Argument, dict[Function, None]] = {}
        for part in (part for layer in self.program.layers for part in layer.instructions):
            if (argument := argument_of(part)) is not None:
                found.setdefault(argument, {}).update(dict.fromkeys(self.functions(part)))
        return found

    def is_written_before(self, instruction: verbs.AddProduct) -> bool:
        """Whether there is something to add to: scratch is overwritten, not wiped, in a run."""
        return self._first_writers.get(instruction.write, instruction) != instruction

    def kept_of(self, write: Tensor) -> float:
        """How much of a matrix stays when a gradient is added: nothing of one that is 0 then.

        The gradient of an optimiser is the first that a step writes into its slot, unless weight
        decay stands there before.
        """
        return 0.0 if any(write is slot for slot in self._first_accumulated) else 1.0

    @cached_property
    def _first_accumulated(self) -> list[Tensor]:
        """The shared slots to which a step first writes by adding a gradient."""
        names = (slot.name for slot in self.program.layout.having(Role.SHARED))
        first = ((name, self._first_writers.get(name)) for name in names)
        return [
            self.slots[name]
            for name, part in first
            if part is not None and name in uses.names(part, Use.ACCUMULATE)
        ]

    @cached_property
    def _first_writers(self) -> dict[str, Instruction]:
        """The instruction that first writes to a slot in a step, by the slot's name."""
        found: dict[str, Instruction] = {}
        for part in (part for layer in self.program.block for part in layer.instructions):
            for name in part.writes():
                found.setdefault(name, part)
        return found

    def functions(self, instruction: Instruction) -> list[Function]:
        """The functions that an instruction looks up; lines and squares it does by arithmetic."""
        match instruction:
            case verbs.ApplyUnits(function=name):
                return [self.program.relu_sum(name)]
            case verbs.LookUp(lookups=names):
                return [self.program.look_up(name) for name in names]
        return []


def argument_of(instruction: Instruction) -> Argument | None:
    """The argument that an instruction first computes from weights and inputs, if any."""
    argument = getattr(instruction, "argument", None)
    return argument if isinstance(argument, Argument) else None


@singledispatch
def operation(instruction: Instruction, machine: Machine) -> Operation:
    """The instruction as a closure over the machine's buffers."""
    raise ProgramError.broken(
        type(instruction).__name__, "has no operation in backends/operations.py"
    )

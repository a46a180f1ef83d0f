"""An operation is an instruction as a closure over buffers that are allocated once and reused.

Scratch is overwritten rather than added to, so it is wiped only for a trace. Operations of
instructions by units of any activation are in `unit_operations.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import singledispatch

import torch
from torch import Tensor

from icgd.backends.look_up import Evaluation, Operation
from icgd.backends.prompt import split_parameters
from icgd.errors import ProgramError
from icgd.program import instructions as verbs
from icgd.program.functions import Function
from icgd.program.instructions import Argument, Combination, Instruction, Summand
from icgd.program.layout import Role
from icgd.program.program import Layer
from icgd.program.stack import StackProgram
from icgd.program.table_instructions import AverageExamples, LookUpStep
from icgd.program.unit_instructions import AddGatedProduct, WipeByUnits
from icgd.shapes import Inputs, Labels, Parameters, Queries


class ArgumentBuffer:
    """The product W p of a matrix and inputs, or the inputs alone, ready for functions of it."""

    def __init__(self, argument: Argument, machine: Machine, functions: Sequence[Function]) -> None:
        inputs, self._combine = _combined(argument.inputs, machine.slots)
        self.value = inputs
        self._product: Operation | None = None
        if argument.weights is not None:
            matrix = machine.slots[argument.weights]
            factor = matrix if argument.transposed else matrix.mT
            self.value = value = machine.buffer(machine.n_tokens, factor.shape[-1])
            self._product = lambda: torch.matmul(inputs, factor, out=value)
        evaluation = Evaluation(functions, self.value)
        self._prepare, self.operation = evaluation.prepare, evaluation.operation

    def compute(self) -> None:
        """Compute the argument, and what its functions share."""
        self._combine()
        if self._product:
            self._product()
        self._prepare()


def _combined(combination: Combination, slots: Mapping[str, Tensor]) -> tuple[Tensor, Operation]:
    """A buffer for the combination, and what fills it; a single slot is its own buffer."""
    (name, factor), *others = combination.terms()
    if not others and factor == 1.0 and slots[name].is_contiguous():
        return slots[name], lambda: None
    first, rest = slots[name], [(slots[slot], coefficient) for slot, coefficient in others]
    value = torch.empty_like(first, memory_format=torch.contiguous_format)

    def combine() -> None:
        torch.mul(first, factor, out=value)
        for slot, coefficient in rest:
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
        traced: bool = False,
    ) -> None:
        self.program = program
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
        self._weights: list[Tensor] = []
        # A matrix of its own for each weight slot: products are several times slower on views.
        for name, matrix in split_parameters(program.layout, parameters).items():
            self.slots[name] = matrix.clone(memory_format=torch.contiguous_format)
            self._weights.append(self.slots[name].flatten(-2))
        for slot in program.layout.having(Role.SCRATCH):
            self.slots[slot.name] = self.buffer(self.n_tokens, slot.width)
        for slot in program.layout.having(Role.VELOCITY):
            self.slots[slot.name] = x.new_zeros(*self.batch, *slot.shape)
        self._arguments: dict[Argument, ArgumentBuffer] = {}
        self._shared: dict[str, Tensor] = {}
        self.n_predicted = 0
        """How often the means of a linear model were predicted: once a step."""

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
        for instruction in (part for layer in layers for part in layer.instructions):
            argument = argument_of(instruction)
            if argument is not None and argument not in fresh:
                operations.append(self.argument(argument).compute)
                fresh.add(argument)
            operations.append(operation(instruction, self))
            fresh = {old for old in fresh if not set(old.slots()) & set(instruction.writes())}
        return operations

    def argument(self, argument: Argument) -> ArgumentBuffer:
        """The buffer of an argument, prepared for all functions that the program applies to it."""
        if argument not in self._arguments:
            instructions = [
                part
                for layer in (*self.program.block, *self.program.prediction)
                for part in layer.instructions
                if argument_of(part) == argument
            ]
            functions = dict.fromkeys(f for part in instructions for f in self.functions(part))
            self._arguments[argument] = ArgumentBuffer(argument, self, list(functions))
        return self._arguments[argument]

    def is_written_before(self, instruction: verbs.AddProduct) -> bool:
        """Whether there is something to add to: scratch is overwritten, not wiped, in a run."""
        for part in (part for layer in self.program.block for part in layer.instructions):
            if instruction.write in part.writes():
                return part != instruction
        return False

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
    if isinstance(instruction, verbs.ApplyUnits):
        return Argument(Combination.of(instruction.inputs), instruction.weights)
    argument = getattr(instruction, "argument", None)
    return argument if isinstance(argument, Argument) else None


@singledispatch
def operation(instruction: Instruction, machine: Machine) -> Operation:
    """The instruction as a closure over the machine's buffers."""
    raise ProgramError.broken(
        type(instruction).__name__, "has no operation in backends/operations.py"
    )


@operation.register
def _to_apply_units(instruction: verbs.ApplyUnits, machine: Machine) -> Operation:
    buffer = machine.argument(Argument(Combination.of(instruction.inputs), instruction.weights))
    function = machine.program.relu_sum(instruction.function)
    return buffer.operation(function, machine.slots[instruction.write])


@operation.register
def _to_look_up(instruction: verbs.LookUp, machine: Machine) -> Operation:
    buffer = machine.argument(instruction.argument)
    writes = machine.at(*instruction.into)
    functions = [machine.program.look_up(name) for name in instruction.lookups]
    parts = [buffer.operation(f, write) for f, write in zip(functions, writes, strict=True)]
    memories = [write[..., :1, :] for write in writes] if machine.traced else []

    def run() -> None:
        for part in parts:
            part()
        for memory in memories:  # it reads itself, and holds no values
            memory.zero_()

    return run


@operation.register
def _to_project(instruction: verbs.Project, machine: Machine) -> Operation:
    value, write = machine.argument(instruction.argument).value, machine.slots[instruction.write]
    return lambda: write.copy_(value)


@operation.register
def _to_add_product(instruction: verbs.AddProduct, machine: Machine) -> Operation:
    value = machine.argument(instruction.argument).value
    factor, write = machine.at(instruction.factor, instruction.write)
    if machine.is_written_before(instruction):
        return lambda: write.addcmul_(value, factor)
    return lambda: torch.mul(value, factor, out=write)


@operation.register
def _to_add_gradient(instruction: verbs.AddGradient, machine: Machine) -> Operation:
    left, combine = _combined(instruction.left, machine.slots)
    right, write = machine.at(instruction.right, instruction.write)
    add = add_outer_product(left, right, instruction.scale, write, machine)

    def run() -> None:
        combine()
        add()

    return run


def add_outer_product(
    left: Tensor, right: Tensor, scale: float, write: Tensor, machine: Machine
) -> Operation:
    """The operation write += scale * the mean over the examples of left right^T."""
    transposed, right = left[..., machine.examples, :].mT, right[..., machine.examples, :]
    add = write.baddbmm_ if machine.batch else write.addmm_
    share = scale / right.shape[-2]
    return lambda: add(transposed, right, alpha=share)


@operation.register
def _to_multiply_slots(instruction: verbs.MultiplySlots, machine: Machine) -> Operation:
    left, right, write = machine.at(instruction.left, instruction.right, instruction.write)
    return lambda: torch.mul(left, right, out=write)


@operation.register
def _to_pull_back(instruction: verbs.PullBack, machine: Machine) -> Operation:
    upstream, weights = machine.at(instruction.upstream, instruction.weights)
    slope, write = machine.at(instruction.slope, instruction.write)
    return lambda: torch.matmul(upstream, weights, out=write).mul_(slope)


@operation.register
def _to_accumulate(
    instruction: verbs.AccumulateOuterProduct | AddGatedProduct, machine: Machine
) -> Operation:
    left, right, write = machine.at(instruction.left, instruction.right, instruction.write)
    return add_outer_product(left, right, instruction.scale, write, machine)


@operation.register
def _to_map_slots(instruction: verbs.MapSlots, machine: Machine) -> Operation:
    tokens = machine.tokens_where(instruction.only_where)
    target = machine.slots[instruction.write][..., tokens, :]
    parts = [_summand(summand, machine, tokens) for summand in instruction.summands]

    def run() -> None:
        for evaluate, _ in parts:
            evaluate()
        target.copy_(parts[0][1])
        for _, value in parts[1:]:
            target.add_(value)

    return run


def _summand(summand: Summand, machine: Machine, tokens: slice) -> tuple[Operation, Tensor]:
    """The operation that evaluates one summand, and the buffer that it fills."""
    function = machine.program.relu_sum(summand.function)
    read = {name: machine.slots[name][..., tokens, :] for name in summand.argument.slots}
    argument, combine = _combined(summand.argument, read)
    value = torch.empty_like(argument, memory_format=torch.contiguous_format)
    evaluation = Evaluation([function], argument)
    apply = evaluation.operation(function, value)

    def run() -> None:
        combine()
        evaluation.prepare()
        apply()

    return run, value


@operation.register
def _to_clip_slots(instruction: verbs.ClipSlots, machine: Machine) -> Operation:
    targets, bound = machine.at(*instruction.slots), instruction.bound

    def clip() -> None:
        for target in targets:
            target.clamp_(-bound, bound)

    return clip


@operation.register
def _to_wipe(instruction: verbs.WipeSlots | WipeByUnits, machine: Machine) -> Operation:
    targets = machine.at(*instruction.slots) if machine.traced else []

    def wipe() -> None:
        for target in targets:
            target.zero_()

    return wipe


@operation.register
def _to_average_examples(instruction: AverageExamples, machine: Machine) -> Operation:
    examples = {name: machine.slots[name][..., machine.examples, :] for name in instruction.reads()}
    score, combine_score = _combined(instruction.score, examples)
    value, combine_value = _combined(instruction.value, examples)
    write = machine.slots[instruction.write]

    def average() -> None:
        combine_score()
        combine_value()
        write.copy_((torch.softmax(score, dim=-2) * value).sum(-2, keepdim=True))

    return average


@operation.register
def _to_look_up_step(instruction: LookUpStep, machine: Machine) -> Operation:
    """The key is equal in all tokens, and the weight is kept once: the first token has it."""
    (summand,) = instruction.addition.summands
    look_up, value = _summand(summand, machine, slice(0, 1))
    write = machine.slots[instruction.write]

    def replace() -> None:
        look_up()
        write.copy_(value)

    return replace

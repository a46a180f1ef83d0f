r"""What a gradient step of a construction costs: by formula, on the clock, and in operations.

A case is one way to do a step at one size. Steps are compared over the depth and the width of the
network, in stacks and in chains. A block of a chain is compared over the chain's length: it needs
two earlier blocks, which fused runs find by number and a decoder by attention to all blocks so far:

    two blocks                the block is handed the two that it needs, as in our runs
    all blocks                the head of the mask reads all blocks; keys and values of earlier ones
                              are cached
    all blocks, not cached    the same, but keys and values are computed for every block

Scores of the head leave all blocks but one a weight of exactly 0, so that all three write the same
block.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import product
from statistics import median
from time import process_time
from typing import Any, cast
from weakref import finalize

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from icgd.backends.chain import Chain, DenseGenerator, run_chain
from icgd.backends.prompt import encode
from icgd.backends.run import RunOptions
from icgd.compiled import Compiled
from icgd.environment import one_thread
from icgd.errors import SettingError, UnsupportedProblemError
from icgd.layers import SoftmaxAttention, features, write
from icgd.pipeline import compile
from icgd.problems.data import Domain, Task
from icgd.problems.mlp import MLP
from icgd.problems.optimisers import GradientStep
from icgd.problems.problem import Problem
from icgd.program.chain import ANSWERS, ASKS, NEAR, ChainProgram, row_of
from icgd.program.layout import Role
from icgd.shapes import Stream
from icgd.timing import Job, interleaved_seconds

BYTES = 8
"""The size of a number: all runs are in float64."""

DENSE_FLOPS = 10**10
"""The largest dense step that is run; a larger one takes seconds and is only counted."""

DENSE_WEIGHTS = 2**28
"""The largest number of dense weights that is built: 2 GiB."""

STEP_SIZE = 0.05
"""Costs do not depend on it."""

CONSTRUCTIONS = ("relu-stack", "softmax-stack", "cot-network", "cot-network, b = 1")
"""The ways to do a step; the last one takes one example in a round, the others take all."""

STACK_STRETCH = 16
"""Jobs of stacks are timed over so many times the steps of a chain: they run faster."""

LONGEST_JOB = 32
"""Networks with more layers get no fewer steps in a job, so that set-up does not hide them."""

MEMORIES = {"short memory": "short", "whole memory": "whole"}
READINGS = ("two blocks", "all blocks", "all blocks, not cached")


@dataclass(frozen=True)
class Network:
    """The network that is trained, and its data: a square relu network with the squared loss.

    The box is 1 / width by default. Then |V_j p| <= max |p|, so ranges on the domain do not grow
    with depth and every construction can be built; in a box of 1 they grow like width^depth.
    """

    depth: int
    width: int
    n_examples: int
    seed: int
    box: float | None = None

    def problem(self, batch_size: int | None) -> Problem:
        box = 1 / self.width if self.box is None else self.box
        return Problem(
            target=MLP((self.width,) * (self.depth + 1), "relu"),
            loss="squared",
            update=GradientStep(STEP_SIZE, box=box, batch_size=batch_size),
            domain=Domain(x=1.0, y=1.0),
        )

    def task(self, compiled: Compiled) -> Task:
        """Draw data that are not negative, so that no signal fades with depth."""
        generator = torch.Generator().manual_seed(self.seed)
        shape = (2, self.n_examples, self.width)
        x, y = torch.rand(shape, generator=generator, dtype=torch.float64)
        network, box = compiled.problem.network, compiled.problem.gradient_step.reach
        return compiled.task(x, y, initial=network.initial_parameters(self.seed, box).abs())


@dataclass(frozen=True)
class Counts:
    """The cost of a step by formula: FLOPs, numbers in weights, and numbers that a run keeps."""

    flops: int
    weights: int
    state: int

    @property
    def bytes(self) -> int:
        return BYTES * (self.weights + self.state)


@dataclass(frozen=True)
class Case:
    """One way to do a step at one size, on the line of its name and backend.

    Attributes:
        axis: what grows along the line.
        size: how large it is here.
        name: the construction, or how a block is read or remembered.
        backend: "dense" or "fused".
        network: what is trained.
        counts: the cost by formula; None if there is no such transformer.
        job: makes a function that performs so many steps; for 0 steps it does nothing.
        n_steps: the steps of two jobs that are timed: their difference has no set-up in it.
        n_counted: the steps of two jobs whose work is counted.
        n_given: how many numbers a job finds ready, such as its weights.
        why_not: why the case is not measured, if it is not.
    """

    axis: str
    size: int
    name: str
    backend: str
    network: Network
    counts: Counts | None
    job: Callable[[int], Job]
    n_steps: tuple[int, int]
    n_counted: tuple[int, int]
    n_given: int
    why_not: str | None = None


@lru_cache(maxsize=1024)  # deep programs take seconds to build, and little memory
def built(network: Network, construction: str, n_steps: int) -> Compiled:
    """Compile so many steps of one of the constructions."""
    batch_size = {"cot-network": network.n_examples, "cot-network, b = 1": 1}.get(construction)
    problem = network.problem(batch_size)
    return compile(problem, n_steps=n_steps, construction=construction.removesuffix(", b = 1"))


def chain_of(network: Network, n_steps: int = 1) -> ChainProgram:
    """Return the chain that takes one example in a round."""
    return cast(ChainProgram, built(network, "cot-network, b = 1", n_steps).program)


def step_cases(
    axis: str, size: int, construction: str, network: Network, n_layers: int, *, is_run: bool
) -> list[Case]:
    """Return a gradient step of a construction, dense and fused; some are only counted.

    A fused job takes as many steps as have `n_layers` layers of the network in all, more for a
    stack. A dense job needs no set-up: its weights are built before.
    """
    try:
        built(network, construction, 1)
        refusal = None
    except (SettingError, UnsupportedProblemError) as problem:
        refusal = str(problem)
    is_stack = not construction.startswith("cot")
    stretched = n_layers * (STACK_STRETCH if is_stack else 1)
    steps = max(1, stretched // min(network.depth, LONGEST_JOB))
    cases = []
    for backend, n_steps, n_counted in (
        ("dense", (0, 1), (0, 1)),
        ("fused", (steps, 2 * steps), (2, 3)),  # a chain plans its work in the first two rounds
    ):
        counts = None if refusal else _step_counts(network, construction, backend)
        why_not = refusal or (None if is_run else "counted only")
        is_large = counts and (counts.flops > DENSE_FLOPS or counts.weights > DENSE_WEIGHTS)
        if counts and is_large and backend == "dense" and not why_not:
            size_text = f"{BYTES * counts.weights / 2**30:.1f} GiB of weights"
            why_not = f"counted only: {counts.flops:.1e} FLOPs a step, {size_text}"
        job = partial(_step_job, network, construction, backend)
        weights = counts.weights if counts else 0
        line = (axis, size, construction, backend, network)
        cases.append(Case(*line, counts, job, n_steps, n_counted, weights, why_not))
    return cases


def _step_counts(network: Network, construction: str, backend: str) -> Counts:
    compiled, n = built(network, construction, 1), network.n_examples
    program = compiled.program
    if isinstance(program, ChainProgram):
        mask, width = program.mask, program.rows.width
        if backend == "dense":
            # The block's layers run 2N times; the mask's reach, the data and the stream are kept.
            _, *layers = compiled.summary().layers
            return Counts(
                flops=mask.blocks_per_round * sum(layer.flops(1) for layer in layers),
                weights=sum(layer.parameters for layer in layers),
                state=(mask.reach + 2) * width + program.layout.width,
            )
        # Nobody reads the first layer's delta pulled back: a whole round leaves it out.
        products = 3 * compiled.problem.network.n_parameters - network.width**2
        return Counts(2 * program.batch_size * products, 0, (mask.reach + 2) * width)
    layout, size = compiled.stack.layout, compiled.summary(n)
    if backend == "dense":  # all layers of a step run on all tokens, and the stream is kept
        n_tokens = compiled.stack.n_registers + n
        return Counts(
            flops=sum(layer.flops(n_tokens) for layer in size.layers_of_a_step),
            weights=sum(layer.parameters for layer in size.layers_of_a_step),
            state=n_tokens * layout.width,
        )
    # The weights are kept once, the scratch slots and the data for every example.
    weights = sum(slot.width for slot in layout.having(Role.PARAMETER))
    scratch = sum(slot.width for slot in layout.having(Role.SCRATCH))
    return Counts(size.direct_flops, 0, weights + n * (scratch + 2 * network.width))


def _step_job(network: Network, construction: str, backend: str, n_steps: int) -> Job:
    if not n_steps:
        return lambda: None
    compiled = built(network, construction, n_steps)
    task, program = network.task(compiled), compiled.program
    if backend == "fused":
        return partial(compiled.run_task, task, history=False)
    if isinstance(program, ChainProgram):
        generator = DenseGenerator(program, task.x)
        return lambda: list(Chain(program, task, generator, "short", ()).rounds())
    block, prompt = compiled.transformer().block, encode(compiled.stack, task)

    def run() -> Stream:
        stream = prompt
        with torch.no_grad():
            for layer in block:
                stream = layer(stream)
        return stream

    return run


def chain_cases(
    network: Network, lengths: Sequence[int], counted_lengths: Sequence[int]
) -> list[Case]:
    """Return a block at the end of chains of these lengths, read and remembered in all ways.

    Fused runs do not take the counted lengths.
    """
    return [
        *(_reading(network, *x) for x in product((*lengths, *counted_lengths), READINGS)),
        *(_memory(network, *x) for x in product(lengths, MEMORIES)),
    ]


def _memory(network: Network, n_blocks: int, name: str) -> Case:
    """Return a block of a fused chain that keeps what the mask reaches, or everything.

    A forward block has one product, a backward one two; blocks and data are kept. With a short
    memory rounds are performed as a whole, and the last block of each does not compute the product
    that nobody reads.
    """
    program, products, memory = chain_of(network), network.width**2, MEMORIES[name]
    is_whole = memory == "whole"
    n_kept = n_blocks + program.mask.depth if is_whole else program.mask.reach
    spared = 0 if is_whole else products // network.depth
    flops = program.batch_size * (3 * products - spared)
    counts = Counts(flops, 0, (n_kept + 2) * program.rows.width)

    def job(n: int) -> Job:
        compiled = built(network, "cot-network, b = 1", n // (2 * network.depth))
        task, chain = network.task(compiled), chain_of(network, n // (2 * network.depth))
        return partial(run_chain, chain, task, RunOptions(history=False), memory=memory)

    # The blocks of the second half are timed, so that they belong to a chain this long.
    n_steps = n_blocks // 2, n_blocks
    return Case("length", n_blocks, name, "fused", network, counts, job, n_steps, n_steps, 0)


def _reading(network: Network, n_blocks: int, name: str) -> Case:
    """Return the last block of a dense chain: its layers, and how it finds what it reads."""
    program = chain_of(network)
    finds, *layers = built(network, "cot-network, b = 1", 1).summary().layers
    width, d_model = program.rows.width, program.layout.width
    flops, weights = (
        sum(layer.flops(1) for layer in layers),
        sum(layer.parameters for layer in layers),
    )
    n_kept = program.mask.reach * width
    if name != "two blocks":
        flops, weights = flops + finds.flops(n_blocks), weights + finds.parameters
        n_kept = 2 * n_blocks * width  # keys are as wide as values
    if name == "all blocks, not cached":
        flops += 4 * (n_blocks - 1) * d_model * width
        n_kept += n_blocks * d_model
    counts = Counts(flops=flops, weights=weights, state=n_kept + d_model)

    def job(n_steps: int) -> Job:
        return reading_job(network, n_blocks, name) if n_steps else lambda: None

    line = ("length", n_blocks, name, "dense", network)
    n_given = weights + (n_blocks * d_model if name == "all blocks, not cached" else n_kept)
    return Case(*line, counts, job, (0, 1), (0, 1), n_given)


def written(network: Network, n_blocks: int) -> tuple[Chain, Stream]:
    """Return a dense chain of two real rounds, and rows of all blocks.

    The blocks before them, which nobody reads, repeat them. The next block ends a round and so
    reads furthest.
    """
    chain = _two_rounds(network)
    rows = torch.cat([chain.blocks[number] for number in range(1, chain.program.n_blocks)])
    return chain, rows[torch.arange(-n_blocks, 0) % len(rows)]


@lru_cache(maxsize=1)  # chains of all lengths end with it
def _two_rounds(network: Network) -> Chain:
    program = chain_of(network, 2)
    task = network.task(built(network, "cot-network, b = 1", 2))
    chain = Chain(program, task, DenseGenerator(program, task.x), "whole", ())
    for _ in chain.rounds():
        pass
    return chain


def reading_job(network: Network, n_blocks: int, reading: str) -> Job:
    """Return a job that computes the block after so many, which finds the two that it reads."""
    chain, blocks = written(network, n_blocks)
    program, generator = chain.program, cast(DenseGenerator, chain.generator)
    layout, mask = program.layout, program.mask
    step = mask.blocks_per_round * (n_blocks // mask.blocks_per_round + 1)  # ends a round
    newest, far = blocks[-1:], blocks[-mask.reach :][:1]
    if reading == "two blocks":
        return partial(generator.step, newest, far, step)
    finder = cast(
        SoftmaxAttention, next(built(network, "cot-network, b = 1", 1).block().children())
    )
    steps = range(step - n_blocks, step)
    answers = [mask.answers(number, place) for place, number in enumerate(steps)]
    columns = torch.zeros(n_blocks, layout.width, dtype=torch.float64)
    start = layout.range_of(row_of(NEAR, program.rows.names[0])).start
    columns[:, start : start + program.rows.width] = blocks
    columns[:, layout.range_of(ANSWERS)] = torch.tensor(answers, dtype=torch.float64)
    cached: tuple[Tensor, Tensor] | None = None
    with torch.no_grad():
        if reading == "all blocks":
            cached = features(columns, finder.W_K), features(columns, finder.W_V)
            columns = columns[-1:]

    def job() -> Stream:
        with torch.no_grad():
            keys, values = features(columns, finder.W_K), features(columns, finder.W_V)
            if cached is not None:
                for kept, new in zip(cached, (keys, values), strict=True):
                    kept[:, -1:] = new
                keys, values = cached
            stream = generator.stream({NEAR: newest}, {ASKS: mask.asks(step)})
            pattern = finder.pattern(features(stream, finder.W_Q) @ keys.mT)
            write(pattern @ values, finder.W_O, stream)
            return generator.written(stream, step, at_queries=False)

    return job


def measure(
    cases: Sequence[Case], rounds: Mapping[str, int], *, is_counted: bool
) -> list[dict[str, Any]]:
    """Time all cases, and count their FLOPs and bytes if asked.

    Cases of one backend take turns, for as many `rounds` as it has.
    """
    results: list[dict[str, Any]] = [{"seconds": None, "flops": None, "bytes": None} for _ in cases]
    for backend, n_rounds in rounds.items():
        places = [i for i, x in enumerate(cases) if x.backend == backend and x.why_not is None]
        times = seconds_of([cases[i] for i in places], n_rounds)
        for place, seconds in zip(places, times, strict=True):
            results[place]["seconds"] = seconds
            if is_counted:
                results[place]["flops"], results[place]["bytes"] = counted(cases[place])
    return results


def seconds_of(cases: Sequence[Case], n_rounds: int) -> list[float | None]:
    """Return the seconds of a step of each case on one thread; None if the clock was disturbed.

    The processor's time is measured, because other work on the machine delays jobs of a second
    more than jobs of a millisecond.
    """
    jobs = {(i, n): case.job(n) for i, case in enumerate(cases) for n in case.n_steps}
    with one_thread():
        turns = interleaved_seconds(jobs, n_rounds, process_time)
    seconds: list[float | None] = []
    for i, case in enumerate(cases):
        less, more = case.n_steps
        elapsed = median(turn[i, more] - turn[i, less] for turn in turns)
        seconds.append(elapsed / (more - less) if elapsed > 0 else None)
    return seconds


def counted(case: Case) -> tuple[int, int]:
    """Return the FLOPs of a step, and the bytes of a run with its weights."""
    less, more = (work_of(case.job(n_steps)) for n_steps in case.n_counted)
    flops = (more.flops - less.flops) // (case.n_counted[1] - case.n_counted[0])
    return flops, more.peak_bytes + BYTES * case.n_given


def work_of(job: Job) -> WorkCounter:
    """Do a job and count its work, without a clock: the same every time."""
    counter = WorkCounter()
    with counter:
        job()
    return counter


_ATEN = torch.ops.aten
PRODUCTS = (_ATEN.mm, _ATEN.bmm, _ATEN.addmm, _ATEN.addmm_, _ATEN.baddbmm, _ATEN.baddbmm_)
"""Matrix products and einsum end in these operations; their last two arguments are the factors."""


class WorkCounter(TorchDispatchMode):
    """Counts FLOPs in matrix products, and the largest number of bytes held at a time.

    Elementwise operations are not counted, nor are tensors that the job was given.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops = 0
        self.peak_bytes = 0
        self._bytes = 0
        self._live: set[int] = set()

    def __torch_dispatch__(
        self,
        operation: Any,
        types: Sequence[type],
        arguments: tuple[Any, ...] = (),
        options: Mapping[str, Any] | None = None,
    ) -> Any:
        options = dict(options or {})
        self._track((arguments, options), is_new=False)
        if operation.overloadpacket in PRODUCTS:
            left, right = arguments[-2:]
            self.flops += 2 * left.numel() * right.shape[-1]
        result = operation(*arguments, **options)
        self._track(result, is_new=True)
        return result

    def _track(self, tensors: object, *, is_new: bool) -> None:
        """Add storages that are seen for the first time, until they are freed."""
        for tensor in tree_leaves(tensors):
            if not isinstance(tensor, Tensor):
                continue
            storage = tensor.untyped_storage()
            if storage._cdata in self._live:
                continue
            size = storage.nbytes() if is_new else 0
            self._live.add(storage._cdata)
            self._bytes += size
            self.peak_bytes = max(self.peak_bytes, self._bytes)
            finalize(storage, self._free, storage._cdata, size)

    def _free(self, address: int, size: int) -> None:
        self._live.discard(address)
        self._bytes -= size

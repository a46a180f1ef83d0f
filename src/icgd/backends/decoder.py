"""Generate a chain token by token, as a decoder does: attention alone finds earlier blocks.

A token is a block with its position. The prompt has the data and the initial weights,

    X_1 Y_1 .. X_L Y_L, X at the queries, B_N .. B_1,

and every further token is the output of the layers for the newest one. In the first layer, one
softmax head attends to the second block that `ChainMask` names; keys and values of all tokens are
cached. The forward passes at the queries are branches: each continues from the last token of
training.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from math import prod
from typing import cast, final

import torch
from jaxtyping import Float
from torch import Tensor

from icgd.backends.chain import DenseGenerator, make_chain
from icgd.backends.run import AbstractExecutor, OnProgress, Run, RunOptions, drive
from icgd.environment import require_memory
from icgd.layers import SoftmaxAttention, features, write
from icgd.problems.data import Task
from icgd.program.chain import ANSWERS, ASKS, NEAR, ChainProgram
from icgd.reprs import counted, with_repr
from icgd.shapes import Parameters, Predictions, Stream
from icgd.weights.lowering import lower_layer

HEAD = slice(0, 1)
"""The single head of the layer that finds the second block."""


@with_repr
@dataclass(frozen=True)
class Decoded(Run):
    """The result of a chain that was generated token by token, with its attention pattern.

    Attributes:
        parameters: the trained weights before the first step and after every step.
        predictions: the predicted labels of the queries.
        trace: the rows of all blocks, the initial ones first.
        stopped_after: None, because a decoder does not stop early.
        steps: the steps after which weights were recorded, beginning with 0.
        origin: the problem, program and task of the run.
        tokens: the vectors of all tokens of the sequence, the prompt first.
        names: the names of all tokens, such as "X 1" or "forward 2 of round 1".
        found: the attention pattern of the head that finds the second block: row i has the softmax
            weights of the i-th generated token on all tokens.

    Example:
        >>> import icgd
        >>> network, step = icgd.MLP((2, 1)), icgd.GradientStep(0.1, box=1.0, batch_size=1)
        >>> problem = icgd.Problem(network, "squared", step, icgd.Domain(x=1.0, y=1.0))
        >>> compiled = icgd.compile(problem, "cot-network", n_steps=1)
        >>> decoded = icgd.decode(compiled, [[0.5, 1.0]], [1.0], seed=0)
        >>> decoded.names
        ('X 1', 'Y 1', 'B 1 of the prompt', 'forward 1 of round 1', 'backward 1 of round 1')
        >>> decoded.found.argmax(-1).tolist()  # F_1 reads X_1, B_1 reads Y_1
        [0, 1]
    """

    tokens: Float[Tensor, "*tasks token row"] = field(kw_only=True)
    names: tuple[str, ...] = field(kw_only=True)
    found: Float[Tensor, "generated token"] = field(kw_only=True)

    def facts(self) -> dict[str, str]:
        """Return the facts shown in the repr and in notebooks.

        Returns:
            The facts by name.

        Example:
            >>> import icgd
            >>> network, step = icgd.MLP((2, 1)), icgd.GradientStep(0.1, box=1.0, batch_size=1)
            >>> problem = icgd.Problem(network, "squared", step, icgd.Domain(x=1.0, y=1.0))
            >>> compiled = icgd.compile(problem, "cot-network", n_steps=1)
            >>> icgd.decode(compiled, [[0.5, 1.0]], [1.0]).facts()["generated"]
            '2 of 5 tokens'
        """
        generated = f"{len(self.found):,} of {counted(len(self.names), 'token')}"
        return {**super().facts(), "generated": generated}


def decode_chain(
    program: ChainProgram, task: Task, on_progress: OnProgress | None = None
) -> Decoded:
    """Generate the whole chain and the passes at the queries; the trace has all blocks."""
    options = RunOptions(program.traceable, on_progress=on_progress)
    decoders: list[Decoder] = []  # `drive` creates the decoder, whose tokens are needed afterwards

    def make(program: ChainProgram, task: Task, options: RunOptions) -> Decoder:
        decoders.append(Decoder(program, task, options))
        return decoders[0]

    run, decoder = drive(make, program, task, options), decoders[0]
    run_fields = {run_field.name: getattr(run, run_field.name) for run_field in fields(Run)}
    names = tuple(decoder.names)
    return Decoded(**run_fields, tokens=decoder.tokens, names=names, found=decoder.found)


@final
class Decoder(AbstractExecutor[int]):
    """Generate a chain token by token, caching keys and values of the head that finds blocks.

    A step is a round; its state is the number of finished rounds.
    """

    start = 0

    def __init__(self, program: ChainProgram, task: Task, options: RunOptions) -> None:
        self.program, self.task, self.mask = program, task, program.mask
        size, depth = program.batch_size, self.mask.depth
        self.groups = task.queries.split(size, dim=-2) if task.n_queries else ()
        self.n_prompt = 2 * program.n_steps + len(self.groups) + depth
        n_generated = program.n_blocks + len(self.groups) * depth
        shape = (*task.batch, self.n_prompt + n_generated, program.rows.width)
        numbers = 3 * prod(shape) + n_generated * shape[-2]
        sequence = f"A sequence of {shape[-2]:,} tokens"
        require_memory(sequence, numbers * task.x.itemsize, "Train for fewer rounds.")
        self.chain = make_chain(program, task, options, backend="literal", memory="whole")
        self.traced, self.still_steps = self.chain.traced, self.chain.still_steps
        self.n_of_prompt, self.n_per_step = self.chain.n_of_prompt, self.chain.n_per_step
        self.generator = cast(DenseGenerator, self.chain.generator)
        lowered = lower_layer(program.layers[0], program, task.x.dtype, is_sparse=True)
        self.finder = cast(SoftmaxAttention, lowered.to(task.x.device))
        self.names: list[str] = []
        self.tokens = task.x.new_zeros(shape)
        self.keys = task.x.new_zeros(*shape[:-1], self.mask.N_FEATURES)
        self.values = torch.zeros_like(self.tokens)
        self.found = task.x.new_zeros(n_generated, shape[-2])
        self._write_prompt()
        self.n_rounds = 0

    def _write_prompt(self) -> None:
        """Append the data of all rounds, the queries as later rounds, and the initial weights."""
        mask, chain, n_steps = self.mask, self.chain, self.program.n_steps
        for number in range(n_steps):
            for is_x, block in zip((True, False), chain.data(number), strict=True):
                answers = mask.data_answers(number, len(self.names), is_x=is_x)
                self._append(f"{'X' if is_x else 'Y'} {number + 1}", block, answers)
        for number, group in enumerate(self.groups, start=n_steps):
            answers = mask.data_answers(number, len(self.names), is_x=True)
            self._append("X at the queries", chain.inputs(group), answers)
        for step in range(1 - mask.depth, 1):
            answers = mask.answers(step, len(self.names))
            self._append(f"B {1 - step} of the prompt", chain.blocks[step], answers)

    def step(self) -> int:
        """Generate the tokens of a round, each attending to all tokens before it."""
        for reading in self.mask.walk_round(self.n_rounds):
            visible = list(range(len(self.names)))
            self.chain.keep(reading.number, self._generate(reading.number, visible))
        self.n_rounds += 1
        self.chain.require_gates(self._learnt(self.n_rounds), self.n_rounds)
        return self.n_rounds

    def read(self, reached: int, write: Parameters) -> None:
        write.copy_(self._learnt(reached) if reached else self.task.initial)

    def _learnt(self, n_rounds: int) -> Parameters:
        return self.chain.learnt(n_rounds * self.mask.blocks_per_round)

    def predictions(self, reached: int) -> Predictions:
        """Run a forward pass at every group of queries, each after the last token of training."""
        n_trained = self.n_prompt + reached * self.mask.blocks_per_round
        del self.names[n_trained:]  # left by an interrupted call
        predictions = [self.task.y[..., :0, :]]
        for number, group in enumerate(self.groups, start=self.program.n_steps):
            visible = list(range(n_trained))
            for layer in range(1, self.mask.depth + 1):
                step = number * self.mask.blocks_per_round + layer
                visible.append(len(self.names))
                block = self._generate(step, visible[:-1], at_queries=True)
            outputs = self.generator.row(block, "first").mT
            predictions.append(outputs[..., : group.shape[-2], : self.task.y.shape[-1]])
        return torch.cat(predictions, dim=-2)

    def _generate(self, step: int, visible: list[int], *, at_queries: bool = False) -> Stream:
        """Generate and append the token that follows the last `visible` one, attending to these."""
        newest = self.tokens[..., visible[-1:], :]
        stream = self.generator.stream({NEAR: newest}, {ASKS: self.mask.asks(step)})
        query = features(stream, self.finder.W_Q[HEAD])
        pattern = self.finder.pattern(query @ self.keys[..., None, visible, :].mT)
        write(pattern @ self.values[..., None, visible, :], self.finder.W_O[HEAD], stream)
        self.found[len(self.names) - self.n_prompt, visible] = pattern.flatten(0, -2)[0]
        block = self.generator.written(stream, step, at_queries=at_queries)
        title = self.mask.place(step).title(at_queries=at_queries)
        self._append(title, block, self.mask.answers(step, len(visible)))
        return block

    def _append(self, name: str, block: Stream, answers: tuple[float, ...]) -> None:
        """Append a token, and cache its key and its value."""
        stream = self.generator.stream({NEAR: block}, {ANSWERS: answers})
        here = slice(len(self.names), len(self.names) + 1)
        self.tokens[..., here, :] = block
        self.keys[..., here, :] = features(stream, self.finder.W_K[HEAD]).squeeze(-3)
        self.values[..., here, :] = features(stream, self.finder.W_V[HEAD]).squeeze(-3)
        self.names.append(name)

r"""Run softmax programs under the masks of decoder-only transformers, with the same weights.

Under a prefix mask, registers and examples attend to each other, and no token attends to the
queries, which come last. Programs obey this anyway, so nothing changes and no function is needed.

Under a causal mask no token attends to a later one. Then a step cannot use the same tokens as the
previous step, because the gradient at the first example would depend on weights that depend on the
last example. But the examples can be repeated, once for each step:

    registers 0, examples 1, registers 1, examples 2, ..., registers L, queries

Examples l attend to registers l - 1, registers l to examples l, and queries to registers L: all of
these are earlier tokens. By induction on b, registers l >= b hold the weights of step b after block
b: in block b examples l >= b compute with registers l - 1, which hold the weights of step b - 1
after block b - 1.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool
from torch import Tensor

from icgd.backends.dense import build_transformer
from icgd.backends.prompt import encode, read_parameters
from icgd.backends.run import Run
from icgd.errors import ProgramError
from icgd.layers import SoftmaxAttention
from icgd.problems.data import Task
from icgd.program.instructions import LayerKind
from icgd.program.stack import StackProgram

Mask = Bool[Tensor, "token token"]


def causal_mask(program: StackProgram, task: Task) -> Mask:
    """Return the mask for `causal_prompt`, a subset of the lower triangle."""
    n_registers, n_examples = program.n_registers, task.n_examples
    segment = n_registers + n_examples
    n_tokens = program.n_steps * segment + n_registers + task.n_queries
    mask = torch.eye(n_tokens, dtype=torch.bool)
    for step in range(program.n_steps + 1):
        start = step * segment
        registers = slice(start, start + n_registers)
        mask[registers, start] = True  # the memory, whose value is 0
        mask[registers, max(start - n_examples, 0) : start] = True
        readers = slice(start + n_registers, start + segment if step < program.n_steps else None)
        mask[readers, registers] = True
    return mask


def causal_prompt(program: StackProgram, task: Task) -> Tensor:
    """Return the prompt with registers and examples repeated once for each step."""
    stream = encode(program, task)
    n_registers, n_prefix = program.n_registers, program.n_registers + task.n_examples
    repeated = [stream[..., :n_prefix, :]] * program.n_steps
    return torch.cat([*repeated, stream[..., :n_registers, :], stream[..., n_prefix:, :]], dim=-2)


def run_under(program: StackProgram, task: Task, stream: Tensor, mask: Mask) -> Tensor:
    """Return the stream after all layers of the dense transformer, with masked attention."""
    transformer = build_transformer(program, task.x.dtype)
    for layer in transformer.modules():
        if isinstance(layer, SoftmaxAttention):
            layer.mask = mask.to(task.x.device)
    with torch.no_grad():
        result: Tensor = transformer.to(task.x.device)(stream)
    return result


def run_left_to_right(program: StackProgram, task: Task) -> Run:
    """Run a softmax program under a causal mask.

    The run has the initial and the final weights, and the predictions.
    """
    if not isinstance(program, StackProgram):
        raise ProgramError(
            "A causal mask needs a program of type StackProgram, got one of type "
            f"{type(program).__name__}. Compile with construction='softmax-stack'."
        )
    kinds = {layer.kind for layer in (*program.block, *program.prediction)}
    if not kinds <= {LayerKind.SOFTMAX, LayerKind.MLP}:
        raise ProgramError(
            f"A causal mask needs a program with softmax attention and MLPs only; "
            f"{program.construction} has other layers too. Compile with "
            "construction='softmax-stack'."
        )
    final = run_under(program, task, causal_prompt(program, task), causal_mask(program, task))
    last = final.shape[-2] - task.n_queries - program.n_registers
    weights = read_parameters(program.layout, final[..., last:, :])
    labels = final[..., final.shape[-2] - task.n_queries :, program.layout.range_of("y")]
    return Run(torch.stack([task.initial, weights], dim=-2), labels.clone())

"""Operations of classes against torch's softmax, and against the program's own functions."""

import pytest
import torch

import icgd
from icgd.backends.rules import Machine, operation

SCORES = torch.tensor([[0.5, -1.0, 2.0], [3.0, 3.0, -3.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
PROBLEM = icgd.Problem(
    icgd.MLP((2, 3)), "cross_entropy", icgd.GradientStep(0.1, 2.0), icgd.Domain(1.0, 1.0)
)


def machine_for(construction: str, *, traced: bool = False) -> Machine:
    """Two examples and a query, which have these scores; in a trace, registers too."""
    program = icgd.compile(PROBLEM, construction, n_steps=1).program
    task = icgd.as_task(PROBLEM, torch.zeros(2, 2), torch.tensor([0, 2]), queries=torch.zeros(1, 2))
    machine = Machine(program, task.initial, task.x, task.y, task.queries, traced=traced)
    machine.slots["units_1"][-3:] = SCORES
    return machine


def run_layers(machine: Machine, *titles: str) -> None:
    for layer in machine.program.block:
        if layer.title in titles:
            operation(layer.instructions[0], machine)()


@pytest.mark.parametrize("traced", [False, True])
def test_softmax_stack_has_the_shares_themselves(traced):
    machine = machine_for("softmax-stack", traced=traced)
    run_layers(machine, "shares")
    torch.testing.assert_close(machine.slots["shares"][-3:], SCORES.softmax(-1), rtol=1e-15, atol=0)
    if traced:
        assert machine.slots["shares"][0].tolist() == [0.0] * 3, "the memory has no values"
        assert machine.slots["shares"][1].tolist() == pytest.approx([1 / 3] * 3)


def test_relu_stack_has_them_by_its_exponential_and_its_reciprocal():
    machine = machine_for("relu-stack")
    run_layers(machine, "exponentials", "shares")
    program = machine.program
    pairs = next(layer for layer in program.block if layer.title == "exponentials")
    exponential = program.relu_sum(pairs.instructions[0].function)
    reciprocal = program.relu_sum("reciprocal")
    expected = [
        [reciprocal(sum(exponential(other - own) for other in row)) for own in row]
        for row in SCORES.tolist()
    ]
    shares = machine.slots["shares"]
    torch.testing.assert_close(shares, torch.tensor(expected, dtype=torch.float64))
    torch.testing.assert_close(shares, SCORES.softmax(-1), rtol=1e-3, atol=1e-4)


def test_tasks_of_a_batch_have_their_own_shares():
    program = icgd.compile(PROBLEM, "relu-stack", n_steps=1).program
    y = torch.tensor([[0, 2]] * 2)
    task = icgd.as_task(PROBLEM, torch.zeros(2, 2, 2), y)
    machine = Machine(program, task.initial, task.x, task.y, task.queries)
    machine.slots["units_1"].copy_(torch.stack([SCORES[:2], -SCORES[:2]]))
    run_layers(machine, "exponentials", "shares")
    shares = machine.slots["shares"]
    torch.testing.assert_close(shares[1], (-SCORES[:2]).softmax(-1), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(shares[0], SCORES[:2].softmax(-1), rtol=1e-3, atol=1e-4)

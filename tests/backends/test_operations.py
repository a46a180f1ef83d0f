"""Operations one by one; what they compute together is held by the backends' contract."""

import torch

from icgd.backends.operations import add_outer_product
from icgd.backends.rules import operation
from icgd.program.instructions import ONE, ClipSlots, Combination, MapSlots, Summand, WipeSlots
from tests import cases
from tests.backends.test_machine import machine_for, scheduled

IDENTITY = (Summand(Combination.of("y"), "identity"),)


def test_clipping_some_of_the_weights_leaves_the_others_alone():
    machine = machine_for(cases.FEW[1], times=100)
    operation(ClipSlots(("weights_1",), 0.5, ONE), machine)()
    assert machine.slots["weights_1"].abs().max() == 0.5
    assert machine.slots["weights_2"].abs().max() > 10


def test_an_outer_product_is_the_mean_over_the_batch():
    """The examples 1 and 0.5 are in the batch; -1 waits, and the query is no example."""
    machine = scheduled(traced=True)
    left, write = torch.ones(4, 1, dtype=torch.float64), machine.slots["gradient_1"]
    add_outer_product(left, machine.slots["x"], 3.0, write, machine)()
    assert write.tolist() == [[3.0 * (1.0 + 0.5) / 2]]


def test_a_map_is_0_at_examples_that_wait():
    machine = scheduled(traced=True)
    closed = MapSlots(IDENTITY, "is_example", ("is_query", "out_of_batch"), 8.0, "loss_slope")
    operation(closed, machine)()
    assert machine.slots["loss_slope"].flatten().tolist() == [1.0, 0.5, 0.0, 0.0]


def test_nothing_is_wiped_unless_the_run_is_traced_because_it_is_overwritten():
    wipe = WipeSlots(("gradient_1", "loss_slope"))
    for traced, left in ((True, 0.0), (False, 1.0)):
        machine = scheduled(traced=traced)
        for name in wipe.slots:
            machine.slots[name].fill_(1.0)
        operation(wipe, machine)()
        assert machine.slots["gradient_1"].tolist() == [[left]]
        assert float(machine.slots["loss_slope"].max()) == left

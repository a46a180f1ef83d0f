import pytest
import torch

import icgd
from icgd.errors import OverflowedRunError

X, Y = [[0.5, 1.0], [1.0, 0.0], [0.5, 0.5]], [1.0, 0.5, 0.0]
ADAM, RMSPROP = icgd.AdamStep(0.1, box=2.0), icgd.RmspropStep(0.1, box=2.0)
RUNS = [{"backend": "fused"}, {"backend": "dense"}, {"backend": "fused", "trace": "x"}]


def compiled(update):
    network, domain = icgd.MLP((2, 1)), icgd.Domain(x=1.0, y=1.0)
    return icgd.compile(icgd.Problem(network, "squared", update, domain), "relu-stack", n_steps=2)


def start(update, second):
    return [0.1, -0.2] * len(update.state) + [second] * 2


@pytest.mark.parametrize("options", RUNS)
@pytest.mark.parametrize(("update", "second"), [(ADAM, 1.0), (ADAM, 1e306), (RMSPROP, 1e4)])
def test_a_state_whose_root_no_sum_of_relus_knows_is_refused(update, second, options):
    with pytest.raises(OverflowedRunError, match="Step 1 divides by the root of"):
        compiled(update).run(X, Y, initial=start(update, second), **options)


@pytest.mark.parametrize("options", RUNS)
@pytest.mark.parametrize("update", [ADAM, RMSPROP])
def test_a_state_within_the_range_moves_weights_as_the_reference_does(update, options):
    run = compiled(update).run(X, Y, initial=start(update, 0.01), **options)
    task = compiled(update).task(X, Y, initial=start(update, 0.01))
    real = compiled(update).problem.oracle.train(task, 2)
    torch.testing.assert_close(run.parameters, real, rtol=0.0, atol=1e-4)

import torch

from icgd.problems import reference
from icgd.problems.mlp import MLP
from icgd.reproductions.descent import descend
from tests.cases import FEW, Case, batch_of, make_case, over

BIASED = make_case(MLP((3, 4, 2), "tanh", biases=True), "squared")


@over((*FEW, BIASED))
def test_it_is_the_reference_algorithm_in_other_words(case: Case):
    for task in (case.task(), batch_of(case, 3).task()):
        real = reference.train(case.problem, task.initial, task.x, task.y, 4)[..., -1, :]
        torch.testing.assert_close(descend(case.problem, task, 4), real, rtol=1e-11, atol=1e-13)

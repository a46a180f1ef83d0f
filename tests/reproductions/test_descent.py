import torch

from icgd.problems import reference
from icgd.reproductions.descent import descend
from tests.cases import FEW, Case, batch_of, over


@over(FEW)
def test_it_is_the_reference_algorithm_in_other_words(case: Case):
    for task in (case.task(), batch_of(case, 3).task()):
        real = reference.train(case.problem, task.initial, task.x, task.y, 4)[..., -1, :]
        torch.testing.assert_close(descend(case.problem, task, 4), real, rtol=1e-11, atol=1e-13)

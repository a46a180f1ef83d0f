import torch

import icgd
from icgd.problems.mlp import MLP
from icgd.reproductions.descent import descend
from tests.cases import FEW, Case, batch_of, make_case, over

BIASED = make_case(MLP((3, 4, 2), "tanh", biases=True), "squared")


@over((*FEW, BIASED))
def test_it_is_the_reference_algorithm_in_other_words(case: Case):
    for task in (case.task(), batch_of(case, 3).task()):
        real = case.problem.oracle.train(task, 4)[..., -1, :]
        torch.testing.assert_close(descend(case.problem, task, 4), real, rtol=1e-11, atol=1e-13)


def test_coefficients_are_those_of_the_proximal_reference():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(7, 2, generator=generator, dtype=torch.float64).clamp(-2, 2)
    y = (x[:, :1] > 0).double()
    problem = icgd.Problem(
        icgd.LinearModel(2, "logistic", intercept=True, reduction="sum"),
        "matching",
        icgd.ProximalStep(step_size=0.5, l2=0.3, l1=0.2, box=0.8),
        icgd.Domain(2.0, 1.0),
    )
    task = icgd.as_task(problem, x, y)
    real = problem.oracle.train(task, 4)
    assert real[-1, 0] == 0.8
    torch.testing.assert_close(descend(problem, task, 4), real[-1], rtol=1e-13, atol=1e-15)

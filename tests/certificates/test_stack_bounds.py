"""The bounds of a stack are those of its parts, which have tests of their own."""

import torch

from icgd.certificates.closed_form import closed_form_bound
from icgd.certificates.domain_bound import domain_bound
from icgd.certificates.enclosures import Arithmetic
from icgd.certificates.run_bound import stepwise_bounds, trajectory_bounds
from icgd.certificates.stack_bounds import StackBounds
from icgd.constructions.relu_stack import ReluStack
from tests.cases import FEW

CASE = FEW[-1]
DOUBLE = Arithmetic.of(torch.float64, 64, "dense")


def test_they_are_made_of_one_propagation_and_the_papers_closed_form():
    problem, task = CASE.problem, CASE.task()
    program = ReluStack(pieces=16).program(problem, n_steps=2)
    bounds = StackBounds(problem, program, DOUBLE)
    real = problem.oracle.train(task, 2)
    run = bounds.run(task, real, real)
    assert bounds.domain() == domain_bound(program, problem, DOUBLE)
    assert bounds.paper_step() == closed_form_bound(program, problem, DOUBLE)
    assert torch.equal(run.steps, stepwise_bounds(program, task, real, DOUBLE))
    assert torch.equal(run.trajectory, trajectory_bounds(program, problem, task, real, DOUBLE))
    assert 0 < float(run.steps.max()) < bounds.domain().step < bounds.paper_step()

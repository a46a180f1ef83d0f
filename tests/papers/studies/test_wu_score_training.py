"""Training in legs: what each way computes, and that an interruption changes no bit."""

import pytest
import torch

from icgd.constructions.softmax_stack import SoftmaxStack
from icgd.errors import CheckpointError, SettingError
from icgd.pipeline import compile
from icgd.problems.data import as_task
from icgd.problems.oracles import predict
from icgd_papers.studies.wu_score_diffusion import Span, inputs, prompt, score_of
from icgd_papers.studies.wu_score_laws import law_named
from icgd_papers.studies.wu_score_training import (
    Adam,
    Direct,
    InContext,
    Legs,
    asked,
    largest_curvature,
    problem_of,
    slope_of,
    trained,
)
from icgd_papers.training.tasks import generator_of

SPAN, LEGS = Span(0.1, 4.0), Legs(3, 2)
PROBLEM = problem_of(1, 3, step_size=0.2)
EXAMPLES = prompt(law_named("ring", 1, 0), "exact", SPAN, 10, generator_of(0, 0))
TASK = as_task(PROBLEM, EXAMPLES.x, EXAMPLES.y, seed=1)


def loss(weights):
    return float(PROBLEM.oracle.risk(TASK, weights))


def fresh(step):
    return prompt(law_named("ring", 1, 0), "exact", SPAN, 8, generator_of(0, 10 + step))


TRAINERS = {
    "in context": InContext(PROBLEM, TASK),
    "direct": Direct(PROBLEM, TASK),
    "adam": Adam(PROBLEM, TASK.initial, fresh, 0.01, LEGS.total),
}


def test_legs_in_context_are_one_forward_pass_of_the_whole_transformer():
    weights, log = trained(TRAINERS["in context"], LEGS, loss)
    whole = compile(PROBLEM, SoftmaxStack(), n_steps=6).run_task(TASK)
    assert torch.equal(weights, whole.parameters[-1])
    assert log.column("step") == [0, 2, 4, 6]
    assert log.column("loss") == [loss(whole.parameters[step]) for step in (0, 2, 4, 6)]
    assert loss(weights) < loss(TASK.initial)


def test_direct_training_takes_the_steps_of_the_oracle():
    weights, _ = trained(TRAINERS["direct"], LEGS, loss)
    assert weights == pytest.approx(PROBLEM.oracle.train(TASK, 6)[-1], abs=1e-14)
    in_context, _ = trained(TRAINERS["in context"], LEGS, loss)
    assert weights == pytest.approx(in_context, abs=1e-11)


def test_adam_takes_the_steps_of_torch_on_fresh_examples():
    weights, _ = trained(TRAINERS["adam"], LEGS, loss)
    real = TASK.initial.clone().requires_grad_()
    optimizer = torch.optim.Adam([real], lr=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, LEGS.total)
    for step in range(LEGS.total):
        examples = fresh(step)
        optimizer.zero_grad()
        errors = predict(PROBLEM.network, real, examples.x) - examples.y
        (errors.square().sum(-1).mean() / 2).backward()
        optimizer.step()
        schedule.step()
    assert weights == pytest.approx(real.detach(), abs=1e-12)


@pytest.mark.parametrize("name", TRAINERS)
def test_a_training_that_was_stopped_goes_on_with_the_same_bits(name, tmp_path):
    trainer = TRAINERS[name]
    weights, log = trained(trainer, LEGS, loss)

    def stop(step, _):
        if step == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trained(trainer, LEGS, loss, folder=tmp_path / "kept", on_leg=stop)
    told = []
    again, its_log = trained(
        trainer, LEGS, loss, folder=tmp_path / "kept", on_leg=lambda step, _: told.append(step)
    )
    assert told == [6]  # two legs were kept
    assert torch.equal(again, weights)
    assert its_log == log


def test_a_folder_of_another_training_is_refused(tmp_path):
    trained(TRAINERS["direct"], Legs(1, 1), loss, folder=tmp_path, identity={"seed": 0})
    with pytest.raises(CheckpointError, match="seed"):
        trained(TRAINERS["direct"], Legs(1, 1), loss, folder=tmp_path, identity={"seed": 1})


def test_the_score_in_context_is_what_the_network_predicts():
    weights = TASK.initial + 0.1
    x = torch.linspace(-2, 2, 7, dtype=torch.float64)[:, None]
    times = torch.full((7,), 0.3, dtype=torch.float64)
    found = TRAINERS["in context"].score(weights, SPAN)(x, times)
    velocity = predict(PROBLEM.network, weights, inputs(x, times, SPAN))
    assert found == pytest.approx(score_of(velocity, x, times), abs=1e-10)


def test_beyond_the_domain_the_network_is_asked_at_its_edge():
    times = torch.full((1,), 0.3, dtype=torch.float64)
    far = torch.tensor([[100.0]], dtype=torch.float64)
    row = asked(far, times, SPAN)[0].tolist()
    assert row == pytest.approx([16.0, 16.0, 16.0, float(SPAN.place(times)), 1.0])
    found = TRAINERS["in context"].score(TASK.initial, SPAN)(far, times)
    velocity = predict(PROBLEM.network, TASK.initial, torch.tensor([row], dtype=torch.float64))
    assert found == pytest.approx(score_of(velocity, far, times), abs=1e-9)


def test_curvature_is_the_largest_eigenvalue_of_the_hessian():
    hessian = torch.autograd.functional.hessian(
        lambda weights: PROBLEM.oracle.risk(TASK, weights), TASK.initial
    )
    largest = float(torch.linalg.eigvalsh(hessian).abs().max())
    assert largest_curvature(PROBLEM, TASK, seed=0) == pytest.approx(largest, rel=1e-3)


def test_the_network_has_three_layers_and_takes_the_inputs_of_a_point():
    assert problem_of(2, 32).network.widths == (8, 32, 32, 2)
    slope = slope_of(PROBLEM.network, TASK.initial, TASK.x, TASK.y)
    assert slope == pytest.approx(PROBLEM.network_oracle.gradient(TASK, TASK.initial))


def test_a_training_has_legs_and_steps():
    with pytest.raises(SettingError, match=r"^n_legs must be a whole number of at least 1, got 0"):
        Legs(0, 5)
    with pytest.raises(SettingError, match=r"^n_steps must be a whole number of at least 1, got"):
        Legs(1, 0)

import torch

import icgd
from icgd.certificates.report import MOST_EVENTS, NearKink

WIDTH = 2.0**-6


def report_for(x: list[list[float]], activation: str = "relu") -> icgd.Report:
    """One unit with weight 1: its preactivation is x itself."""
    problem = icgd.Problem(
        target=icgd.MLP((1, 1), output_activation=activation),
        loss="squared",
        update=icgd.GradientStep(step_size=0.1, box=2.0),
        domain=icgd.Domain(x=1.0, y=1.0),
    )
    compiled = icgd.compile(problem, "relu-stack", n_steps=1, kink_width=WIDTH)
    inputs = torch.tensor(x).double()
    return icgd.verify(compiled, inputs, torch.zeros_like(inputs), initial=torch.ones(1).double())


def test_only_preactivations_strictly_inside_the_ramp_count():
    kinks = report_for([[-0.5], [0.0], [WIDTH / 2], [WIDTH], [0.5]]).near_kinks
    assert kinks.count == 1
    assert kinks.events == (NearKink(0, 1, 1, token=2, unit=0, preactivation=WIDTH / 2),)


def test_a_near_kink_is_where_the_error_comes_from_and_the_run_bound_knows():
    near, far = report_for([[WIDTH / 2]]), report_for([[0.5]])
    assert float(far.step_errors.max()) <= 1e-15
    assert 1e-6 < float(near.step_errors.max()) <= float(near.step_bounds.max()) < 1e-4
    assert near.verdict.holds


def test_smooth_and_linear_activations_have_none():
    assert report_for([[WIDTH / 2]], "tanh").near_kinks.count == 0
    assert report_for([[WIDTH / 2]], "identity").near_kinks.count == 0


def test_all_are_counted_and_the_first_are_listed():
    kinks = report_for([[WIDTH / 2]] * (MOST_EVENTS + 5)).near_kinks
    assert kinks.count == MOST_EVENTS + 5
    assert len(kinks.events) == MOST_EVENTS

from dataclasses import replace

import pytest
import torch

import icgd
from icgd.certificates import ends
from icgd.certificates.ends import Ends
from icgd.certificates.intervals import Interval


def compiled(update, n_steps, construction="relu-stack", activation="tanh", **domain):
    network = icgd.MLP((2, 2, 1), activation, "identity")
    bounds = icgd.Domain(**{"x": 1.0, "y": 1.0, **domain})
    problem = icgd.Problem(network, "squared", update, bounds)
    return icgd.compile(problem, construction, n_steps=n_steps)


def cosine(n_steps):
    turns = torch.linspace(0.0, torch.pi, n_steps, dtype=torch.float64)
    return tuple((0.2 + 0.1 * turns.cos()).tolist())


N = 12

UPDATES = [
    icgd.GradientStep(cosine(N), box=1.0),
    icgd.GradientStep(cosine(N), box=1.0, average=0.9),
    icgd.MomentumStep(cosine(N), box=1.0, momentum=0.5, dampening=0.2, weight_decay=0.1),
    icgd.MomentumStep(cosine(N), box=1.0, momentum=0.0, weight_decay=0.1),
]


@pytest.mark.parametrize("construction", ["relu-stack", "softmax-stack"])
@pytest.mark.parametrize("update", UPDATES)
def test_a_span_is_no_smaller_than_the_largest_of_its_ends_and_not_much_larger(
    update, construction, monkeypatch
):
    run = compiled(update, N, construction)
    found = run.certificate()
    assert len(Ends.of(run.stack.schedule).numbers) < N
    monkeypatch.setattr(ends, "FEW", N)
    of_all = run.certificate()
    assert len(Ends.of(run.stack.schedule).numbers) == N
    for name in ("domain_step", "domain_trajectory"):
        assert getattr(of_all, name) <= getattr(found, name) <= 1.2 * getattr(of_all, name)


def test_a_span_covers_steps_between_a_small_one_and_one_that_fills_the_box(monkeypatch):
    """Where gradients have one sign, a huge step is exact: it takes every weight to its end."""
    sizes = (0.01, *(2.0**k for k in range(-5, 8)), 1e9)
    run = compiled(icgd.GradientStep(sizes, box=1.0), len(sizes), y=1e-6, activation="softplus")
    found = run.certificate().domain_step
    for step in range(len(sizes)):
        alone = replace(run.stack, schedule=run.stack.schedule[step : step + 1], n_steps=1)
        alone = replace(alone, block=(*run.stack.common, *run.stack.schedule[step]))
        update = replace(run.problem.update, step_size=sizes[step])
        problem = replace(run.problem, update=update)
        assert icgd.Compiled(problem, alone).certificate().domain_step <= found


def test_few_ends_are_looked_at_one_by_one():
    sizes = (0.1, 0.2, 0.1, 0.3)
    schedule = compiled(icgd.GradientStep(sizes, box=1.0), 4).stack.schedule
    found = Ends.of(schedule)
    assert (found.numbers, found.spans, found.highest) == ((2, 1, 3), (), {})
    assert Ends.of(()).numbers == (0,)


def test_a_span_has_the_smallest_and_the_largest_coefficients():
    schedule = compiled(icgd.GradientStep(cosine(N), box=1.0), N).stack.schedule
    found = Ends.of(schedule)
    assert found.numbers == (N,)
    lowest = next(part for part in found.span(N)[-1].instructions if part in found.highest)
    values = [each.assignments[0].value for each in (lowest, found.highest[lowest])]
    assert values[0].slots == values[1].slots
    place = values[0].slots.index("gradient_1")
    assert [value.coefficients[place] for value in values] == pytest.approx([-0.3, -0.1])


def test_spans_whose_smallest_coefficients_are_the_same_share_the_largest_of_both():
    """The ends of one have a layer more; its steps are as large, but not as small."""
    schedules = [
        compiled(icgd.GradientStep(tuple(torch.linspace(least, 0.5, N).tolist()), box=1.0), N).stack
        for least in (0.25, 0.125)
    ]
    near, far = (list(stack.schedule) for stack in schedules)
    near = [(*end, replace(end[-1], instructions=())) for end in near]
    for schedule in (near + far, far + near):
        found = Ends.of(schedule)
        one, other = (span[0].instructions[0] for span in found.spans)
        assert one == other
        value = found.highest[one].assignments[0].value
        assert dict(value.terms())["gradient_1"] == -0.125


def test_multiples_within_a_range():
    interval = Interval(*torch.tensor([[-1.0, 2.0], [3.0, 4.0]], dtype=torch.float64).unbind())
    found = interval.times_within(-2.0, 0.5)
    for factor in (-2.0, -0.3, 0.0, 0.5):
        some = interval.times(factor)
        assert bool((found.low <= some.low).all() and (some.high <= found.high).all())
    assert found.low.tolist() == pytest.approx([-6.0, -8.0])
    assert found.high.tolist() == pytest.approx([2.0, 2.0])
    assert torch.equal(interval.times_within(0.5, 0.5).low, interval.times(0.5).low)

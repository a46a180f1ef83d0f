"""Long runs of plain steps are followed in the 2-norm: it must enclose what balls enclose."""

from dataclasses import replace

import pytest
import torch

import icgd
import icgd_check
from icgd.certificates import balls
from icgd.certificates.balls import NORM, exact_data, rigorous_trajectory
from tests.cases import make_case


def both(problem, task, n_steps, bits=256):
    """The last balls by both methods; the first ones are far smaller."""
    described, data = problem.oracle.described(task, n_steps), exact_data(task)
    found = []
    for more, method in ((512, "balls"), (0, "norm")):
        descent = icgd_check.Descent(described, data, n_steps, bits + more, method)
        for _ in range(n_steps):
            numbers = descent.step()
        found.append((numbers, descent.predictions()))
    return found


def random_case(seed):
    generator = torch.Generator().manual_seed(seed)

    def pick(*choices):
        return choices[int(torch.randint(len(choices), (1,), generator=generator))]

    activation = pick("tanh", "relu", "leaky_relu", "sigmoid", "silu", "gelu", "softplus")
    loss = pick("squared", "huber", "logistic", "cross_entropy", "smooth_l1_0.5")
    outputs = pick(2, 3) if loss == "cross_entropy" else pick(1, 2)
    hidden = pick((3,), (4, 3), (2, 5, 3))
    output_activation = pick("identity", "identity", "tanh")
    network = icgd.MLP(
        (pick(1, 3), *hidden, outputs), activation, output_activation, pick(True, False)
    )
    update = icgd.GradientStep(pick(0.05, 0.5, 3.0), box=pick(0.7, 3.0), batch_size=pick(None, 3))
    if pick(True, False):
        update = icgd.MomentumStep(
            0.3, box=2.0, momentum=0.0, weight_decay=0.1, average=pick(None, 0.8)
        )
    case = make_case(network, loss, n_examples=5, seed=seed)
    case = replace(case, problem=replace(case.problem, update=update))
    rates = (
        2 * torch.rand(5, generator=generator, dtype=torch.float64)
        if pick(True, False, False)
        else None
    )
    if rates is not None:
        domain = replace(case.problem.domain, rate=float(rates.abs().max()))
        case = replace(case, problem=replace(case.problem, domain=domain))
    start = {"queries": case.x[:2], "seed": seed, "rates": rates}
    return case.problem, icgd.as_task(case.problem, case.x, case.y, **start)


def factor_of(problem, task, radius):
    """What the checker bounds the expansion of the first step by, within `radius` of its start."""
    descent = icgd_check.Descent(problem.oracle.described(task, 1), exact_data(task), 1, 64, "norm")
    trained, weights = descent.trained, descent.state["weights"]
    _, step, passed = trained.stepped(descent.state, 0)
    return float(icgd_check.expansion(trained, weights, step.rule, passed, radius))


@pytest.mark.parametrize("radius", [1e-7, 0.03])
@pytest.mark.parametrize("seed", range(20))
def test_no_two_points_near_a_start_are_further_apart_after_a_step_than_its_factor_says(
    seed, radius
):
    problem, task = random_case(seed)
    if problem.network.activation in ("relu", "leaky_relu"):
        problem = replace(problem, target=replace(problem.network, activation="tanh"))
    if problem.gradient_step.average is not None:
        problem = replace(problem, update=replace(problem.gradient_step, average=None))
        task = replace(task, initial=task.initial[: problem.network.n_parameters])
    generator = torch.Generator().manual_seed(seed)
    directions = torch.randn(60, 2, len(task.initial), generator=generator, dtype=torch.float64)
    # The first pairs differ along the steepest directions: derivatives of the step itself.
    points = task.initial + radius * directions / directions.norm(dim=-1, keepdim=True)
    steepest = torch.autograd.functional.jacobian(
        lambda weights: problem.oracle.step(task, weights), task.initial
    )
    _, _, rows = torch.linalg.svd(steepest)
    points[0] = torch.stack([task.initial, task.initial + radius * rows[0]])
    factor = factor_of(problem, task, radius)
    for first, second in points:
        before = (first - second).norm()
        after = (problem.oracle.step(task, first) - problem.oracle.step(task, second)).norm()
        assert after <= factor * before * (1 + 1e-6) + 1e-15
    assert factor < 40  # it says something


@pytest.mark.parametrize("step_size", [0.1, 8.0])
@pytest.mark.parametrize("residual", [0.0, 0.7])
def test_the_factor_is_that_of_the_derivative_where_norms_lose_little(step_size, residual):
    network = icgd.MLP((1, 1, 1), "identity")
    update = icgd.GradientStep(step_size, box=100.0)
    problem = icgd.Problem(network, "squared", update, icgd.Domain(2.0, 2.0))
    weights, x = torch.tensor([0.6, -0.8], dtype=torch.float64), torch.tensor([[1.5]])
    task = icgd.as_task(problem, x, weights.prod() * x - residual, initial=weights)
    derivative = torch.autograd.functional.jacobian(
        lambda point: problem.oracle.step(task, point), task.initial
    )
    exact = float(torch.linalg.matrix_norm(derivative, 2))
    assert exact * (1 - 1e-9) <= factor_of(problem, task, 1e-30) <= 3 * exact


@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_short_steps_of_smooth_networks_share_a_factor_that_holds_for_all(activation, monkeypatch):
    found, used = [], []
    expansion, factor = icgd_check.expansion, icgd_check.Network.factor

    def spy_expansion(*given):
        found.append(expansion(*given))
        return found[-1]

    def spy_factor(*given):
        used.append(float(factor(*given)))
        return factor(*given)

    monkeypatch.setattr(icgd_check, "expansion", spy_expansion)
    monkeypatch.setattr(icgd_check.Network, "factor", spy_factor)
    case = make_case(icgd.MLP((3, 6, 4, 2), activation, biases=True), "squared", step_size=0.004)
    task = icgd.as_task(case.problem, case.x, case.y, seed=0)
    exact, enclosing = (numbers for numbers, _ in both(case.problem, task, 40))
    assert all(ball.contains(number) for ball, number in zip(enclosing, exact, strict=True))
    assert len(found) <= 25 if activation == "tanh" else len(found) >= 40
    for weights, factor_of_step in zip(case.problem.oracle.train(task, 39), used, strict=True):
        derivative = torch.autograd.functional.jacobian(
            lambda point: case.problem.oracle.step(task, point), weights
        )
        assert float(torch.linalg.matrix_norm(derivative, 2)) <= factor_of_step


def test_a_factor_is_shared_only_within_its_radius(monkeypatch):
    case = make_case(icgd.MLP((3, 6, 1)), "squared", step_size=0.004)
    task = icgd.as_task(case.problem, case.x, case.y, seed=0)
    described = case.problem.oracle.described(task, 1)
    descent = icgd_check.Descent(described, exact_data(task), 1, 128, "norm")
    network, state = descent.trained, descent.state
    after, step, passed = network.stepped(state, 0)
    rule = step.rule
    zero = icgd_check.ZERO
    network.factor(state["weights"], after["weights"], rule, passed, zero)
    centre, radius, shared = network.nearby
    monkeypatch.setattr(icgd_check, "expansion", lambda *given: zero - 1)

    def factor_at(distance, apart):
        moved = [part + 0 * part for part in centre]
        moved[0][0, 0] += distance * radius
        network.nearby = (centre, radius, shared)
        return float(network.factor(moved, after["weights"], rule, passed, apart * radius))

    assert factor_at(0.5, 0.4) == factor_at(0.0, 0.99) == float(shared)
    assert factor_at(0.5, 0.6) == factor_at(1.1, 0.0) == factor_at(0.0, 1.1) == -1.0


@pytest.mark.parametrize("power", [-300, -90, 90, 300])
def test_no_number_is_too_small_or_too_large_for_the_factor(power):
    x = 2.0**power
    update = icgd.GradientStep(2.6 / x / x, box=1.0)
    problem = icgd.Problem(icgd.MLP((1, 1)), "squared", update, icgd.Domain(x, 1.0))
    task = icgd.as_task(problem, [[x]], [0.0], initial=[0.5])
    assert factor_of(problem, task, 0.0) == pytest.approx(1.6)


@pytest.mark.parametrize("seed", range(40))
def test_the_norm_encloses_what_balls_enclose(seed):
    problem, task = random_case(seed)
    for exact, enclosing in zip(*both(problem, task, 12), strict=True):
        assert max(float(ball.rad()) for ball in exact) < 1e-60
        assert all(ball.contains(number) for ball, number in zip(enclosing, exact, strict=True))
        assert max(float(ball.rad()) for ball in enclosing) < 1e-30


def long_run(n_steps, activation="tanh", **settings):
    torch.manual_seed(0)
    x = 2 * torch.rand(12, 4, dtype=torch.float64) - 1
    update = icgd.GradientStep(0.3, box=2.0)
    problem = icgd.Problem(
        icgd.MLP((4, 8, 8, 1), activation, **settings), "squared", update, icgd.Domain(1.0, 1.0)
    )
    compiled = icgd.compile(problem, "softmax-stack", n_steps=n_steps)
    task = compiled.task(x, x.sin().mean(1), seed=0, queries=x[:2])
    return compiled, task, compiled.run_task(task)


def proved(compiled, task, run):
    real = compiled.problem.oracle.train(task, compiled.program.n_steps)
    return rigorous_trajectory(compiled.problem, task, run.parameters, run.predictions, real), real


@pytest.fixture
def soon(monkeypatch):
    """Follow runs in the 2-norm that are not so long."""
    monkeypatch.setattr(balls, "LONG_BITS", 320)


@pytest.mark.usefixtures("soon")
def test_bits_of_a_long_run_hardly_grow_and_its_proof_is_tight():
    compiled, task, run = long_run(400)
    proof, real = proved(compiled, task, run)
    measured = (run.parameters - real).abs().amax(-1)[1:]
    assert proof.method == NORM
    assert proof.bits < 200  # balls take some 600
    assert bool((proof.distances <= 1.1 * measured + proof.of_oracle).all())
    assert float(proof.predictions.max()) < 1e-9


def test_a_long_certificate_is_accepted_and_a_distance_below_the_truth_is_not(monkeypatch):
    monkeypatch.setattr(balls, "LONG_BITS", 0)
    compiled, task, _ = long_run(120)
    text = compiled.certify(task.x, task.y, seed=0, backend="fused").text
    assert '"method": "norm"' in text
    assert icgd_check.check(text.encode())["bits"] < 200
    descent = icgd_check.Descent(
        compiled.problem.oracle.described(task, 120), exact_data(task), 120, 128, "norm"
    )
    far = [float(ball) + 1e-3 for ball in descent.step()]
    assert icgd_check.distance(descent.step(), far) > 9e-4


@pytest.mark.parametrize(
    "settings", [{"norms": (1,)}, {"shortcuts": ((1, 2),)}], ids=["norms", "shortcuts"]
)
def test_other_networks_than_chains_are_left_to_balls(settings):
    case = make_case(icgd.MLP((2, 3, 3, 1), **settings), "squared")
    task = icgd.as_task(case.problem, case.x, case.y, seed=0)
    described = case.problem.oracle.described(task, 2)
    descent = icgd_check.Descent(described, exact_data(task), 2, 128, "norm")
    with pytest.raises(icgd_check.RefusedError, match="needs plain steps"):
        descent.step()


def test_an_optimiser_with_a_state_is_left_to_balls():
    case = make_case(icgd.MLP((2, 3, 1)), "squared")
    problem = replace(case.problem, update=icgd.AdamStep(0.1, box=2.0))
    task = icgd.as_task(problem, case.x, case.y, seed=0)
    described = problem.oracle.described(task, 2)
    descent = icgd_check.Descent(described, exact_data(task), 2, 128, "norm")
    with pytest.raises(icgd_check.RefusedError, match="needs plain steps"):
        descent.step()


def test_a_kink_that_is_too_near_is_left_to_balls():
    compiled, task, _ = long_run(2, "relu")
    x = task.x.clone()
    x[0] = 0.0  # all preactivations of the first layer are 0
    described = compiled.problem.oracle.described(task, 2)
    descent = icgd_check.Descent(described, exact_data(replace(task, x=x)), 2, 128, "norm")
    with pytest.raises(icgd_check.RefusedError, match="kink"):
        descent.step()

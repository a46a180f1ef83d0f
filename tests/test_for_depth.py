"""One block of cot-network trains networks of every depth."""

import pytest
import torch

import icgd
from icgd.errors import OverflowedRunError, SettingError

DEPTHS = (1, 2, 3, 5, 8)
TARGETS = {
    "relu": icgd.MLP((3, 4, 4, 2), "relu"),
    "square": icgd.MLP((4, 4, 4), "relu", output_activation="relu"),
    "tanh, biases": icgd.MLP((2, 3, 2), "tanh", biases=True),
}


UPDATES = {
    "momentum": icgd.MomentumStep(0.1, 2.0, 2, momentum=0.5),
    "schedule": icgd.GradientStep((0.1, 0.2, 0.3, 0.1), 2.0, 2),
}


@pytest.mark.parametrize("name", UPDATES)
def test_momentum_schedules_and_classes_keep_to_the_block(name):
    """One block trains a classifier of every depth by the same rules."""
    target, domain = TARGETS["relu"], icgd.Domain(x=2.0, y=2.0)
    problem = icgd.Problem(target, "cross_entropy", UPDATES[name], domain)
    x, _ = data(target)
    for depth in DEPTHS:
        compiled = icgd.compile(problem, "cot-network", n_steps=4).for_depth(depth)
        initial = 0.6 * compiled.problem.network.initial_parameters(depth, 2.0).abs()
        task = compiled.task(x, [0, 1, 1, 0], initial=initial)
        real = compiled.problem.oracle.train(task, 4)
        assert (real[-1] - real[0]).abs().max() > 1e-3
        assert (compiled.run_task(task).parameters - real).abs().max() < 1e-13


def compiled_of(target: icgd.MLP, construction: str = "cot-network") -> icgd.Compiled:
    batch_size = 2 if construction == "cot-network" else None
    update = icgd.GradientStep(step_size=0.1, box=2.0, batch_size=batch_size)
    problem = icgd.Problem(target, "squared", update, icgd.Domain(x=2.0, y=2.0))
    return icgd.compile(problem, construction, n_steps=4)


def data(target: icgd.MLP) -> tuple[torch.Tensor, torch.Tensor]:
    draw = {"generator": torch.Generator().manual_seed(3), "dtype": torch.float64}
    x = torch.rand(4, target.input_width, **draw)
    return x, torch.rand(4, target.output_width, **draw)


@pytest.mark.parametrize("name", TARGETS)
def test_the_weights_of_the_block_are_bit_equal_for_all_depths(name):
    compiled = compiled_of(TARGETS[name])
    weights = dict(compiled.block().named_parameters())
    assert weights
    for depth in DEPTHS:
        other = dict(compiled.for_depth(depth).block().named_parameters())
        assert other.keys() == weights.keys()
        assert all(torch.equal(other[key], weights[key]) for key in weights)


def test_compiling_at_another_depth_fits_other_grids_and_so_gives_other_weights():
    shallow, deep = (compiled_of(icgd.MLP((3, *[4] * n, 2), "relu")) for n in (1, 3))
    pairs = zip(shallow.block().parameters(), deep.block().parameters(), strict=True)
    assert not all(torch.equal(first, second) for first, second in pairs)


@pytest.mark.parametrize("backend", ["fused", "dense"])
@pytest.mark.parametrize("name", TARGETS)
def test_a_run_agrees_with_real_descent_on_a_network_of_that_depth(name, backend):
    x, y = data(TARGETS[name])
    for depth in DEPTHS:
        compiled = compiled_of(TARGETS[name]).for_depth(depth)
        assert compiled.problem.network.depth == depth
        # Weights that are mostly positive, so that no signal fades with depth.
        initial = 0.6 * compiled.problem.network.initial_parameters(depth, 2.0).abs()
        task = compiled.task(x, y, queries=x[:3], initial=initial)
        run = compiled.run_task(task, backend=backend)
        real = compiled.problem.oracle.train(task, 4)
        assert (real[-1] - real[0]).abs().max() > 1e-3
        assert (run.parameters - real).abs().max() < 1e-11
        predictions = compiled.problem.oracle.predict(task, real[-1])
        assert (run.predictions - predictions).abs().max() < 1e-11


def test_widths_are_those_of_the_block():
    assert compiled_of(TARGETS["relu"]).for_depth(5).problem.network.widths == (3, 4, 4, 4, 4, 2)
    assert compiled_of(TARGETS["relu"]).for_depth(1).problem.network.widths == (3, 2)
    linear = compiled_of(icgd.MLP((3, 2), "relu", output_activation="relu"))
    assert linear.for_depth(3).problem.network.widths == (3, 3, 3, 2)


def test_another_depth_is_verified_and_saved_like_any_compiled_run(tmp_path):
    compiled = compiled_of(TARGETS["relu"]).for_depth(5)
    report = icgd.verify(compiled, *data(TARGETS["relu"]), seed=1)
    assert (report.step_errors <= report.step_bounds).all()
    compiled.save(tmp_path / "deep.safetensors")
    assert icgd.load(tmp_path / "deep.safetensors") == compiled


def test_a_run_that_leaves_the_grids_of_the_block_is_stopped():
    compiled = compiled_of(icgd.MLP((4, 4), "relu", output_activation="relu")).for_depth(6)
    x, y = data(compiled.problem.network)
    initial = torch.full((compiled.problem.network.n_parameters,), 2.0, dtype=torch.float64)
    with pytest.raises(OverflowedRunError, match="z"):
        compiled.run(x, y, initial=initial)


def test_other_constructions_and_widths_that_do_not_fit_are_refused():
    with pytest.raises(SettingError, match="Only the block of cot-network"):
        compiled_of(TARGETS["relu"], "relu-stack").for_depth(3)
    with pytest.raises(SettingError, match="depth=3 does not determine the widths"):
        compiled_of(icgd.MLP((2, 3, 4, 3, 1), "relu")).for_depth(3)
    with pytest.raises(SettingError, match="the activation tanh"):
        compiled_of(icgd.MLP((3, 2), "tanh")).for_depth(2)
    with pytest.raises(SettingError, match="depth must be a whole number of at least 1"):
        compiled_of(TARGETS["relu"]).for_depth(0)
    with pytest.raises(SettingError, match="depth must be at most 1000000, got 1000000000000000"):
        compiled_of(TARGETS["relu"]).for_depth(10**15)
    unlike = icgd.MLP((2, 3, 4, 3, 1), "relu")
    assert compiled_of(unlike).for_depth(4) == compiled_of(unlike)

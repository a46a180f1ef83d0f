"""One compiled transformer trains every network that is no wider, with not a weight changed."""

import json
import math

import numpy as np
import pytest
import torch

import icgd
from icgd.errors import ConstructionError, SettingError
from icgd.many_tasks import _compiled

N_STEPS, DOMAIN = 3, icgd.Domain(x=1.0, y=1.0)
SQUARED = icgd.GradientStep(0.3, 2.0)

ACTIVATIONS = {
    "relu": (lambda z: np.maximum(z, 0), lambda z: (z > 0) * 1.0),
    "leaky_relu": (lambda z: np.where(z > 0, z, 0.01 * z), lambda z: np.where(z > 0, 1.0, 0.01)),
    "tanh": (np.tanh, lambda z: 1 - np.tanh(z) ** 2),
    "sigmoid": (lambda z: 1 / (1 + np.exp(-z)), lambda z: np.exp(-z) / (1 + np.exp(-z)) ** 2),
    "identity": (lambda z: z, np.ones_like),
}
LOSS_SLOPES = {
    "squared": lambda p, y: 2 * (p - y),
    "huber": lambda p, y: np.clip(p - y, -1, 1),
    "logistic": lambda p, y: 1 / (1 + np.exp(-p)) - y,
    "cross_entropy": lambda p, y: np.exp(p) / np.exp(p).sum(1, keepdims=True) - y,
}


def trained(network, loss, update, x, y, matrices):
    """The matrices after each step, by numpy alone."""
    names = [network.activation] * (network.depth - 1) + [network.output_activation]
    matrices = [matrix.copy() for matrix in matrices]
    first = [np.zeros_like(matrix) for matrix in matrices]
    second = [np.zeros_like(matrix) for matrix in matrices]
    history = [np.concatenate([matrix.ravel() for matrix in matrices])]
    for step in range(1, N_STEPS + 1):
        inputs, zs, p = [], [], x
        for name, matrix in zip(names, matrices, strict=True):
            inputs.append(np.column_stack([p, np.ones(len(p))]) if network.biases else p)
            zs.append(inputs[-1] @ matrix.T)
            p = ACTIVATIONS[name][0](zs[-1])
        back = LOSS_SLOPES[loss](p, y)
        gradients = []
        for layer in reversed(range(len(matrices))):
            delta = back * ACTIVATIONS[names[layer]][1](zs[layer])
            gradients.insert(0, delta.T @ inputs[layer] / (2 * len(x)))
            back = (delta @ matrices[layer])[:, : network.widths[layer]]
        for layer, gradient in enumerate(gradients):
            if isinstance(update, icgd.AdamStep):
                one, two = update.betas
                first[layer] = one * first[layer] + (1 - one) * gradient
                second[layer] = two * second[layer] + (1 - two) * gradient**2
                root = np.sqrt(second[layer] / (1 - two**step)) + update.eps
                gradient = first[layer] / (1 - one**step) / root
            elif isinstance(update, icgd.MomentumStep):
                first[layer] = gradient = update.momentum * first[layer] + gradient
            matrices[layer] = np.clip(
                matrices[layer] - update.step_size * gradient, -update.box, update.box
            )
        history.append(np.concatenate([matrix.ravel() for matrix in matrices]))
    return np.stack(history)


def data(network, loss="squared", n=5):
    rng = np.random.default_rng(4)
    x, y = rng.uniform(-1, 1, (n, network.input_width)), rng.random((n, network.output_width))
    if loss == "cross_entropy":
        y /= y.sum(1, keepdims=True)
    matrices = [rng.uniform(-1, 1, shape) for shape in network.matrix_shapes]
    return x, y, matrices


CASES = {
    "relu": ("relu-stack", icgd.MLP((4, 6, 2), "relu"), "squared", SQUARED, (3, 4, 1), 1e-14),
    "one hidden layer": (
        "relu-stack", icgd.MLP((3, 4, 5, 2), "leaky_relu", biases=True), "huber",
        icgd.MomentumStep(0.2, 2.0, momentum=0.8), (3, 4, 2, 2), 1e-14,
    ),
    "Adam": (
        "relu-stack", icgd.MLP((3, 4, 4, 2), "relu", biases=True), "squared",
        icgd.AdamStep(0.05, 2.0), (2, 3, 1, 1), 2e-4,
    ),
    "tanh outputs": (
        "relu-stack", icgd.MLP((3, 4, 2), "tanh", "tanh"), "squared", SQUARED, (3, 4, 1), 1e-3,
    ),
    "sigmoid outputs": (
        "softmax-stack", icgd.MLP((3, 4, 2), "tanh", "sigmoid"), "squared", SQUARED, (3, 2, 1),
        1e-11,
    ),
    "labels of 1/2": (
        "softmax-stack", icgd.MLP((3, 4, 2), "tanh"), "logistic", SQUARED, (2, 3, 1), 1e-11,
    ),
    "fewer inputs of sigmoid": (
        "softmax-stack", icgd.MLP((3, 4, 2), "sigmoid"), "squared", SQUARED, (2, 4, 1), 1e-11,
    ),
    "classes": (
        "relu-stack", icgd.MLP((3, 4, 2), "relu"), "cross_entropy", SQUARED, (2, 3, 2), 1e-4,
    ),
    "recursion": ("recursion", icgd.MLP((3, 4, 1), "tanh"), "squared", SQUARED, (2, 2, 1), 1e-10),
    "sigmoid in a chain": (
        "cot-network", icgd.MLP((3, 4, 2), "sigmoid", biases=True), "squared",
        icgd.GradientStep(0.3, 2.0, batch_size=5), (2, 3, 1), 1e-11,
    ),
    "logistic in a chain": (
        "cot-network", icgd.MLP((3, 4, 2), "tanh"), "logistic",
        icgd.GradientStep(0.3, 2.0, batch_size=5), (2, 3, 1), 1e-11,
    ),
}  # fmt: skip
"""Construction, network, loss, update, narrower widths, and how far runs may be off."""


def compiled_of(name: str) -> tuple[icgd.Compiled, icgd.Compiled]:
    construction, network, loss, update, widths, _ = CASES[name]
    problem = icgd.Problem(network, loss, update, DOMAIN)
    compiled = icgd.compile(problem, construction, n_steps=N_STEPS)
    return compiled, compiled.for_widths(widths)


@pytest.mark.parametrize("backend", ["literal", "fused", "dense"])
@pytest.mark.parametrize("name", CASES)
def test_the_narrow_network_is_trained_as_numpy_trains_it(name, backend):
    _, narrow = compiled_of(name)
    _, _, loss, update, widths, tolerance = CASES[name]
    network = narrow.problem.network
    assert network.widths == widths
    x, y, matrices = data(network, loss)
    real = trained(network, loss, update, x, y, matrices)
    assert abs(real[-1] - real[0]).max() > 0.01
    run = narrow.run(x, y, queries=x[:2], initial=real[0], backend=backend)
    found = run.parameters[..., : network.n_parameters].numpy()
    assert abs(found - real).max() < tolerance
    assert run.predictions.shape == (2, widths[-1])
    assert run.weights["weights_1"].shape == (widths[1], widths[0])
    assert math.isclose(float(run.loss_curve[0]), float(narrow.problem.oracle.risk(
        narrow.task(x, y, initial=real[0]), torch.tensor(real[0]))))  # fmt: skip


@pytest.mark.parametrize("name", ["relu", "one hidden layer", "tanh outputs", "labels of 1/2"])
def test_what_is_padded_stays_0(name):
    compiled, narrow = compiled_of(name)
    x, y, _ = data(narrow.problem.network)
    task = narrow.task(x, y)
    wide = compiled.run_task(narrow.padding.task(task), backend="literal").parameters
    outside = torch.ones(wide.shape[-1], dtype=torch.bool)
    outside[narrow.padding.places] = False
    assert outside.any()
    assert wide[..., outside].abs().max() < 1e-16
    assert torch.equal(
        narrow.padding.read(wide), narrow.run_task(task, backend="literal").parameters
    )


@pytest.mark.parametrize("name", CASES)
def test_no_weight_changes_and_files_keep_the_widths(name, tmp_path):
    compiled, narrow = compiled_of(name)
    before, after = (dict(run.block().named_parameters()) for run in (compiled, narrow))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)
    narrow.save(tmp_path / "narrow.safetensors")
    assert icgd.load(tmp_path / "narrow.safetensors") == narrow
    if narrow.wide is not None:
        assert narrow.for_widths(compiled.problem.network.widths) == narrow.whole == compiled


@pytest.mark.parametrize("name", ["relu", "Adam", "labels of 1/2", "sigmoid in a chain"])
def test_it_is_verified_within_the_bounds_of_the_compiled_run(name):
    compiled, narrow = compiled_of(name)
    x, y, _ = data(narrow.problem.network)
    report = icgd.verify(narrow, x, y, queries=x[:2], seed=1)
    assert report.verdict.holds
    assert report.backend == "literal"
    assert bool((report.step_errors <= report.step_bounds).all())
    if narrow.wide is not None:
        assert narrow.certificate() == compiled.certificate()
    proof = narrow.certify(x, y, seed=1)
    assert json.loads(proof.text)["problem"]["widths"] == list(narrow.problem.network.widths)


def test_padded_units_of_sigmoid_would_learn():
    """The refusal is needed: padded by hand, the wide network is another one after a step."""
    wide = icgd.Problem(icgd.MLP((2, 4, 1), "sigmoid"), "squared", SQUARED, DOMAIN)
    compiled = icgd.compile(wide, "softmax-stack", n_steps=2)
    with pytest.raises(
        ConstructionError, match=r"widths\[1\] must be 4, not 2: sigmoid\(0\) = 0.5"
    ):
        compiled.for_widths((2, 2, 1))
    x, y, (first, second) = data(icgd.MLP((2, 2, 1), "sigmoid"))
    padded = [np.pad(first, ((0, 2), (0, 0))).ravel(), np.pad(second, ((0, 0), (0, 2))).ravel()]
    ends = compiled.run(x, y, initial=np.concatenate(padded)).parameters[1]
    assert abs(ends[-2:]).min() > 0.01  # the weights above the padded units have moved


def test_attention_shows_the_padded_units_too():
    compiled, narrow = compiled_of("relu")
    x, y, _ = data(narrow.problem.network)
    patterns = narrow.run(x, y).attention("gradient step")
    wide_x, wide_y = (np.pad(part, ((0, 0), (0, 1))) for part in (x, y))
    assert patterns.keys() == compiled.run(wide_x, wide_y).attention("gradient step").keys()


def test_workers_of_many_tasks_know_the_widths():
    _, narrow = compiled_of("relu")
    whole = narrow.whole
    parts = {"problem": whole.problem.to_data(), "program": whole.program.to_data()}
    text = json.dumps({**parts, "widths": narrow.problem.network.widths})
    assert _compiled(text) == narrow


REFUSED = {
    "wider": ((4, 7, 2), r"widths\[1\] is 7, wider than the 6"),
    "shallower": ((4, 2), "has 1 layers, but the transformer was compiled for 2"),
    "no width": ((4, 6, 0), r"widths\[2\] must be a whole number of at least 1"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_networks_are_refused(name):
    widths, message = REFUSED[name]
    with pytest.raises(SettingError, match=message):
        compiled_of("relu")[0].for_widths(widths)


def test_networks_that_padding_would_change_are_refused():
    def narrowed(network, loss, widths, domain=DOMAIN):
        problem = icgd.Problem(network, loss, SQUARED, domain)
        return icgd.compile(problem, "relu-stack", n_steps=1).for_widths(widths)

    with pytest.raises(ConstructionError, match="widths has 2 classes instead of 3"):
        narrowed(icgd.MLP((2, 3, 3)), "cross_entropy", (2, 3, 2))
    with pytest.raises(ConstructionError, match="no label within 1 keeps a padded output"):
        narrowed(icgd.MLP((2, 3, 2), "tanh", "softplus"), "squared", (2, 3, 1))
    with pytest.raises(ConstructionError, match=r"no label within 0\.25 keeps a padded output"):
        narrowed(icgd.MLP((2, 3, 2)), "logistic", (2, 3, 1), icgd.Domain(1.0, 0.25))
    with pytest.raises(ConstructionError, match="the norm of layer 1 uses the mean"):
        narrowed(icgd.MLP((2, 3, 2), "relu", norms=(1,)), "squared", (2, 2, 2))
    assert narrowed(icgd.MLP((2, 3, 2), "relu", norms=(1,)), "squared", (1, 3, 1)).padding


def test_what_needs_the_compiled_widths_says_so():
    _, narrow = compiled_of("relu")
    with pytest.raises(ConstructionError, match=r"Use `\.whole`"):
        icgd.LearnableRun(narrow)
    assert sum(map(torch.numel, narrow.transformer().parameters())) > 0
    model = icgd.LinearModel(2)
    problem = icgd.Problem(model, "matching", icgd.ProximalStep(0.5, box=4.0), DOMAIN)
    with pytest.raises(SettingError, match="target must be of type MLP"):
        icgd.compile(problem, "linear-stack", n_steps=1).for_widths((1, 1))

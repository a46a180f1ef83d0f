"""One block a step trains a linear model."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

import icgd
from icgd.constructions.linear_stack import score_reach
from icgd.errors import SettingError, UnsupportedProblemError
from icgd.problems.linear_model import LINKS
from icgd.problems.mlp import MLP
from icgd.program.instructions import LayerKind
from icgd.program.layout import Role
from tests.bare_oracles import on_linear_model
from tests.linear_cases import compiled_of, data, problem_of, task_of

GOLDEN = Path(__file__).parents[1] / "golden"


def test_the_listing_is_the_golden_one():
    listing = compiled_of(problem_of("logistic"), n_steps=8).listing()
    assert listing == (GOLDEN / "linear_stack_logistic.txt").read_text(encoding="utf-8")


def test_the_listing_of_fista_is_the_golden_one():
    problem = problem_of("logistic", momentum=(0.0, 0.25), nesterov=True)
    listing = compiled_of(problem, n_steps=2).listing()
    assert listing == (GOLDEN / "linear_stack_fista.txt").read_text(encoding="utf-8")


def test_the_listing_of_a_single_softmax_layer_is_the_golden_one():
    problem = problem_of("identity", momentum=0.5)
    listing = compiled_of(problem, n_steps=8, mirrored_heads=3).listing()
    assert listing == (GOLDEN / "linear_stack_mirrored.txt").read_text(encoding="utf-8")


def test_the_examples_of_its_page_run():
    page = Path(__file__).parents[2] / "docs" / "constructions" / "linear_stack.md"
    first, pure = re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
    names: dict[str, object] = {}
    exec(first, names)
    assert names["report"].verdict.holds
    exec(pure, names)
    assert names["largest"] <= 1e-12


def test_momentum_takes_no_layer_and_equal_steps_share_their_weights():
    plain = compiled_of(problem_of("logistic"), n_steps=8).summary()
    for momentum, blocks in ((0.5, 1), ((0.5,) * 8, 8)):
        problem = problem_of("logistic", momentum=momentum, nesterov=True)
        compiled = compiled_of(problem, n_steps=8)
        summary, weights = compiled.summary(), list(compiled.transformer().parameters())
        assert (summary.layers_per_step, summary.n_layers) == (3, plain.n_layers) == (3, 26)
        assert summary.d_model == plain.d_model + 4
        assert len(compiled.stack.block) == 3 * blocks
        assert sum(weight.numel() for weight in weights) == summary.parameters
        assert sum(int(weight.count_nonzero()) for weight in weights) == summary.nonzeros
    with pytest.raises(SettingError, match="momentum has 8 entries; expected 4, one for each step"):
        compiled_of(problem)


@pytest.mark.parametrize("link", LINKS)
def test_unless_said_it_is_the_construction_of_a_linear_model(link):
    assert icgd.compile(problem_of(link), n_steps=1).program.construction == "linear-stack"


@pytest.mark.parametrize("former", ["cot-ridge", "cot-lasso", "cot-glm"])
def test_files_that_name_it_as_it_was_called_before_are_read(former, tmp_path):
    compiled = compiled_of(problem_of("logistic"))
    renamed = replace(compiled, program=replace(compiled.program, construction=former))
    renamed.save(tmp_path / "run.safetensors", weights=True)
    assert icgd.load(tmp_path / "run.safetensors") == compiled


@pytest.mark.parametrize(
    ("construction", "problem", "reason"),
    [
        ("linear-stack", problem_of("probit", step_size=None), "sized_problem"),
        ("linear-stack", problem_of("probit", box=None), r"give ProximalStep\(box=\.\.\.\)"),
        ("relu-stack", problem_of("probit"), "not the coefficients of a linear model"),
    ],
)
def test_a_construction_says_why_it_cannot(construction, problem, reason):
    with pytest.raises(UnsupportedProblemError, match=reason):
        icgd.compile(problem, n_steps=1, construction=construction)


def test_a_network_is_no_linear_model():
    network = icgd.Problem(
        MLP((2, 1)), "squared", icgd.GradientStep(0.1, 1.0), icgd.Domain(1.0, 1.0)
    )
    with pytest.raises(UnsupportedProblemError, match="not the weights of a network"):
        icgd.compile(network, n_steps=1, construction="linear-stack")


def test_without_a_step_size_the_construction_for_the_model_says_so():
    expected = r"^No construction can compile this problem. linear-stack, cot-glm: its .*siz"
    with pytest.raises(UnsupportedProblemError, match=expected):
        icgd.compile(problem_of("logistic", step_size=None), n_steps=1)


def test_prompts_have_any_length_and_their_number_of_examples_is_no_setting():
    with pytest.raises(SettingError, match="linear-stack has no setting 'n_examples'; its set"):
        icgd.compile(problem_of("logistic"), "linear-stack", n_steps=1, n_examples=6)


def test_heads_cover_what_box_and_domain_allow_or_the_bound_on_scores():
    """A box of 1 and inputs up to 2: three inputs and the intercept add up to 7."""
    room = 1 + 2.0**-10
    assert score_reach(problem_of("logistic", score=None)) == 7 * room
    assert score_reach(problem_of("logistic", score=None, intercept=False)) == 6 * room
    assert score_reach(problem_of("logistic", score=2.5)) == 2.5 * room
    assert score_reach(problem_of("logistic", score=99.0)) == 7 * room
    ahead = problem_of("logistic", score=None, momentum=(0.0, 0.5), nesterov=True)
    assert score_reach(ahead) == 14 * room


def test_scores_that_are_too_wide_for_poisson_name_the_way_out():
    with pytest.raises(
        SettingError, match=r"poisson mean of scores up to 7\.007.*Domain\(score=\.\.\."
    ):
        compiled_of(problem_of("poisson", score=None))


@pytest.mark.parametrize("link", LINKS)
def test_the_share_of_an_example_is_in_the_prompt(link):
    for reduction, tokens, share in (("mean", "tokens_per_example", 1 / 6), ("sum", "n_tokens", 1)):
        program = compiled_of(problem_of(link, reduction=reduction)).program
        assert (program.descent.scale, program.descent.tokens) == (-0.3, tokens)
        assert program.descent.share(6) == share
        assert program.layout.slot(tokens).role is Role.CONSTANT
        assert program.n_examples is None


@pytest.mark.parametrize("link", LINKS)
def test_the_gate_is_larger_than_any_mean_of_values_less_any_label(link):
    program = compiled_of(problem_of(link)).program
    values = program.grid_mean(link).values
    assert program.descent.gate > max(map(abs, values)) + 2 * (1 + 2.0**-10)


@pytest.mark.parametrize(
    ("link", "reduction", "mirrored_heads"),
    [("probit", "mean", 0), ("probit", "sum", 0), ("probit", "mean", 3), ("identity", "mean", 3)],
)
def test_one_file_serves_every_number_of_examples(link, reduction, mirrored_heads, tmp_path):
    """Its weights are the ones that run, whatever the prompt."""
    problem = problem_of(link, reduction=reduction, step_size=0.05)
    compiled = compiled_of(problem, mirrored_heads=mirrored_heads)
    compiled.save(tmp_path / "run.safetensors", weights=True)
    loaded = icgd.load(tmp_path / "run.safetensors")
    update = problem.proximal_step
    for sizes in ((1, 1), (2, 5), (50, 1)):
        task = task_of(problem, tasks=(2,), sizes=sizes)
        run = loaded.run_task(task, backend="dense").parameters
        real = on_linear_model.train(problem.model, update, task.initial, task.x, task.y, 4)
        assert (run - real).abs().max() <= 1e-12


@pytest.mark.parametrize("sizes", [{"x": 1e10, "y": 1.0}, {"x": 1.0, "y": 1e308}])
def test_scores_and_labels_too_far_for_float64_are_refused(sizes):
    box = 1e300 if sizes["x"] > 1 else 1.0
    step, model = icgd.ProximalStep(0.1, box=box), icgd.LinearModel(2, "identity")
    problem = icgd.Problem(model, "matching", step, icgd.Domain(**sizes))
    with pytest.raises(UnsupportedProblemError, match=r"its heads compare all scores and labels"):
        icgd.compile(problem, "linear-stack", n_steps=1)


def test_scores_that_underflow_are_refused():
    step, model = icgd.ProximalStep(0.1, box=5e-324), icgd.LinearModel(2, "identity")
    problem = icgd.Problem(model, "matching", step, icgd.Domain(x=0.1, y=1.0))
    with pytest.raises(UnsupportedProblemError, match=r"which reach only 0 here, too small"):
        icgd.compile(problem, "linear-stack", n_steps=1)


def test_a_step_size_without_digits_is_refused():
    step, model = icgd.ProximalStep(1e-320, box=1.0), icgd.LinearModel(2, "identity")
    problem = icgd.Problem(model, "matching", step, icgd.Domain(x=1.0, y=1.0))
    with pytest.raises(UnsupportedProblemError, match=r"step_size=9\.99989e-321 is so small"):
        icgd.compile(problem, "linear-stack", n_steps=1)


MIRRORED = {
    "ridge": ("identity", {}),
    "momentum": ("identity", {"momentum": 0.5, "nesterov": True}),
    "logistic": ("logistic", {"momentum": 0.5}),
    "poisson": ("poisson", {"score": 3.0}),
}
mirrored_problems = pytest.mark.parametrize(("link", "settings"), MIRRORED.values(), ids=MIRRORED)


@mirrored_problems
@pytest.mark.parametrize("backend", ["dense", "literal"])
def test_every_mirrored_head_cancels_an_order_of_the_error(link, settings, backend):
    problem = problem_of(link, **settings)
    task, found = task_of(problem), []
    real = problem.oracle.train(task, 4)
    for n_heads in range(5):
        compiled = compiled_of(problem, mirrored_heads=n_heads)
        found.append(
            float((compiled.run_task(task, backend=backend).parameters - real).abs().max())
        )
    relu, one, two, three, four = found
    assert 1e-9 > one > 10 * two > 20 * three
    assert max(relu, four) < 1e-12


@mirrored_problems
def test_mirrored_heads_are_softmax_attention_and_a_step_of_least_squares_is_one_layer(
    link, settings, tmp_path
):
    compiled = compiled_of(problem_of(link, **settings), mirrored_heads=3)
    summary, weights = compiled.summary(), list(compiled.transformer().parameters())
    kinds = [LayerKind.MIRROR, LayerKind.MLP]
    assert [layer.kind for layer in summary.layers_of_a_step] == (
        kinds if link == "identity" else [LayerKind.GRID, *kinds]
    )
    assert sum(weight.numel() for weight in weights) == summary.parameters
    assert sum(int(weight.count_nonzero()) for weight in weights) == summary.nonzeros
    assert "tokens_per_example" not in compiled.stack.layout.names
    compiled.save(tmp_path / "run.safetensors", weights="sparse")
    assert icgd.load(tmp_path / "run.safetensors") == compiled
    texts = [text.get_text() for text in compiled.draw().figure.axes[0].texts]
    assert any("mirror attention" in text for text in texts)


@mirrored_problems
def test_queries_have_no_weight_in_the_softmax_of_mirrored_heads(link, settings):
    problem = problem_of(link, **settings)
    x, y, _ = data()
    queries = torch.full((7, 3), 2.0, dtype=torch.float64)  # as far out as the domain allows
    compiled = compiled_of(problem, mirrored_heads=3)
    plain = compiled.run(x, y, backend="literal")
    asked = compiled.run(x, y, queries=queries, backend="literal")
    assert (asked.parameters - plain.parameters).abs().max() <= 1e-13
    patterns = asked.attention("gradient step", "the gradient", step=3).values()
    assert len(patterns) == 3
    for pattern in patterns:
        weights = pattern.unflatten(-1, (2, 13))
        assert pattern.shape == (13, 26)
        assert weights[..., :6].min() > 0.0
        assert (weights[..., 6:] == 0.0).all()


@pytest.mark.parametrize("link", ["identity", "logistic"])
def test_mirrored_heads_return_no_sum(link):
    problem = problem_of(link, reduction="sum")
    reason = r"returns a mean over the examples, not a sum; give mirrored_heads=0, .* ReLUs"
    with pytest.raises(UnsupportedProblemError, match=reason):
        compiled_of(problem, mirrored_heads=3)
    with pytest.raises(UnsupportedProblemError, match=reason):
        icgd.compile(problem, icgd.LinearStack(mirrored_heads=1), n_steps=1)
    with pytest.raises(UnsupportedProblemError, match=reason):
        icgd.compile(problem, n_steps=1, mirrored_heads=3)


def test_mirrored_heads_refuse_scores_that_their_factors_multiply_beyond_float64():
    step, domain = icgd.ProximalStep(0.1, box=1e280), icgd.Domain(1.0, 1.0, score=1.0)
    problem = icgd.Problem(icgd.LinearModel(2), "matching", step, domain)
    assert compiled_of(problem).stack.n_steps == 4
    with pytest.raises(
        UnsupportedProblemError, match=r"mirrored_heads compute .* reach 2e\+280 here"
    ):
        compiled_of(problem, mirrored_heads=3)


@pytest.mark.parametrize("number", [-1, 5])
def test_mirrored_heads_are_four_at_most(number):
    with pytest.raises(SettingError, match="mirrored_heads must be"):
        icgd.LinearStack(mirrored_heads=number)


@pytest.fixture(scope="module")
def one_layer_file(tmp_path_factory):
    """The weights of a step of least squares as a file, with l2 and an intercept."""
    compiled = compiled_of(problem_of("identity", l1=0.0), mirrored_heads=3)
    path = tmp_path_factory.mktemp("mirrored") / "run.safetensors"
    compiled.save(path, weights="dense")
    layout = compiled.stack.layout
    return load_file(path), {name: layout.range_of(name).start for name in layout.names}


@pytest.mark.parametrize("n", [1, 5, 300])
def test_one_softmax_layer_in_plain_numpy_from_a_file_serves_every_number_of_examples(
    n, one_layer_file
):
    """T = [G, JG], G + sum_h W_V T softmax((W_K T)^T W_Q G) W_O, then the MLP that clips."""
    weights, place = one_layer_file
    rng = np.random.default_rng(n)
    x, y, n_queries = np.clip(rng.normal(size=(n, 3)), -2, 2), rng.uniform(size=n), 2
    stream = np.zeros((n + n_queries, weights["block.0.W_Q"].shape[1]))
    stream[:, place["x"] : place["x"] + 3] = [*x, *np.full((n_queries, 3), 2.0)]
    stream[:n, place["y"]], stream[:, place["one"]], stream[0, place["is_first"]] = y, 1.0, 1.0
    stream[:n, place["is_example"]], stream[n:, place["is_query"]] = 1.0, 1.0
    w = np.zeros(4)
    for _ in range(6):
        tokens = np.concatenate([stream, stream * weights["block.0.J"]])
        heads = zip(*(weights[f"block.0.W_{part}"] for part in "QKVO"), strict=True)
        update = np.zeros_like(stream)
        for q, k, v, o in heads:
            scores = stream @ q @ (tokens @ k).T
            pattern = np.exp(scores - scores.max(1, keepdims=True))
            update += pattern / pattern.sum(1, keepdims=True) @ tokens @ v @ o
        stream = stream + update
        hidden = np.maximum(stream @ weights["block.1.W_in"] + weights["block.1.b_in"], 0.0)
        stream = stream + hidden @ weights["block.1.W_out"]
        design = np.column_stack([x, np.ones(n)])
        decay = 0.1 * np.array([*w[:3], 0.0])
        w = np.clip(w - 0.3 * (design.T @ (design @ w - y) / n + decay), -1.0, 1.0)
        assert np.abs(stream[0, place["w"] : place["w"] + 4] - w).max() <= 2e-11


SIZES = (5, 6, 8, 12, 15, 20, 25, 30, 40, 50, 65, 80, 100, 120, 160, 200, 300, 400, 500, 800)
MODELS = {
    "ridge": ("identity", {"l2": 0.1}),
    "lasso": ("identity", {"l1": 0.1}),
    "logistic": ("logistic", {}),
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Coefficient:UserWarning")
@pytest.mark.parametrize("model", MODELS)
def test_twenty_chains_of_mirrored_heads(model):
    """30 steps against plain numpy: the errors on the page of linear-stack."""
    link, penalties = MODELS[model]
    mean = (lambda s: s) if link == "identity" else (lambda s: 1 / (1 + np.exp(-s)))
    l2, l1, largest = penalties.get("l2", 0.0), penalties.get("l1", 0.0), dict.fromkeys(range(5), 0)
    for seed, n in enumerate(SIZES):
        rng = np.random.default_rng(seed)
        d = int(rng.integers(1, 7))
        x = np.clip(rng.normal(size=(n, d)), -2, 2)
        y = x @ rng.normal(size=d) / d**0.5 + 0.3 * rng.normal(size=n)
        if link == "logistic":
            y = (y > 0).astype(float)
        steepest = 0.25 if link == "logistic" else 1.0
        step_size = 1 / (steepest * np.linalg.norm(x, 2) ** 2 / n + l2)
        history = [np.zeros(d)]
        for _ in range(30):
            w = history[-1]
            w = w - step_size * (x.T @ (mean(x @ w) - y) / n + l2 * w)
            history.append(np.sign(w) * np.maximum(np.abs(w) - step_size * l1, 0))
        box = 2 * float(np.abs(history).max())
        update = icgd.ProximalStep(step_size, box=box, **penalties)
        domain = icgd.Domain(2.0, float(np.abs(y).max()))
        problem = icgd.Problem(icgd.LinearModel(d, link), "matching", update, domain)
        for n_heads in largest:
            compiled = compiled_of(problem, n_steps=30, mirrored_heads=n_heads)
            weights = compiled.run(x, y, backend="dense").parameters.numpy()
            assert model != "lasso" or ((weights == 0) == (np.array(history) == 0)).all()
            largest[n_heads] = max(largest[n_heads], np.abs(weights - history).max())
    allowed = (1e-14, 5e-11, 6e-13, 1.5e-13, 5e-14)
    assert all(largest[n_heads] <= allowed[n_heads] for n_heads in largest), largest

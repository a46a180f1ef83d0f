"""One block a step trains a linear model."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

import icgd
from icgd.constructions.linear_stack import score_reach
from icgd.errors import SettingError, UnsupportedProblemError
from icgd.problems.linear_model import LINKS
from icgd.problems.mlp import MLP
from icgd.program.layout import Role
from tests.bare_oracles import on_linear_model
from tests.linear_cases import compiled_of, problem_of, task_of

GOLDEN = Path(__file__).parents[1] / "golden"


def test_the_listing_is_the_golden_one():
    listing = compiled_of(problem_of("logistic"), n_steps=8).listing()
    assert listing == (GOLDEN / "linear_stack_logistic.txt").read_text(encoding="utf-8")


def test_the_listing_of_fista_is_the_golden_one():
    problem = problem_of("logistic", momentum=(0.0, 0.25), nesterov=True)
    listing = compiled_of(problem, n_steps=2).listing()
    assert listing == (GOLDEN / "linear_stack_fista.txt").read_text(encoding="utf-8")


def test_the_examples_of_its_page_run():
    page = Path(__file__).parents[2] / "docs" / "constructions" / "linear_stack.md"
    first, momentum = re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
    names: dict[str, object] = {}
    exec(first, names)
    assert names["report"].verdict.holds
    exec(momentum, names)
    assert names["fista"].parameters[-1].tolist() == pytest.approx([0.99, -0.49, 0.0], abs=0.005)


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
    with pytest.raises(SettingError, match="linear-stack has no setting 'n_examples'; it has no"):
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


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_one_file_serves_every_number_of_examples(reduction, tmp_path):
    """Its weights are the ones that run, whatever the prompt."""
    problem = problem_of("probit", reduction=reduction, step_size=0.05)
    compiled_of(problem).save(tmp_path / "run.safetensors", weights=True)
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
    with pytest.raises(UnsupportedProblemError, match=r"which reach 0 here, too little"):
        icgd.compile(problem, "linear-stack", n_steps=1)


def test_a_step_size_without_digits_is_refused():
    step, model = icgd.ProximalStep(1e-320, box=1.0), icgd.LinearModel(2, "identity")
    problem = icgd.Problem(model, "matching", step, icgd.Domain(x=1.0, y=1.0))
    with pytest.raises(UnsupportedProblemError, match=r"step_size=9\.99989e-321 is so small"):
        icgd.compile(problem, "linear-stack", n_steps=1)

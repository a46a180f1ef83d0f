"""problem.toml, the options beside it, and what a table fills in."""

import re
import tomllib
from pathlib import Path

import numpy as np
import pytest

import icgd
from icgd.cli.data_options import TABLE_OPTIONS
from icgd.cli.problem_file import FORMER, KEYS, SECTIONS, Description, description_from
from icgd.constructions.registry import CONSTRUCTIONS
from icgd.errors import IcgdError, SettingError
from icgd.problems.problem import OPTIMISERS
from icgd.problems.tables import MISSING
from tests.cli.files import PROBLEM, listing

SOLD = "age,sold,size\n1,1,0.5\n-2,0,1\n0.5,0,-1\n2,1,3\n"
INPUTS = np.array([[1.0, 0.5], [-2, 1], [0.5, -1], [2, 3]])
STEEPEST = np.linalg.eigvalsh(INPUTS.T @ INPUTS).max() / 4 / 4 + 0.5
"""The curvature of the logistic loss on these inputs, with l2 = 0.5."""

UNGIVEN = dict.fromkeys(option.name for option in TABLE_OPTIONS)


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "sold.csv"
    path.write_text(SOLD)
    return path


def described(text: str, data: Path | None = None) -> icgd.Problem:
    return Description(tomllib.loads(text), None, data).problem()


def test_every_key_reaches_the_problem():
    text = """
        loss = "huber"
        initial = [0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5]
        [target]
        widths = [2, 2, 1]
        activation = "silu"
        output_activation = "tanh"
        biases = true
        [update]
        optimiser = "nesterov"
        momentum = 0.5
        step_size = 0.25
        box = [2, 1]
        batch_size = 2
        [domain]
        x = 1.5
        y = 0.5
    """
    assert described(text) == icgd.Problem(
        icgd.MLP((2, 2, 1), "silu", "tanh", biases=True),
        "huber",
        icgd.MomentumStep(0.25, (2.0, 1.0), 2, momentum=0.5, nesterov=True),
        icgd.Domain(1.5, 0.5),
        initial=(0.5,) * 9,
    )


@pytest.mark.parametrize(
    ("text", "target", "update"),
    [
        ("target.widths = [4, 3, 1]", icgd.MLP((4, 3, 1)), icgd.GradientStep(0.1, 3.0)),
        (
            "target = {kernel = 'exp', input_width = 4, output_width = 2}\nupdate.noise = 0.5",
            icgd.KernelMachine(4, "exp", 2),
            icgd.FunctionalStep(0.1, 0.5),
        ),
        (
            "target = {link = 'poisson', input_width = 2, intercept = true}\nupdate.l1 = 0.5",
            icgd.LinearModel(2, "poisson", True),
            icgd.ProximalStep(None, 0.0, 0.5, 3.0),
        ),
    ],
)
def test_what_is_left_out_has_defaults(text, target, update):
    problem = described(text)
    assert (problem.target, problem.update) == (target, update)
    assert problem.domain == icgd.Domain(4.0, 2.0)


ADAM = {
    "sgd": icgd.GradientStep(0.1, 3.0),
    "sgd weight_decay=0.5": icgd.MomentumStep(0.1, 3.0, momentum=0.0, weight_decay=0.5),
    "sgd weight_decay=0.0": icgd.GradientStep(0.1, 3.0),
    "momentum dampening=0.25": icgd.MomentumStep(0.1, 3.0, dampening=0.25),
    "nesterov": icgd.MomentumStep(0.1, 3.0, nesterov=True),
    "adam betas=[0.5,0.75] average=0.9": icgd.AdamStep(0.1, 3.0, betas=(0.5, 0.75), average=0.9),
    "adamw": icgd.AdamStep(0.1, 3.0, weight_decay=0.01, decoupled=True),
    "adamw weight_decay=0.0": icgd.AdamStep(0.1, 3.0, decoupled=True),
    "rmsprop alpha=0.5": icgd.RmspropStep(0.1, 3.0, alpha=0.5),
}


@pytest.mark.parametrize("name", ADAM)
def test_an_optimiser_has_a_name_and_coefficients(name):
    optimiser, *rest = name.split()
    lines = [f"optimiser = '{optimiser}'", *rest]
    text = "target.widths = [4, 3, 1]\n[update]\n" + "\n".join(lines)
    assert described(text).update == ADAM[name]


def test_every_optimiser_is_tried():
    assert {name.split()[0] for name in ADAM} == set(OPTIMISERS)


@pytest.mark.parametrize(
    ("text", "widths"),
    [
        ("target.hidden = [5, 3]", (2, 5, 3, 1)),
        ("target.hidden = []", (2, 1)),
        ("", (2, 16, 1)),
        ("loss = 'cross_entropy'", (2, 16, 2)),
        ("target.widths = [2, 4, 1]", (2, 4, 1)),
        ("table.target = ['sold', 'age']", (1, 16, 2)),
        ("table.ignore = 'age'", (1, 16, 1)),
    ],
)
def test_inputs_and_outputs_come_from_the_table(data, text, widths):
    table = "" if "table" in text else "table.target = 'sold'"
    if "ignore" in text:
        text += "\ntable.target = 'sold'"
    assert described(f"{text}\n{table}", data).network.widths == widths


def test_text_classes_have_an_output_each_or_one_for_two(tmp_path):
    path = tmp_path / "kinds.csv"
    path.write_text("a,kind\n1,red\n2,blue\n3,red\n")
    assert described("", path).network.widths == (1, 16, 1)
    assert described("", path).loss == "logistic"
    assert described("loss = 'cross_entropy'", path).network.widths == (1, 16, 2)
    assert described("loss = 'squared'", path).loss == "squared"
    path.write_text("a,kind\n1,red\n2,blue\n3,green\n")
    assert described("", path).network.widths == (1, 16, 3)
    assert described("", path).loss == "cross_entropy"
    path.write_text("a,kind\n1,red\n2,blue\n,green\n")
    assert described("table.missing = 'drop'", path).network.widths == (1, 16, 1)


def test_bounds_and_the_step_of_a_linear_model_come_from_the_table(data):
    text = "table.target = 'sold'\ntarget.link = 'logistic'\nupdate.l2 = 0.5\n"
    problem = described(text, data)
    assert problem.domain == icgd.Domain(x=3.75, y=1.25)
    assert problem.update.step_size == pytest.approx(1 / STEEPEST, rel=1e-12)
    stated = described(f"{text}update.step_size = 0.1\ndomain.x = 9.0", data)
    assert (stated.domain, stated.update.step_size) == (icgd.Domain(9.0, 1.25), 0.1)
    with pytest.raises(IcgdError, match=r"goes to 3, .* Compile with \[domain\] x = 3.003 or"):
        described(f"{text}domain.x = 2.5", data)


@pytest.mark.parametrize(
    ("text", "is_scaled"),
    [
        *((f"loss = '{loss}'", True) for loss in ("huber", "l1", "log_cosh", "quantile_0.5")),
        ("target.link = 'identity'", True),
        ("target.kernel = 'rbf'", True),
        ("loss = 'poisson'", False),
        ("target.link = 'poisson'", False),
    ],
)
def test_labels_that_are_measured_are_brought_to_standard_units(data, text, is_scaled):
    table = f"{text}\ntable = {{target = 'sold', standardize = true}}"
    _, examples = Description(tomllib.loads(table), None, data).filled()
    sold = np.array([1.0, 0, 0, 1])
    expected = 2 * sold - 1 if is_scaled else sold
    assert examples.labels[:, 0] == pytest.approx(expected, abs=1e-14)


def test_bounds_are_those_of_standard_units(data):
    domain = described("table = {target = 'sold', standardize = true}", data).domain
    standard = (INPUTS - INPUTS.mean(0)) / INPUTS.std(0)
    assert domain.x == pytest.approx(1.25 * np.abs(standard).max(), rel=1e-12)
    assert domain.y == pytest.approx(1.25, rel=1e-12)  # labels 0 and 1, as often


def test_a_loss_may_be_the_text_of_a_slope_and_functions_have_tables():
    text = """
        loss = "tanh(t - y)"
        target = {widths = [2, 1], output_activation = "swoosh"}
        [functions.swoosh]
        of = ["x * tanh(log(1 + exp(x)))"]
        low = -90
        high = 90.5
    """
    problem = described(text)
    assert problem.loss == icgd.Loss("tanh(t - y)").name
    assert problem.network.output_activation == "x*tanh(softplus(x)) on -90 to 90.5"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("step = 3", "Unknown key 'step' in problem.toml; .* Did you mean 'steps'?"),
        ("steps = 2.5", "problem.toml: steps must be a whole number of at least 0, got 2.5"),
        (
            "steps = 900_000\ntarget.widths = [2, 1]\nupdate.optimiser = 'adam'",
            "problem.toml: steps must be at most .* here, got 900,000",
        ),
        (
            "target.hiden = [3]",
            r"problem.toml: Unknown key 'hiden' in \[target\]; .*Did you mean 'hidden'?",
        ),
        (
            "table.target = 'sold'\ntarget.hidden = [16, 0]",
            r"problem.toml, \[target\]: hidden\[1\] must be a whole number of at least 1, got 0",
        ),
        (
            "target.widths = [2, 1]\nupdate.momentum = 0.5",
            r"problem.toml: Unknown key 'momentum' in \[update\]; known are step_size, box, "
            "batch_size, average, groups. momentum is a key of the optimisers momentum, nesterov.",
        ),
        (
            "target.widths = [2, 1]\nupdate = {optimiser = 'sgd', groups = 3}",
            r"problem.toml, \[update\]: groups must map names of weights to options, .*, got 3",
        ),
        (
            "target.widths = [2, 1]\nupdate.groups.weights_1.step_size = 'a'",
            r"\[update\]: groups\['weights_1'\]: step_size must be a positive .*, got 'a'",
        ),
        (
            "target.widths = [2, 1]\nupdate.groups = ['weights_1']",
            r"\[update\]: groups must map names of weights to options, .*, got \('weights_1'",
        ),
        (
            "target.widths = [2, 1]\nupdate.optimiser = 'adan'",
            r"problem.toml, \[update\]: Unknown optimiser 'adan'; .* Did you mean 'adam'?",
        ),
        (
            "target.widths = [2, 1]\nupdate.box = [1, 2]",
            r"problem.toml, \[update\]: box has 2 entries; expected 1",
        ),
        (
            "target = {widths = [2, 1], activation = 'tahn'}",
            r"problem.toml, \[target\]: Unknown activation 'tahn'; .* Did you mean 'tanh'?",
        ),
        (
            "target = {widths = [2, 1], activation = {name = 'tanh'}}",
            r"problem.toml, \[target\]: Unknown activation \{'name': 'tanh'\}; known are",
        ),
        (
            "target = {widths = [2, 1], biases = 'no'}",
            r"problem.toml, \[target\]: biases must be true or false, got 'no'",
        ),
        (
            "target = {heads = 3, input_width = 2}",
            r"problem.toml, \[target\]: heads must be a list of tables, such as .*, got 3.",
        ),
        ("target = 3", r"problem.toml: target must be a table, \[target\], got 3."),
        ("loss = {a = 1}", "problem.toml: loss must be one value, loss = ..., got"),
        ("update.steps = 3", r"problem.toml, \[update\]: steps is no key of this section. Move it"),
        (
            "target.widths = [2, 1]\nsettings.n_steps = 3",
            r"Unknown key 'n_steps' in \[settings\] of problem.toml; known are pieces, k",
        ),
        (
            "target.widths = [2, 1]\nsettings.pieces = 'many'",
            r"problem.toml, \[settings\]: pieces must be a whole number of at least 1, got 'many'",
        ),
        (
            "table.ignored = ['a']",
            r"Unknown key 'ignored' in \[table\] of problem.toml; .*'ignore'?",
        ),
        (
            "table.codes = {age = 'date'}",
            r"Unknown key 'codes' in \[table\] of problem.toml; known are",
        ),
        (
            "table.target = {price = 1}",
            r"\[table\]: target must be a list of column names, such as .*, got \{'price': 1\}",
        ),
        (
            "table.target = 5",
            r"\[table\]: target must be a list of column names, such as .*, got 5",
        ),
        (
            "table.ignore = [5]",
            r"\[table\]: ignore must be a list of column names, such as .*, got \[5\]",
        ),
        ("table.header = 'no'", r"problem.toml, \[table\]: header must be true or false, got 'no'"),
        ("target = {link = 'probit', kernel = 'rbf'}", "kernel a kernel machine. Keep one of them"),
        (
            "target = {widths = [2, 1], hidden = [3]}",
            "hidden is a part of widths. Keep one of them",
        ),
        ("target = {kernel = 'rbf', widths = [4, 3, 1]}", "inputs and outputs, such as 4,1, got"),
        ("", "How many inputs and outputs are there. Give a table that has them .*, or widths ="),
        (
            "target = {link = 'poisson', input_width = 2}\nupdate.step_size = 0.1",
            "poisson mean of scores up to .* score = ... under .domain. in problem.toml, or",
        ),
        (
            "construction = 'cot-ridge'\ntarget = {link = 'identity', input_width = 2}\n"
            "update.step_size = 0.1",
            "Give it: n_examples = ... under .settings. in problem.toml.",
        ),
        ("loss = tanh", "Cannot read problem.toml: Invalid value .at line 1, column"),
    ],
)
def test_what_is_wrong_is_named_with_what_would_help(command, tmp_path, text, message):
    (tmp_path / "problem.toml").write_text(text)
    if "table" in text:
        (tmp_path / "sold.csv").write_text(SOLD)
        text += "\ntable.data = 'sold.csv'"
        (tmp_path / "problem.toml").write_text(text)
    before = listing(tmp_path)
    refusal = command("compile", "problem.toml", "-o", "run.safetensors").refusal()
    assert pytest.raises(SettingError, match=message).matches(SettingError(refusal)), refusal
    assert listing(tmp_path) == before


def test_options_come_before_the_file_and_the_path_is_that_of_the_file(tmp_path, data):
    (tmp_path / "deep").mkdir()
    file = tmp_path / "deep" / "problem.toml"
    file.write_text("steps = 7\ntarget.widths = [2, 4, 1]\ntable.data = '../sold.csv'\n")
    made = description_from(
        file, None, **{**UNGIVEN, "target": ["sold"], "hidden": "3,2", "optimiser": "adam"}
    )
    problem = made.problem()
    assert made.n_steps() == 7
    assert problem.network.widths == (2, 3, 2, 1)
    assert type(problem.update) is icgd.AdamStep
    assert made.path.resolve() == data
    assert made.read == (file, made.path)


OLD = {
    "--widths 4,3,1": PROBLEM,
    "--widths 2,1 --link poisson --intercept --l2 0.5 --l1 0.25 --reduction sum --score-bound 3.0 "
    "--step-size 0.01 --box 2.0 --x-bound 1.0 --y-bound 9.0": icgd.Problem(
        icgd.LinearModel(2, "poisson", True, "sum"),
        "matching",
        icgd.ProximalStep(0.01, 0.5, 0.25, 2.0),
        icgd.Domain(1.0, 9.0, 3.0),
    ),
    "--widths 4,3,1 --optimiser adam --beta2 0.75 --eps 0.1 --average 0.5 --batch-size 2": (
        icgd.Problem(
            PROBLEM.target,
            "squared",
            icgd.AdamStep(0.1, 3.0, 2, betas=(0.9, 0.75), eps=0.1, average=0.5),
            PROBLEM.domain,
        )
    ),
    "--widths 4,2 --kernel exp --noise 0.5": icgd.Problem(
        icgd.KernelMachine(4, "exp", 2), "squared", icgd.FunctionalStep(0.1, 0.5), PROBLEM.domain
    ),
}


@pytest.mark.parametrize("line", OLD)
def test_options_of_the_last_release_still_work_and_say_where_they_go(command, tmp_path, line):
    outcome = command("compile", *line.split(), "--steps", "1", "-o", "run.safetensors")
    assert outcome.code == 0, outcome
    assert icgd.load(tmp_path / "run.safetensors").problem == OLD[line]
    assert outcome.stderr.startswith(
        "icgd: warning: These options will be removed in the next release."
    )
    widths = [int(width) for width in line.split()[1].split(",")]
    assert f"widths = {widths} under [target] (--widths)" in outcome.stderr
    betas = "betas = [0.9, 0.75] under [update] (--beta2)"
    assert (betas in outcome.stderr) == ("beta2" in line)


def test_an_old_option_for_one_beta_keeps_the_other_of_the_file(tmp_path, toml, recwarn):
    file = tmp_path / toml(
        "update = {optimiser = 'adam', betas = [0.7, 0.95]}\ntarget.widths = [2, 1]"
    )
    for name, betas in (("beta1", (0.5, 0.95)), ("beta2", (0.7, 0.5))):
        described = description_from(file, None, **{**UNGIVEN, name: "0.5"})
        assert described.problem().update.betas == betas


def test_the_step_size_alone_may_come_from_a_table(command, tmp_path, data):
    made = ("compile", "--link", "logistic", "--widths", "2,1", "--l2", "0.5", "--steps", "1")
    sized = ("--step-from", "sold.csv", "--target", "sold", "-o", "run.safetensors")
    assert command(*made, *sized).code == 0
    problem = icgd.load(tmp_path / "run.safetensors").problem
    assert problem.domain == icgd.Domain(4.0, 2.0)
    assert problem.update.step_size == pytest.approx(1 / STEEPEST, rel=1e-12)
    message = command(*made, "-o", "run.safetensors").stderr
    assert "A linear model needs a step size: give --step-size, or a table" in message


DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_has_every_key():
    page = (DOCS / "problem_file.md").read_text(encoding="utf-8")
    keys = {name for each in CONSTRUCTIONS.values() for name in each.settings()}
    keys |= {place.split(".")[-1] for place in FORMER.values()} - {"functions"}
    keys |= {option.name for option in TABLE_OPTIONS} | set(KEYS) - {"functions"}
    sections = {f"[{name}]" for name in SECTIONS}
    assert [key for key in keys if f"`{key}`" not in page and f"`[{key}]`" not in page] == []
    assert [name for name in sections - {"[functions]"} if f"`{name}`" not in page] == []
    assert [cell for cell in MISSING if cell and f"`{cell}`" not in page] == []


def test_the_example_of_the_page_is_compiled(command, tmp_path, toml):
    page = (DOCS / "problem_file.md").read_text(encoding="utf-8")
    [text] = re.findall(r"```toml\n(.*?)```", page, flags=re.DOTALL)
    command("example")
    lines = re.findall("^    icgd (.+)$", page, flags=re.MULTILINE)
    outcome = command("compile", toml(text), "--steps", "2", "-o", "run.safetensors", "--json")
    assert outcome.code == 0, outcome
    problem = icgd.load(tmp_path / "run.safetensors").problem
    assert problem.network == icgd.MLP((5, 16, 16, 1), "tanh", biases=True)
    assert problem.update == icgd.AdamStep(0.01, 3.0)
    for line in lines:
        assert command(*line.split()).code == 0


def test_the_commands_of_the_page_of_linear_models_work(command, tmp_path, toml):
    page = (DOCS / "constructions" / "linear_stack.md").read_text(encoding="utf-8")
    [text] = re.findall(r"```toml\n(.*?)```", page, flags=re.DOTALL)
    lines = re.findall("^    icgd (.+)$", page, flags=re.MULTILINE)
    rows = ["0.5,1,-1,1", "-1,0.25,2,0", "1,-2,0.5,0", "2,1,-0.5,1", "-0.5,-1,1,1"]
    (tmp_path / "patients.csv").write_text("\n".join(["a,b,c,ill", *rows]))
    (tmp_path / "new.csv").write_text("a,b,c\n1,1,1\n")
    toml(text)
    outcomes = [command(*line.split()) for line in lines]
    assert [outcome.code for outcome in outcomes] == [0, 0, 0, 0]
    assert re.search(r"\d+ of 200: weights move no more", outcomes[1].stdout)
    model = icgd.load(tmp_path / "model.safetensors").problem.model
    assert model == icgd.LinearModel(3, "logistic", intercept=True)

import json

import numpy as np
import pytest

import icgd
from icgd.cli.fitting import fitted_to
from icgd.cli.problem_options import problem_from
from icgd.errors import DataError, DomainError, SettingError
from tests.cli.files import PROBLEM

LOGISTIC = {"widths": "2,1", "link": "logistic"}
UNSTATED = {"x_bound": None, "y_bound": None}
INPUTS = np.array([[1.0, 0.5], [-2, 1], [0.5, -1], [2, 3]])
STEEPEST = np.linalg.eigvalsh(INPUTS.T @ INPUTS).max() / 4 / 4 + 0.5


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "sold.csv"
    path.write_text("age,sold,size\n1,1,0.5\n-2,0,1\n0.5,0,-1\n2,1,3\n")
    return path


def test_the_step_comes_from_the_data(data):
    problem = problem_from(**LOGISTIC, l2=0.5)
    sized = fitted_to(problem, UNSTATED, step_from=data, target=["sold"])
    assert sized.update.step_size == pytest.approx(1 / STEEPEST, rel=1e-12)
    assert sized.domain == problem.domain


def test_bounds_and_step_come_from_one_table(data):
    problem = problem_from(**LOGISTIC, l2=0.5)
    fitted = fitted_to(problem, UNSTATED, bounds_from=data, target=["sold"])
    assert fitted.domain == icgd.Domain(x=3.75, y=1.25)
    assert fitted.update.step_size == pytest.approx(1 / STEEPEST, rel=1e-12)


def test_a_stated_bound_and_step_are_kept(data):
    problem = problem_from(**LOGISTIC, x_bound=9.0, step_size=0.1)
    stated = {"x_bound": 9.0, "y_bound": None}
    fitted = fitted_to(problem, stated, bounds_from=data, target=["sold"])
    assert fitted.domain == icgd.Domain(x=9.0, y=1.25)
    assert fitted.update.step_size == 0.1


def test_a_network_gets_bounds_in_standard_units(data):
    fitted = fitted_to(
        problem_from("2,3,1"), UNSTATED, bounds_from=data, target=["sold"], standardize=True
    )
    standard = (INPUTS - INPUTS.mean(0)) / INPUTS.std(0)
    assert fitted.domain.x == pytest.approx(1.25 * np.abs(standard).max(), rel=1e-12)
    assert fitted.domain.y == pytest.approx(1.25, rel=1e-12)  # labels 0 and 1, as often


@pytest.mark.parametrize(
    ("settings", "label", "error", "message"),
    [
        ({**LOGISTIC, "step_size": 0.1}, "sold", SettingError, "either --step-size or --step-from"),
        ({"widths": "2,1"}, "sold", SettingError, "--step-from has no effect without --link"),
        (LOGISTIC, "age", DataError, r"y\[1, 0\] is -2; the logistic link needs labels between 0"),
        ({**LOGISTIC, "x_bound": 2.5}, "sold", DomainError, r"X\[3, 1\] is 3, outside"),
        ({"widths": "3,1", "link": "probit"}, "sold", DataError, "2 columns of inputs .age, size"),
    ],
)
def test_data_that_do_not_fit_are_refused(data, settings, label, error, message):
    with pytest.raises(error, match=message):
        fitted_to(problem_from(**settings), UNSTATED, step_from=data, target=[label])


def test_a_step_size_must_come_from_somewhere():
    with pytest.raises(SettingError, match="Give --step-size or --bounds-from; got neither"):
        fitted_to(problem_from(**LOGISTIC), UNSTATED)
    with pytest.raises(SettingError, match="--target has no effect without --bounds-from"):
        fitted_to(PROBLEM, UNSTATED, target=["sold"])
    with pytest.raises(SettingError, match="--standardize has no effect without --bounds-from"):
        fitted_to(PROBLEM, UNSTATED, standardize=True)


def test_one_compile_suffices(command, data, tmp_path):
    """No bound is looked up by hand: labels of thousands, a quarter of room for queries."""
    (tmp_path / "big.csv").write_text("x,y\n-70,3000\n20,9000\n50,-400\n")
    (tmp_path / "new.csv").write_text("x\n80\n")
    table = ("big.csv", "--standardize")
    made = command(
        "compile", "--widths", "1,4,1", "--bounds-from", *table, "-o", "run.safetensors", "--json"
    )
    assert json.loads(made.stdout)["problem"]["domain"]["x"] < 2
    assert command("run", "run.safetensors", *table, "--queries", "new.csv").code == 0
    assert command("verify", "run.safetensors", *table).code == 0
    (tmp_path / "new.csv").write_text("x\n800\n")
    refusal = command("run", "run.safetensors", *table, "--queries", "new.csv").refusal()
    assert refusal.startswith("new.csv, column 'x' goes to 15.6893 in standard units, but")

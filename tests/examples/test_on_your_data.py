"""The notebook runs from its first cell to its last, and scikit-learn agrees."""

import warnings

import matplotlib.pyplot as plt
import pytest

from benchmarks.notebooks import cells_of, executed


def test_estimators_come_as_far_as_those_of_scikit_learn():
    plt.switch_backend("Agg")
    with warnings.catch_warnings():
        names, _ = executed("on_your_data.ipynb")
    r2, accuracy = names["r2"], names["accuracy"]
    assert r2["InContextRidge"] == pytest.approx(r2["Ridge"], abs=1e-3)
    assert r2["InContextRegressor"] > 0.2
    assert accuracy["InContextLogistic"] > 0.95
    assert accuracy["InContextClassifier"] > 0.95
    coefficients = dict(zip(names["ridge"].feature_names_in_, names["ridge"].coef_, strict=True))
    assert max(coefficients, key=lambda name: coefficients[name]) == "s5"
    assert names["report"].verdict.holds
    bars = [bar.get_width() for bar in names["panels"][1].patches]
    assert bars == list(accuracy.values())
    plt.close("all")


def test_it_is_stored_without_outputs():
    code = [cell for cell in cells_of("on_your_data.ipynb") if cell["cell_type"] == "code"]
    assert code
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)

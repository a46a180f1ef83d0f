"""A table of your own: a frozen transformer learns it from its prompt.

`python examples/own_table.py cars.csv mpg` takes your file and the column to predict. Without them
it takes a table of 32 cars that comes with icgd. It takes a few seconds.
"""

import sys
import warnings
from pathlib import Path

import polars as pl
import polars.selectors as cs
from matplotlib.figure import Figure
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import r2_score
from sklearn.model_selection import KFold, cross_val_predict

import icgd
from icgd.estimators import InContextRegressor, InContextRidge

CARS = Path(icgd.__file__).parent / "cli" / "cars.csv"


def main(path=CARS, target="mpg"):
    """A linear model and a network predict every row from a prompt that does not hold it."""
    rows = pl.read_csv(path).drop_nulls()
    X, y = rows.select(cs.numeric()).drop(target), rows[target]
    models = {
        "linear model": InContextRidge(alpha=1.0),
        "network": InContextRegressor((8,), max_iter=300, random_state=0),
    }
    panel = (figure := Figure(layout="constrained")).subplots()
    warnings.simplefilter(
        "ignore", ConvergenceWarning
    )  # a network that stops early fits less noise
    folds = KFold(5, shuffle=True, random_state=0)
    for name, model in models.items():
        predicted = cross_val_predict(model, X, y, cv=folds)
        print(f"{name}: R² {r2_score(y, predicted):.3f} on rows it never saw")
        panel.plot(y, predicted, "o", label=name)

    ridge = models["linear model"].fit(X, y)
    for name, slope in zip(ridge.feature_names_in_, ridge.coef_, strict=True):
        print(f"  {name}: {slope:+.4g}")
    print("proof:", ridge.certificate_.verdict.value)

    panel.axline((y.mean(), y.mean()), slope=1, color="grey", linestyle=":")
    panel.set(xlabel=target, ylabel=f"predicted {target}", title="Rows that were not in the prompt")
    panel.legend(frameon=False)
    figure.savefig("own_table.png")


if __name__ == "__main__":
    main(*sys.argv[1:])

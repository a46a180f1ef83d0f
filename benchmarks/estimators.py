"""Estimators on real data beside direct training and scikit-learn: docs/estimators/real_data.md.

    python -m benchmarks.estimators          # measure, then write the JSON file and the page
    python -m benchmarks.estimators --large  # measure the large tables alone
    python -m benchmarks.estimators --page   # write the page again from the last measurements

Scores are those of rows that were not in the context: the mean of three splits. "Directly" is the
same model with the same steps from the same start in float64, without a transformer. Times are
seconds of one processor core for fit and predict, with one thread.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from sklearn.base import clone, is_classifier
from sklearn.compose import TransformedTargetRegressor
from sklearn.datasets import (
    load_breast_cancer,
    load_diabetes,
    load_digits,
    load_iris,
    load_wine,
    make_classification,
    make_friedman1,
)
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import Lasso, LogisticRegression, Ridge
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from icgd.estimators import (
    InContextClassifier,
    InContextKernelRegressor,
    InContextLasso,
    InContextLogistic,
    InContextPoisson,
    InContextRegressor,
    InContextRidge,
)
from icgd.timing import interleaved_seconds
from icgd.weights.files import whole_file

FOLDER = Path(__file__).parents[1] / "docs" / "estimators"
SEEDS = (0, 1, 2)
N_ROWS = 1000

Rows = list[dict[str, Any]]


def _friedman(return_X_y: bool) -> tuple[np.ndarray, np.ndarray]:
    return make_friedman1(500, noise=1.0, random_state=0)


def _diabetes(return_X_y: bool) -> tuple[np.ndarray, np.ndarray]:
    return load_diabetes(return_X_y=True, scaled=False)


DATA: dict[str, Callable[..., Any]] = {
    "diabetes": _diabetes,
    "Friedman 1": _friedman,
    "breast cancer": load_breast_cancer,
    "wine": load_wine,
    "iris": load_iris,
    "digits": load_digits,
}
REGRESSION = ("diabetes", "Friedman 1")


@dataclass(frozen=True)
class Pair:
    """An estimator, and the one of scikit-learn that is nearest to it."""

    ours: Any
    theirs: Any


def _on_scaled_labels(regressor: Any) -> Any:
    return TransformedTargetRegressor(regressor, transformer=StandardScaler())


REGRESSORS = (
    Pair(InContextRegressor(random_state=0), _on_scaled_labels(MLPRegressor(random_state=0))),
    Pair(InContextRidge(), Ridge()),
    Pair(InContextLasso(), Lasso()),
    Pair(InContextKernelRegressor(), _on_scaled_labels(KernelRidge(kernel="rbf"))),
)
CLASSIFIERS = (
    Pair(InContextClassifier(random_state=0), MLPClassifier(random_state=0)),
    Pair(InContextLogistic(), LogisticRegression()),
)


def main(arguments: Sequence[str]) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    path = FOLDER / "real_data.json"
    if not arguments:
        data = {"seeds": list(SEEDS), "scores": list(scores()), "speed": speed(), **large()}
        _write(path, json.dumps(data, indent=1) + "\n")
    if "--large" in arguments:
        data = json.loads(path.read_text(encoding="utf-8")) | large()
        _write(path, json.dumps(data, indent=1) + "\n")
    data = json.loads(path.read_text(encoding="utf-8"))
    _write(FOLDER / "real_data.md", render(data))


def _write(path: Path, text: str) -> None:
    with whole_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def scores() -> Iterator[dict[str, Any]]:
    """A row for each data set and estimator."""
    for name, load in DATA.items():
        X, y = load(return_X_y=True)
        for pair in REGRESSORS if name in REGRESSION else CLASSIFIERS:
            splits = [_measured(pair, X, y, seed) for seed in SEEDS]
            row = {key: float(np.mean([split[key] for split in splits])) for key in splits[0]}
            apart = [abs(split["score"] - split["direct score"]) for split in splits]
            theirs = getattr(pair.theirs, "regressor", pair.theirs)
            names = {"data": name, "n": len(X), "d": X.shape[1], "model": type(pair.ours).__name__}
            named = {**names, "beside": type(theirs).__name__, **row, "apart": max(apart)}
            print(named, flush=True)
            yield named


def _measured(pair: Pair, X: np.ndarray, y: np.ndarray, seed: int) -> dict[str, float]:
    classes = y if is_classifier(pair.ours) else None
    split = train_test_split(X, y, random_state=seed, stratify=classes)
    ours, own, seconds = timed(clone(pair.ours), *split)
    _, direct, direct_seconds = timed_directly(ours, *split)
    _, real, real_seconds = timed(make_pipeline(StandardScaler(), clone(pair.theirs)), *split)
    return {
        "steps": ours.n_iter_,
        "score": own,
        "seconds": seconds,
        "direct score": direct,
        "direct seconds": direct_seconds,
        "scikit-learn score": real,
        "scikit-learn seconds": real_seconds,
        "done": float(ours.convergence_.is_done),
    }


def timed(model: Any, X: Any, new: Any, y: Any, labels: Any) -> tuple[Any, float, float]:
    """The fitted model, its score on new rows, and the time that both took."""
    start = time.process_time()
    score = float(model.fit(X, y).score(new, labels))
    return model, score, time.process_time() - start


def timed_directly(fit: Any, X: Any, new: Any, y: Any, labels: Any) -> tuple[Any, float, float]:
    """The same for the model of a fitted estimator, trained by its oracle in place of a run."""
    oracle, n_steps = fit.compiled_.problem.oracle, fit.compiled_.program.n_steps

    def predictions(task: Any) -> torch.Tensor:
        return oracle.predict(task, oracle.train(task, n_steps)[..., -1, :])

    fit._predictions = predictions
    start = time.process_time()
    score = float(fit.score(new, labels))
    return fit, score, time.process_time() - start


def speed() -> dict[str, Any]:
    """How long 442 x 10 takes, and how long 1,000 rows take to predict."""
    X, y = _diabetes(True)
    rows = np.repeat(X, 3, axis=0)[:N_ROWS]
    wide = InContextRegressor((100,), max_iter=200, solver="gradient", alpha=0.0, random_state=0)
    wide, _, seconds = timed(wide, X, X, y, y)
    _, _, direct = timed_directly(wide, X, X, y, y)
    sizes = (InContextRegressor(random_state=0), *(pair.ours for pair in REGRESSORS[1:]))
    found: dict[str, Any] = {
        "wide": seconds,
        "wide directly": direct,
        "wide by autograd": _autograd(X, y, 200),
        "MLPRegressor": timed(make_pipeline(StandardScaler(), MLPRegressor()), X, X, y, y)[2],
        "predict": {},
    }
    for model in (*sizes, InContextPoisson(), InContextClassifier(), InContextLogistic()):
        labels = y > y.mean() if is_classifier(model) else y
        fit = clone(model).fit(X, labels)
        start = time.process_time()
        fit.predict(rows)
        found["predict"][type(model).__name__] = time.process_time() - start
    return found


LARGE = (20_000, 30)
"""Rows, of which a fifth is not in the context, and inputs of the large tables."""

N_CLASSES = 4
N_ROUNDS = 5


def large() -> dict[str, Rows]:
    """Networks on two large tables: Friedman 1, and classes in clusters."""
    alike: dict[str, Any] = {"hidden_layer_sizes": (32,), "activation": "tanh", "random_state": 0}
    X, y = make_friedman1(*LARGE, noise=1.0, random_state=0)
    regressors = {
        "`MLPRegressor`, 32 tanh units": MLPRegressor(**alike),
        "`MLPRegressor`": MLPRegressor(random_state=0),
    }
    by_sklearn = {name: _on_scaled_labels(model) for name, model in regressors.items()}
    plain = {
        "the same by plain gradient descent": InContextRegressor(solver="gradient", random_state=0)
    }
    ours = {"`InContextRegressor`": InContextRegressor(random_state=0), **plain}
    split = train_test_split(X, y, test_size=0.2, random_state=0)
    of_numbers = _compared(ours, by_sklearn, [split])

    X, y = make_classification(
        *LARGE, n_informative=10, n_redundant=5, n_classes=N_CLASSES, random_state=0
    )
    splits = [
        train_test_split(X, y, test_size=0.2, random_state=seed, stratify=y) for seed in SEEDS
    ]
    classifier = InContextClassifier(random_state=0)
    n_passes = clone(classifier).fit(splits[0][0], splits[0][2]).n_iter_
    # Neither tolerance stops this run, so that it takes as many steps as ours.
    same = {"max_iter": n_passes, "n_iter_no_change": n_passes + 1}
    classifiers = {
        f"`MLPClassifier`, 32 tanh units, {n_passes} passes": MLPClassifier(**alike, **same),
        "`MLPClassifier`, 32 tanh units": MLPClassifier(**alike),
    }
    of_classes = _compared({"`InContextClassifier`": classifier}, classifiers, splits)
    return {"large": of_numbers, "large classes": of_classes}


def _compared(
    ours: Mapping[str, Any], by_sklearn: Mapping[str, Any], splits: Sequence[Any]
) -> Rows:
    """Mean scores over the splits, and medians of times and ratios on the first split.

    Models are fitted in turn, so that other load on the machine affects all of them alike. Ratios
    are to the first model of scikit-learn in the same round.
    """
    scaled = {n: make_pipeline(StandardScaler(), model) for n, model in by_sklearn.items()}
    models = {**ours, **scaled}
    found: dict[str, float] = {}

    def job(name: str) -> Callable[[], None]:
        def fit() -> None:
            found[name] = timed(clone(models[name]), *splits[0])[1]

        return fit

    turns = interleaved_seconds({name: job(name) for name in models}, N_ROUNDS, time.process_time)
    beside = next(iter(by_sklearn))
    return [
        {
            "model": name,
            "score": float(
                np.mean([found[name], *(timed(clone(models[name]), *s)[1] for s in splits[1:])])
            ),
            "seconds": median(turn[name] for turn in turns),
            "ratio": median(turn[name] / turn[beside] for turn in turns),
        }
        for name in models
    ]


def _autograd(X: np.ndarray, y: np.ndarray, n_steps: int) -> float:
    """The time of plain training of a network 10-100-1 on all rows, in float64."""
    x = torch.tensor(StandardScaler().fit_transform(X))
    labels = torch.tensor((y - y.mean()) / y.std())[:, None]
    layers = torch.nn.Linear(10, 100), torch.nn.Tanh(), torch.nn.Linear(100, 1)
    network = torch.nn.Sequential(*layers).double()
    optimiser = torch.optim.SGD(network.parameters(), lr=0.05)
    start = time.process_time()
    for _ in range(n_steps):
        optimiser.zero_grad()
        torch.nn.functional.mse_loss(network(x), labels).backward()
        optimiser.step()
    return time.process_time() - start


INTRODUCTION = """\
# Estimators on real data

`python -m benchmarks.estimators` measures this page and writes it. The numbers are in \
[real_data.json](real_data.json).

Each estimator has its default settings and gets raw data. A score is R² (regression) or accuracy \
(classification) on the quarter of the rows that are not in the context, and the mean of three \
splits. **Directly** is the same model with the same steps from the same start in float64, without \
a transformer; **apart** is the largest difference of these two scores in a split. The model of \
scikit-learn has its default settings and gets standardised inputs (networks and kernels also \
standardised labels). Steps of networks are passes over the rows. Times are seconds of one core, \
with one thread, for fit and score. A descent is **done** if the estimator gives no \
`ConvergenceWarning` in any split.

| data | rows x inputs | estimator | steps | score | directly | apart | done | time | directly |
| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |
"""

BESIDE = """
## Beside scikit-learn

| data | estimator | score | time | scikit-learn | score | time |
| --- | --- | --- | --- | --- | --- | --- |
"""


def render(data: Mapping[str, Any]) -> str:
    """The page."""
    first = "".join(_line(row) for row in data["scores"])
    second = "".join(_line_beside(row) for row in data["scores"])
    tables = _large(data["large"], data["large classes"])
    return INTRODUCTION + first + BESIDE + second + tables + _speed(data["speed"])


def _large(of_numbers: Rows, of_classes: Rows) -> str:
    numbers, classes = (
        "".join(
            f"| {row['model']} | {row['score']:.3f} | {row['seconds']:.2f} | {row['ratio']:.2f} |\n"
            for row in rows
        )
        for rows in (of_numbers, of_classes)
    )
    return f"""
`InContextLogistic` trains a model for each class against the rest, `LogisticRegression` one model \
of all classes. The lasso and ridge have the same minimisers as those of scikit-learn, and descend \
to them.

## Large tables

{LARGE[0] * 4 // 5:,} rows of {LARGE[1]} inputs, and scores on {LARGE[0] // 5:,} others. Times are \
medians of {N_ROUNDS} rounds, in each of which every model is fitted once; a ratio compares times \
in the same round.

Friedman 1 with noise 1, one split:

| model | R² | seconds | ratio |
| --- | --- | --- | --- |
{numbers}
{N_CLASSES} classes by `make_classification`, with 10 informative and 5 redundant inputs; the \
accuracy is the mean of {len(SEEDS)} splits:

| model | accuracy | seconds | ratio |
| --- | --- | --- | --- |
{classes}"""


def _line(row: Mapping[str, Any]) -> str:
    cells = (
        row["data"],
        f"{row['n']} x {row['d']}",
        row["model"],
        f"{row['steps']:,.0f}",
        f"{row['score']:.3f}",
        f"{row['direct score']:.3f}",
        f"{row['apart']:.1e}",
        "yes" if row["done"] == 1 else "no",
        f"{row['seconds']:.2f}",
        f"{row['direct seconds']:.2f}",
    )
    return f"| {' | '.join(cells)} |\n"


def _line_beside(row: Mapping[str, Any]) -> str:
    cells = (
        row["data"],
        row["model"],
        f"{row['score']:.3f}",
        f"{row['seconds']:.2f}",
        row["beside"],
        f"{row['scikit-learn score']:.3f}",
        f"{row['scikit-learn seconds']:.2f}",
    )
    return f"| {' | '.join(cells)} |\n"


def _speed(speed: Mapping[str, Any]) -> str:
    rows = "".join(f"| {name} | {took:.3f} |\n" for name, took in speed["predict"].items())
    return f"""
## Speed

A network 10-100-1, which is what `MLPRegressor` trains by default, on the 442 rows of diabetes \
with 200 plain gradient steps on all rows:

| | seconds |
| --- | --- |
| fit and predict in context | {speed["wide"]:.2f} |
| the same steps directly, in float64 | {speed["wide directly"]:.2f} |
| the same by torch.autograd | {speed["wide by autograd"]:.2f} |
| `MLPRegressor` with its defaults | {speed["MLPRegressor"]:.2f} |

Seconds to predict {N_ROWS:,} rows from a cached context of 442 rows and 10 inputs:

| estimator | seconds |
| --- | --- |
{rows}"""


if __name__ == "__main__":
    main(sys.argv[1:])

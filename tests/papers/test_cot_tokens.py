"""Tokens of a head for a lasso: the counts, by an independent implementation."""

import numpy as np
import pytest

from icgd_papers.studies import cot_tokens
from icgd_papers.studies.cot_tokens import EACH_STEP, END, LATTICE, NEAREST, lasso


def numpy_chain(fit, kind, n_tokens, n_steps):
    """Proximal steps whose residuals are read from a grid, and the exact steps beside them."""
    x, y, reach = fit.x.numpy(), fit.y.numpy(), fit.reach
    if kind == LATTICE:
        spacing = 4 / 3 * reach
        points = spacing * (np.arange(n_tokens) - (n_tokens - 1) / 2)
        width = spacing * min(0.285 * n_tokens**0.5, 1.45)
        temperature = 2 * width**2
    else:
        points = np.linspace(-reach, reach, n_tokens)
        temperature = (points[1] - points[0]) ** 2 / 40

    def prox(w):
        return np.sign(w) * np.maximum(np.abs(w) - 0.1 / fit.beta, 0)

    def step(w, read):
        return prox(w - x.T @ read(x @ w - y) / (len(y) * fit.beta))

    def look_up(s):
        scores = -((s[:, None] - points) ** 2) / temperature
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        return weights @ points / weights.sum(-1)

    w = exact = np.zeros(x.shape[1])
    worst = 0.0
    for _ in range(n_steps):
        after = step(w, look_up)
        worst = max(worst, np.linalg.norm(after - step(w, lambda s: s)))
        w, exact = after, step(exact, lambda s: s)
    return worst, np.linalg.norm(w - exact)


@pytest.mark.parametrize("accuracy", [EACH_STEP, END])
@pytest.mark.parametrize(("kind", "length"), [(LATTICE, 10), (LATTICE, 100), (NEAREST, 10)])
def test_the_counted_tokens_are_enough_and_fewer_are_not(kind, length, accuracy):
    fit = lasso(seed=3)
    n_tokens, error = cot_tokens.fewest_tokens(fit, kind, accuracy, length)
    allowed = cot_tokens.allowed_error(fit, accuracy, length)
    found = numpy_chain(fit, kind, n_tokens, length)[accuracy == END]
    assert error == pytest.approx(found, rel=1e-6, abs=1e-15)
    assert found <= allowed
    fewer = n_tokens - 1 if kind == LATTICE else int(n_tokens / 2)
    assert numpy_chain(fit, kind, fewer, length)[accuracy == END] > allowed


def test_the_minimiser_is_stationary():
    fit = lasso(seed=3)
    gradient = (fit.x.T @ (fit.x @ fit.minimiser - fit.y) / len(fit.y)).numpy()
    w = fit.minimiser.numpy()
    active = w != 0
    assert np.abs(gradient[active] + 0.1 * np.sign(w[active])).max() < 1e-13
    assert np.all(np.abs(gradient[~active]) <= 0.1)

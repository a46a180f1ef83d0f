"""One layer of softmax attention a step: cot's Section 3, and the chain that it writes."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

import icgd
from icgd.errors import (
    DataError,
    OverflowedRunError,
    ProgramError,
    SettingError,
    UnknownNameError,
    UnsupportedProblemError,
)
from icgd.problems.linear_model import LINKS
from icgd.program.instructions import LayerKind
from tests.linear_cases import compiled_of, data, problem_of, task_of

GOLDEN = Path(__file__).parents[1] / "golden"
MEANS = {
    "identity": lambda s: s,
    "logistic": lambda s: 1 / (1 + np.exp(-s)),
    "probit": np.vectorize(lambda s: math.erfc(-s / math.sqrt(2)) / 2),
    "poisson": np.exp,
    "softplus": lambda s: np.logaddexp(0, s),
}
MODELS = {
    "cot-ridge": ("identity", {"l2": 0.1}),
    "cot-lasso": ("identity", {"l1": 0.1}),
    "cot-glm identity": ("identity", {}),
    "cot-glm logistic": ("logistic", {}),
    "cot-glm probit": ("probit", {}),
    "cot-glm softplus": ("softplus", {}),
    "cot-glm poisson": ("poisson", {}),
}
MOST = {"cot-glm probit": 1e-9, "cot-glm softplus": 1e-9}
"""How far a chain of 30 steps may be from descent, where that is not 1e-10."""


def proximal_descent(X, y, mean, step_size, n_steps, l2=0.0, l1=0.0, share=1.0, box=math.inf):
    """Plain numpy: w <- clip(S(w - step_size (share X^T (mean(X w) - y) + l2 w)))."""
    w = np.zeros(X.shape[1])
    history = [w]
    for _ in range(n_steps):
        w = w - step_size * (share * X.T @ (mean(X @ w) - y) + l2 * w)
        w = np.sign(w) * np.maximum(np.abs(w) - step_size * l1, 0)
        w = np.clip(w, -box, box)
        history.append(w)
    return np.array(history)


def drawn(name, seed, *, box=4.0, n_steps=30):
    """A compiled run of a drawn problem, its data, and exact descent on them."""
    link, penalties = MODELS[name]
    rng, construction = np.random.default_rng(seed), name.split()[0]
    d, n = int(rng.integers(1, 7)), int(rng.integers(4, 31))
    X = np.clip(rng.normal(size=(n, d)), -2, 2)
    score = X @ rng.normal(size=d) / math.sqrt(d)
    y = MEANS[link](np.minimum(score, 1.5))
    if link == "identity":
        y = y + 0.3 * rng.normal(size=n)
    elif link == "poisson":
        y = rng.poisson(y).astype(float)
    elif link != "softplus":
        y = (rng.uniform(size=n) < y).astype(float)
    share = 1.0 if construction == "cot-glm" else 1 / n
    steepest = {"logistic": 0.25, "poisson": math.exp(3)}.get(link, 1.0)
    step_size = 1 / (share * steepest * np.linalg.norm(X, 2) ** 2 + penalties.get("l2", 0.0))
    # The grid of poisson takes exp(score) tokens, so that scores need a bound of their own.
    score_reach = 6.0 if link == "poisson" else None if box else 8.0
    problem = icgd.Problem(
        icgd.LinearModel(d, link, reduction="sum" if share == 1.0 else "mean"),
        "matching",
        icgd.ProximalStep(step_size, box=box, **penalties),
        icgd.Domain(2.0, float(np.ceil(np.abs(y).max())), score=score_reach),
    )
    compiled = icgd.compile(problem, construction, n_steps=n_steps, n_examples=n)
    limits = {"share": share, "box": box or math.inf}
    exact = proximal_descent(X, y, MEANS[link], step_size, n_steps, **penalties, **limits)
    return compiled, X, y, exact


@pytest.mark.filterwarnings("ignore:Coefficient:UserWarning")
@pytest.mark.parametrize("name", MODELS)
def test_chains_are_as_close_to_exact_descent_as_rounding_allows(name):
    for seed in range(2):
        compiled, X, y, exact = drawn(name, seed)
        run = compiled.run(X, y, backend="dense").parameters.numpy()
        assert np.abs(exact[-1]).max() > 0.05
        assert np.abs(run - exact).max() <= MOST.get(name, 1e-10)
        assert ((run == 0) == (exact == 0)).all()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Coefficient:UserWarning")
@pytest.mark.parametrize("name", MODELS)
def test_twenty_chains_of_each_model_under_every_mask(name):
    for seed in range(20):
        compiled, X, y, exact = drawn(name, seed)
        runs = [compiled.run(X, y, backend="dense")]
        runs += [icgd.decode(compiled, X, y, mask=mask) for mask in ("block", "window")]
        for run in runs:
            weights = run.parameters.numpy()
            assert np.abs(weights - exact).max() <= MOST.get(name, 1e-10)
            assert ((weights == 0) == (exact == 0)).all()
        assert icgd.verify(compiled, X, y, rigorous=False).verdict.holds


def softmax(scores):
    """Over keys, the rows."""
    weights = np.exp(scores - scores.max(0, keepdims=True))
    return weights / weights.sum(0, keepdims=True)


def attention(G, weights, columns):
    """The paper's layer from a file: G + sum_h W_V T softmax((W_K T)^T W_Q T) W_O, T = A(G).

    T = sum_j P_j G Q_j + R has three groups of rows: the asking columns, the keys and the values.
    Q_1 = [I 0] puts the asking columns into the first tokens; Q_2, Q_3 and Q_4 are the file's A_K,
    A_V and A_L, transposed, and R its P. A_L makes the last row of the keys, if there is one.
    """
    D, total = len(G), np.zeros_like(G)
    maps = {"A_L": weights["A_K"]} | weights
    for q, k, v, o, a_k, a_v, a_l, p in zip(
        *(maps[f] for f in ("W_Q", "W_K", "W_V", "W_O", "A_K", "A_V", "A_L", "P")), strict=True
    ):
        n_grid, n_made_of, d_head = *a_k.shape, q.shape[1]
        inputs, label = k * (np.arange(d_head) < d_head - 1), k * (np.arange(d_head) == d_head - 1)
        n_tokens = max(n_grid, len(columns))  # every asking column needs a token
        zeros = np.zeros((D, d_head))
        P1, P2, P3, P4 = (
            np.vstack(rows)
            for rows in (
                (np.eye(D), zeros.T, zeros.T),
                (np.zeros((D, D)), inputs.T, zeros.T),
                (np.zeros((D, D)), zeros.T, v.T),
                (np.zeros((D, D)), label.T, zeros.T),
            )
        )
        Q1 = np.zeros((G.shape[1], n_tokens))
        Q1[columns, np.arange(len(columns))] = 1
        Q2, Q3, Q4 = (np.zeros_like(Q1) for _ in range(3))
        for Q, made in ((Q2, a_k), (Q3, a_v), (Q4, a_l)):
            Q[:n_made_of, :n_grid] = made.T
        R = np.zeros((D + 2 * d_head, n_tokens))
        R[D + d_head - 1] = -4096  # the offset of tokens that no head needs
        R[D : D + d_head, :n_grid] = p.T
        T = P1 @ G @ Q1 + P2 @ G @ Q2 + P3 @ G @ Q3 + P4 @ G @ Q4 + R
        W_Q = np.hstack([q.T, np.zeros((d_head, 2 * d_head))])
        W_K = np.hstack([zeros.T, np.eye(d_head), np.zeros((d_head, d_head))])
        W_V = np.hstack([np.zeros((D, D + d_head)), o.T])
        W_O = np.zeros((n_tokens, G.shape[1]))
        W_O[np.arange(len(columns)), columns] = 1
        total += W_V @ T @ softmax((W_K @ T).T @ (W_Q @ T)) @ W_O
    return G + total


@pytest.mark.parametrize("name", ["cot-ridge", "cot-lasso", "cot-glm logistic"])
def test_a_numpy_forward_pass_of_the_saved_file_is_the_library_s_run(name, tmp_path):
    compiled, X, y, exact = drawn(name, 3, box=None if name == "cot-lasso" else 4.0, n_steps=12)
    n, d = X.shape
    compiled.save(tmp_path / "run.safetensors", weights=True)
    file = load_file(tmp_path / "run.safetensors")
    layer, mlp, last = ({} for _ in range(3))
    for key, value in file.items():
        part = next((p, k) for k, p in (("block.0.", layer), ("block.1.", mlp), ("final.0.", last))
                    if key.startswith(k))  # fmt: skip
        part[0][key.removeprefix(part[1])] = value
    query = X[:1] / 2
    G = np.vstack([X.T, y[None], np.zeros((d, n)), np.ones((1, n))])
    chain = G  # it begins with G_1, and grows by a block a step
    for _ in range(12):
        G = attention(chain[:, -n:], layer, np.arange(n))
        if mlp:
            assert not mlp["b_in"].any()
            G = G + (np.maximum(G.T @ mlp["W_in"], 0) @ mlp["W_out"]).T
        chain = np.hstack([chain, G])
    blocks = chain.reshape(2 * d + 2, 13, n)
    weights = blocks[d + 1 : 2 * d + 1].transpose(1, 2, 0)  # block, column, coefficient
    assert (blocks[:d] == X.T[:, None]).all()
    assert (blocks[d] == y).all()
    assert (blocks[-1] == 1).all()
    assert np.abs(weights - exact[:, None]).max() <= 1e-13
    asking = np.vstack([query.T, np.zeros((d + 1, 1)), np.ones((1, 1))])
    predicted = attention(np.hstack([G, asking]), last, np.array([n]))
    assert (predicted[:, :n] == G).all()
    for backend in ("dense", "literal", "fused"):
        run = compiled.run(X, y, queries=query, backend=backend)
        assert np.abs(run.parameters.numpy() - weights[:, 0]).max() <= 1e-13
        assert abs(float(run.predictions) - predicted[d, n]) <= 1e-13


def product_network(text="(tanh(t)-y)*sech2(t)", n=4):
    """A linear network on a loss whose slope is no sum, and the data of a run."""
    rng = np.random.default_rng(1)
    X = np.clip(rng.normal(size=(n, 2)), -2, 2)
    y = np.tanh(X @ [1.0, -0.5])
    step = icgd.GradientStep(0.5, box=1.0)
    problem = icgd.Problem(icgd.MLP((2, 1)), icgd.Loss(slope=text), step, icgd.Domain(2.0, 1.0))
    compiled = icgd.compile(problem, "cot-glm", n_steps=2, n_examples=n)
    return compiled, {"X": X, "y": y, "initial": [0.2, -0.3]}


def test_labels_of_a_product_grid_have_a_map_of_their_own(tmp_path):
    compiled, given = product_network()
    assert compiled.summary().max_heads == 4  # one an example
    compiled.save(tmp_path / "run.safetensors", weights=True)
    file = load_file(tmp_path / "run.safetensors")
    layer, clip = (
        {key.removeprefix(k): value for key, value in file.items() if key.startswith(k)}
        for k in ("block.0.", "block.1.")
    )
    assert layer["A_L"].shape == layer["A_K"].shape != layer["A_L"][0].shape
    w = np.repeat(np.array(given["initial"])[:, None], 4, axis=1)
    G = np.vstack([given["X"].T, given["y"][None], w, np.ones((1, 4))])
    for _ in range(2):
        G = attention(G, layer, np.arange(4))
        G = G + (np.maximum(G.T @ clip["W_in"] + clip["b_in"], 0) @ clip["W_out"]).T
    run = compiled.run(**given, backend="literal")
    assert np.abs(run.parameters[-1].numpy() - G[3:5, 0]).max() <= 1e-14
    for mask in ("block", "window"):
        chain = icgd.decode(compiled, **given, mask=mask)
        assert (chain.parameters - run.parameters).abs().max() <= 1e-14


def test_a_head_that_reads_labels_by_the_wrong_map_is_found():
    compiled, given = product_network()
    functions = compiled.program.functions
    (fit,) = (f for f in functions if f.label_points)
    bent = replace(fit, label_points=tuple((1 + 1e-6) * point for point in fit.label_points))
    changed = tuple(bent if f is fit else f for f in functions)
    other = replace(compiled, program=replace(compiled.program, functions=changed))
    assert icgd.verify(compiled, **given, rigorous=False).verdict.holds
    assert not icgd.verify(other, **given, rigorous=False).verdict.holds


@pytest.mark.parametrize("mask", ["block", "window"])
@pytest.mark.parametrize("construction", ["cot-ridge", "cot-lasso", "cot-glm"])
def test_the_chain_under_both_masks_is_the_run(construction, mask):
    l1, link = 0.1 * (construction == "cot-lasso"), "identity"
    problem = problem_of("logistic" if construction == "cot-glm" else link, l1=l1, l2=0.1)
    compiled = compiled_of(problem, n_steps=5, construction=construction, n_examples=6)
    x, y, queries = data(tasks=(2,))
    dense = compiled.run(x, y, queries=queries, backend="dense")
    chain = icgd.decode(compiled, x, y, queries=queries, mask=mask)
    assert (chain.parameters - dense.parameters).abs().max() <= 1e-14
    assert (chain.predictions - dense.predictions).abs().max() <= 1e-14
    assert chain.trace["w"].shape == (2, 6, 6, 3)
    assert (chain.trace["w"] - chain.trace["w"][..., :1, :]).abs().max() <= 1e-14
    assert (chain.trace["x"] == x[:, None]).all()
    assert (chain.trace["y"] == y[:, None]).all()
    assert chain.loss_curve[..., -1].shape == (2,)


def test_the_oldest_column_of_the_window_asks_and_goes_on():
    """The window's columns wander, so a head meets every example at some time."""
    compiled = compiled_of(
        problem_of("identity", l1=0.0), n_steps=1, construction="cot-ridge", n_examples=6
    )
    x, y, _ = data()
    start = torch.tensor([0.3, -0.2, 0.1, 0.5], dtype=torch.float64)
    run = icgd.decode(compiled, x, y, initial=start, mask="window")
    later = icgd.decode(compiled, x.flip(0), y.flip(0), initial=start, mask="block")
    assert (run.parameters[1] - later.parameters[1]).abs().max() <= 1e-15


def test_the_listing_is_the_golden_one():
    problem = problem_of("identity", l2=0.1, l1=0.02)
    listing = compiled_of(problem, n_steps=8, construction="cot-lasso", n_examples=6).listing()
    assert listing == (GOLDEN / "cot_lasso.txt").read_text(encoding="utf-8")


def test_the_example_of_its_page_runs():
    page = Path(__file__).parents[2] / "docs" / "constructions" / "cot_section3.md"
    (example,) = re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
    names: dict[str, object] = {}
    exec(example, names)
    assert names["report"].verdict.holds
    assert (names["chain"].parameters - names["run"].parameters).abs().max() <= 1e-14


def test_columns_heads_and_hidden_units_are_those_of_the_theorems():
    """A step without a box and an intercept: 2d + 2 rows, n or 2n heads of d + 1 features."""
    plain = {"intercept": False, "box": None, "l1": 0.0, "l2": 0.0}
    for construction, link, settings, heads, units in (
        ("cot-ridge", "identity", {}, 6, 0),
        ("cot-ridge", "identity", {"l2": 0.1}, 7, 0),
        ("cot-lasso", "identity", {"l1": 0.1}, 6, 4 * 3),
        ("cot-lasso", "identity", {"l1": 0.1, "box": 1.0}, 6, 6 * 3),
        ("cot-glm", "logistic", {}, 12, 0),
        ("cot-glm", "logistic", {"box": 1.0}, 12, 2 * 3),
    ):
        problem = problem_of(link, **{**plain, **settings})
        compiled = compiled_of(problem, construction=construction, n_examples=6)
        summary = compiled.summary()
        assert (summary.d_model, summary.d_head) == (8, 4)
        assert (summary.max_heads, summary.d_mlp) == (heads, units)
        kinds = [layer.kind for layer in compiled.program.block]
        assert kinds == [LayerKind.GRID, LayerKind.MLP][: 1 + bool(units)]
        weights = list(compiled.transformer().parameters())
        assert sum(weight.numel() for weight in weights) == summary.parameters
        assert sum(int(weight.count_nonzero()) for weight in weights) == summary.nonzeros
        assert compiled.program.n_examples == 6
        assert summary.n_tokens == 7


@pytest.mark.parametrize("backend", ["dense", "literal", "fused"])
@pytest.mark.parametrize("link", LINKS)
def test_steps_and_runs_stay_within_their_bounds(link, backend):
    x, y, queries = data()
    for penalties in ({}, {"l1": 0.0, "box": None}):
        compiled = compiled_of(
            problem_of(link, **penalties), n_steps=6, construction="cot-glm", n_examples=6
        )
        report = icgd.verify(compiled, x, y, queries=queries, backend=backend, rigorous=False)
        assert report.verdict.holds
        assert report.step_bounds.max() <= 2e-11
        assert report.trajectory_bounds.max() <= 1e-10
        has_box = penalties == {}
        assert (report.certificate.domain_step <= 1e-10) == has_box
        assert report.step_bounds.max() <= report.certificate.domain_step


def test_balls_prove_a_whole_run():
    x, y, queries = data()
    problem = problem_of("identity")
    compiled = compiled_of(problem, n_steps=6, construction="cot-lasso", n_examples=6)
    report = icgd.verify(compiled, x, y, queries=queries)
    assert report.verdict.holds
    assert report.rigorous is not None
    assert report.trajectory_bounds.max() <= 1e-13


def test_a_head_that_errs_by_more_than_its_bound_is_found():
    """The bound covers what heads return: with other values of the grid they return something else.

    So the error of a chain with bent values exceeds the bound of the true one.
    """
    x, y, _ = data()
    compiled = compiled_of(
        problem_of("identity", l1=0.0), n_steps=1, construction="cot-ridge", n_examples=6
    )
    (line,) = compiled.program.functions
    bent = replace(line, values=tuple((1 + 1e-9) * value for value in line.values))
    other = replace(compiled, program=replace(compiled.program, functions=(bent,)))
    report = icgd.verify(other, x, y, backend="dense", rigorous=False)
    assert not report.verdict.holds


def linear_network(loss, seed=0, **settings):
    """Any loss of a linear network, as cot-glm trains it, with data."""
    rng = np.random.default_rng(seed)
    d, n = int(rng.integers(1, 5)), int(rng.integers(4, 20))
    X = np.clip(rng.normal(size=(n, d)), -2, 2)
    y = X @ rng.normal(size=d) / math.sqrt(d) + np.clip(rng.normal(size=n), -2, 2)
    y = (y > 0).astype(float) if loss == "logistic" else np.clip(y, -6, 6)
    step = icgd.GradientStep(0.5, box=2.0)
    problem = icgd.Problem(icgd.MLP((d, 1)), loss, step, icgd.Domain(2.0, 6.0))
    compiled = icgd.compile(problem, "cot-glm", n_steps=30, n_examples=n, **settings)
    return compiled, {"X": X, "y": y, "initial": [0.0] * d}


@pytest.mark.parametrize("backend", ["dense", "literal", "fused"])
@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_a_smooth_loss_is_descended_as_closely_as_a_link(loss, backend):
    slope = {"squared": lambda s: 2 * s, "logistic": MEANS["logistic"]}[loss]
    factor = 2 if loss == "squared" else 1
    for seed in range(2):
        compiled, given = linear_network(loss, seed)
        X, y = given["X"], given["y"]
        w = np.zeros(X.shape[1])
        for _ in range(30):  # the risk is 1 / 2n times the sum of losses
            w = np.clip(w - 0.5 * X.T @ (slope(X @ w) - factor * y) / (2 * len(y)), -2, 2)
        run = compiled.run(**given, backend=backend).parameters.numpy()
        assert np.abs(w).max() > 0.05
        assert np.abs(run[-1] - w).max() <= 1e-13
    chain = icgd.decode(compiled, **given, mask="block").parameters.numpy()
    assert np.abs(chain[-1] - w).max() <= 1e-13


def test_a_loss_whose_slope_has_kinks_errs_like_1_over_the_tokens():
    measured, proved = [], []
    for tokens in (64, 256, 1024):
        compiled, given = linear_network("huber", grid_tokens=tokens)
        reports = [icgd.verify(compiled, **given, backend=b) for b in ("dense", "fused")]
        assert all(report.verdict.holds for report in reports)
        dense, fused = (compiled.run(**given, backend=b).parameters for b in ("dense", "fused"))
        assert (dense - fused).abs().max() <= 1e-13
        measured.append(float(reports[0].step_errors.max()))
        proved.append(float(reports[0].certificate.domain_step))
    assert measured[0] > 1e-3
    for finer, coarser in ((1, 0), (2, 1)):
        assert measured[finer] < measured[coarser] / 2
        assert proved[coarser] / 5 < proved[finer] < proved[coarser] / 3


@pytest.mark.parametrize("loss", ["squared", "logistic", "huber", "smooth_l1_0.5"])
def test_steps_on_any_loss_stay_within_their_bounds(loss):
    for seed, backend in enumerate(("dense", "literal", "fused", "dense")):
        compiled, given = linear_network(loss, seed)
        dtype = "float64" if seed < 3 else "float32"
        queries = given["X"][:2] / 2
        report = icgd.verify(compiled, **given, queries=queries, backend=backend, dtype=dtype)
        assert report.verdict.holds
        assert report.step_bounds.max() <= report.certificate.domain_step


SLOPES = {
    "2*(t-y)/(1+(t-y)**2)": lambda s, y: 2 * (s - y) / (1 + (s - y) ** 2),
    "1/2+atan(t)/pi-y": lambda s, y: 0.5 + np.arctan(s) / np.pi - y,
    "-expm1(-exp(t))-y": lambda s, y: -np.expm1(-np.exp(s)) - y,
    "exp(t)-y": lambda s, y: np.exp(s) - y,
    "(t+abs(t))/2-y": lambda s, y: np.maximum(s, 0) - y,
}
"""Cauchy's loss; the links cauchit, cloglog, poisson and, with a kink, relu."""

PRODUCTS = {
    "-y*sigmoid(-t*y)": lambda s, y: -y / (1 + np.exp(s * y)),
    "1-y*exp(-t)": lambda s, y: 1 - y * np.exp(-s),
    "(tanh(t)-y)*sech2(t)": lambda s, y: (np.tanh(s) - y) / np.cosh(s) ** 2,
}
"""No sums of functions of one combination: logistic regression with labels -1 and 1, gamma
regression, least squares behind tanh."""


@pytest.mark.parametrize("text", SLOPES | PRODUCTS)
def test_a_loss_that_a_text_defines_is_descended_as_well(text):
    rng = np.random.default_rng(0)
    X = np.clip(rng.normal(size=(9, 2)), -2, 2)
    y = np.clip(np.tanh(X @ [1.0, -0.5]) + 0.3 * rng.normal(size=9), -2, 2)
    step = icgd.GradientStep(0.5, box=1.0)
    problem = icgd.Problem(icgd.MLP((2, 1)), icgd.Loss(slope=text), step, icgd.Domain(2.0, 2.0))
    compiled = icgd.compile(problem, "cot-glm", n_steps=30, n_examples=9)
    w = np.zeros(2)
    for _ in range(30):
        w = np.clip(w - 0.5 * X.T @ (SLOPES | PRODUCTS)[text](X @ w, y) / 18, -1, 1)
    given = {"X": X, "y": y, "initial": [0.0, 0.0]}
    most = 2e-2 if "abs" in text else 1e-9 if text in PRODUCTS else 1e-11
    assert np.abs(compiled.run(**given, backend="dense").parameters[-1].numpy() - w).max() <= most
    for backend in ("dense", "fused"):
        report = icgd.verify(compiled, **given, backend=backend, rigorous=False)
        assert report.verdict.holds
        assert report.step_bounds.max() <= most


def test_a_file_is_read_as_what_it_is(tmp_path):
    compiled = compiled_of(problem_of("logistic"), construction="cot-glm", n_examples=6)
    for weights in (False, True):
        compiled.save(tmp_path / "run.safetensors", weights=weights)
        assert icgd.load(tmp_path / "run.safetensors") == compiled
    assert json.loads(json.dumps(compiled.program.to_data()))["construction"] == "cot-glm"


def test_unless_it_is_named_or_the_number_of_examples_is_given_it_is_not_chosen():
    problem = problem_of("identity", l1=0.0)
    assert icgd.compile(problem, n_steps=1).program.construction == "linear-stack"
    chosen = icgd.compile(problem, n_steps=1, n_examples=6)
    assert chosen.program.construction == "cot-ridge"


@pytest.mark.parametrize("text", ["3*(t - y)", "t - y + 1", "2*t - y/2"])
def test_lines_take_the_tokens_of_a_line(text):
    rng = np.random.default_rng(0)
    X = np.clip(rng.normal(size=(6, 2)), -2, 2)
    step = icgd.GradientStep(0.1, box=1.0)
    problem = icgd.Problem(icgd.MLP((2, 1)), icgd.Loss(slope=text), step, icgd.Domain(2.0, 1.0))
    compiled = icgd.compile(problem, "cot-glm", n_steps=3, n_examples=6)
    report = icgd.verify(compiled, X, np.tanh(X[:, 0]), initial=[0.1, 0.2], rigorous=False)
    assert 0 < report.step_errors.max() <= report.step_bounds.max() <= 1e-12


def network(target, loss="squared", **settings):
    step = icgd.GradientStep(0.1, box=1.0, **settings)
    return icgd.Problem(target, loss, step, icgd.Domain(1.0, 1.0))


@pytest.mark.parametrize(
    ("construction", "problem", "reason"),
    [
        ("cot-ridge", problem_of("logistic"), "least squares, not the logistic link; use cot-glm"),
        ("cot-ridge", problem_of("identity"), "no soft threshold for l1; use cot-lasso"),
        ("cot-lasso", problem_of("identity", l1=0.0), "l1 is 0; use cot-ridge"),
        ("cot-glm", problem_of("identity", momentum=0.5), "which momentum needs.*linear-stack"),
        ("cot-glm", problem_of("identity", box=None, score=None), r"or Domain\(score=\.\.\.\)"),
        ("cot-glm", problem_of("identity", step_size=None), "sized_problem"),
        ("cot-glm", network(icgd.MLP((2, 3, 1))), r"one output and no bias, icgd.MLP\(\(2, 1\)\)"),
        ("cot-glm", network(icgd.MLP((2, 1), biases=True)), "one output and no bias"),
        ("cot-glm", network(icgd.MLP((2, 1)), batch_size=2), "not gradient steps .* of 2"),
        ("cot-glm", network(icgd.MLP((2, 1)), loss="l1"), "the l1 loss jumps at 0, and a mean"),
        ("cot-ridge", network(icgd.MLP((2, 1))), "not the weights of a network"),
    ],
)
def test_it_says_why_it_cannot(construction, problem, reason):
    with pytest.raises(UnsupportedProblemError, match=reason):
        icgd.compile(problem, construction, n_steps=1, n_examples=6)


def test_the_number_of_examples_has_to_be_given_and_kept():
    problem = problem_of("logistic")
    with pytest.raises(
        SettingError, match=r"cot-glm has heads for each example.*n_examples=\.\.\."
    ):
        icgd.compile(problem, "cot-glm", n_steps=1)
    with pytest.raises(SettingError, match="n_examples must be a whole number of at least 1"):
        icgd.compile(problem, "cot-glm", n_steps=1, n_examples=0)
    compiled = compiled_of(problem, construction="cot-glm", n_examples=5)
    task = task_of(problem)
    message = r"X has 6 examples, but the transformer was made for prompts of 5.*n_examples=6"
    with pytest.raises(DataError, match=message):
        compiled.run_task(task)
    with pytest.raises(DataError, match=message):
        icgd.decode(compiled, task.x, task.y)


def test_what_cannot_be_decoded_is_refused():
    problem, (x, y, _) = problem_of("logistic"), data()
    with pytest.raises(ProgramError, match="linear-stack is not a chain of one layer"):
        icgd.decode(compiled_of(problem), x, y)
    compiled = compiled_of(problem, construction="cot-glm", n_examples=6)
    with pytest.raises(UnknownNameError, match=r"Unknown mask 'causal'.*block, window"):
        icgd.decode(compiled, x, y, mask="causal")


@pytest.mark.parametrize("mask", [None, "block", "window"])
def test_a_score_beyond_the_grid_stops_every_run(mask):
    problem = problem_of("identity", l1=0.0, box=None, score=0.5, step_size=1.0)
    compiled = compiled_of(problem, n_steps=9, construction="cot-ridge", n_examples=6)
    x, y, _ = data()
    with pytest.raises(
        OverflowedRunError, match=r"at step \d+, example \d+ .*Domain\(score=\.\.\.\)"
    ):
        compiled.run(x, y) if mask is None else icgd.decode(compiled, x, y, mask=mask)

"""Learnt operators of a chain: blocks, pairs, models, and the figure that trains them."""

import re
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
import torch
from torch import nn

from icgd.errors import DistributionError, SettingError
from icgd_papers.figure import Job
from icgd_papers.figures import cot
from icgd_papers.figures.cot import Setting, chained, constructed_weights, simple_losses
from icgd_papers.training.block_pairs import CHAIN_TEACHERS, BlockTask, Teachers
from icgd_papers.training.chain_blocks import (
    BlockRows,
    Operators,
    weights_after_rounds,
    written_chain,
)
from icgd_papers.training.loading import load
from icgd_papers.training.loop import Settings, train
from icgd_papers.training.operators import PlainOperator, ProductOperator, as_operator
from icgd_papers.training.tasks import generator_of

# Blocks: the exact chain beside autograd's descent.

ROWS, STEP = BlockRows(3), 0.03


def normal(*shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


START, X, Y = normal(4, 3, 3, 3, seed=1), normal(4, 5, 3, seed=2), normal(4, 5, 3, seed=3)


def descent(weights, x, y):
    """Take one step on |o_N - y|^2 by autograd, which knows no block."""
    weights = [matrix.clone().requires_grad_() for matrix in weights]
    output = x
    for matrix in weights:
        output = torch.relu(matrix @ output)
    slopes = torch.autograd.grad((output - y).square().sum(), weights)
    return [(w - STEP * slope).detach() for w, slope in zip(weights, slopes, strict=True)]


def test_the_exact_chain_is_gradient_descent_by_autograd():
    reached = weights_after_rounds(ROWS, Operators.exact(ROWS, STEP), START, X, Y)
    for task in range(4):
        weights = list(START[task])
        assert torch.equal(reached[task, 0], START[task])
        for number in range(5):
            weights = descent(weights, X[task, number], Y[task, number])
            assert torch.allclose(reached[task, number + 1], torch.stack(weights), atol=1e-13)
    assert (reached[:, -1] - reached[:, 0]).abs().max() > 0.05


def test_blocks_have_the_rows_of_definition_4_3():
    written = list(written_chain(ROWS, Operators.exact(ROWS, STEP), START, X, Y))
    assert len(written) == 2 * 3 * 5
    z = (START[:, 0] @ X[:, 0, :, None])[..., 0]
    columns = START[:, 0].mT.flatten(1)  # vec stacks columns
    one = torch.ones(4, 1, dtype=torch.float64)
    expected = torch.cat([z.relu(), X[:, 0], (z > 0).double(), columns, one], -1)
    assert torch.allclose(written[0].block, expected, atol=1e-15)
    assert ROWS.n_rows == 3**2 + 3 * 3 + 1
    last, label = written[2].block, written[3].block
    delta = 2 * (last[:, :3] - Y[:, 0]) * last[:, 6:9]
    back = (START[:, 2].mT @ delta[..., None])[..., 0]
    assert torch.allclose(label[:, :6], torch.cat([delta, back], -1))
    assert not label[:, -4:].any()


def test_data_stands_in_the_place_of_the_block_that_is_missing():
    written = list(written_chain(ROWS, Operators.exact(ROWS, STEP), START, X, Y))
    n = ROWS.n_rows
    assert torch.equal(written[0].stacked[:, :n], ROWS.data(X[:, 0]))
    assert torch.equal(ROWS.weights(written[0].stacked[:, n:]), START[:, 0])
    assert torch.equal(written[1].stacked[:, :n], written[0].block)
    assert torch.equal(written[3].stacked, torch.cat([ROWS.data(Y[:, 0]), written[2].block], -1))
    assert torch.equal(written[4].stacked, torch.cat([written[3].block, written[1].block], -1))
    assert torch.equal(written[6].stacked[:, n:], written[5].block)  # B_1 of the round before
    assert written[0].stacked[0, [n - 1, -1]].tolist() == [2.0, 0.0]
    assert written[4].stacked[0, [n - 1, -1]].tolist() == [0.0, 1.0]


# Pairs that operators learn from.

TEACHERS = Teachers(width=3, depth=2, n_rounds=4)
TASK = BlockTask(TEACHERS, "forward", n_teachers=5, n_validation_teachers=2, seed=3)


def test_weights_and_inputs_have_their_law_and_labels_are_those_of_the_teacher():
    law = replace(TEACHERS, width=4, weight_scale=0.5)
    students = law.students(2000, generator_of(0, 0))
    assert students.start.std().item() == pytest.approx(0.5 / 2, rel=0.02)
    assert students.x.std().item() == pytest.approx(1.0, rel=0.02)
    weights = torch.from_numpy(generator_of(0, 0).standard_normal((2, 2000, 2, 4, 4))) * 0.25
    first, second = weights[0, 7]
    expected = torch.relu(second @ torch.relu(first @ students.x[7, 2]))
    assert torch.allclose(students.y[7, 2], expected)
    assert torch.equal(students.start, weights[1])


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_pairs_are_what_the_exact_operator_reads_and_writes(direction):
    stacked, blocks = replace(TASK, direction=direction).pairs
    assert stacked.shape == (5 * 2 * 4, 2 * 19)
    operator = getattr(TEACHERS.exact, direction)
    assert torch.allclose(operator(stacked.double()).float(), blocks, atol=1e-5)
    assert set(blocks[:, -1].tolist()) == {1.0 if direction == "forward" else 0.0}


def test_an_epoch_takes_every_pair_once_and_validation_has_other_teachers():
    stacked, _ = TASK.pairs
    n_steps, orders = TASK.steps_per_epoch(8), []
    assert (TASK.n_pairs, TASK.n_validation, n_steps) == (40, 16, 5)
    for epoch in range(2):
        indices = range(epoch * n_steps, (epoch + 1) * n_steps)
        rows = torch.cat([TASK.sample(8, seed=1, index=index).x[:, 0] for index in indices])
        orders.append([int((stacked == row).all(1).nonzero()[0, 0]) for row in rows])
        assert sorted(orders[-1]) == list(range(40))
    assert orders[0] != orders[1]
    assert not torch.equal(TASK.sample(8, seed=1, index=7).x, TASK.sample(8, seed=2, index=7).x)
    held_out = TASK.validation(TASK.n_validation, seed=0)
    assert not any((stacked == row).all(1).any() for row in held_out.x[:, 0])


class Constant(nn.Module):
    def __init__(self, block):
        super().__init__()
        self.block = block

    def forward(self, stacked):
        return self.block.expand(len(stacked), *self.block.shape)


def test_the_loss_is_the_mean_squared_frobenius_distance_of_blocks_with_d_columns():
    batch = TASK.sample(8, seed=1, index=0)
    columns = torch.randn(3, 19, generator=torch.Generator().manual_seed(0))
    whole = batch.y[:, 0, :, None].expand(-1, -1, 3)  # R rows and d equal columns
    expected = (columns.mT - whole).square().sum((1, 2)).mean()
    assert torch.allclose(TASK.loss(Constant(columns), batch), expected)


def test_what_cannot_be_trained_on_is_refused():
    with pytest.raises(SettingError, match="direction must be one of forward, backward, got 'up'"):
        replace(TASK, direction="up")
    with pytest.raises(SettingError, match="batch_size must be at most 40, got 41"):
        TASK.steps_per_epoch(41)
    wild = replace(TASK, teachers=Teachers(3, 3, 2, weight_scale=1e7))
    message = r"of student \d overflows: .* in round 1, with step_size=0.02 and weight_scale=1e"
    with pytest.raises(DistributionError, match=message):
        wild.sample(4, seed=0, index=0)


# Models.

SMALL = BlockTask(Teachers(2, 2, 3), "forward", n_teachers=4, n_validation_teachers=2, seed=0)
STACKED = SMALL.pairs[0].double()


def plain(positions, **other):
    sizes = {"stream_width": 8, "n_heads": 2, "hidden_width": 10}
    return PlainOperator(2, **{**sizes, "positions": positions, **other}).double()


def score_bend(model):
    """Return the second difference of softmax's arguments along a line of inputs: 0 if linear."""

    def scores(stacked):
        columns = model.embed(stacked)[:, None] * model.scales + model.places
        query, keys = model.queries(columns)[:, 0, :4], model.keys(columns)[..., :4]
        found = (keys @ query[..., None])[..., 0]
        return found - found[:, :1]  # softmax does not see what all columns share

    left, right = STACKED[:1], STACKED[-1:]
    bend = scores(left) + scores(right) - 2 * scores((left + right) / 2)
    return bend.abs().max().item()


def test_attention_over_equal_columns_is_linear_and_positions_that_scale_give_products():
    model = plain("none", seed=3)
    equal = model.embed(STACKED)[:, None].expand(-1, 5, -1)
    assert torch.allclose(model.attended(equal), model.join(model.values(equal)), atol=1e-12)
    assert model(STACKED).shape == (len(STACKED), 1, 11)
    assert plain("added")(STACKED).shape == (len(STACKED), 2, 11)
    assert score_bend(plain("added")) < 1e-12
    assert score_bend(plain("scaled")) > 1e-3


@pytest.mark.parametrize(("n_grid", "tolerance"), [(0, 1e-12), (33, 1e-6)])
def test_heads_of_the_product_operator_can_multiply_weights_and_inputs(n_grid, tolerance):
    """One head with chosen numbers returns the first preactivation, W_11 o_1 + W_12 o_2."""
    model = ProductOperator(2, stream_width=22, n_heads=1, key_width=2, n_grid=n_grid).double()
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if name != "grid":
                weights.zero_()
        model.embed.weight.copy_(torch.eye(22))
        model.queries.weight[[0, 1], [0, 1]] = 1.0  # o of the block above
        model.keys.weight[[0, 1], [11 + 4, 11 + 6]] = 1.0  # the first row of W in the block below
        model.join.weight[5, 0] = 1.0
        model.read.weight[0, 5] = 1.0
        written = model(STACKED)[:, 0, 0] - STACKED[:, 5]
    matrix = SMALL.teachers.rows.weights(STACKED[:, 11:])
    wanted = (matrix[:, 0] * STACKED[:, :2]).sum(-1)
    assert wanted.abs().max() < 3  # well inside the first grid
    assert torch.allclose(written, wanted, atol=tolerance)


def test_every_head_learns_its_own_grid_and_a_random_one_is_another():
    model = ProductOperator(2, n_heads=3, n_grid=8, random_grid=True, seed=1)
    model(STACKED.float()).square().sum().backward()
    assert model.grid.shape == (3, 3, 8)
    assert (model.grid.grad.abs().amax(-1) > 0).all()
    lattice = ProductOperator(2, n_heads=3, n_grid=8, seed=1).grid
    assert torch.equal(lattice[:, 0], lattice[:, 2])
    assert not torch.equal(model.grid[:, 0], model.grid[:, 2])


def test_steep_slopes_follow_from_the_other_rows_and_pass_no_gradient_on():
    model = ProductOperator(2, steep_slopes=True, seed=1).double()
    block, slopes = model(STACKED)[:, 0], SMALL.teachers.rows.slopes
    others = block.detach().clone()
    others[:, slopes] = 0.0
    assert torch.allclose(block[:, slopes], torch.sigmoid(10 * model.steep(others)), atol=1e-6)
    block[:, slopes].sum().backward()
    assert model.read.weight.grad is None or not model.read.weight.grad.any()
    assert model.gains.grad.abs().max() > 0


def test_an_operator_of_a_chain_writes_the_mean_of_its_columns():
    model = plain("added")
    assert torch.allclose(as_operator(model)(STACKED), model(STACKED).mean(1))


@pytest.mark.parametrize("kind", ["plain", "grid"])
def test_a_trained_operator_comes_back_from_its_folder(kind, tmp_path):
    options = {"n_heads": 3, "key_width": 2, "n_grid": 4, "random_grid": True}
    make = {"plain": lambda: plain("scaled"), "grid": lambda: ProductOperator(2, **options)}
    model, again = make[kind](), make[kind]()
    assert torch.equal(model.embed.weight, again.embed.weight)  # by the seed alone
    settings = Settings(n_steps=2, batch_size=4, learning_rate=0.01, checkpoint_every=1)
    train(model, SMALL, settings, folder=tmp_path)
    loaded = load(tmp_path)
    assert loaded.description() == model.description()
    assert torch.equal(loaded(STACKED.float()), model(STACKED.float()))


def test_sizes_that_make_no_model_are_refused():
    with pytest.raises(SettingError, match="positions must be one of none, added, scaled, got 'a"):
        PlainOperator(2, positions="absolute")
    with pytest.raises(SettingError, match="n_heads must be one of 1, 2, 4, 8, got 3"):
        PlainOperator(2, stream_width=8, n_heads=3)


# The figure.

SETTING = Setting(
    "grid",
    1.0,
    3,
    2,
    2,
    0,
    n_epochs=2,
    batch_size=4,
    n_validation_teachers=2,
    n_chains=3,
    n_rounds=3,
)


def test_simple_answers_are_the_mean_block_and_least_squares():
    task = replace(TASK, n_teachers=40)
    stacked, blocks = (x.double().numpy() for x in task.pairs)
    new, wanted = (x.double().numpy() for x in task.validation_pairs)
    inputs, new_inputs = (np.c_[x, np.ones(len(x))] for x in (stacked, new))
    linear = new_inputs @ np.linalg.lstsq(inputs, blocks, rcond=None)[0]
    expected = [
        5 * np.square(wanted - answer).sum(1).mean()
        for answer in (wanted.mean(0), blocks.mean(0), linear)
    ]
    assert simple_losses(5, task.pairs, task.validation_pairs) == pytest.approx(expected, rel=1e-6)


def test_exact_operators_make_the_chain_of_descent_and_the_construction_agrees():
    setting = replace(SETTING, width=3, depth=3)
    chain = chained(setting, setting.teachers.exact)
    assert chain["learnt"].max() == 0
    assert chain["constructed"].max() < 1e-22
    assert chain["unmoved"][-1] > 1e-4


def test_distances_are_means_over_chains_of_squared_frobenius_norms():
    teachers = SETTING.teachers
    students = teachers.students(3, generator_of(0, CHAIN_TEACHERS))
    data = students.start, students.x, students.y
    exact = weights_after_rounds(teachers.rows, teachers.exact, *data)
    faster = replace(teachers, step_size=0.04).exact
    chain = chained(SETTING, faster).row(2, named=True)
    gaps = (weights_after_rounds(teachers.rows, faster, *data) - exact)[:, 2].flatten(1)
    per_chain = [float(gap @ gap) for gap in gaps]
    assert chain["learnt"] == pytest.approx(sum(per_chain) / 3, rel=1e-5)
    assert chain["learnt_median"] == pytest.approx(sorted(per_chain)[1], rel=1e-5)
    built = constructed_weights(teachers, *data, largest=float(exact.abs().max()))
    assert torch.allclose(built, exact, atol=1e-11)


def test_rows_have_the_losses_of_epochs_and_the_distances_of_rounds():
    steps = []
    rows = cot.run(SETTING, Job(on_step=lambda *step: steps.append(step[:2])))
    n_steps = 2 * 2 * (3 * 2 * 3 // 4)
    assert steps == [(i, n_steps) for i in range(1, n_steps + 1)]
    places = [(o, float(at)) for o in ("forward", "backward") for at in range(3)]
    places += [("chain", float(at)) for at in range(4)]
    assert rows.select("operator", "at").rows() == places
    task, model = SETTING.task("forward"), SETTING.model("forward")
    batch = task.validation(task.n_validation, seed=0).to("cpu", torch.float32)
    assert rows["validation_loss"][0] == pytest.approx(task.loss(model, batch).item(), rel=1e-5)
    assert model.steep is not None
    assert SETTING.model("backward").steep is None


class Killed(BaseException):
    """A stop that no code may catch."""


@pytest.mark.parametrize("step", [5, 13])
def test_a_job_that_was_killed_resumes_with_the_same_bits(step, tmp_path):
    def stop(done, *_):
        if done == step:
            raise Killed

    with pytest.raises(Killed):
        cot.run(SETTING, Job(tmp_path, on_step=stop))
    assert cot.run(SETTING, Job(tmp_path)).equals(cot.run(SETTING, Job()))


@pytest.mark.parametrize("name", cot.LEARNING_RATES)
def test_every_architecture_makes_blocks_for_every_width(name):
    for width in (1, 7):
        model = replace(SETTING, architecture=name, width=width).model("forward")
        n_rows = width**2 + 3 * width + 1
        assert model(torch.zeros(2, 2 * n_rows)).shape[::2] == (2, n_rows)


def made_up_rows(last, scale=1.0, seed=0):
    """Return rows whose last validation losses are `last` and ten times that."""
    shared = {"architecture": "grid", "weight_scale": scale, "n_teachers": 4, "width": 2}
    shared |= {"depth": 2, "n_parameters": 2000, "seed": seed}
    rows = [
        {
            **shared,
            "operator": operator,
            "at": float(epoch),
            "validation_loss": factor * (50.0, last)[epoch],
            "variance": 40.0 * factor,
            "mean_loss": 44.0 * factor,
            "linear_loss": 8.0 * factor,
        }
        for operator, factor in (("forward", 1), ("backward", 10))
        for epoch in (0, 1)
    ]
    for at, distance in enumerate((0.0, last / 2)):
        chain = {"learnt": distance, "constructed": 1e-26 * at, "unmoved": 0.3 * at}
        rows.append({**shared, "operator": "chain", "at": float(at), **chain})
    return pl.DataFrame(rows, infer_schema_length=None)


def test_the_summary_has_means_over_seeds_for_each_law():
    rows = pl.concat([made_up_rows(0.4), made_up_rows(0.6, seed=1), made_up_rows(0.2, 0.5)])
    lines = {(line[2], line[3]): line[4:] for line in cot.summarise(rows).rows()}
    assert lines["1", "grid"] == ("4", "2,000", "0.5", "0.013", "5", "0.013", "0.25")
    assert lines["0.5", "grid"][-1] == "0.1"
    assert lines["1", "mean block"][2:] == ("44", "1.1", "440", "1.1", "")
    assert lines["1", "linear map"][2:6] == ("8", "0.2", "80", "0.2")
    assert lines["1", "weights left alone"][-1] == "0.3"
    assert lines["1", "constructed"][-1] == "1e-26"
    overflown = rows.with_columns(learnt=None)
    assert cot.summarise(overflown).filter(operators="grid")["chain"].to_list() == ["overflows"] * 2


def test_the_papers_losses_are_lines_beside_those_of_all_laws():
    figure = cot.draw(pl.concat([made_up_rows(0.4), made_up_rows(0.2, 0.5)]))
    forward, backward = figure.axes[:2]
    for panel, paper in ((forward, 3.0), (backward, 0.139)):
        (line,) = [x for x in panel.lines if x.get_color() == cot.RED]
        assert list(line.get_ydata()) == [paper, paper]
    (losses,) = [x for x in forward.lines if x.get_color() == cot.COLOURS["grid"]]
    assert list(losses.get_xdata()) == [0.5, 1.0]
    assert list(losses.get_ydata()) == pytest.approx([0.2, 0.4])
    assert re.search("d = 2, N = 2", forward.get_title(loc="left"))

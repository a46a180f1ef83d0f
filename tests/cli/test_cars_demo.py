from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from icgd.cli.cars_demo import (
    INPUTS,
    QUICK,
    Result,
    Settings,
    numbers,
    picture,
    read_cars,
    with_constant,
)


def test_the_data_have_their_published_statistics():
    names, inputs, mpg = read_cars()
    assert len(set(names)) == 32
    assert mpg.mean() == pytest.approx(20.090625)
    assert mpg.std(ddof=1) == pytest.approx(6.026948, abs=1e-6)
    means = dict(zip(INPUTS, inputs.mean(axis=0), strict=True))
    assert means == pytest.approx(
        {"weight": 3.21725, "horsepower": 146.6875, "quarter_mile": 17.84875}
    )
    correlation = np.corrcoef(mpg[:, 0], inputs[:, INPUTS.index("weight")])[0, 1]
    assert correlation == pytest.approx(-0.8676594, abs=1e-6)
    bora = names.index("Maserati Bora")
    assert mpg[bora].tolist() == [15.0]
    assert with_constant(inputs)[bora].tolist() == [3.57, 335.0, 14.6, 1.0]


@dataclass
class Watched:
    """What was told and changed while the numbers were made."""

    result: Result
    told: list[tuple[int, int]]
    threads: int


@pytest.fixture(scope="module")
def watched():
    told, before = [], torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        result = numbers(QUICK, on_progress=lambda done, total: told.append((done, total)))
        return Watched(result, told, torch.get_num_threads())
    finally:
        torch.set_num_threads(before)


@pytest.fixture
def result(watched):
    return watched.result


@pytest.mark.slow
def test_the_demo_as_it_is_shipped():
    result = numbers(Settings(n_timings=1))
    assert result.report.verdict.holds
    assert float(result.report.step_errors.max()) < 1e-5
    assert float(result.report.step_bounds.max()) < 1e-3
    assert result.transformer_losses[-1] < 0.1 * result.transformer_losses[0]
    assert result.transformer_rmse < 3.0  # the mean of the training cars is off by 5.5
    assert result.fused_difference < 1e-13


def test_it_learns_what_gradient_descent_learns(result):
    assert result.report.verdict.holds
    assert result.transformer_losses[-1] < result.transformer_losses[0]
    assert result.transformer_losses == pytest.approx(result.descent_losses, rel=0.01)
    assert len(result.transformer_losses) == result.settings.n_steps + 1


def test_held_out_cars_are_predicted_in_miles_per_gallon(result):
    assert len({car.car for car in result.predictions}) == 8
    names, _, mpg = read_cars()
    for car in result.predictions:
        assert car.true_mpg == mpg[names.index(car.car), 0]
        assert 10 <= car.true_mpg <= 34
        assert car.transformer_mpg == pytest.approx(car.descent_mpg, abs=0.1)
    errors = [car.transformer_mpg - car.true_mpg for car in result.predictions]
    assert result.transformer_rmse == pytest.approx((sum(e * e for e in errors) / 8) ** 0.5)
    assert result.descent_rmse == pytest.approx(result.transformer_rmse, abs=0.1)


def test_every_head_gives_what_the_fused_backend_gives(result):
    assert result.fused_difference < 1e-13


def test_times_are_positive(result):
    seconds = result.seconds
    assert min(seconds.compile, seconds.transformer, seconds.descent, seconds.literal) > 0


def test_progress_tells_every_stage(watched):
    assert watched.told == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_the_number_of_threads_is_put_back(watched):
    assert watched.threads == 2


def test_settings_reach_the_numbers():
    changed = numbers(replace(QUICK, n_steps=3, n_held_out=5))
    assert len(changed.report.step_errors) == 3
    assert len(changed.predictions) == 5


def test_the_picture_has_three_panels_that_show_the_numbers(result):
    losses, errors, cars = picture(result).axes
    assert losses.get_title(loc="left") == "One forward pass trains the network"
    real, ours = losses.lines
    assert tuple(ours.get_ydata()) == result.transformer_losses
    assert tuple(real.get_ydata()) == result.descent_losses
    assert len(errors.lines) == 4
    assert errors.get_yscale() == "log"
    names = {text.get_text() for text in cars.texts}
    assert {car.car for car in result.predictions} <= names


def test_every_text_of_the_picture_stays_inside_it(result):
    figure = picture(result)
    figure.canvas.draw()
    width, height = figure.bbox.width, figure.bbox.height
    for panel in figure.axes:
        texts = [*panel.texts, panel.xaxis.label, panel.yaxis.label]
        for text in [*texts, *(title for title in [panel.title, panel._left_title])]:
            box = text.get_window_extent()
            assert box.x0 >= 0, text
            assert box.y0 >= 0, text
            assert box.x1 <= width, text
            assert box.y1 <= height, text

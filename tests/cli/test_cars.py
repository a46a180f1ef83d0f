import numpy as np
import pytest

from icgd.cli.cars import INPUTS, Scaling, read_cars, split_cars


def test_the_data_have_their_published_statistics():
    cars = read_cars()
    assert len(set(cars.names)) == 32
    assert cars.mpg.mean() == pytest.approx(20.090625)
    assert cars.mpg.std(ddof=1) == pytest.approx(6.026948, abs=1e-6)
    means = dict(zip(INPUTS, cars.inputs.mean(axis=0), strict=True))
    assert means == pytest.approx(
        {"weight": 3.21725, "horsepower": 146.6875, "quarter_mile": 17.84875}
    )
    correlation = np.corrcoef(cars.mpg, cars.inputs[:, INPUTS.index("weight")])[0, 1]
    assert correlation == pytest.approx(-0.8676594, abs=1e-6)


def test_a_car_keeps_its_own_numbers():
    cars = read_cars()
    bora = cars.names.index("Maserati Bora")
    assert cars.mpg[bora] == 15.0
    assert cars.inputs[bora].tolist() == [3.57, 335.0, 14.6]


def test_a_split_is_repeatable_and_loses_no_car():
    cars = read_cars()
    training, held_out = split_cars(cars, n_held_out=8, seed=4)
    again, _ = split_cars(cars, n_held_out=8, seed=4)
    assert training.names == again.names
    assert (len(training.names), len(held_out.names)) == (24, 8)
    assert set(training.names) | set(held_out.names) == set(cars.names)
    place = cars.names.index(held_out.names[0])
    assert held_out.mpg[0] == cars.mpg[place]


def test_training_cars_are_standardised_and_come_back():
    training, _ = split_cars(read_cars(), n_held_out=8, seed=0)
    scaling = Scaling.of(training)
    inputs, labels = scaling.inputs(training), scaling.labels(training)
    assert np.allclose(inputs[:, :3].mean(axis=0), 0)
    assert np.allclose(inputs[:, :3].std(axis=0), 1)
    assert np.all(inputs[:, 3] == 1)
    assert labels.std() == pytest.approx(1)
    assert np.allclose(scaling.mpg(labels), training.mpg)

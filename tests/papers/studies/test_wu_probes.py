import numpy as np
import pytest
import torch
from sklearn.linear_model import LinearRegression

from icgd_papers.figures.wu_curves import BUDGETS
from icgd_papers.figures.wu_setting import PRETRAINING
from icgd_papers.studies.wu_probes import Compared, distance, read_out, streams_at_query

SMOKE = BUDGETS["smoke"]


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_a_read_out_is_linear_regression_with_hardly_a_penalty():
    known, asked = normal(400, 5) * 10 + 3, normal(7, 5, seed=1)
    labels = known @ torch.arange(5.0).double() + 2 + normal(400, seed=2)
    wanted = LinearRegression().fit(known, labels).predict(asked)
    np.testing.assert_allclose(read_out(known, labels, asked), wanted, atol=0.05)


def test_a_read_out_of_what_is_constant_is_the_mean_label():
    found = read_out(
        torch.ones(6, 2).double(), torch.arange(6.0).double(), torch.ones(1, 2).double()
    )
    assert found.tolist() == pytest.approx([2.5])


def test_the_last_stream_of_the_query_gives_the_models_prediction():
    model = SMOKE.decoder("softmax", 0)
    batch = SMOKE.test(3, PRETRAINING, 0)
    streams = streams_at_query(model, batch)
    assert [stream.shape for stream in streams] == [(8, 8)] * SMOKE.n_blocks
    with torch.no_grad():  # at first the norm has no parameters of its own
        read = streams[-1] @ model.read_out[0] + model.read_out_bias
        torch.testing.assert_close(read, model(batch.x, batch.y))


def test_the_nearest_number_of_steps_is_that_of_the_smallest_distance():
    labels = normal(50)
    descent = [labels * share for share in (0.0, 0.5, 0.9, 1.1)]
    found = Compared.of("own", 1, 0.88 * labels, labels, descent, {"ridge": 0.5 * labels})
    assert found.nearest == 2
    spread = labels.square().mean() / labels.var(correction=0)
    assert found.distances == pytest.approx(
        [float(spread * gap**2) for gap in (0.88, 0.38, 0.02, 0.22)]
    )
    assert found.error_cosines == pytest.approx([1, 1, 1, -1])  # errors on one side, or the other
    assert found.r_squared == pytest.approx(1 - 0.12**2 * float(spread))
    assert found.to_references == {"ridge": pytest.approx(float(spread) * 0.38**2)}


def test_the_distance_has_the_unit_of_the_labels_variance():
    labels = normal(50)
    assert distance(labels, labels.mean().expand(50), labels) == pytest.approx(1.0)
    assert distance(7 * labels, 7 * labels + 7, 7 * labels) == pytest.approx(
        1 / float(labels.var(correction=0))
    )

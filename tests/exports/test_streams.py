import pytest
import torch

from icgd.errors import DataError, SettingError
from icgd.exports.streams import as_batch


@pytest.mark.parametrize(("tasks", "n_tasks"), [((), 1), ((3,), 3)])
def test_a_stream_gets_an_axis_for_tasks(tasks, n_tasks):
    stream = torch.randn(*tasks, 4, 5)
    batch = as_batch(stream, 5, torch.float32)
    assert batch.shape == (n_tasks, 4, 5)
    assert torch.equal(batch.view_as(stream), stream)


@pytest.mark.parametrize("shape", [(4, 6), (5,), (2, 2, 4, 5)])
def test_a_stream_of_another_shape_is_refused(shape):
    with pytest.raises(DataError) as caught:
        as_batch(torch.zeros(shape), 5, torch.float32)
    expected = "(tokens, 5) or (tasks, tokens, 5)"
    assert str(caught.value) == f"stream has shape {shape}; expected {expected}."


def test_a_stream_of_another_type_is_refused():
    with pytest.raises(SettingError) as caught:
        as_batch(torch.zeros(4, 5), 5, torch.float64)
    assert str(caught.value) == "stream must be of type torch.float64, got torch.float32."

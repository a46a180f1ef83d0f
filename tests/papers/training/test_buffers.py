import torch
from torch import nn

from icgd_papers.training.buffers import copied_buffers, put_buffers


def test_copies_bring_buffers_back_and_leave_parameters_alone():
    model = nn.BatchNorm1d(2)
    copies = copied_buffers(model)
    assert list(copies) == ["running_mean", "running_var", "num_batches_tracked"]
    model(torch.tensor([[1.0, 2.0], [3.0, 6.0]]))
    assert model.running_mean.tolist() == torch.tensor([0.2, 0.4]).tolist()
    with torch.no_grad():
        model.weight.fill_(5.0)
    put_buffers(model, copies)
    assert model.running_mean.tolist() == [0.0, 0.0]
    assert model.running_var.tolist() == [1.0, 1.0]
    assert model.num_batches_tracked.item() == 0
    assert model.weight.tolist() == [5.0, 5.0]

"""Parameters as multiples of units."""

import torch
from torch import nn
from torch.nn.utils.parametrize import register_parametrization

from icgd_papers.training.units import Units


def test_a_parameter_in_units_has_its_value_and_learns_its_multiple():
    module = nn.Linear(2, 3, bias=False).double()
    before = module.weight.detach().clone()
    register_parametrization(module, "weight", Units(torch.tensor([0.5, 4.0])))
    stored = module.parametrizations.weight.original
    assert torch.equal(module.weight, before)
    assert torch.equal(stored, before / torch.tensor([0.5, 4.0]))
    module.weight.sum().backward()
    assert stored.grad.tolist() == [[0.5, 4.0]] * 3

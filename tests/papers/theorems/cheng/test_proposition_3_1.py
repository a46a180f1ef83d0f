import torch

from icgd.layers import KernelAttention
from icgd.problems.kernel_machine import KernelHead
from icgd_papers.theorems.cheng.proposition_3_1 import every_layer


def test_a_layer_that_reads_the_queries_too_is_noticed(monkeypatch):
    assert every_layer((KernelHead("linear"),), seed=0, n_layers=2).holds
    everyone = lambda layer, x: torch.ones(x.shape[-2], dtype=torch.bool)  # noqa: E731
    monkeypatch.setattr(KernelAttention, "is_example", everyone)
    found = every_layer((KernelHead("linear"),), seed=0, n_layers=2)
    assert not found.holds
    assert found.measured > 1e-3

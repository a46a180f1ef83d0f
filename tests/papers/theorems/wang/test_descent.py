import pytest
import torch

from icgd_papers.theorems.wang.descent import bump


@pytest.mark.parametrize("height", [0.1, 1.0])
def test_a_bump_has_its_height_and_its_norm(height):
    eps = 0.05
    z = torch.linspace(-1, 2, 300_001, dtype=torch.float64)
    values = torch.cat([bump(part[:, None], height, eps) for part in z.split(10_000)])
    assert float(values.max()) == pytest.approx(height, rel=1e-2)
    norm = float((values**2).sum() * (z[1] - z[0])) ** 0.5
    assert 0.9 * eps < norm <= 1.001 * eps

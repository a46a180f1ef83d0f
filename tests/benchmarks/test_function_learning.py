import pytest

from benchmarks.function_learning import Sizes, draw, measure
from icgd.pictures import plotting

QUICK = Sizes(n_queries=9, n_layers=150, most_layers=6, n_eigenvalues=5)


def test_layers_come_closer_to_kernel_regression_and_chebyshev_leaves_what_theory_says():
    result = measure(QUICK)

    def off(layer: int) -> float:
        pairs = zip(result.values[layer], result.limit, strict=True)
        return max(abs(a - b) for a, b in pairs)

    assert off(150) < 0.05 < 0.1 < off(8) < off(1)
    assert result.constant == pytest.approx([(99 / 101) ** layer for layer in range(1, 7)])
    assert all(a >= b for a, b in zip(result.constant, result.chebyshev, strict=True))
    assert plotting.png(draw(result)).startswith(b"\x89PNG")

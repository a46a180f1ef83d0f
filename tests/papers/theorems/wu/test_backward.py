from icgd_papers.theorems.wu.backward import Bounds


def test_one_layer_has_the_bounds_of_the_base_case():
    bounds = Bounds(1, 2.0, 3.0, slope=0.5, loss=4.0, slope_lipschitz=6.0, loss_lipschitz=7.0)
    assert bounds.size == 0.5 * 4.0
    assert bounds.error(0.0, 1.0, 0.0) == 4.0
    assert bounds.error(0.0, 0.0, 1.0) == 0.5


def test_two_layers_add_what_the_recursion_adds():
    bounds = Bounds(2, 2.0, 3.0, 0.5, 4.0, slope_lipschitz=6.0, loss_lipschitz=7.0, forward=1.0)
    ratio, size = 0.5 * 3.0 * 2.0, 3.0 * 0.5 * 4.0
    assert bounds.size == size
    by_slope = 2.0 * size * 3.0 + ratio * 4.0
    assert bounds.error(0.0, 1.0, 0.0) == by_slope
    carried = 6.0 * 3.0
    by_value = carried * 2.0 * size * 3.0 + ratio * (4.0 * carried + 0.5 * 7.0)
    assert bounds.error(1.0, 0.0, 0.0) == by_value

r"""Definition 4.3 and Appendix C.7: what the backward blocks hold, beside automatic derivatives."""

from __future__ import annotations

import torch

from icgd_papers.theorems.cot.network import STEP_SIZE, WIDTH, Round, draw_round
from icgd_papers.theorems.statement import Comparison, Finding, Statement

ROUNDING = 1e-13


def _step_gap(round_: Round, layer: int, shift: int) -> float:
    """The distance of W_i - eta delta_i o^T from a step along the gradient; o is o_{i+shift}."""
    delta, outputs = round_.deltas[layer - 1], round_.outputs[layer + shift]
    gradient = round_.gradients[layer - 1]
    return float(STEP_SIZE * (torch.outer(delta, outputs) - gradient).abs().max())


def wrong_factor(round_: Round, layer: int) -> Comparison:
    """The weights of B_i as printed, with o_i for o_{i-1}, beside a step along the gradient."""
    case = f"B_{layer} of 3 layers with delta_{layer} o_{layer}^T: distance from a gradient step"
    return Comparison(case, _step_gap(round_, layer, 0), ROUNDING, "largest weight")


def _right_factor(round_: Round, layer: int) -> Comparison:
    case = (
        f"B_{layer} of 3 layers with delta_{layer} o_{layer - 1}^T: distance from a gradient step"
    )
    return Comparison(case, _step_gap(round_, layer, -1), ROUNDING, "largest weight")


def _rows_of_x(zeros: int) -> Comparison:
    """The rows of X_l beyond the R = d^2 + 3d + 1 rows of F_i and B_i."""
    missing = abs(WIDTH + zeros + 1 - (WIDTH**2 + 3 * WIDTH + 1))
    case = f"d = {WIDTH}: rows of X_l with {zeros} zeros, beyond those of F_i and B_i"
    return Comparison(case, float(missing), 0.0, "rows")


def _blocks(seed: int) -> Finding:
    round_ = draw_round(seed)
    layers = range(1, round_.depth + 1)
    return Finding(
        (*(_right_factor(round_, layer) for layer in layers), _rows_of_x(WIDTH**2 + 2 * WIDTH)),
        printed=(
            *(wrong_factor(round_, layer) for layer in layers),
            _rows_of_x(WIDTH**2 + 3 * WIDTH),
        ),
    )


BLOCKS = Statement(
    paper="cot",
    label="Definition 4.3",
    claim=(
        "Block B_i holds the weights after a gradient step, W_i - eta delta_i O_i^T, and all "
        "blocks have d^2 + 3d + 1 rows, X_l with 3d + d^2 zeros among them."
    ),
    formula=(
        "B_i = [delta_i; W_i^T delta_i; vec W_i - eta vec(delta_i O_i^T); 0]; "
        "X_l = [x_l; 0_(3d+d^2); 2]"
    ),
    check=_blocks,
    correction="delta_i o_{i-1}^T, by the chain rule; and 2d + d^2 zeros in X_l, as in Y_l.",
)


def _slope_gap(round_: Round, sign: float) -> float:
    """The distance of 2 sign (o_N - y) r'(z_N) from the derivative by z_N."""
    z = round_.preactivations[-1].clone().requires_grad_()
    (wanted,) = torch.autograd.grad((torch.relu(z) - round_.y).square().sum(), z)
    delta = 2 * sign * (round_.outputs[-1] - round_.y) * round_.slopes[-1]
    return float((delta - wanted).abs().max())


def _sign(seed: int) -> Finding:
    round_ = draw_round(seed)
    right, printed = (
        Comparison(f"delta_N = {text}: distance from the derivative by z_N", gap, ROUNDING, "entry")
        for text, gap in (
            ("2 (o_N - y) r'(z_N)", _slope_gap(round_, 1.0)),
            ("2 (y - o_N) r'(z_N)", _slope_gap(round_, -1.0)),
        )
    )
    return Finding((right,), printed=(printed,))


SIGN = Statement(
    paper="cot",
    label="Appendix C.7, sign",
    claim="The first backward block has delta_N = 2 (y - o_N) r'(z_N).",
    formula="delta_N = 2 (y_s - o_N) r'(z_N)",
    check=_sign,
    correction="2 (o_N - y) r'(z_N): with the printed sign a step climbs.",
)


def _last_factor(seed: int) -> Finding:
    round_ = draw_round(seed)
    return Finding(
        (_right_factor(round_, round_.depth),), printed=(wrong_factor(round_, round_.depth),)
    )


LAST_FACTOR = Statement(
    paper="cot",
    label="Appendix C.7, outer product",
    claim="The gradient of the last layer's weights is delta_N o_N^T, from the rows o_N of F_N.",
    formula="vec(delta_N o_N^T), A_4 extracts o_N",
    check=_last_factor,
    correction="delta_N o_{N-1}^T; F_N holds o_{N-1} too, and A_4 has to extract it.",
)

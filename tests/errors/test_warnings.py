import pytest

from icgd.errors import PrecisionWarning, warnings
from icgd.errors.warnings import BoxWarning, DivergenceWarning, EstimateWarning
from tests.contracts.messages import assert_complete, assert_every_message_is_made, made

MESSAGES = [
    (
        made(EstimateWarning.of, ("mine", "yours")),
        "Bounds rest on Lipschitz constants of the kernel 'mine', 'yours' that are estimated from "
        "these data: they prove nothing. State them with icgd.register_kernel(..., lipschitz=...).",
    ),
    (
        made(PrecisionWarning.of, "softmax-stack"),
        "This softmax-stack was compiled for float64, but its weights are used in float32, where "
        "gradients lose several times more to rounding than they must. Compile with "
        "dtype='float32' (--dtype float32), or use float64 or backend='fused'.",
    ),
    (
        made(BoxWarning.of, 2, 0.5),
        "Coefficient 2 (counted from 0) ends at the box, 0.5: without it, it would be larger. Give "
        "a larger box, or a smaller step size if steps diverge.",
    ),
    (
        made(BoxWarning.of_network, 4.0),
        "A weight ends at the box, 4, which PyTorch does not have: the run is no longer the one of "
        "your script. Give a larger box.",
    ),
    (
        made(DivergenceWarning.of, 100.0, 1.21, 0.021),
        "The steps diverge on these data: the error grows 1.21-fold along the kernel's "
        "eigenvalue 100. step_size is 0.021; it must be below 0.02.",
    ),
    (
        made(DivergenceWarning.of, 100.0, 1.21, None),
        "The steps diverge on these data: the error grows 1.21-fold along the kernel's "
        "eigenvalue 100. Choose steps for a spectrum that reaches that far.",
    ),
    (
        made(DivergenceWarning.of, -0.5, 2.0, 0.1),
        "The steps diverge on these data: the error grows 2-fold along an eigenvector of "
        "eigenvalue -0.5. The kernel is not positive there: add noise of at least that size, or "
        "use another kernel.",
    ),
]


@pytest.mark.parametrize(("error", "text"), MESSAGES)
def test_the_message_is_complete(error, text):
    assert_complete(error, text)


def test_every_message_is_tested():
    assert_every_message_is_made(warnings)

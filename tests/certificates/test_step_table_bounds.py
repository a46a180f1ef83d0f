"""Bounds of a table of whole steps."""

import torch

import icgd
from icgd.certificates.enclosures import Arithmetic
from icgd.certificates.step_table_bounds import key_error
from tests.certificates.test_table_bound import problem


def test_keys_of_narrow_ramps_are_rounded_more_than_those_of_wide_ones():
    def error(width: float, dtype: torch.dtype = torch.float64) -> float:
        settings = {"construction": "universal", "kink_width": width}
        program = icgd.compile(problem(), n_steps=1, **settings).program
        how = Arithmetic.of(dtype, 2, "dense")
        return key_error(program.step_table, program, how)

    assert error(2.0**-20) > 50 * error(2.0**-13) > 0
    assert error(2.0**-13, torch.float32) > 7 / 32 > error(2.0**-13)

"""Stands in for `icgd.backends.native`: performs generated loops as the Python that they are."""

from math import erfc  # noqa: F401

import numpy as np
from numpy import cos, cosh, exp, expm1, inf, log1p, pi, sqrt, tanh  # noqa: F401
from numpy.lib.stride_tricks import as_strided


def product(rows, depth, columns, left, right, out, is_added, is_scaled):
    def multiply(target, o, a, p, b, q, c, r, scale):
        def matrix(array, first, shape, strides):
            n_bytes = tuple(stride * array.itemsize for stride in strides)
            last = first + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
            assert 0 <= first <= last < len(array)
            return as_strided(array[first:], shape, n_bytes)

        total = matrix(a, p, (rows, depth), left) @ matrix(b, q, (depth, columns), (right, 1))
        if is_scaled:
            total = scale * total
        if is_added:
            total = total + matrix(c, r, (rows, columns), (out, 1))
        matrix(target, o, (rows, columns), (out, 1))[:] = total

    return multiply


def inlined(function):
    return function


def bits_of(number):
    return int(number.view(np.int64 if number.itemsize == 8 else np.int32))


def compiled(source, *args):
    scope = {}
    # Like machine code, numpy has no errors of its own: what is too large is infinite.
    exec(source.replace("from math import", "from tests.backends.plain_loops import"), scope)
    return np.errstate(all="ignore")(scope["run"])

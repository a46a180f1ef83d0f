"""The checks of the statements of cheng; importing this package registers them."""

from icgd_papers.theorems.cheng import (  # noqa: F401
    assumptions,
    descent,
    hilbert_space,
    landscape,
    rotations,
)

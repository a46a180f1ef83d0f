"""Who reads what in a layer of kernel attention, and a head of any kernel, with autograd.

Tokens are columns, as in the paper. Kernels whose gradients are written by hand are in
`icgd_papers.training.gathering`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from torch import Tensor

from icgd.problems.kernel_machine import Kernel


@final
@dataclass(frozen=True)
class Reading:
    """Who reads what: the columns of a stream, whose first rows are the values.

    `inputs` holds x as columns; None means that x is the stream below its first row. The first
    columns are the `n_examples` examples, the next one is the query. If `query_only`, the query
    alone reads; otherwise all columns do.
    """

    stream: Tensor
    inputs: Tensor | None
    n_examples: int
    query_only: bool

    @property
    def x(self) -> Tensor:
        return self.stream[:, 1:] if self.inputs is None else self.inputs

    @property
    def examples(self) -> Tensor:
        return self.x[..., : self.n_examples]

    @property
    def readers(self) -> Tensor:
        return self._of_readers(self.x)

    def values(self, n_rows: int) -> Tensor:
        return self.stream[:, :n_rows, : self.n_examples]

    def old(self, n_rows: int) -> Tensor:
        """What the readers' columns hold before they read."""
        return self._of_readers(self.stream[:, :n_rows])

    def _of_readers(self, columns: Tensor) -> Tensor:
        query = slice(self.n_examples, self.n_examples + 1)
        return columns[..., query] if self.query_only else columns


def plain_head(reading: Reading, V: Tensor, B: Tensor, C: Tensor, kernel: Kernel) -> Tensor:
    """V gathered, for any kernel, with autograd."""
    pattern = kernel.matrix((C @ reading.readers).mT, (B @ reading.examples).mT)
    return V @ (reading.values(len(V)) @ pattern.mT)

r"""User-given functions as transformers of three layers (wu, Lemma 16).

The error bound follows the lemma's proof, with the constants of these layers. The layers round Z to
the centre Q(Z) of its cell, by at most e in every entry, and the table returns f(Q(Z)) up to
rounding, so

    ||transformer(Z) - f(Z)|| <= L ||Z - Q(Z)|| + rounding <= L e sqrt(dn) + rounding,

in the Frobenius norm, where e is (high - low) / (2 D) plus half the width of a ramp. The lemma's
bound L (8 sqrt(dn) + sqrt(n)) (high - low) / (2 D) includes errors on ramps.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf, sqrt
from typing import Any

import numpy as np
import torch
from torch import Tensor

from icgd import pictures
from icgd.backends.dense import build_transformer
from icgd.backends.registry import AUTO, BACKENDS, chosen_backend
from icgd.backends.run import PLAIN, require_off_ramps
from icgd.certificates.balls import rounded_up
from icgd.certificates.enclosures import Arithmetic
from icgd.certificates.propagation import FLAT, key_error, reading
from icgd.constructions.universal import (
    KINK_WIDTH,
    NARROWEST,
    WIDEST,
    Grid,
    answer_of,
    function_program,
    level_values,
)
from icgd.environment import one_thread, own_modes
from icgd.errors import (
    ConstructionError,
    DataError,
    DomainError,
    FileError,
    ProgramError,
    SettingError,
    at,
)
from icgd.layers import Transformer
from icgd.problems.data import Task, checked_array
from icgd.problems.settings import as_row, count, finite, positive, power_of_two, require_between
from icgd.program.check import check_program
from icgd.program.instructions import IDENTITY
from icgd.program.network_instructions import LookUpFunction
from icgd.program.stack import StackProgram
from icgd.reprs import counted, number, with_repr
from icgd.weights import files
from icgd.weights.sizes import Summary, dense_bytes, summarise

MOST_STORED = 2**28
"""The largest size of weights, in bytes, that `save` stores beside the table."""

Matrix = np.ndarray[Any, np.dtype[np.float64]]


@own_modes()
def universal(
    f: Callable[[Matrix], Any],
    *,
    d: int,
    n: int,
    D: int,
    lipschitz: float,
    box: float | tuple[float, float] = 1.0,
    kink_width: float = KINK_WIDTH,
) -> UniversalFunction:
    """Write a permutation-equivariant function into a transformer of three layers (wu, Lemma 16).

    The function is tabulated on all prompts of D levels; afterwards only the table is used.

    Args:
        f: a function of arrays (d, n) with values (d, n). A permutation of the columns of its
            argument must permute the columns of its value in the same way.
        d: the number of entries in a token, the rows of the array.
        n: the number of tokens, the columns of the array.
        D: the number of levels that every entry is rounded to.
        lipschitz: a Lipschitz constant of f in the Frobenius norm; the error bound assumes it.
        box: the interval of all entries: [-box, box], or [low, high] for a pair (low, high).
        kink_width: the width of the ramps between levels, relative to half the box, a power of
            two. Entries on ramps are refused.

    Returns:
        The transformer.

    Raises:
        ConstructionError: if the table is too large, or if f is not equivariant, not finite or
            steeper than `lipschitz` on its points.
        SettingError: if a setting is out of its range.

    Example:
        >>> import icgd, numpy as np
        >>> moved = icgd.universal(
        ...     lambda Z: Z + np.tanh(Z.mean(1, keepdims=True)), d=1, n=2, D=8, lipschitz=2.0
        ... )
        >>> moved.run([[0.3, -0.9]])
        tensor([[ 0.1301, -1.1199]], dtype=torch.float64)
    """
    low, high = _ends(box)
    grid = Grid(count("d", d), count("n", n), count("D", D, least=2), low, high)
    width = power_of_two("kink_width", kink_width)
    require_between("kink_width", width, NARROWEST, WIDEST)
    with one_thread():  # the last bits of the weights depend on the number of threads
        program = function_program(f, grid, positive("lipschitz", lipschitz), width)
    check_program(program)
    function = UniversalFunction(program)
    if function.bound() == inf:
        raise ConstructionError(
            f"D={D} with d={d} and n={n} needs keys so close together that float64 cannot separate "
            "them. Give fewer levels or tokens, a box around 0, or a larger kink_width."
        )
    return function


def _ends(box: object) -> tuple[float, float]:
    """Validate the box and return its ends."""
    ends = as_row(box)
    if len(ends) == 1:
        high = positive("box", ends[0])
        return -high, high
    if len(ends) != 2:
        raise SettingError(f"box must be a number or a pair (low, high), got {box!r}.")
    low, high = (finite("box", end) for end in ends)
    if not low < high:
        raise SettingError(f"box must be a pair (low, high) with low < high, got {box!r}.")
    return low, high


@with_repr
@dataclass(frozen=True)
class UniversalFunction:
    """A function computed by table look-up in a transformer of three layers: see `icgd.universal`.

    Attributes:
        program: the layers, with the table.

    Example:
        >>> import icgd, numpy as np
        >>> halved = icgd.universal(lambda Z: Z / 2, d=1, n=2, D=4, lipschitz=0.5)
        >>> halved.summary().n_layers, halved.bound() < halved.paper_bound
        (3, True)
    """

    program: StackProgram

    @property
    def _look_up(self) -> LookUpFunction:
        instruction = self.program.first(LookUpFunction)
        if instruction is None:
            raise ProgramError(
                f"The program of {self.program.construction} has no instruction that looks up a "
                "function. Create it with icgd.universal."
            )
        return instruction

    @property
    def shape(self) -> tuple[int, int]:
        """The shape (d, n) of arguments and values."""
        return self.program.layout.width_of("x"), self._look_up.n_tokens

    @property
    def box(self) -> tuple[float, float]:
        """The ends of the interval of all entries."""
        return self._look_up.low, self._look_up.high

    @property
    def levels(self) -> int:
        """The number D of levels."""
        return len(self.program.relu_sum(IDENTITY).knots) // 2 + 1

    @property
    def lipschitz(self) -> float:
        """The Lipschitz constant that the user gave for the function."""
        return self._look_up.lipschitz

    @property
    def paper_bound(self) -> float:
        """The lemma's bound on the error in the Frobenius norm, in exact arithmetic."""
        (d, n), (low, high) = self.shape, self.box
        return self.lipschitz * (8 * sqrt(d * n) + sqrt(n)) * (high - low) / (2 * self.levels)

    def bound(self, backend: str = "literal") -> float:
        """Return the proved bound on the Frobenius error, for every Z in the box and off the ramps.

        The bound assumes the given Lipschitz constant.

        Args:
            backend: the backend whose rounding errors are included.

        Returns:
            The bound, which holds in float64.

        Raises:
            UnknownNameError: if no backend has this name.

        Example:
            >>> import icgd
            >>> halved = icgd.universal(lambda Z: Z / 2, d=1, n=2, D=4, lipschitz=0.5)
            >>> round(halved.bound(), 4), round(halved.paper_bound, 4)
            (0.1768, 1.591)
        """
        (d, n), (low, high), program = self.shape, self.box, self.program
        arithmetic = Arithmetic.of(torch.float64, n, backend)
        middle, half = (low + high) / 2, (high - low) / 2
        tables = [program.relu_sum(name) for name in self._look_up.tables]
        if key_error(self._look_up.key, tables[0], program, arithmetic, middle / half) > FLAT:
            return inf
        # The largest distance of an entry from its level, on the scale [-1, 1]. The check that
        # entries are off the ramps is itself rounded, which the second term allows for.
        ends = (-1.0, *program.relu_sum(IDENTITY).knots, 1.0)
        cells = zip(level_values(self.levels).tolist(), ends[::2], ends[1::2], strict=True)
        distance: float = max(max(level - start, end - level) for level, start, end in cells)
        distance += 2.0**-40 * (1 + abs(middle) / half)
        rounding = sum(
            (table.error + float(reading(table, arithmetic)[3])) ** 2 for table in tables
        )
        return self.lipschitz * sqrt(d * n) * half * distance + sqrt(n * rounding)

    def run(self, Z: Any, *, backend: str = "fused") -> Tensor:
        """Apply the transformer to a matrix, or to many.

        Args:
            Z: entries in the box, (d, n) or (tasks, d, n).
            backend: "fused", which reads the table, or the transformer itself: "literal", every
                unit from its nonzero weights, or "dense", with matrices. "auto" is literal for
                runs of up to about 20 seconds, otherwise fused.

        Returns:
            The output of the transformer, of the same shape.

        Raises:
            DataError: if Z has another shape, or an entry on the ramp between two levels.
            DomainError: if an entry leaves the box.
            UnknownNameError: if no backend has this name.

        Example:
            >>> import icgd
            >>> halved = icgd.universal(lambda Z: Z / 2, d=1, n=2, D=4, lipschitz=0.5)
            >>> halved.run([[0.8, -0.1]], backend="literal")
            tensor([[ 0.3750, -0.1250]], dtype=torch.float64)
        """
        return self._run(self._checked(Z), backend)

    def _checked(self, Z: Any) -> Tensor:
        """Validate Z: its shape, and entries in the box but not on a ramp."""
        matrix, (low, high) = checked_array("Z", Z).double(), self.box
        if matrix.ndim not in (2, 3) or matrix.shape[-2:] != self.shape:
            raise DataError(
                f"Z has shape {tuple(matrix.shape)}; expected {self.shape}, or "
                f"(tasks, {self.shape[0]}, {self.shape[1]}) for many."
            )
        outside = (matrix < low) | (matrix > high)
        if outside.any():
            index = outside.nonzero()[0].tolist()
            raise DomainError(
                f"Z{at(index)} is {float(matrix[tuple(index)]):.12g}, outside [{low:g}, {high:g}]. "
                "Rescale the data, or give universal a larger box."
            )
        middle, half = (low + high) / 2, (high - low) / 2
        require_off_ramps("Z", matrix, self.program, half, middle)
        return matrix

    @own_modes()
    def _run(self, matrix: Tensor, backend: str) -> Tensor:
        task = self._task(matrix)
        runner = BACKENDS[chosen_backend(backend, self.program, task).name]
        run = runner.run(self.program, task, replace(PLAIN, trace=("y",)))
        return run.trace["y"][..., -1, :, :].mT.contiguous()

    def _task(self, matrix: Tensor) -> Task:
        """Return a task with the matrix columns as examples, and no weights or queries."""
        x = matrix.mT.contiguous()
        no_weights = x.new_empty(*x.shape[:-2], 0)
        return Task(x, torch.zeros_like(x), x[..., :0, :], no_weights)

    def verify(self, f: Callable[[Matrix], Any], Z: Any, *, backend: str = AUTO) -> FunctionReport:
        """Run the transformer, and compare its output with f(Z), and the error with its bounds.

        Args:
            f: the function that was tabulated.
            Z: entries in the box, (d, n) or (tasks, d, n).
            backend: "literal", "dense" or "fused"; "auto" is literal for runs of up to about 20
                seconds, otherwise fused.

        Returns:
            The measured errors beside the bounds.

        Raises:
            DataError: if Z has another shape, or an entry on the ramp between two levels.
            DomainError: if an entry leaves the box.
            ConstructionError: if f does not return finite numbers of the same shape.

        Example:
            >>> import icgd
            >>> halved = icgd.universal(lambda Z: Z / 2, d=1, n=2, D=4, lipschitz=0.5)
            >>> report = halved.verify(lambda Z: Z / 2, [[0.8, -0.1]])
            >>> report.holds, round(float(report.errors), 4), round(float(report.idle_errors), 4)
            (True, 0.0791, 0.4031)
        """
        matrix = self._checked(Z)
        backend = chosen_backend(backend, self.program, self._task(matrix)).name
        output = self._run(matrix, backend)
        points = matrix.view(-1, *self.shape)
        exact = torch.stack([answer_of(f, point) for point in points]).view_as(matrix)
        errors = torch.linalg.matrix_norm(output - exact)
        idle_errors = torch.linalg.matrix_norm(matrix - exact)
        return FunctionReport(errors, self.bound(backend), self.paper_bound, idle_errors, backend)

    def facts(self) -> dict[str, str]:
        """Return a summary of the function, as shown in its repr and in notebooks.

        Returns:
            A text for each name.

        Example:
            >>> import icgd
            >>> halved = icgd.universal(lambda Z: Z / 2, d=1, n=2, D=4, lipschitz=0.5)
            >>> halved.facts()["table"]
            '16 keys, of D^(dn) = 16 entries'
        """
        (d, n), (low, high) = self.shape, self.box
        table = self.program.relu_sum(self._look_up.tables[0])
        n_keys = len(table.knots) // 2 + 1
        return {
            "function": f"of {d} x {n} matrices in [{low:g}, {high:g}], Lipschitz constant "
            f"{self.lipschitz:g} (assumed)",
            "table": f"{n_keys:,} keys, of D^(dn) = {self.levels ** (d * n):,} entries",
            "layers": counted(self.program.n_layers, "layer"),
            "error": f"at most {number(rounded_up(self.bound()))}",
            "the lemma's bound": number(self.paper_bound),
        }

    def summary(self) -> Summary:
        """Return the numbers of layers, heads, weights and FLOPs, without building any weights.

        Returns:
            The sizes.

        Example:
            >>> import icgd
            >>> halved = icgd.universal(lambda Z: Z / 2, d=1, n=2, D=4, lipschitz=0.5)
            >>> halved.summary().n_heads
            1
        """
        return summarise(self.program, self.shape[1])

    @own_modes()
    def transformer(self) -> Transformer:
        """Return the transformer as a torch module with ordinary weights.

        Returns:
            The module, which maps the residual stream of the prompt to that after the last layer.

        Raises:
            SizeError: if the weights do not fit into memory.

        Example:
            >>> import icgd
            >>> halved = icgd.universal(lambda Z: Z / 2, d=1, n=2, D=4, lipschitz=0.5)
            >>> len(list(halved.transformer().block))
            3
        """
        return build_transformer(self.program)

    def draw(self, path: str | os.PathLike[str] | None = None) -> pictures.picture.Picture:
        """Draw the transformer: its layers, and what they read and write.

        Args:
            path: a file to write the picture to as well, .svg or .png.

        Returns:
            The picture, which notebooks display.

        Raises:
            FileError: if the name has another ending, or if the file cannot be written.

        Example:
            >>> import icgd
            >>> halved = icgd.universal(lambda Z: Z / 2, d=1, n=2, D=4, lipschitz=0.5)
            >>> halved.draw().title
            'universal looks up a function of 1 x 2 matrices'
        """
        d, n = self.shape
        title = f"{self.program.construction} looks up a function of {d} x {n} matrices"
        return pictures.program_picture.draw(self.program, title, path)

    def listing(self) -> str:
        """Return the program as readable text.

        Returns:
            A line for each slot, layer and instruction.

        Example:
            >>> import icgd
            >>> halved = icgd.universal(lambda Z: Z / 2, d=1, n=2, D=4, lipschitz=0.5)
            >>> print(halved.listing().splitlines()[0])
            program universal, 3 layers, d_model 5
        """
        return self.program.listing()

    @own_modes()
    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a safetensors file with the table and the weights, but not the function f.

        Args:
            path: the file.

        Raises:
            FileError: if the file cannot be written.

        Example:
            >>> import icgd
            >>> from pathlib import Path
            >>> from tempfile import TemporaryDirectory
            >>> halved = icgd.universal(lambda Z: Z / 2, d=1, n=2, D=4, lipschitz=0.5)
            >>> with TemporaryDirectory() as folder:
            ...     halved.save(Path(folder) / "halved.safetensors")
            ...     icgd.UniversalFunction.load(Path(folder) / "halved.safetensors") == halved
            True
        """
        is_small = dense_bytes(self.summary(), 8) <= MOST_STORED
        weights = dict(self.transformer().named_parameters()) if is_small else {}
        files.save(path, None, self.program, weights)

    @classmethod
    @own_modes()
    def load(cls, path: str | os.PathLike[str]) -> UniversalFunction:
        """Read a file written by `save`.

        Args:
            path: the file.

        Returns:
            The function, equal to the one that was saved.

        Raises:
            FileError: if the file does not exist, is damaged, or holds something else.

        Example:
            >>> import icgd
            >>> icgd.UniversalFunction.load("nowhere.safetensors")
            Traceback (most recent call last):
            ...
            icgd.errors.FileError: There is no file nowhere.safetensors.
        """
        program = files.load_program(path)
        if not isinstance(program, StackProgram) or program.first(LookUpFunction) is None:
            raise FileError(
                f"{path} holds no function of icgd.universal. Read compiled training runs with "
                "icgd.load."
            )
        return cls(program)


@with_repr
@dataclass(frozen=True)
class FunctionReport:
    """Measured errors of a tabulated function beside their bounds, in the Frobenius norm.

    Attributes:
        errors: the distance of the output from f(Z), for every matrix Z.
        bound: the proved bound on the errors, including the backend's rounding; it assumes the
            Lipschitz constant given for the function.
        paper_bound: the lemma's bound.
        idle_errors: the distance of Z from f(Z), for every matrix Z: the error of a transformer
            that changes nothing.
        backend: the backend that ran.

    Example:
        >>> import icgd
        >>> halved = icgd.universal(lambda Z: Z / 2, d=1, n=2, D=4, lipschitz=0.5)
        >>> halved.verify(lambda Z: Z / 2, [[0.8, -0.1]]).backend
        'literal'
    """

    errors: Tensor
    bound: float
    paper_bound: float
    idle_errors: Tensor
    backend: str

    @property
    def holds(self) -> bool:
        """Whether every error is within the proved bound."""
        return bool((self.errors <= self.bound).all())

    def facts(self) -> dict[str, str]:
        """Return a summary of the report, as shown in its repr and in notebooks.

        Returns:
            A text for each name.

        Example:
            >>> import icgd
            >>> halved = icgd.universal(lambda Z: Z / 2, d=1, n=2, D=4, lipschitz=0.5)
            >>> halved.verify(lambda Z: Z / 2, [[0.8, -0.1]]).facts()["for comparison"]
            'f(Z) is up to 0.4031 from Z; the mean error is 0.1961 times the mean distance'
        """
        broken = (
            "an error exceeds the bound: f is steeper than the given Lipschitz constant, f is not "
            "the function that was tabulated, or the transformer is wrong"
        )
        measured, proved = float(self.errors.max()), number(rounded_up(self.bound))
        comparison = f"f(Z) is up to {number(float(self.idle_errors.max()))} from Z"
        if (total := self.idle_errors.sum()) > 0:
            ratio = number(float(self.errors.sum() / total))
            comparison += f"; the mean error is {ratio} times the mean distance"
        return {
            "verdict": "every error is within the bound" if self.holds else broken,
            "backend": self.backend,
            "error": f"{number(measured)}, proved {proved}, the lemma's {number(self.paper_bound)}",
            "for comparison": comparison,
        }

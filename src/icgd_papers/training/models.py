r"""The transformer that is trained: layers of kernel attention with few free numbers (eq. 3).

The stream Z = [X; y] has a column for every example and, last, one for the query, whose label is
0. A layer is

    Z <- Z + sum_heads V Z M k(B X, C X),    V = diag(A, r),    k(U, W)[j, i] = K(U_j, W_i),

where M removes the query: token i reads example j with weight K(C x_i, B x_j). The prediction is
minus the query's label. A may be absent. Then the inputs never change, and a layer is a step of
functional gradient descent if B = C and r < 0 (Proposition 3.1).

A prediction is linear in the labels, sum_j w_j y_j, with weights that depend on the inputs alone:
a layer turns the labels y into (I + T) y, T = sum_heads r k. The weights are found as
a row that passes through the layers from the last to the first: `label_weights`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils.parametrize import register_parametrization, remove_parametrizations

from icgd.environment import require_memory
from icgd.errors import SettingError
from icgd.problems.kernel_machine import Kernel, KernelMachine, kernel_named
from icgd.problems.settings import count, described, finite, positive
from icgd_papers.training.covariates import as_matrix, require_width

INIT_SCALE = 0.3
"""The standard deviation of the first B and C: scores of unit vectors are below 1."""

OF_SCORES = ("linear", "relu", "exp", "softmax", "polynomial")
"""The kernels that depend on <B x, C x'> only."""

VALUE_SCALE = 0.02
"""The standard deviation of the first A and r: tens of examples add as much as a token holds."""


PATTERNS: dict[str, Callable[[Tensor], Tensor]] = {
    "linear": lambda scores: scores,
    "relu": torch.relu,
    "exp": torch.exp,
    "softmax": lambda scores: torch.softmax(scores, dim=1),
}
"""Kernels as functions of the scores (task, example, reader)."""


def _times(matrix: Tensor, columns: Tensor) -> Tensor:
    """Multiply the columns of every task by a matrix."""
    return torch.bmm(matrix.expand(len(columns), -1, -1), columns)


class Units(nn.Module):
    """A parameter as a multiple of `units`, which broadcast against its trailing axes.

    Adam moves all numbers of order 1 at the same speed.
    """

    units: Tensor

    def __init__(self, units: Tensor) -> None:
        super().__init__()
        self.register_buffer("units", units.double(), persistent=False)

    def forward(self, multiple: Tensor) -> Tensor:
        return multiple * self.units

    def right_inverse(self, value: Tensor) -> Tensor:
        """Return the multiple that gives `value`."""
        return value / self.units


class KernelTransformer(nn.Module):
    """Layers of kernel attention: r (layer, head), and A, B, C (layer, head, out, in).

    `kernels` names the kernel of every head: one of icgd's, or one of your own that was registered
    with `icgd.register_kernel` and that torch can differentiate. The first numbers follow from
    `seed` alone. They are float64; use `.to(torch.float32)` to train in float32.
    """

    def __init__(
        self,
        input_width: int,
        n_layers: int,
        kernels: tuple[str, ...],
        *,
        transforms_covariates: bool,
        seed: int,
        init_scale: float = INIT_SCALE,
        value_scale: float = VALUE_SCALE,
        shapes: tuple[float | None, ...] | None = None,
    ) -> None:
        super().__init__()
        self.input_width = count("input_width", input_width)
        self.n_layers = count("n_layers", n_layers)
        self.kernels = tuple(kernels)
        self.shapes = shapes or (None,) * len(self.kernels)
        self.transforms_covariates = transforms_covariates
        self.seed = count("seed", seed, least=0)
        self._require_heads()
        self.init_scale = positive("init_scale", init_scale)
        self.value_scale = positive("value_scale", value_scale)
        n_numbers = 3 * self.n_layers * len(self.kernels) * self.input_width**2
        require_memory(f"A model of {n_numbers:,} numbers", 8 * n_numbers, "Give smaller sizes.")
        self.units: dict[str, Tensor] = {}
        self._draw(torch.Generator().manual_seed(seed))

    def _draw(self, generator: torch.Generator) -> None:
        def gaussian(scale: float, *shape: int) -> nn.Parameter:
            drawn = torch.randn(shape, generator=generator, dtype=torch.float64)
            return nn.Parameter(scale * drawn)

        per_head = (self.n_layers, len(self.kernels))
        square = (*per_head, self.input_width, self.input_width)
        self.r = gaussian(self.value_scale, *per_head)
        self.B = gaussian(self.init_scale, *square)
        self.C = gaussian(self.init_scale, *square)
        self.A = gaussian(self.value_scale, *square) if self.transforms_covariates else None

    def _require_heads(self) -> None:
        n_heads = len(self.kernels)
        if not n_heads:
            raise SettingError("kernels is empty; give at least one.")
        if len(self.shapes) != n_heads:
            raise SettingError(
                f"shapes has {len(self.shapes)} entries; expected {n_heads}, one for each kernel."
            )
        self.heads()

    def heads(self) -> list[Kernel]:
        """Return the kernel of every head."""
        return [kernel_named(*pair) for pair in zip(self.kernels, self.shapes, strict=True)]

    @classmethod
    def constructed(
        cls,
        machine: KernelMachine,
        step_sizes: Sequence[float],
        whitening: Float[Tensor, "input_width input_width"] | None = None,
    ) -> KernelTransformer:
        """Functional gradient descent on `machine` after x -> whitening x, one layer for each step.

        B = C = G whitening and r = -step_size * weight, for a head of transform G.
        """
        kernels = tuple(head.kernel for head in machine.heads)
        shapes = tuple(head.shape for head in machine.heads)
        sizes = machine.input_width, len(step_sizes)
        model = cls(*sizes, kernels, transforms_covariates=False, seed=0, shapes=shapes)
        moves = torch.eye(machine.input_width, dtype=torch.float64)
        if whitening is not None:
            moves = as_matrix("whitening", whitening)
            require_width(len(moves), machine.input_width)
        matrices = torch.stack([head.moved(moves.mT).mT for head in machine.heads])
        weights = torch.tensor([head.weight for head in machine.heads], dtype=torch.float64)
        finite_sizes = [finite("step_sizes", size) for size in step_sizes]
        steps = torch.tensor(finite_sizes, dtype=torch.float64)
        with torch.no_grad():
            model.r.copy_(-steps[:, None] * weights)
            model.B.copy_(matrices.expand_as(model.B))
            model.C.copy_(matrices.expand_as(model.C))
        return model

    @classmethod
    def like(cls, model: KernelTransformer, *, transforms_covariates: bool) -> KernelTransformer:
        """Return a new model with the sizes, the kernels and the precision of another."""
        sizes = model.input_width, model.n_layers, model.kernels
        new = cls(*sizes, transforms_covariates=transforms_covariates, seed=0, shapes=model.shapes)
        return new.to(model.B)

    def learn_in_units(self, **units: Tensor) -> None:
        """Learn the parameters of these names as multiples of their units.

        Units broadcast against the trailing axes of a parameter. The model computes the same.
        """
        for name, unit in units.items():
            register_parametrization(self, name, Units(unit))
            self.units[name] = unit.double()

    def forget_units(self) -> None:
        """Make plain parameters of those that were learnt in units."""
        for name in self.units:
            remove_parametrizations(self, name)
        self.units = {}

    @classmethod
    def of_description(cls, data: Mapping[str, Any]) -> KernelTransformer:
        """Build the model that `description` describes, with its initial weights."""
        with described("kernel transformer"):
            own = {name: value for name, value in data.items() if name not in ("kind", "units")}
            own |= {"kernels": tuple(data["kernels"]), "shapes": tuple(data["shapes"])}
            model = cls(**own)
            units = data.get("units", {}).items()
            model.learn_in_units(
                **{name: torch.tensor(u, dtype=torch.float64) for name, u in units}
            )
            return model

    def description(self) -> dict[str, Any]:
        """Plain data that identifies this model before training; checkpoints hold it."""
        units = {name: unit.tolist() for name, unit in self.units.items()}
        return {
            **({"units": units} if units else {}),
            "kind": "kernel transformer",
            "input_width": self.input_width,
            "n_layers": self.n_layers,
            "kernels": list(self.kernels),
            "shapes": list(self.shapes),
            "transforms_covariates": self.transforms_covariates,
            "seed": self.seed,
            "init_scale": self.init_scale,
            "value_scale": self.value_scale,
        }

    def forward(
        self,
        x: Float[Tensor, "task token input_width"],
        y: Float[Tensor, "task token *output_width"],
    ) -> Float[Tensor, "task *output_width"]:
        """Predict the label of the query, which is the last token; its own label is not read.

        Entries of a label that is a vector are predicted each by itself, because attention reads
        the inputs alone. Kernels lose too much in bfloat16: autocast is switched off.
        """
        if y.ndim == 3 or not PATTERNS.keys() >= set(self.kernels):
            weights = self.label_weights(x)
            return ((weights[..., None] if y.ndim == 3 else weights) * y[:, :-1]).sum(1)
        with torch.autocast(x.device.type, enabled=False):
            return self._predictions(x, y)

    def _predictions(self, x: Tensor, y: Tensor) -> Tensor:
        """Predict by the layers themselves, for kernels of scores.

        Tokens are columns, as in the paper: batched products of long rows are the fastest. The
        labels are the first row of the stream, and the inputs follow if layers move them.
        """
        labels = torch.cat([y[:, :-1], torch.zeros_like(y[:, :1])], dim=1)[:, None]
        stream = labels if self.A is None else torch.cat([labels, x.mT], dim=1)
        inputs = x.mT
        for layer in range(self.n_layers):
            is_last = layer == self.n_layers - 1
            inputs = inputs if self.A is None else stream[:, 1:]
            readers, examples = inputs[..., -1:] if is_last else inputs, inputs[..., :-1]
            held = stream[..., :-1]
            if is_last:  # the query alone reads, and labels alone are read
                stream, held = stream[:, :1, -1:], held[:, :1]
            for head, kernel in enumerate(self.kernels):
                V = self.r[layer, head].reshape(1, 1)
                if self.A is not None and not is_last:
                    V = torch.block_diag(V, self.A[layer, head])
                # <B x_j, C x_i> = x_j^T M x_i with M = B^T C.
                M = self.B[layer, head].mT @ self.C[layer, head]
                values, keyed = _times(V, held), _times(M, readers)
                if kernel == "linear":  # associated, without the matrix of all pairs
                    gathered = torch.bmm(values, examples.mT), keyed
                else:
                    gathered = values, PATTERNS[kernel](torch.bmm(examples.mT, keyed))
                stream = torch.baddbmm(stream, *gathered)
        return -stream[:, 0, 0]

    def label_weights(
        self, x: Float[Tensor, "task token input_width"]
    ) -> Float[Tensor, "task example"]:
        """Return the weights w of prediction = sum_j w_j y_j.

        Autocast is switched off: kernels lose too much in bfloat16.
        """
        with torch.autocast(x.device.type, enabled=False):
            *matrices, row = self._label_matrices(x)
            for matrix in reversed(matrices):
                row = row + row @ matrix[:, :-1] + matrix[:, -1:]
            return -row[:, 0]

    def _label_matrices(self, x: Tensor) -> list[Tensor]:
        """T of every layer, with a row for each reader; in the last layer the query alone reads."""
        totals = []
        for layer in range(self.n_layers):
            is_last = layer == self.n_layers - 1
            readers, examples = x[:, -1:] if is_last else x, x[:, :-1]
            patterns = [
                kernel.matrix(readers @ C.mT, examples @ B.mT)
                for kernel, B, C in zip(self.heads(), self.B[layer], self.C[layer], strict=True)
            ]
            total = self.r[layer, 0] * patterns[0]
            for r, pattern in zip(self.r[layer, 1:], patterns[1:], strict=True):
                total = total + r * pattern
            totals.append(total)
            if self.A is not None and not is_last:
                moved = (patterns[0] @ x[:, :-1]) @ self.A[layer, 0].mT
                for A, pattern in zip(self.A[layer, 1:], patterns[1:], strict=True):
                    moved = moved + (pattern @ x[:, :-1]) @ A.mT
                x = x + moved
        return totals

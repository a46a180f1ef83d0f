"""`--weights-out`: the trained weights as a file, safetensors or JSON by its ending."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated

import typer
from safetensors.torch import save
from torch import Tensor

from icgd.cli.writing import write_file
from icgd.errors import FileError

WeightsOut = Annotated[
    Path | None,
    typer.Option(
        "--weights-out",
        help="File to write the trained weights to: weights_1, bias_1, ..., or coefficients.",
        metavar="W.safetensors|W.json",
    ),
]


def _as_safetensors(weights: Mapping[str, Tensor]) -> bytes:
    content: bytes = save({name: part.contiguous() for name, part in weights.items()})
    return content


def _as_json(weights: Mapping[str, Tensor]) -> bytes:
    data = {name: part.tolist() for name, part in weights.items()}
    return f"{json.dumps(data, indent=1)}\n".encode()


WRITERS: dict[str, Callable[[Mapping[str, Tensor]], bytes]] = {
    ".safetensors": _as_safetensors,
    ".json": _as_json,
}
"""How weights become a file, by the ending of its name."""


def require_weights_file(path: Path) -> None:
    """Raise `FileError` if the name has no ending that weights are written to."""
    if path.suffix.lower() not in WRITERS:
        raise FileError(
            f"Weights are written to a {' or '.join(WRITERS)} file; {path} has another "
            "ending. Rename it."
        )


def write_weights(path: Path, weights: Mapping[str, Tensor]) -> None:
    """Write named matrices, all of them or none."""
    write_file(path, WRITERS[path.suffix.lower()](weights))

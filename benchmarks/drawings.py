"""The transformer of every construction as a picture: docs/images/drawing_<construction>.svg."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import icgd
from icgd.compiled import Compiled
from icgd.problems.problem import Target, Update

DOMAIN = icgd.Domain(x=2.0, y=2.0)
FRONT = "relu-stack"
"""The construction that is drawn as PNG too, for pages that show no SVG."""


def _compiled(
    construction: str, target: Target, update: Update, n_steps: int, **rest: Any
) -> Compiled:
    loss = rest.pop("loss", "squared")
    problem = icgd.Problem(target, loss, update, rest.pop("domain", DOMAIN))
    return icgd.compile(problem, construction, n_steps=n_steps, **rest)


def _network(construction: str, widths: tuple[int, ...], n_steps: int = 20) -> Compiled:
    return _compiled(construction, icgd.MLP(widths), icgd.GradientStep(0.1, box=1.0), n_steps)


def _chain() -> Compiled:
    update = icgd.GradientStep(0.1, box=1.0, batch_size=4)
    return _compiled("cot-network", icgd.MLP((3, 4, 4, 1), "relu"), update, 20)


def _table() -> Compiled:
    target, update = icgd.MLP((1, 1), "tanh", "tanh"), icgd.GradientStep(2.0, box=1.0)
    return _compiled("universal", target, update, 2, n_examples=2)


def _function() -> Compiled:
    target, update = icgd.KernelMachine(3, "rbf"), icgd.FunctionalStep(0.2, noise=0.1)
    return _compiled("functional", target, update, 20)


def _linear(construction: str, link: str, **penalties: float) -> Compiled:
    update = icgd.ProximalStep(step_size=0.3, box=1.0, **penalties)
    target, domain = icgd.LinearModel(3, link, intercept=True), icgd.Domain(2.0, 2.0, score=5.0)
    return _compiled(construction, target, update, 20, loss="matching", domain=domain)


def _one_layer(construction: str, link: str, **penalties: float) -> Compiled:
    """As the theorems have it: without intercept and box."""
    target, update = icgd.LinearModel(3, link), icgd.ProximalStep(step_size=0.3, **penalties)
    problem = icgd.Problem(target, "matching", update, icgd.Domain(2.0, 2.0, score=5.0))
    return icgd.compile(problem, construction, n_steps=20, n_examples=10)


DRAWN: dict[str, Callable[[], Compiled]] = {
    "relu-stack": lambda: _network("relu-stack", (3, 4, 1)),
    "softmax-stack": lambda: _network("softmax-stack", (3, 4, 1)),
    "universal": _table,
    "recursion": lambda: _network("recursion", (2, 3, 3, 1)),
    "cot-network": _chain,
    "functional": _function,
    "linear-stack": lambda: _linear("linear-stack", "logistic", l2=0.1, l1=0.02),
    "cot-ridge": lambda: _one_layer("cot-ridge", "identity", l2=0.1),
    "cot-lasso": lambda: _one_layer("cot-lasso", "identity", l1=0.1),
    "cot-glm": lambda: _one_layer("cot-glm", "logistic"),
}
"""What is drawn for each construction."""


def files(folder: Path, construction: str) -> list[Path]:
    """The files that a construction is drawn to."""
    stem = f"drawing_{construction.replace('-', '_')}"
    endings = (".svg", ".png") if construction == FRONT else (".svg",)
    return [folder / f"{stem}{ending}" for ending in endings]


def draw_all(folder: Path) -> list[Path]:
    """Draw every construction, and say which files were written."""
    written: list[Path] = []
    for construction, make in DRAWN.items():
        picture = make().draw()
        for path in files(folder, construction):
            picture.save(path)
            written.append(path)
    return written

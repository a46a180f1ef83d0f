"""Measure and draw the figures of the documentation: `make figures`.

`python -m benchmarks.figures` draws all of them; names draw those alone. The name `drawings` stands
for the transformers of all constructions, and `examples` for the pictures of examples/.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import icgd
from benchmarks import chain_mask, drawings, error_decay, example_pictures, function_learning
from icgd.cli import comparison
from icgd.cli.show import plain
from icgd.pictures import plotting
from icgd.weights.files import whole_file

IMAGES = Path(__file__).parents[1] / "docs" / "images"

MANY = {"drawings": drawings.draw_all, "examples": example_pictures.draw_all}
"""What draws several pictures at once into a folder."""

COMPARED = comparison.Settings(  # icgd compare, with widths = [3, 4, 4, 2], box = 2 and x = 2
    icgd.Problem(
        target=icgd.MLP(widths=(3, 4, 4, 2), activation="tanh"),
        loss="squared",
        update=icgd.GradientStep(step_size=0.1, box=2.0),
        domain=icgd.Domain(x=2.0, y=2.0),
    ),
    n_timings=21,
    n_seeds=5,
)


def main(names: list[str]) -> None:
    for name in names or (*MANY, *FIGURES):
        if name in MANY:
            for path in MANY[name](IMAGES):
                print(f"Written to {path.relative_to(IMAGES.parents[1])}")
        else:
            _write(name, *FIGURES[name]())


def _chain_mask() -> tuple[object, plotting.Figure]:
    result = chain_mask.measure()
    return result, chain_mask.draw(result)


def _comparison() -> tuple[object, plotting.Figure]:
    result = comparison.compare(COMPARED)
    return result, comparison.draw(result)


def _error_decay() -> tuple[object, plotting.Figure]:
    result = error_decay.measure()
    return result, error_decay.draw(result)


def _function_learning() -> tuple[object, plotting.Figure]:
    result = function_learning.measure()
    return result, function_learning.draw(result)


FIGURES: dict[str, Callable[[], tuple[object, plotting.Figure]]] = {
    "chain_mask": _chain_mask,
    "comparison": _comparison,
    "error_decay": _error_decay,
    "function_learning": _function_learning,
}


def _write(name: str, numbers: object, figure: plotting.Figure) -> None:
    with whole_file(IMAGES / f"{name}.json") as path:
        path.write_text(json.dumps(plain(numbers), indent=1) + "\n")
    with whole_file(IMAGES / f"{name}.png") as path:
        path.write_bytes(plotting.png(figure))
    print(f"Written to {IMAGES.relative_to(IMAGES.parents[1])}/{name}.png and .json")


if __name__ == "__main__":
    main(sys.argv[1:])

"""Measure and draw the figures of the documentation: `make figures`."""

import json
from dataclasses import asdict
from pathlib import Path

from icgd.reproductions import chain_mask, error_decay, function_learning, plotting
from icgd.weights.atomic import whole_file

IMAGES = Path(__file__).parents[1] / "docs" / "images"


def main() -> None:
    decay, learning = error_decay.measure(), function_learning.measure()
    _write("error_decay", asdict(decay), error_decay.draw(decay))
    _write("function_learning", asdict(learning), function_learning.draw(learning))
    mask = chain_mask.measure()
    _write("chain_mask", asdict(mask), chain_mask.draw(mask))


def _write(name: str, numbers: dict[str, object], figure: plotting.Figure) -> None:
    with whole_file(IMAGES / f"{name}.json") as path:
        path.write_text(json.dumps(numbers, indent=1) + "\n")
    with whole_file(IMAGES / f"{name}.png") as path:
        path.write_bytes(plotting.png(figure))
    print(f"Written to {IMAGES.relative_to(IMAGES.parents[1])}/{name}.png and .json")


if __name__ == "__main__":
    main()

"""Measure and draw the figures of the documentation: `make figures`."""

import json
from dataclasses import asdict
from pathlib import Path

from icgd.reproductions import error_decay, plotting
from icgd.weights.atomic import whole_file

IMAGES = Path(__file__).parents[1] / "docs" / "images"


def main() -> None:
    result = error_decay.measure()
    numbers = json.dumps(asdict(result), indent=1) + "\n"
    with whole_file(IMAGES / "error_decay.json") as path:
        path.write_text(numbers)
    with whole_file(IMAGES / "error_decay.png") as path:
        path.write_bytes(plotting.png(error_decay.draw(result)))
    print(f"Written to {IMAGES.relative_to(IMAGES.parents[1])}/error_decay.png and .json")


if __name__ == "__main__":
    main()

"""How long it takes to load a compiled run: to read it, and to compare its checksum."""

from pathlib import Path
from tempfile import TemporaryDirectory

import icgd
from benchmarks.problems import problem_of
from icgd.environment import one_thread
from icgd.timing import interleaved_medians

WIDTHS = ((4, 16, 1), (8, 64, 64, 1))
CONSTRUCTIONS = ("relu-stack", "softmax-stack", "recursion")
ROUNDS = 7


def rows() -> list[dict[str, object]]:
    with one_thread(), TemporaryDirectory() as folder:
        return [
            _row(name, widths, Path(folder) / "run.safetensors")
            for widths in WIDTHS
            for name in CONSTRUCTIONS
        ]


def _row(construction: str, widths: tuple[int, ...], path: Path) -> dict[str, object]:
    compiled = icgd.compile(problem_of(widths, "tanh"), construction, n_steps=10)
    compiled.save(path, weights=False)
    seconds = interleaved_medians({"load": lambda: icgd.load(path)}, rounds=ROUNDS)
    return {
        "construction": construction,
        "widths": "-".join(map(str, widths)),
        "KiB": path.stat().st_size / 1024,
        "load ms": 1e3 * seconds["load"],
    }

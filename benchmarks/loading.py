"""What it takes to load a compiled run, and what of that its checks take.

A file is read and its checksum compared; then its functions are held against the real ones, and its
first steps against real training. Nothing of earlier loads is remembered here.
"""

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import icgd
from benchmarks.problems import problem_of
from icgd.approximation import claims
from icgd.certificates.trial import refuted
from icgd.reproductions.timing import interleaved_medians, one_thread

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
    problem, program = compiled.problem, compiled.program
    compiled.save(path, weights=False)
    jobs: dict[str, Callable[[], object]] = {
        "load": lambda: _anew(lambda: icgd.load(path)),
        "claims": lambda: _anew(lambda: claims.check_claims(program.functions, problem.box)),
        "trial": lambda: refuted(problem, program),
    }
    seconds = interleaved_medians(jobs, rounds=ROUNDS)
    return {
        "construction": construction,
        "widths": "-".join(map(str, widths)),
        "KiB": path.stat().st_size / 1024,
        "load ms": 1e3 * seconds["load"],
        "of which functions ms": 1e3 * seconds["claims"],
        "of which steps ms": 1e3 * seconds["trial"],
    }


def _anew(work: Callable[[], object]) -> None:
    claims._refuted.cache_clear()
    work()

"""Fair timing on a noisy machine: variants take turns, medians are compared within one run."""

from collections.abc import Callable, Mapping
from statistics import median
from time import perf_counter

Variants = Mapping[str, Callable[[], object]]


def interleaved_medians(variants: Variants, *, rounds: int = 15) -> dict[str, float]:
    """Median seconds of each variant; each round runs every variant once, in turn."""
    for run in variants.values():
        run()
    times: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(rounds):
        for name, run in variants.items():
            start = perf_counter()
            run()
            times[name].append(perf_counter() - start)
    return {name: median(values) for name, values in times.items()}

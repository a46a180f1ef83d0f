"""The same bits, or one clear error, whatever a program has set around a call."""

import os
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache, partial
from random import Random
from typing import Any

import numpy as np
import torch

import icgd
from tests.campaigns.compiled_files import ORDERS, data_for
from tests.campaigns.outcomes import Campaign, both_sizes, outcome_of_error


@contextmanager
def changed(read: Callable[[], Any], write: Callable[[Any], object], value: Any) -> Iterator[None]:
    before = read()
    write(value)
    try:
        yield
    finally:
        write(before)


def of_dtype(dtype: torch.dtype) -> AbstractContextManager[None]:
    return changed(torch.get_default_dtype, torch.set_default_dtype, dtype)


def strict() -> AbstractContextManager[None]:
    return changed(
        torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms, True
    )


@contextmanager
def warnings_as_errors() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", UserWarning)  # those of icgd are meant
        yield


SURROUNDINGS: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "default device meta": lambda: torch.device("meta"),
    "default dtype float64": partial(of_dtype, torch.float64),
    "default dtype float16": partial(of_dtype, torch.float16),
    "default dtype bfloat16": partial(of_dtype, torch.bfloat16),
    "inference mode": torch.inference_mode,
    "no gradients": torch.no_grad,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "autocast float16": lambda: torch.autocast("cpu", dtype=torch.float16),
    "products medium": lambda: changed(
        torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "medium"
    ),
    "deterministic algorithms": strict,
    "anomaly detection": lambda: torch.autograd.set_detect_anomaly(True),
    "errors of numpy": lambda: np.errstate(all="raise"),
    "two threads": lambda: changed(torch.get_num_threads, torch.set_num_threads, 2),
    "warnings as errors": warnings_as_errors,
}

DENSE = 3
"""The place of the dense run among the results."""


def results(name: str, dtype: str) -> list[object]:
    """All that a user sees of a small run, as bits."""
    problem, settings = ORDERS[name]
    compiled = icgd.compile(problem, name.partition(",")[0], n_steps=2, **settings)
    x, y = (part.tolist() for part in data_for(compiled))
    fused, dense = (
        compiled.run(x, y, queries=x, backend=backend, dtype=dtype)
        for backend in ("fused", "dense")
    )
    report = icgd.verify(compiled, x, y, queries=x, dtype=dtype)
    tensors = (fused.parameters, fused.predictions, dense.parameters, report.step_bounds)
    bits = [bytes(tensor.numpy().data) for tensor in tensors]
    return [repr(compiled.program.to_data()), *bits, report.verdict.name]


@cache
def usual(name: str, dtype: str) -> list[object]:
    return results(name, dtype)


def in_thread(name: str, dtype: str) -> list[object]:
    found: list[list[object]] = []
    thread = threading.Thread(target=lambda: found.append(results(name, dtype)))
    thread.start()
    thread.join()
    return found[0]


def around(name: str, dtype: str, random: Random) -> tuple[str, list[object]]:
    """Some surroundings, one inside the other, and what comes out there."""
    chosen = random.sample(list(SURROUNDINGS), random.choice([1, 1, 2]))
    work = in_thread if random.random() < 0.1 else results
    if len(chosen) == 1:
        with SURROUNDINGS[chosen[0]]():
            return f"{chosen[0]} ({work.__name__})", work(name, dtype)
    with SURROUNDINGS[chosen[0]](), SURROUNDINGS[chosen[1]]():
        return f"{' and '.join(chosen)} ({work.__name__})", work(name, dtype)


def compared(found: list[object], expected: list[object], said: str) -> str:
    differing = [place for place, part in enumerate(found) if part != expected[place]]
    if differing == [DENSE] and "threads" in said:
        return "sums in another order"
    return "other bits" if differing else "the same bits"


def environments(n: int) -> Iterator[tuple[str, str]]:
    with strict():  # torch sets a variable when it is first asked for this
        pass
    for index in range(n):
        random = Random(f"environment {index}")
        name, said = list(ORDERS)[index % len(ORDERS)], ""
        dtype = random.choice(["float64", "float32"])
        usual(name, dtype)
        before = dict(os.environ), list(warnings.filters), torch.get_rng_state().tolist()
        try:
            said, found = around(name, dtype, random)
            outcome = compared(found, usual(name, dtype), said)
        except Exception as error:
            outcome = outcome_of_error(error)
        after = dict(os.environ), list(warnings.filters), torch.get_rng_state().tolist()
        outcome = outcome if after == before else "surroundings changed"
        yield f"case {index}: {name}, {dtype}, {said}", outcome


CAMPAIGN = Campaign(
    name="environments",
    title="Devices, precisions, modes and threads that a program has set around a call",
    sample=10,
    whole=1_000,
    allowed={
        "the same bits": "as in usual surroundings",
        "sums in another order": "a dense run on two threads, whose products torch divides",
        "refused": "an error of icgd",
    },
    cases=environments,
)


@both_sizes
def test_surroundings_change_no_bit(whole):
    CAMPAIGN.carry_out(whole=whole)

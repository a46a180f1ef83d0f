"""Certificates of every case, and forgeries of them: other parts under a seal that fits."""

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from typing import Any

import torch

import icgd_check
from icgd.certificates.balls import Sources, prove
from tests.precise_training import train
from tests.whole_run_cases import CASES, N_STEPS, WholeRun

Fields = dict[str, Any]
BY_NORMS = " by norms"
PLAIN = ("plain", "box", "batches", "schedule", "average", "classes", "biases", "rates")
NOT_CLOSE = re.compile(
    r"step \d is not as close to exact descent as it claims"
    r"|a prediction is not as close to that of exact descent as it claims"
)
NAMES = (*CASES, *(name + BY_NORMS for name in PLAIN))


def case_of(name: str) -> WholeRun:
    return CASES[name.removesuffix(BY_NORMS)]


@cache
def fields_of(name: str) -> Fields:
    """The certificate of a case: its run is exact training, computed in 60 digits and rounded.

    Claim and seal are left out; `sealed` writes them.
    """
    case = case_of(name)
    exact = train(case.problem, case.task, N_STEPS)
    steps = [case.task.initial.tolist(), *([float(entry) for entry in row] for row in exact.steps)]
    predictions = torch.tensor([float(entry) for entry in exact.predictions], dtype=torch.float64)
    proof = prove(
        case.problem,
        case.task,
        torch.tensor(steps, dtype=torch.float64),
        predictions.reshape(len(case.task.queries), -1),
        Sources({"construction": "by hand", "backend": "none", "dtype": "float64"}),
    )
    fields: Fields = json.loads(proof.text)
    assert icgd_check.claim_of(fields) == fields.pop("claim")
    assert fields.pop("sha256")
    assert fields["method"] == "balls"
    return {**fields, "method": "norm"} if name.endswith(BY_NORMS) else fields


def changed(name: str = "plain", **others: Any) -> Fields:
    return {**fields_of(name), **others}


def with_problem(name: str = "plain", **others: Any) -> Fields:
    return changed(name, problem={**fields_of(name)["problem"], **others})


def sealed(fields: Fields, **claim: Any) -> str:
    """The fields as a text whose seal is right, and whose claim is, unless another is given."""
    with suppress(Exception):  # what is no problem has no claim
        claim = {"claim": icgd_check.claim_of(fields), **claim}
    text = json.dumps({**fields, **claim, "sha256": ""})
    seal = hashlib.sha256(text.encode()).hexdigest()
    return text.replace('"sha256": ""', f'"sha256": "{seal}"', 1)


def refusal(fields: Fields) -> str:
    """Why the checker refuses the fields, with the right claim and seal; empty if it does not."""
    try:
        icgd_check.check(sealed(fields).encode())
    except icgd_check.RefusedError as reason:
        return str(reason)
    except Exception as reason:
        return repr(reason)
    return ""


def parts(whole: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Everything that a certificate holds, with its path."""
    yield path, whole
    if isinstance(whole, dict | list):
        for key, part in whole.items() if isinstance(whole, dict) else enumerate(whole):
            yield from parts(part, (*path, key))


def replaced(whole: Any, path: tuple[Any, ...], part: Any) -> Any:
    """A copy with another part at `path`."""
    if not path:
        return part
    copy = whole.copy()
    copy[path[0]] = replaced(whole[path[0]], path[1:], part)
    return copy

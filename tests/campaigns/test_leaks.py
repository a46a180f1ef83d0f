"""What is done again and again leaves no file open, no thread, no temporary file and no objects."""

import gc
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

import icgd
from icgd.errors import IcgdError
from tests.campaigns.compiled_files import ORDERS, data_for
from tests.campaigns.outcomes import Campaign, both_sizes

MOST_OBJECTS = 40
"""What caches of the standard library may keep of a repetition or two, beside what icgd keeps."""


class Repeated:
    """Everything that is repeated, on one compiled run."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.path = name, folder / "run.safetensors"
        problem, settings = ORDERS[name]
        kind = name.partition(",")[0]
        self.make = lambda: icgd.compile(problem, kind, n_steps=2, **settings)
        self.compiled = self.make()
        self.x, self.y = data_for(self.compiled)

    def works(self) -> dict[str, Callable[[], object]]:
        compiled, x, y = self.compiled, self.x, self.y
        return {
            "compile": self.make,
            "run": lambda: compiled.run(x, y, queries=x),
            "dense run": lambda: compiled.run(x, y, backend="dense"),
            "verify": lambda: icgd.verify(compiled, x, y),
            "save and load": lambda: (compiled.save(self.path), icgd.load(self.path)),
            "a refused run": self.refused,
            "an interrupted run": self.interrupted,
            "draw": lambda: compiled.draw(self.path.with_suffix(".svg")),
        }

    def refused(self) -> None:
        with suppress(IcgdError):
            self.compiled.run(self.x * 100, self.y)

    def interrupted(self) -> None:
        def interrupt(*_: object) -> None:
            raise KeyboardInterrupt

        with suppress(KeyboardInterrupt):
            self.compiled.run(self.x, self.y, on_progress=interrupt)


def held() -> dict[str, int]:
    """What the process holds now."""
    gc.collect()
    opened, things = Path("/proc/self/fd"), gc.get_objects()
    return {
        "open files": sum(1 for _ in opened.iterdir()) if opened.is_dir() else 0,
        "threads": threading.active_count(),
        "temporary files": sum(1 for _ in Path(tempfile.gettempdir()).iterdir()),
        "tensors": sum(issubclass(type(thing), torch.Tensor) for thing in things),
        "objects": len(things),
    }


@contextmanager
def in_folder(folder: str) -> Iterator[None]:
    """Temporary files of this process are made in a folder of its own."""
    before, tempfile.tempdir = tempfile.tempdir, folder
    try:
        yield
    finally:
        tempfile.tempdir = before


def leak_of(work: Callable[[], object], n_times: int) -> str:
    for _ in range(2):  # caches are filled
        work()
    before = held()
    for _ in range(n_times):
        work()
    growth = {name: size - before[name] for name, size in held().items()}
    limits = {"objects": MOST_OBJECTS}
    grown = [name for name, more in growth.items() if more > limits.get(name, 0)]
    return f"grows: {', '.join(grown)}" if grown else "nothing grows"


@contextmanager
def only_new_objects() -> Iterator[None]:
    """What there is already is neither counted nor gone through again and again."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def leaks(n: int) -> Iterator[tuple[str, str]]:
    with (
        TemporaryDirectory() as folder,
        in_folder(folder),
        warnings.catch_warnings(),
        only_new_objects(),
    ):
        warnings.simplefilter("ignore")
        n_left = n
        for name in ORDERS:
            for said, work in Repeated(name, Path(folder)).works().items():
                if not n_left:
                    return
                n_left -= 1
                yield f"{name}: {said}", leak_of(work, n_times=5 if n < 50 else 40)


CAMPAIGN = Campaign(
    name="leaks",
    title="Work that is repeated",
    sample=4,
    whole=8 * len(ORDERS),
    allowed={"nothing grows": "open files, threads, temporary files, tensors and objects"},
    cases=leaks,
)


@both_sizes
def test_repeated_work_leaves_nothing(whole):
    CAMPAIGN.carry_out(whole=whole)


def test_the_campaign_notices_what_grows():
    kept = []
    with only_new_objects():
        assert leak_of(lambda: None, 5) == "nothing grows"
        assert leak_of(lambda: kept.append(torch.zeros(1)), 5) == "grows: tensors"
        assert leak_of(lambda: kept.extend([0] for _ in range(9)), 5) == "grows: objects"

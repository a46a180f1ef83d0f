"""Ctrl-C at any moment: results are those of a whole step, files are whole, nothing is lost."""

import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dis import opname
from functools import cache, partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from types import CodeType, FrameType
from typing import Any

import torch

import icgd
from icgd.backends.run import kept_steps
from icgd.errors import InterruptedRunError
from icgd_papers.training import Gaussian, InContextTask, KernelTransformer, LinearFunctions, train
from icgd_papers.training import Settings as TrainingSettings
from tests.campaigns.compiled_files import ORDERS, data_for
from tests.campaigns.outcomes import Campaign, both_sizes, outcome_of_error

SOURCES = str(Path(icgd.__file__).parent)
N_STEPS = 11

LOOKS = {
    "RESUME", "CALL", "CALL_FUNCTION_EX", "JUMP_BACKWARD", "POP_JUMP_BACKWARD_IF_TRUE",
    "POP_JUMP_BACKWARD_IF_FALSE", "POP_JUMP_BACKWARD_IF_NONE", "POP_JUMP_BACKWARD_IF_NOT_NONE",
}  # fmt: skip
"""The bytecodes after which CPython looks for signals."""

Place = tuple[CodeType, int]
"""A bytecode of a function, by its offset."""


@contextmanager
def interrupted_at(moment: int) -> Iterator[list[Place]]:
    """Ctrl-C at the moment of that number, of all in the block at which icgd can be interrupted.

    The interpreter looks for signals after the bytecodes in `LOOKS`, and nowhere else. The places
    of all moments until then are told.
    """
    places: list[Place] = []
    last: dict[FrameType, int] = {}

    def local(frame: FrameType, event: str, _: object) -> Callable[..., Any]:
        if event == "return":
            last.pop(frame, None)
        if event != "opcode":
            return local
        before = last.get(frame)
        last[frame] = frame.f_lasti
        if before is None or opname[frame.f_code.co_code[before]] in LOOKS:
            places.append((frame.f_code, frame.f_lasti))
            if len(places) == moment:
                sys.settrace(None)
                signal.raise_signal(signal.SIGINT)
        return local

    def follow(frame: FrameType, event: str, _: object) -> Callable[..., Any] | None:
        if not frame.f_code.co_filename.startswith(SOURCES):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return local

    before, usual = sys.gettrace(), signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.settrace(follow)
    try:
        yield places
    finally:
        sys.settrace(before)
        signal.signal(signal.SIGINT, usual)
        last.clear()  # or frames, and the files that they have open, stay until they are collected


class Running:
    """A run of some construction, and what is left of it."""

    def __init__(self, name: str, backend: str, history: bool | int) -> None:
        problem, settings = ORDERS[name]
        self.name, self.backend, self.history = name, backend, history
        kind = name.partition(",")[0]
        n_steps = 4 if backend == "dense" else N_STEPS
        update = problem.update
        if isinstance(getattr(update, "step_size", 0.1), tuple):
            n_steps = len(update.step_size)
        self.compiled = icgd.compile(problem, kind, n_steps=n_steps, **settings)
        self.x, self.y = data_for(self.compiled)
        self.whole = self.compiled.run(self.x, self.y, queries=self.x, backend=backend)
        self.done: list[int] = []

    def __str__(self) -> str:
        return f"{self.backend} run of {self.name}, history={self.history}"

    def work(self) -> None:
        self.done = []
        self.compiled.run(
            self.x,
            self.y,
            queries=self.x,
            backend=self.backend,
            history=self.history,
            on_progress=lambda step, _: self.done.append(step),
        )

    def outcome(self, error: BaseException | None) -> str:
        n_done, n_steps = len(self.done), self.compiled.program.n_steps
        if isinstance(error, InterruptedRunError):
            return self.left(error, n_done)
        if type(error) is not KeyboardInterrupt:
            return "swallowed" if error is None else outcome_of_error(error)
        return {0: "before the first step", n_steps: "after the last step"}.get(n_done, "lost")

    def left(self, error: InterruptedRunError, n_done: int) -> str:
        """A step may be whole that was not reported yet."""
        run, n_steps = error.partial, self.compiled.program.n_steps
        last = run.steps[-1]
        every = int(self.history) or n_steps
        is_right = (
            last in (n_done, n_done + 1)
            and list(run.steps) == list(kept_steps(last, every))
            and f"after {last} of {n_steps} steps" in str(error)
            and torch.equal(run.parameters, self.whole.parameters[list(run.steps)])
        )
        if is_right and last == n_steps and run.predictions.numel():
            is_right = torch.equal(run.predictions, self.whole.predictions)
        return "a whole step" if is_right else "torn"


class Saving:
    """A file that replaces another one, with its weights."""

    def __init__(self, name: str) -> None:
        kind, (problem, settings) = name, ORDERS[name]
        self.old, self.new = (icgd.compile(problem, kind, n_steps=n, **settings) for n in (1, 2))
        self.folder = TemporaryDirectory()
        self.path = Path(self.folder.name) / "run.safetensors"

    def __str__(self) -> str:
        return f"saving {self.old.program.construction}"

    def work(self) -> None:
        self.new.save(self.path, weights=True)

    def prepare(self) -> None:
        self.old.save(self.path)

    def outcome(self, error: BaseException | None) -> str:
        if type(error) is not KeyboardInterrupt:
            return "swallowed" if error is None else outcome_of_error(error)
        if icgd.load(self.path) not in (self.old, self.new):
            return "torn"
        left = [path for path in self.path.parent.iterdir() if path != self.path]
        for path in left:
            path.unlink()
        return "unfinished file left" if left else "files whole"


class Loading(Saving):
    """Reading a file, which may be read again."""

    def __str__(self) -> str:
        return f"loading {self.old.program.construction}"

    def work(self) -> None:
        icgd.load(self.path)


class Verifying:
    """A report, which cannot be had in parts."""

    def __init__(self) -> None:
        problem, settings = ORDERS["relu-stack"]
        self.compiled = icgd.compile(problem, "relu-stack", n_steps=2, **settings)
        self.data = data_for(self.compiled)

    def __str__(self) -> str:
        return "verifying"

    def work(self) -> None:
        icgd.verify(self.compiled, *self.data, rigorous=True)

    def outcome(self, error: BaseException | None) -> str:
        if not isinstance(error, KeyboardInterrupt):
            return "swallowed" if error is None else outcome_of_error(error)
        return "no report" if icgd.verify(self.compiled, *self.data).verdict.holds else "torn"


class Training:
    """A training in a folder, which goes on from what is there."""

    SETTINGS = TrainingSettings(n_steps=4, batch_size=4, learning_rate=0.02, checkpoint_every=2)

    def __init__(self) -> None:
        law = Gaussian(torch.eye(2, dtype=torch.float64))
        self.task = InContextTask(law, LinearFunctions(), n_examples=4)
        with TemporaryDirectory() as folder:
            self.expected = self.trained(Path(folder))
        self.folder: TemporaryDirectory[str] | None = None

    def __str__(self) -> str:
        return "training"

    def trained(self, folder: Path) -> torch.Tensor:
        model = KernelTransformer(2, 1, ("linear",), transforms_covariates=False, seed=0)
        train(model, self.task, self.SETTINGS, folder=folder)
        return torch.cat([weights.detach().flatten() for weights in model.parameters()])

    def prepare(self) -> None:
        self.folder = TemporaryDirectory()

    def work(self) -> None:
        self.trained(Path(self.folder.name))

    def outcome(self, error: BaseException | None) -> str:
        if not isinstance(error, KeyboardInterrupt):
            return "swallowed" if error is None else outcome_of_error(error)
        try:
            with self.folder as folder:
                went_on = self.trained(Path(folder))
        except Exception as problem:
            return f"cannot go on: {type(problem).__name__}"
        return "goes on bit for bit" if torch.equal(went_on, self.expected) else "torn"


@cache
def runs() -> dict[Any, list[Place]]:
    """Runs that are interrupted, with the places of their moments."""
    return followed(
        *(Running("relu-stack, kinks", "fused", history) for history in (True, False, 3)),
        *(Running(name, "fused", False) for name in ("relu-stack, adam", "relu-stack, momentum")),
        *(Running(name, "fused", 2) for name in ("functional", "cot-network", "linear-stack")),
        *(Running(name, "dense", True) for name in ("softmax-stack", "functional")),
    )


@cache
def uses_of_files() -> dict[Any, list[Place]]:
    """A save and a load, with the places of their moments."""
    return followed(Saving("relu-stack"), Loading("relu-stack"))


@cache
def long_works() -> dict[Any, list[Place]]:
    """A proof and a training, with the places of their moments."""
    return followed(Verifying(), Training())


def followed(*works: Any) -> dict[Any, list[Place]]:
    """The places of all moments of works that were done before, so that caches are filled."""
    found = {}
    for work in works:
        for _ in range(2):
            error, found[work] = interrupted(work, 0)
            assert error is None
    return found


def interrupted(work: Any, moment: int) -> tuple[BaseException | None, list[Place]]:
    """What the work raises, and where its moments were."""
    if hasattr(work, "prepare"):
        work.prepare()
    places: list[Place] = []
    try:
        with interrupted_at(moment) as places:
            work.work()
    except BaseException as error:
        return error, places
    return None, places


def moments_of(places: Sequence[Place], n: int, random: Random) -> Sequence[int]:
    """Every moment, if there are no more than n; else the first and the last one at every place.

    If those are more than n too, n of them are drawn.
    """
    if len(places) <= n:
        return range(1, len(places) + 1)
    last = {place: moment for moment, place in enumerate(places, start=1)}
    first = {place: len(places) - back for back, place in enumerate(reversed(places))}
    ends = sorted({*first.values(), *last.values()})
    return ends if len(ends) <= n else sorted(random.sample(ends, n))


def interrupts(works: Callable[[], dict[Any, list[Place]]], n: int) -> Iterator[tuple[str, str]]:
    """Each work is interrupted at every place; at every moment, if it has no more than n."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for work, places in works().items():
            for moment in moments_of(places, n, Random(str(work))):
                error, visited = interrupted(work, moment)
                if len(visited) < moment:  # caches made the work shorter: it was over
                    continue
                is_left = torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
                outcome = work.outcome(error) if is_left else "gradients stay off"
                yield f"{work}, moment {moment}", outcome


def test_a_work_of_many_moments_is_interrupted_at_the_first_and_the_last_of_every_place():
    code = (lambda: None).__code__
    places = [(code, offset) for offset in (0, 2, 2, 2, 4, 2, 6)]
    assert list(moments_of(places, 7, Random(0))) == [1, 2, 3, 4, 5, 6, 7]
    assert list(moments_of(places, 6, Random(0))) == [1, 2, 5, 6, 7]
    assert len(set(moments_of(places, 3, Random(0))) & {1, 2, 5, 6, 7}) == 3


RUNS = Campaign(
    name="interrupted_runs",
    title="Ctrl-C at every moment of eight runs, and at every bytecode of two longer ones",
    sample=3,
    whole=13_000,
    allowed={
        "a whole step": "the error holds the run up to a step, and names the step",
        "before the first step": "nothing was learnt yet",
        "after the last step": "the run is being handed over",
    },
    cases=partial(interrupts, runs),
)

FILES = Campaign(
    name="interrupted_files",
    title="Ctrl-C at every bytecode of a save and of a load",
    sample=3,
    whole=5_000,
    allowed={"files whole": "the file is the old or the new one, and there is no other"},
    cases=partial(interrupts, uses_of_files),
)

LONG = Campaign(
    name="interrupted_work",
    title="Ctrl-C at every bytecode of a proof and of a training",
    sample=3,
    whole=5_000,
    allowed={
        "no report": "the proof can be asked for again",
        "goes on bit for bit": "training goes on, and ends with the weights of one that was whole",
    },
    cases=partial(interrupts, long_works),
)


@both_sizes
def test_an_interrupted_run_leaves_whole_steps(whole):
    RUNS.carry_out(whole=whole)


@both_sizes
def test_interrupted_uses_of_files_leave_whole_files(whole):
    FILES.carry_out(whole=whole)


@both_sizes
def test_interrupted_proofs_and_trainings_can_be_asked_for_again(whole):
    LONG.carry_out(whole=whole)

"""One small loop for every learnt model: Adam, clipped gradients, batches drawn on the fly.

Everything that a step depends on follows from its number and from what a checkpoint holds. So a
training that is killed, at whatever moment, ends with the same bits as one that is not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from math import cos, inf, isfinite, pi
from pathlib import Path

from torch import nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import Adam

from icgd.backends.run import OnProgress
from icgd.errors import FileError, SettingError, TrainingError, UnknownNameError
from icgd.problems.arrays import dtype_named
from icgd.problems.settings import count, positive
from icgd.training.checkpoints import Checkpoints, Configuration, State, restore, tensors_of
from icgd.training.logs import EventFile, Log, write_csv, write_json
from icgd.training.parallel import Processes, device_named, joined
from icgd.training.tasks import LARGEST_SEED, AbstractTask, Batch

DEVICES = ("cpu", "cuda", "auto")

Measure = Callable[[nn.Module], Mapping[str, float]]
"""A function that measures further columns of the log on the model at a step."""


@dataclass(frozen=True)
class Settings:
    """How a model is trained.

    A new batch of `batch_size` tasks, in all processes together, is drawn every `resample_every`
    steps. The learning rate falls along a half cosine to `final_learning_rate`; without one it is
    constant. Gradients longer than `clip_norm` are shortened to it. The log has a row every
    `log_every` steps and one for the last step. Training stops after `patience` rows without a
    smaller loss.
    """

    n_steps: int
    batch_size: int
    learning_rate: float
    clip_norm: float | None = None
    resample_every: int = 1
    seed: int = 0
    final_learning_rate: float | None = None
    log_every: int = 100
    checkpoint_every: int = 1000
    patience: int | None = None
    device: str = "cpu"
    dtype: str = "float32"

    def __post_init__(self) -> None:
        for name in ("n_steps", "batch_size", "resample_every", "log_every", "checkpoint_every"):
            count(name, getattr(self, name))
        count("seed", self.seed, least=0, most=LARGEST_SEED)
        positive("learning_rate", self.learning_rate)
        for name in ("clip_norm", "final_learning_rate"):
            if getattr(self, name) is not None:
                positive(name, getattr(self, name))
        if self.patience is not None:
            count("patience", self.patience)
        if self.device not in DEVICES:
            raise UnknownNameError.of("device", self.device, known=DEVICES)
        dtype_named(self.dtype)

    def learning_rate_at(self, step: int) -> float:
        """The learning rate of the update that follows `step` updates."""
        if self.final_learning_rate is None:
            return self.learning_rate
        above = self.learning_rate - self.final_learning_rate
        return self.final_learning_rate + above * (1 + cos(pi * step / self.n_steps)) / 2


def train(
    model: nn.Module,
    task: AbstractTask,
    settings: Settings,
    *,
    folder: Path | None = None,
    measure: Measure | None = None,
    on_progress: OnProgress | None = None,
    tensorboard: bool = False,
) -> Log:
    """Train `model` in place.

    With a `folder`, checkpoints and logs are kept there, and an interrupted training continues
    where it stopped; under torchrun every process must see that folder. `measure` adds columns to
    the log. The forward pass must draw no random numbers.
    """
    if tensorboard and folder is None:
        raise SettingError.without("tensorboard", "folder")
    device = device_named(settings.device)
    model.to(device, dtype_named(settings.dtype)).train()
    training = _Training(
        model, task, replace(settings, device=device.type), joined(device), measure
    )
    if folder is None:
        _take_steps(training, None, on_progress)
    else:
        with _Record(training, folder, tensorboard=tensorboard) as record:
            _take_steps(training, record, on_progress)
    return training.log


def _take_steps(
    training: _Training, record: _Record | None, on_progress: OnProgress | None
) -> None:
    """Train to the end. A state is saved only after its loss and gradient were found finite."""
    while not training.is_over:
        training.evaluate()
        if record and (training.is_over or training.step % training.settings.checkpoint_every == 0):
            record.save()
        if training.is_over:
            return
        training.update()
        if on_progress:
            on_progress(training.step, training.settings.n_steps)


class _Training:
    """A model after `step` updates, with the log so far."""

    def __init__(
        self,
        model: nn.Module,
        task: AbstractTask,
        settings: Settings,
        processes: Processes,
        measure: Measure | None,
    ) -> None:
        self.model, self.task, self.settings = model, task, settings
        self.processes, self.measure = processes, measure
        self.share = processes.share_of(settings.batch_size)
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        if not self.parameters:
            raise TrainingError.nothing_to_train(type(model).__name__)
        processes.copy_from_first(list(model.state_dict().values()))
        self.optimizer = Adam(self.parameters, lr=settings.learning_rate)
        self.step, self.log, self.is_over = 0, Log(), False
        self._batch: tuple[int, Batch] | None = None

    def configuration(self) -> Configuration:
        """What must be the same for a training to continue."""
        describe = getattr(self.model, "description", None)
        shapes = {name: list(tensor.shape) for name, tensor in self.model.state_dict().items()}
        return {
            "settings": asdict(self.settings),
            "task": self.task.description(),
            "model": describe() if describe else type(self.model).__name__,
            "parameters": shapes,
            "n_processes": self.processes.count,
        }

    def state(self) -> State:
        return State(self.step, tensors_of(self.model, self.optimizer), self.log)

    def resume(self, state: State) -> None:
        """Continue from a state. The row of its step is measured again, with the same result."""
        restore(state.tensors, self.model, self.optimizer)
        self.step, self.log = state.step, state.log
        self.is_over = self._ends()
        if not self.is_over:
            self.log = state.log.before(state.step)

    def evaluate(self) -> None:
        """Find the gradient, and add a row to the log if one is due."""
        is_last = self.step == self.settings.n_steps
        is_logged = is_last or self.step % self.settings.log_every == 0
        measured = self.measure(self.model) if is_logged and self.measure else {}
        loss, norm = self._gradient()
        if is_logged:
            rate = self.settings.learning_rate_at(self.step)
            own = {"step": float(self.step), "loss": loss}
            own |= {"learning_rate": rate, "gradient_norm": norm}
            if taken := own.keys() & measured.keys():
                raise TrainingError.taken_column(min(taken))
            self.log = self.log.with_row({**own, **measured})
            self.is_over = self._ends()

    def _gradient(self) -> tuple[float, float]:
        """Compute the clipped gradient; return the loss, and the norm before clipping."""
        self.optimizer.zero_grad()
        loss = self.task.loss(self.model, self._current_batch())
        loss.backward()
        loss = loss.detach().reshape(1)
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        self.processes.average([loss, *gradients])
        norm = float(clip_grad_norm_(self.parameters, self.settings.clip_norm or inf))
        for name, value in (("loss", float(loss)), ("gradient's norm", norm)):
            if not isfinite(value):
                raise TrainingError.diverged(name, value, self.step)
        return float(loss), norm

    def _current_batch(self) -> Batch:
        index = self.step // self.settings.resample_every
        if self._batch is None or self._batch[0] != index:
            place = {"seed": self.settings.seed, "index": index, "shard": self.processes.rank}
            drawn, like = self.task.sample(self.share, **place), self.parameters[0]
            self._batch = index, drawn.to(like.device, like.dtype)
        return self._batch[1]

    def _ends(self) -> bool:
        """Whether the last row of the log ends the training."""
        losses = self.log.column("loss")
        patience = self.settings.patience or len(losses)
        stalled = len(losses) > patience and min(losses[-patience:]) >= min(losses[:-patience])
        return stalled or bool(losses and self.log.rows[-1]["step"] == self.settings.n_steps)

    def update(self) -> None:
        """Take one step of Adam with the gradient that is in place."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.settings.learning_rate_at(self.step)
        self.optimizer.step()
        self.step += 1


class _Record:
    """The files of a training, which its first process writes."""

    def __init__(self, training: _Training, folder: Path, *, tensorboard: bool) -> None:
        self.training, self.folder = training, folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as problem:
            raise FileError.unwritable(folder, problem.strerror or str(problem)) from None
        self.checkpoints = Checkpoints(folder, training.configuration())
        state = self.checkpoints.load()
        if state is not None:
            training.resume(state)
        training.processes.wait()  # nobody writes while another still reads
        self.writes = training.processes.rank == 0
        has_events = tensorboard and self.writes and not training.is_over
        self.events = EventFile(folder, training.step) if has_events else None

    def save(self) -> None:
        """Save events before the checkpoint, which counts them as logged."""
        if self.writes:
            if self.events:
                self.events.write(self.training.log)
            self.checkpoints.save(self.training.state())
            self._write_logs()

    def _write_logs(self) -> None:
        write_csv(self.training.log, self.folder / "log.csv")
        write_json(self.training.log, self.folder / "log.json")

    def __enter__(self) -> _Record:
        return self

    def __exit__(self, problem: type[BaseException] | None, *_: object) -> None:
        """Write the whole log, also if training diverged: its last rows tell why."""
        if self.events:
            self.events.close()
        if self.writes and (problem is None or issubclass(problem, TrainingError)):
            self._write_logs()
            self.checkpoints.tidy()

"""The training loop of every learnt model: an optimizer of torch, batches drawn on the fly.

All that a step depends on follows from its number and from what a checkpoint holds. So a training
that is killed, at any moment, ends with the same bits as one that is not.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from math import inf, isfinite, isnan
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim.lr_scheduler import LambdaLR

from icgd.environment import own_modes
from icgd.errors import (
    InterruptedTrainingError,
    RunFolderError,
    SettingError,
    TrainingError,
    quoted,
)
from icgd.problems.data import dtype_named
from icgd.weights.files import whole_file
from icgd_papers.training.callbacks import Callback
from icgd_papers.training.checkpoints import (
    BEST,
    Checkpoints,
    Configuration,
    State,
    locked,
    read_checkpoint,
    restore,
    tensors_of,
)
from icgd_papers.training.devices import new_fabric
from icgd_papers.training.logs import Log, write_csv, write_json
from icgd_papers.training.settings import Settings as Settings
from icgd_papers.training.tasks import VALIDATION_INDEX, AbstractTask, Batch

OnStep = Callable[[int, int, float], None]
"""Called after every step with its number, the number of steps, and the loss before it."""

Measure = Callable[[nn.Module], Mapping[str, float]]
"""Measures further columns of the log on the model."""

FEW_TASKS = 64
"""The size of the batch that a model is shown when it is asked whether it fits into memory."""


def train(
    model: nn.Module,
    task: AbstractTask,
    settings: Settings,
    *,
    folder: Path | str | None = None,
    measure: Measure | None = None,
    on_step: OnStep | None = None,
    callbacks: Sequence[Callback] = (),
    texts: Mapping[str, str] | None = None,
) -> Log:
    """Train `model` in place.

    The forward pass must draw no random numbers. Under torchrun every process must see the folder.

    Args:
        model: the model; it maps the inputs and labels of a batch to predictions.
        task: where batches are drawn from.
        settings: the number of steps, batches, learning rates, precision and device.
        folder: where checkpoints and logs are kept; an interrupted training resumes there.
        measure: adds columns to the log, measured on the model.
        on_step: called with the step, the number of steps and the loss.
        callbacks: receive every row of the log.
        texts: files that the folder gets too, by name.

    Returns:
        The log, with a row every `settings.log_every` steps.

    Raises:
        InterruptedTrainingError: which is a KeyboardInterrupt, after Ctrl-C: the step that was
            under way is finished, and a folder has its checkpoint.
        TrainingError: if there is nothing to train, or if the loss is not finite any more.
        CheckpointError: if the folder holds a training with other settings, or a damaged one.
        RunFolderError: if another process trains in the folder, or if training would replace files
            there that it did not write.
        MissingExtraError: if Lightning Fabric is not installed.

    Example:
        >>> import torch
        >>> from icgd_papers.training import Gaussian, InContextTask
        >>> from icgd_papers.training import KernelTransformer, LinearFunctions
        >>> from icgd_papers.training import Settings, train
        >>> law = Gaussian(torch.eye(2, dtype=torch.float64))
        >>> task = InContextTask(law, LinearFunctions(), n_examples=8)
        >>> model = KernelTransformer(2, 1, ("linear",), transforms_covariates=False, seed=0)
        >>> log = train(model, task, Settings(n_steps=3, batch_size=8, learning_rate=0.02))
        >>> len(log.rows)  # before the first step, and after the last
        2
    """
    with own_modes(exact_products=False), torch.enable_grad():
        run = TrainingRun(model, task, settings, measure)
        run.require_memory()
        if folder is None:
            _take_steps(run, None, on_step, callbacks)
            return run.log
        files = _Files(Path(folder), run, texts or {})
        with locked(files.folder) if files.writes else nullcontext():
            files.resume()
            try:
                _take_steps(run, files, on_step, callbacks)
            except TrainingError:
                files.write_log()  # its last rows tell why training failed
                raise
    return run.log


def _take_steps(
    run: TrainingRun, files: _Files | None, on_step: OnStep | None, callbacks: Sequence[Callback]
) -> None:
    """Train to the end, or to the end of the step in which Ctrl-C is pressed."""
    # Several processes must take the same steps: if one stopped, the others would wait forever.
    is_alone = run.fabric.world_size == 1
    try:
        with _postponed_interrupt() if is_alone else nullcontext(lambda: False) as is_interrupted:
            while not run.is_over:
                loss, is_new_row = run.evaluate()
                if is_new_row and run.fabric.is_global_zero:
                    row = dict(run.log.rows[-1])
                    step = int(row.pop("step"))
                    for callback in callbacks:
                        callback.on_row(step, row)
                is_last = run.is_over or is_interrupted()
                if files:
                    files.save(is_last=is_last)
                if is_last:
                    break
                run.update()
                if on_step:
                    on_step(run.step, run.settings.n_steps, loss)
    finally:
        for callback in callbacks:
            callback.on_end()
    if is_interrupted():  # asked only now, so no Ctrl-C comes too late to be noticed
        resume = "Nothing was saved; give a folder to be able to resume."
        if files:
            resume = (
                f"The checkpoint of this step is in {files.folder}; run the same training again to "
                "resume."
            )
        raise InterruptedTrainingError(
            f"Training was interrupted after {run.step} of {run.settings.n_steps} steps. {resume}"
        )


@contextmanager
def _postponed_interrupt() -> Iterator[Callable[[], bool]]:
    """Only note the first Ctrl-C; a second one interrupts at once, as usual.

    Nothing changes in a thread, which receives no signals, or if the program has its own handler.
    """
    usual = signal.getsignal(signal.SIGINT)
    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or usual is not signal.default_int_handler:
        yield lambda: False
        return
    pressed = threading.Event()

    def note(*_: object) -> None:
        pressed.set()
        signal.signal(signal.SIGINT, usual)

    signal.signal(signal.SIGINT, note)
    try:
        yield pressed.is_set
    finally:
        signal.signal(signal.SIGINT, usual)


class TrainingRun:
    """A model after `step` updates, with the log so far."""

    def __init__(
        self, model: nn.Module, task: AbstractTask, settings: Settings, measure: Measure | None
    ) -> None:
        self.fabric = new_fabric(settings.device, settings.precision)
        self.device, self.dtype = self.fabric.device, dtype_named(settings.dtype)
        self.settings = replace(settings, device=self.device.type)
        self.model, self.task, self.measure = model, task, measure
        model.to(self.device, self.dtype).train()
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        if not self.parameters:
            raise TrainingError(
                f"{type(model).__name__} has no parameter that requires a gradient; there is "
                "nothing to train."
            )
        self.n_drawn, self.n_at_once = _shares(settings, self.fabric.world_size)
        if self.fabric.world_size > 1:  # all processes begin with the weights of the first
            for tensor in model.state_dict().values():
                dist.broadcast(tensor, src=0)
        self.optimizer = settings.new_optimizer(self.parameters)
        self.schedule = LambdaLR(self.optimizer, settings.learning_rate_at)
        self.step, self.log, self.is_over = 0, Log(), False
        self.is_best, self._smallest = False, inf
        self._buffers: dict[str, Tensor] = {}
        self._batch: tuple[int, Batch] | None = None
        self._validation: list[Batch] | None = None

    def require_memory(self) -> None:
        """Let the task refuse the model, and a model that has a method `require` the batches.

        The model is shown a few tasks, which also reveals laws that nothing can be drawn from, and
        told how many it will have to take at once.
        """
        self.task.require(self.model)
        require = getattr(self.model, "require", None)
        if require is not None:
            n_tasks = min(self.n_at_once, FEW_TASKS)
            few = self.task.sample(n_tasks, seed=self.settings.seed, index=VALIDATION_INDEX)
            require(few, self.n_at_once)

    def configuration(self) -> Configuration:
        """Return what must be the same for a training to resume."""
        describe = getattr(self.model, "description", None)
        shapes = {name: list(tensor.shape) for name, tensor in self.model.state_dict().items()}
        return {
            "settings": asdict(self.settings),
            "task": self.task.description(),
            "model": describe() if describe else type(self.model).__name__,
            "parameters": shapes,
            "n_processes": self.fabric.world_size,
        }

    def state(self) -> State:
        return State(self.step, tensors_of(self.model, self.optimizer), self.log)

    def resume(self, state: State, best: Log) -> None:
        """Continue from a state; `best` is the log up to the best state so far.

        A longer training drops the last row of a shorter one if no row is due there.
        """
        restore(state.tensors, self.model, self.optimizer)
        for group in self.optimizer.param_groups:
            group["initial_lr"] = 1.0
        self.schedule = LambdaLR(
            self.optimizer, self.settings.learning_rate_at, last_epoch=state.step - 1
        )
        self.step, self.log = state.step, state.log
        self._smallest = min(self._losses(best), default=inf)
        self.is_over = self._ends()
        if not self.is_over and not self._is_row_due():
            self.log = state.log.before(state.step)

    def _is_row_due(self) -> bool:
        return self.step == self.settings.n_steps or self.step % self.settings.log_every == 0

    def evaluate(self) -> tuple[float, bool]:
        """Compute the gradient, and add a row to the log if one is due and not there yet.

        Returns the loss and whether a row was added. Forward passes may change buffers, as batch
        norm does. What the gradient's pass made of them is kept aside until the update, so that a
        state belongs to its step.
        """
        is_new_row = self._is_row_due() and not (
            self.log.rows and self.log.rows[-1]["step"] == self.step
        )
        self.is_best = False
        before = self._copied_buffers()
        measured = dict(self.measure(self.model)) if is_new_row and self.measure else {}
        is_validated = is_new_row and self.settings.n_validation > 0
        validated = {"validation_loss": self._validation_loss()} if is_validated else {}
        self._put_buffers(before)
        loss, norm = self._gradient()
        self._buffers = self._copied_buffers()
        self._put_buffers(before)
        if is_new_row:
            row = {
                "step": float(self.step),
                "loss": loss,
                "learning_rate": float(self.schedule.get_last_lr()[0]),
                "gradient_norm": norm,
                **validated,
            }
            if taken := row.keys() & measured.keys():
                raise TrainingError(
                    f"measure returned {quoted(min(taken))}, a column that the log already has. "
                    "Name it differently."
                )
            self.log = self.log.with_row({**row, **measured})
            judged = self._losses(self.log)[-1]
            self.is_best = is_validated and judged < self._smallest
            self._smallest = min(self._smallest, judged)
            self.is_over = self._ends()
        return loss, is_new_row

    def update(self) -> None:
        """Take a step of the optimizer with the gradient in place."""
        self.optimizer.step()
        self.schedule.step()
        self._put_buffers(self._buffers)
        self.step += 1

    def _copied_buffers(self) -> dict[str, Tensor]:
        return {name: buffer.detach().clone() for name, buffer in self.model.named_buffers()}

    @torch.no_grad()
    def _put_buffers(self, buffers: Mapping[str, Tensor]) -> None:
        for name, buffer in self.model.named_buffers():
            if name in buffers:
                buffer.copy_(buffers[name])

    @torch.no_grad()
    def _validation_loss(self) -> float:
        """Return the mean loss on tasks that training never sees."""
        if self._validation is None:
            drawn = self.task.validation(self.settings.n_validation, seed=self.settings.seed)
            self._validation = drawn.to(self.device, self.dtype).split(self.n_at_once)
        self.model.eval()
        losses = [float(self._loss(part)) * len(part) for part in self._validation]
        self.model.train()
        return sum(losses) / sum(map(len, self._validation))

    def _gradient(self) -> tuple[float, float]:
        """Compute the clipped gradient; return the loss, and the norm before clipping."""
        index = self.step // self.settings.resample_every
        if self._batch is None or self._batch[0] != index:
            drawn = self.task.sample(
                self.n_drawn, seed=self.settings.seed, index=index, shard=self.fabric.global_rank
            )
            self._batch = index, drawn.to(self.device, self.dtype)
        self.optimizer.zero_grad()
        losses = []
        for part in self._batch[1].split(self.n_at_once):
            loss = self._loss(part) / self.settings.accumulate
            loss.backward()
            losses.append(loss.detach().reshape(1))
        total = torch.stack(losses).sum(0)
        if self.fabric.world_size > 1:
            self._average([total, *(p.grad for p in self.parameters if p.grad is not None)])
        norm = float(clip_grad_norm_(self.parameters, self.settings.clip_norm or inf))
        for name, value in (("loss", float(total)), ("norm of the gradient", norm)):
            if not isfinite(value):
                raise TrainingError(
                    f"The {name} is {value} at step {self.step}; training has stopped, and the "
                    "last checkpoint is kept. Lower learning_rate or clip_norm, or train with "
                    "dtype='float64'."
                )
        return float(total), norm

    def _loss(self, batch: Batch) -> Tensor:
        if self.settings.autocast:
            # Torch keeps rounded weights until the outermost block of autocast ends. If that is
            # the caller's, it would not notice that a step has moved the weights.
            torch.clear_autocast_cache()
        with self.fabric.autocast():
            return self.task.loss(self.model, batch).to(self.dtype)

    def _average(self, tensors: Sequence[Tensor]) -> None:
        """Replace tensors by their means over the processes, in one message."""
        vector = torch.cat([tensor.flatten() for tensor in tensors])
        means = self.fabric.all_reduce(vector, reduce_op="mean")
        for tensor, mean in zip(
            tensors, means.split([tensor.numel() for tensor in tensors]), strict=True
        ):
            tensor.copy_(mean.view_as(tensor))

    def _losses(self, log: Log) -> list[float]:
        """Return the losses that decide what is best, row by row, with infinity for NaN."""
        losses = log.column("validation_loss" if self.settings.n_validation else "loss")
        return [inf if isnan(loss) else loss for loss in losses]

    def _ends(self) -> bool:
        """Return whether the last row of the log ends the training."""
        losses = self._losses(self.log)
        patience = self.settings.patience or len(losses)
        stalled = len(losses) > patience and min(losses[-patience:]) >= min(losses[:-patience])
        return stalled or bool(losses and self.log.rows[-1]["step"] == self.settings.n_steps)


def _shares(settings: Settings, n_processes: int) -> tuple[int, int]:
    """Return how many tasks of a batch a process draws, and how many it computes on at once."""
    n_drawn, rest = divmod(settings.batch_size, n_processes)
    if rest:
        raise SettingError(
            f"batch_size={settings.batch_size} cannot be shared evenly by {n_processes} processes. "
            f"Give a multiple of {n_processes}."
        )
    n_at_once, rest = divmod(n_drawn, settings.accumulate)
    if rest:
        raise SettingError(
            f"accumulate={settings.accumulate} does not divide the {n_drawn} tasks that a process "
            "takes in a step. Give a batch_size that is a multiple of it for each process."
        )
    return n_drawn, n_at_once


class _Files:
    """The folder of a training, which its first process writes: checkpoints, logs and texts."""

    def __init__(self, folder: Path, run: TrainingRun, texts: Mapping[str, str]) -> None:
        self.folder, self.run, self.texts = folder, run, texts
        self.writes: bool = run.fabric.is_global_zero
        self.checkpoints = Checkpoints(folder, run.configuration())

    def resume(self) -> None:
        """Continue from the newest checkpoint.

        Checkpoints are written before logs and texts, so without one such files belong to someone
        else and are not replaced, except a text by one that begins with the same line.
        """
        state = self.checkpoints.load()
        if state is not None:
            self.run.resume(state, self.checkpoints.best_log())
        else:
            for name, text in {"log.csv": "", "log.json": "", **self.texts}.items():
                if not _may_replace(self.folder / name, text):
                    raise RunFolderError(
                        f"{self.folder / name} was not written by a training of icgd, which would "
                        "replace it. Nothing was changed; move that file away, or train in another "
                        "folder."
                    )
            if self.run.settings.n_validation and (self.folder / BEST).exists():
                read_checkpoint(self.folder / BEST)
        self.run.fabric.barrier()  # no process writes while another one still reads
        if self.run.is_over:  # a kill may have come between the last checkpoint and its log
            self.write_log()

    def save(self, *, is_last: bool) -> None:
        """Save the state if it is the best so far, and a checkpoint with the log if one is due.

        The loss and gradient of the state are finite, or evaluating it would have failed.
        """
        is_due = is_last or self.run.step % self.run.settings.checkpoint_every == 0
        if self.writes and self.run.is_best:
            self.checkpoints.save_best(self.run.state())
        if self.writes and is_due:
            self.checkpoints.save(self.run.state())
            self.write_log()

    def write_log(self) -> None:
        """Write the log and the texts, unless training failed before its first checkpoint."""
        if not self.writes or not self.run.log.rows:
            return
        write_csv(self.run.log, self.folder / "log.csv")
        write_json(self.run.log, self.folder / "log.json")
        for name, text in self.texts.items():
            with whole_file(self.folder / name) as temporary:
                temporary.write_text(text, encoding="utf-8")
        self.texts = {}  # which do not change
        self.checkpoints.tidy()


def _may_replace(path: Path, text: str) -> bool:
    """Return whether there is no such file, or one that begins with the same line."""
    if not path.is_file():
        return not path.exists()
    with path.open(encoding="utf-8", errors="replace") as file:
        return bool(text) and file.readline() == text.partition("\n")[0] + "\n"

"""A model on its way through training: its step, its gradient, its log.

Everything that a step depends on follows from its number and from what a checkpoint holds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from math import inf, isfinite, isnan

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from icgd.errors import TrainingError, brief
from icgd_papers.training.buffers import Buffers, copied_buffers, put_buffers
from icgd_papers.training.checkpoints import Configuration, State, restore, tensors_of
from icgd_papers.training.devices import Device
from icgd_papers.training.logs import Log, Row
from icgd_papers.training.parallel import Processes
from icgd_papers.training.settings import Settings
from icgd_papers.training.tasks import VALIDATION_INDEX, AbstractTask, Batch

Measure = Callable[[nn.Module], Mapping[str, float]]
"""A function that measures further columns of the log on the model at a step."""

FEW_TASKS = 64
"""So many tasks show what the others are like, and fit into any memory."""


class TrainingRun:
    """A model after `step` updates, with the log so far."""

    def __init__(
        self,
        model: nn.Module,
        task: AbstractTask,
        settings: Settings,
        device: Device,
        processes: Processes,
        measure: Measure | None,
    ) -> None:
        self.model, self.task, self.settings = model, task, settings
        self.device, self.processes, self.measure = device, processes, measure
        self.share = processes.share_of(settings.batch_size)
        self.part = processes.part_of(self.share, settings.accumulate)
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        if not self.parameters:
            raise TrainingError(
                f"{type(model).__name__} has no parameter that requires a gradient; there is "
                "nothing to train."
            )
        processes.copy_from_first(list(model.state_dict().values()))
        self.optimizer = settings.new_optimizer(self.parameters)
        self.step, self.log, self.is_over, self.is_best = 0, Log(), False, False
        self._to_beat = inf
        self._known: Log = Log()
        self._moved: Buffers = {}
        self._batch: tuple[int, Batch] | None = None
        self._validation: list[Batch] | None = None

    def require_room(self) -> None:
        """Let the task refuse the model, and a model that has a method `require` the task.

        The model is given a few tasks of full size, which also tells of laws that nothing can be
        drawn from, and the number of tasks that it will have to take at a time.
        """
        self.task.require(self.model)
        require = getattr(self.model, "require", None)
        if require is not None:
            place = {"seed": self.settings.seed, "index": VALIDATION_INDEX}
            require(self.task.sample(min(self.part, FEW_TASKS), **place), self.part)

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

    def resume(self, state: State, best: Log) -> None:
        """Continue from a state. The row of its step stays, also if it measures otherwise now.

        The last row of `best` is that of the best state that is kept. A longer training may drop
        that row, but nothing worse replaces the state.
        """
        restore(state.tensors, self.model, self.optimizer)
        self.step, self.log = state.step, state.log
        self._to_beat = min(self._judged(best)[-1:], default=inf)
        self.is_over = self._ends()
        if not self.is_over:
            self.log = state.log.before(state.step)
            self._known = Log(state.log.rows[len(self.log.rows) :])

    def evaluate(self) -> float:
        """Find the gradient, and add a row to the log if one is due; return the loss.

        Forward passes may change buffers, as those of batch norm do. What the gradient's pass made
        of them is kept apart until the update, so that a state is that of its step.
        """
        is_last = self.step == self.settings.n_steps
        is_logged = is_last or self.step % self.settings.log_every == 0
        buffers = copied_buffers(self.model)
        measured = self._measured() if is_logged else {}
        put_buffers(self.model, buffers)
        loss, norm = self._gradient()
        self._moved = copied_buffers(self.model)
        put_buffers(self.model, buffers)
        self.is_best = False
        if is_logged:
            rate = self.settings.learning_rate_at(self.step)
            own = {"step": float(self.step), "loss": loss}
            own |= {"learning_rate": rate, "gradient_norm": norm}
            if taken := own.keys() & measured.keys():
                raise TrainingError(
                    f"measure returned {brief(min(taken))}, a column that the log already has. "
                    "Name it differently."
                )
            self.log = self.log.with_row(self._kept({**own, **measured}))
            self.is_best = self._is_best()
            self.is_over = self._ends()
        return loss

    def _kept(self, row: Row) -> Row:
        """The row that the checkpoint has of this step, if it has one of these columns."""
        known = [old for old in self._known.rows if old["step"] == row["step"]]
        return known[0] if known and tuple(known[0]) == tuple(row) else row

    def _measured(self) -> dict[str, float]:
        """The validation loss, if there is one, and the columns of `measure`."""
        measured = dict(self.measure(self.model)) if self.measure else {}
        if not self.settings.n_validation:
            return measured
        if "validation_loss" in measured:
            raise TrainingError(
                "measure returned 'validation_loss', a column that the log already has. Name it "
                "differently."
            )
        return {"validation_loss": self._validation_loss(), **measured}

    @torch.no_grad()
    def _validation_loss(self) -> float:
        """The mean loss on tasks that training never sees, part by part."""
        if self._validation is None:
            drawn = self.task.validation(self.settings.n_validation, seed=self.settings.seed)
            self._validation = self._placed(drawn).split(self.part)
        self.model.eval()
        losses = [float(self._loss(part)) * len(part) for part in self._validation]
        self.model.train()
        return sum(losses) / sum(map(len, self._validation))

    def _gradient(self) -> tuple[float, float]:
        """Compute the clipped gradient; return the loss, and the norm before clipping."""
        self.optimizer.zero_grad()
        parts = self._current_batch().split(self.part)
        loss = torch.stack([self._add_gradient(part, len(parts)) for part in parts]).sum(0)
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        self.processes.average([loss, *gradients])
        norm = float(clip_grad_norm_(self.parameters, self.settings.clip_norm or inf))
        for name, value in (("loss", float(loss)), ("gradient's norm", norm)):
            if not isfinite(value):
                raise TrainingError(
                    f"The {name} is {value} at step {self.step}; training has stopped, and the "
                    "last checkpoint is kept. Lower learning_rate or clip_norm, or train with "
                    "dtype='float64'."
                )
        return float(loss), norm

    def _add_gradient(self, part: Batch, n_parts: int) -> Tensor:
        """Add the gradient of one of `n_parts` equal parts; return its share of the loss."""
        loss = self._loss(part) / n_parts
        loss.backward()
        return loss.detach().reshape(1)

    def _loss(self, batch: Batch) -> Tensor:
        with self.device.autocast():
            return self.task.loss(self.model, batch).to(self.parameters[0].dtype)

    def _current_batch(self) -> Batch:
        index = self.step // self.settings.resample_every
        if self._batch is None or self._batch[0] != index:
            place = {"seed": self.settings.seed, "index": index, "shard": self.processes.rank}
            self._batch = index, self._placed(self.task.sample(self.share, **place))
        return self._batch[1]

    def _placed(self, batch: Batch) -> Batch:
        like = self.parameters[0]
        return batch.to(like.device, like.dtype)

    def _judged(self, log: Log) -> list[float]:
        """The losses by which training is judged, row by row; none is worse than no number."""
        losses = log.column("validation_loss" if self.settings.n_validation else "loss")
        return [inf if isnan(loss) else loss for loss in losses]

    def _is_best(self) -> bool:
        *earlier, last = self._judged(self.log)
        return bool(self.settings.n_validation) and last < min([*earlier, self._to_beat])

    def _ends(self) -> bool:
        """Whether the last row of the log ends the training."""
        losses = self._judged(self.log)
        patience = self.settings.patience or len(losses)
        stalled = len(losses) > patience and min(losses[-patience:]) >= min(losses[:-patience])
        return stalled or bool(losses and self.log.rows[-1]["step"] == self.settings.n_steps)

    def update(self) -> None:
        """Take one step of the optimizer with the gradient that is in place."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.settings.learning_rate_at(self.step)
        self.optimizer.step()
        put_buffers(self.model, self._moved)
        self.step += 1

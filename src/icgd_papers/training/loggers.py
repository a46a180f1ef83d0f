"""Loggers: where the rows of a log are sent while a model trains.

A logger sees every row once, in order, also if the training is killed and continues. What it knows
after the last checkpoint is sent again by the training that continues there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, final
from uuid import uuid4

from icgd.errors import MissingExtraError, UnknownNameError
from icgd.weights.files import whole_file
from icgd_papers.training.logs import Log, Row

try:
    from torch.utils.tensorboard import SummaryWriter
except ImportError:  # the extra `train` is not installed
    SummaryWriter = None

try:
    import wandb
except ImportError:  # the extra `wandb` is not installed
    wandb = None

try:
    import mlflow
except ImportError:  # the extra `mlflow` is not installed
    mlflow = None


class AbstractLogger(ABC):
    """What receives the rows of a training that starts, or continues, at step `first_step`.

    A logger of your own implements `append` and, if it holds anything open, `close`. It is made by
    calling its class with the folder of the run, the first step and the configuration.
    """

    def __init__(self, folder: Path, first_step: int, configuration: dict[str, Any]) -> None:
        self.folder, self.configuration = folder, configuration
        self._next = first_step

    @abstractmethod
    def append(self, step: int, row: Row) -> None:
        """Take the numbers that were measured at one step."""

    def flush(self) -> None:  # noqa: B027  a logger may have nothing to flush
        """Bring to the disk what was appended; a checkpoint follows."""

    def close(self) -> None:  # noqa: B027  a logger may have nothing to close
        """End the log."""

    @final
    def write(self, log: Log) -> None:
        """Append the rows that are not there yet."""
        for row in log.rows:
            step = int(row["step"])
            if step >= self._next:
                self.append(step, {name: row[name] for name in row if name != "step"})
                self._next = step + 1
        self.flush()


MakeLogger = Callable[[Path, int, dict[str, Any]], AbstractLogger]
"""The class of a logger, or a function that makes one."""


@final
class TensorBoard(AbstractLogger):
    """TensorBoard's event file.

    Readers drop what an interrupted training wrote at its next first step and later.
    """

    def __init__(self, folder: Path, first_step: int, configuration: dict[str, Any]) -> None:
        super().__init__(folder, first_step, configuration)
        if SummaryWriter is None:
            raise MissingExtraError(
                "Logging for TensorBoard needs tensorboard. Install it with: pip install "
                "'icgd[train]'"
            )
        self._writer = SummaryWriter(str(folder), purge_step=first_step)

    def append(self, step: int, row: Row) -> None:
        for name, value in row.items():
            self._writer.add_scalar(name, value, step)

    def flush(self) -> None:
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


@final
class WeightsAndBiases(AbstractLogger):
    """A run of Weights & Biases, called as the folder. Its own settings say where it is kept.

    Rows that an interrupted training sent already are left out by Weights & Biases itself.
    """

    def __init__(self, folder: Path, first_step: int, configuration: dict[str, Any]) -> None:
        super().__init__(folder, first_step, configuration)
        if wandb is None:
            raise MissingExtraError(
                "Logging to Weights & Biases needs wandb. Install it with: pip install "
                "'icgd[wandb]'"
            )
        known = _kept(folder / "wandb-run.txt", lambda: uuid4().hex)
        self._run = wandb.init(
            dir=str(folder), name=folder.name, id=known, resume="allow", config=configuration
        )

    def append(self, step: int, row: Row) -> None:
        self._run.log(dict(row), step=step)

    def close(self) -> None:
        self._run.finish()


@final
class MLflow(AbstractLogger):
    """A run of MLflow in the experiment "icgd", called as the folder.

    MLflow's own settings (MLFLOW_TRACKING_URI) say where it is kept. A row that an interrupted
    training sent already is sent again with the same values.
    """

    def __init__(self, folder: Path, first_step: int, configuration: dict[str, Any]) -> None:
        super().__init__(folder, first_step, configuration)
        if mlflow is None:
            raise MissingExtraError(
                "Logging to MLflow needs mlflow. Install it with: pip install 'icgd[mlflow]'"
            )
        self._client = mlflow.MlflowClient()
        self._run = _kept(folder / "mlflow-run.txt", self._new_run)

    def _new_run(self) -> str:
        found = self._client.get_experiment_by_name("icgd")
        experiment = found.experiment_id if found else self._client.create_experiment("icgd")
        run = self._client.create_run(experiment, run_name=self.folder.name)
        for name, value in self.configuration["settings"].items():
            self._client.log_param(run.info.run_id, name, value)
        return str(run.info.run_id)

    def append(self, step: int, row: Row) -> None:
        for name, value in row.items():
            self._client.log_metric(self._run, name.replace(",", " "), value, step=step)

    def close(self) -> None:
        self._client.set_terminated(self._run)


LOGGERS: dict[str, MakeLogger] = {
    "tensorboard": TensorBoard,
    "wandb": WeightsAndBiases,
    "mlflow": MLflow,
}
"""The loggers that have a name."""


def loggers_of(chosen: Sequence[str | MakeLogger]) -> list[MakeLogger]:
    """The loggers of these names, or these loggers themselves."""
    return [_logger(each) if isinstance(each, str) else each for each in chosen]


def _logger(name: str) -> MakeLogger:
    if name not in LOGGERS:
        raise UnknownNameError.of("logger", name, known=list(LOGGERS))
    return LOGGERS[name]


def _kept(path: Path, make: Callable[[], str]) -> str:
    """The name in a file, which is made and written if it is not there."""
    if not path.exists():
        with whole_file(path) as temporary:
            temporary.write_text(make(), encoding="utf-8")
    return path.read_text(encoding="utf-8")

import signal
from dataclasses import replace

import pytest

from icgd.errors import InterruptedTrainingError, MissingExtraError, UnknownNameError
from icgd_papers.training import loggers as module
from icgd_papers.training.checkpoints import Checkpoints, State
from tests.papers.training.toy import SETTINGS, train_toy


def scalars(folder, name: str) -> list[tuple[int, float]]:
    """What TensorBoard shows."""
    reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = reading.EventAccumulator(str(folder)).Reload()
    return [(event.step, event.value) for event in events.Scalars(name)]


def test_tensorboard_shows_every_row_once_also_after_an_interruption(tmp_path, monkeypatch):
    """It is stopped between writing the events of steps 4 to 6 and the checkpoint of step 6."""
    pytest.importorskip("tensorboard")
    settings, save = replace(SETTINGS, log_every=1), Checkpoints.save

    def stop(self, state: State) -> None:
        if state.step == 6:
            raise KeyboardInterrupt
        save(self, state)

    monkeypatch.setattr(Checkpoints, "save", stop)
    with pytest.raises(KeyboardInterrupt):
        train_toy(tmp_path, settings, loggers=["tensorboard"])
    monkeypatch.undo()
    assert [step for step, _ in scalars(tmp_path, "first")] == [0, 1, 2, 3, 4, 5, 6]
    _, log = train_toy(tmp_path, settings, loggers=["tensorboard"])
    train_toy(tmp_path, settings, loggers=["tensorboard"])  # finished: nothing is added
    shown = scalars(tmp_path, "first")
    assert [step for step, _ in shown] == [0, 1, 2, 3, 4, 5, 6]
    assert [value for _, value in shown] == pytest.approx(log.column("first"), rel=1e-6)


def test_without_tensorboard_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "SummaryWriter", None)
    with pytest.raises(MissingExtraError, match=r"needs tensorboard\. .*'icgd\[train\]'"):
        train_toy(tmp_path, loggers=["tensorboard"])


def test_unknown_loggers_are_named(tmp_path):
    with pytest.raises(UnknownNameError, match=r"Unknown logger 'tensorbord'; .*'tensorboard'\?"):
        train_toy(tmp_path, loggers=["tensorbord"])


class Wandb:
    """What icgd uses of Weights & Biases."""

    def __init__(self) -> None:
        self.begun, self.rows, self.ends = [], [], 0

    def init(self, **options):
        self.begun.append(options)
        return self

    def log(self, row, step):
        self.rows.append((step, row["loss"]))

    def finish(self):
        self.ends += 1


def stop_at_four(step: int, *_: object) -> None:
    if step == 4:
        signal.raise_signal(signal.SIGINT)


def test_weights_and_biases_continues_its_run(tmp_path, monkeypatch):
    fake = Wandb()
    monkeypatch.setattr(module, "wandb", fake)
    with pytest.raises(InterruptedTrainingError):
        train_toy(tmp_path, loggers=["wandb"], on_step=stop_at_four)
    _, log = train_toy(tmp_path, loggers=["wandb"])
    assert fake.begun[0] == fake.begun[1]
    assert (fake.begun[0]["resume"], len(fake.begun[0]["id"])) == ("allow", 32)
    assert fake.begun[0]["config"]["settings"]["n_steps"] == 6
    assert fake.rows == [(int(row["step"]), row["loss"]) for row in log.rows]
    assert fake.ends == 2


class MlflowFake:
    """What icgd uses of MLflow: a client, experiments, runs, metrics."""

    def __init__(self) -> None:
        self.params, self.metrics, self.runs, self.ends = {}, [], [], []
        self.info, self.run_id = self, "run-1"

    def MlflowClient(self):  # noqa: N802  MLflow's name
        return self

    def get_experiment_by_name(self, name):
        return None

    def create_experiment(self, name):
        return name

    def create_run(self, experiment, run_name):
        self.runs.append((experiment, run_name))
        return self

    def log_param(self, run, name, value):
        self.params[name] = value

    def log_metric(self, run, name, value, step):
        self.metrics.append((run, name, value, step))

    def set_terminated(self, run):
        self.ends.append(run)


def test_mlflow_has_one_run_for_a_folder(tmp_path, monkeypatch):
    fake = MlflowFake()
    monkeypatch.setattr(module, "mlflow", fake)
    with pytest.raises(InterruptedTrainingError):
        train_toy(tmp_path / "run", loggers=["mlflow"], on_step=stop_at_four)
    _, log = train_toy(tmp_path / "run", loggers=["mlflow"])
    assert fake.runs == [("icgd", "run")]
    assert fake.params["learning_rate"] == 0.1
    losses = [(value, step) for run, name, value, step in fake.metrics if name == "loss"]
    assert losses == [(row["loss"], int(row["step"])) for row in log.rows]
    assert fake.ends == ["run-1", "run-1"]

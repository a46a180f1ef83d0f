import json
import os
import random
import re
import signal
import time
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from math import cos, nan, pi
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch.optim import Adam

from icgd.errors import (
    CheckpointError,
    FileError,
    InterruptedTrainingError,
    RunFolderError,
    SettingError,
    TrainingError,
)
from icgd_papers.training.loop import Settings, train
from tests.papers.training.decoders import trained_decoder
from tests.papers.training.toy import (
    KILLED,
    SETTINGS,
    ToyModel,
    ToyTask,
    end_at,
    files_of,
    forked,
    measure,
    train_toy,
)

FLOAT64 = replace(SETTINGS, dtype="float64", n_steps=1, clip_norm=None, final_learning_rate=None)


def gradient_at_start() -> torch.Tensor:
    """Of the mean of (<w, x> + b - y)^2: the mean of 2 (<w, x> + b - y) (x, 1)."""
    batch = ToyTask().sample(8, seed=0, index=0)
    x = torch.cat([batch.x[:, -1], torch.ones(8, 1, dtype=torch.float64)], dim=1)
    start = torch.tensor([0.5, 0.25, 0.1], dtype=torch.float64)
    start[2] = ToyModel().bias.double()  # 0.1 in float32
    return 2 * ((x @ start - batch.y[:, -1])[:, None] * x).mean(0)


def all_parameters(model: ToyModel) -> torch.Tensor:
    return torch.cat([model.weight, model.bias[None]]).detach()


def test_one_step_is_adams():
    """The first step has length learning_rate * |g| / (|g| + epsilon) in every coordinate."""
    model, log = train_toy(None, FLOAT64)
    gradient = gradient_at_start()
    expected = all_parameters(ToyModel().double()) - 0.1 * gradient / (gradient.abs() + 1e-8)
    torch.testing.assert_close(all_parameters(model), expected, rtol=1e-14, atol=1e-14)
    assert log.rows[0]["gradient_norm"] == pytest.approx(gradient.norm().item(), rel=1e-14)
    assert model.idle.item() == 1.0


def test_a_long_gradient_is_shortened_to_the_norm_and_a_short_one_is_left():
    """Adam's first moment after one step is 0.1 times the gradient that it was given."""
    gradient = gradient_at_start()
    for clip, factor in ((0.5, 0.5 / (gradient.norm() + 1e-6)), (1e3, 1.0)):
        seen: list[torch.Tensor] = []
        step = Adam.step

        def spy(self, *, seen=seen, step=step):
            seen.append(torch.cat([p.grad.flatten() for p in self.param_groups[0]["params"][:2]]))
            return step(self)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Adam, "step", spy)
            _, log = train_toy(None, replace(FLOAT64, clip_norm=clip))
        torch.testing.assert_close(seen[0], gradient * factor, rtol=1e-14, atol=0)
        assert log.rows[0]["gradient_norm"] == pytest.approx(gradient.norm().item(), rel=1e-14)


def test_the_loop_is_the_plain_loop_of_torch():
    """Batch step // 4, clipping, cosine, Adam: the same bits as written out by hand."""
    model, task = ToyModel(), ToyTask()
    optimizer = Adam([model.weight, model.bias], lr=0.1)
    losses = []
    for step in range(7):
        batch = task.sample(8, seed=0, index=step // 4)
        loss = task.loss(model, batch.to("cpu", torch.float32))
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_([model.weight, model.bias], 1.0)
        optimizer.param_groups[0]["lr"] = 0.01 + (0.1 - 0.01) * (1 + cos(pi * step / 6)) / 2
        if step < 6:
            optimizer.step()
    trained, log = train_toy(None)
    assert torch.equal(all_parameters(trained), all_parameters(model))
    assert log.column("loss") == [losses[0], losses[3], losses[6]]
    assert log.column("step") == [0.0, 3.0, 6.0]
    assert log.column("learning_rate") == pytest.approx([0.1, 0.055, 0.01], rel=1e-15)
    assert log.column("first")[0] == 0.5


def test_training_learns_the_labels():
    model, log = train_toy(None, Settings(400, 16, 0.05, final_learning_rate=1e-4))
    assert model.weight.tolist() == pytest.approx([1.0, -2.0], abs=1e-3)
    assert log.rows[-1]["loss"] < 1e-5 < log.rows[0]["loss"]


def test_it_stops_when_the_loss_has_not_fallen_for_so_many_rows(tmp_path):
    """One batch, and steps so long that the loss only grows after its first row."""
    settings = Settings(50, 8, 100.0, resample_every=50, log_every=2, patience=3)
    model, log = train_toy(tmp_path, settings)
    assert log.column("step") == [0.0, 2.0, 4.0, 6.0]
    again, same = train_toy(tmp_path, settings)  # it stays stopped
    assert same == log
    assert torch.equal(again.weight, model.weight)


def test_a_loss_that_falls_runs_on_and_an_equal_one_counts_as_no_better():
    falling = Settings(30, 8, 1e-3, resample_every=50, log_every=1, patience=1)
    assert len(train_toy(None, falling)[1].rows) == 31
    equal = replace(falling, learning_rate=1e-30, patience=4)
    assert len(train_toy(None, equal)[1].rows) == 5


class FailingTask(ToyTask):
    """Its loss is NaN from the second batch on, which is step 4."""

    def loss(self, model, batch):
        loss = super().loss(model, batch)
        second = ToyTask().sample(8, seed=0, index=1).to("cpu", torch.float32)
        return loss * nan if torch.equal(batch.x, second.x) else loss


class SteepTask(ToyTask):
    """Its loss is 0 at first, but the gradient of the square root there is infinite."""

    def loss(self, model, batch):
        return (model.weight[0] - 0.5).square().sqrt() + 0.0 * super().loss(model, batch)


def test_a_loss_that_is_no_number_stops_and_keeps_the_last_good_checkpoint(tmp_path):
    with pytest.raises(TrainingError, match=r"The loss is nan at step 4; training has stopped"):
        train(ToyModel(), FailingTask(), SETTINGS, folder=tmp_path, measure=measure)
    assert "checkpoint-000000003.safetensors" in files_of(tmp_path)
    assert (tmp_path / "log.csv").read_text().count("\n") == 3  # titles, steps 0 and 3
    model, _ = train_toy(tmp_path)
    assert torch.equal(model.weight, train_toy(None)[0].weight)


def test_a_gradient_that_is_no_number_stops_too():
    with pytest.raises(TrainingError, match=r"The gradient's norm is nan at step 0;"):
        train(ToyModel(), SteepTask(), SETTINGS)


EVENTS = [
    (ToyTask, "sample"),
    (ToyTask, "loss"),
    (Adam, "step"),
    *[(Path, name) for name in ("mkdir", "write_bytes", "write_text", "replace", "unlink")],
]


def train_until(n_events: int, folder: Path) -> None:
    end_at(n_events, EVENTS)
    train_toy(folder)


@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_a_run_that_ends_at_any_point_goes_on_with_the_same_bits(tmp_path, every):
    """Before each batch, loss, update, and before each single operation on a file."""
    train_toy(tmp_path / "whole")
    whole = files_of(tmp_path / "whole")
    assert list(whole) == [
        "checkpoint-000000003.safetensors",
        "checkpoint-000000006.safetensors",
        "log.csv",
        "log.json",
    ]
    for n_events in range(1, 200, every):
        folder = tmp_path / str(n_events)
        process = forked(train_until, n_events, folder)
        process.join()
        if process.exitcode == 0:
            break
        assert process.exitcode == KILLED
        train_toy(folder)
        assert files_of(folder) == whole, f"ended at event {n_events}"
    assert n_events > 40


def newest(folder: Path) -> Path | None:
    return max(folder.glob("checkpoint-*"), default=None)


def kill_and_resume(folder: Path, settings: Settings, context: str, n_kills: int) -> int:
    """Start a run again and again, killed a random moment after its first own checkpoint.

    Returns how many kills hit a living process; after so many, the run may end.
    """
    chance, kills = random.Random(0), 0
    while True:
        before = newest(folder)
        process = get_context(context).Process(target=train_toy, args=(folder, settings))
        process.start()
        while kills < n_kills and process.is_alive() and newest(folder) == before:
            time.sleep(0.001)
        if kills < n_kills:
            time.sleep(chance.uniform(0, 0.03))
            process.kill()
        process.join()
        kills += process.exitcode == -signal.SIGKILL
        if process.exitcode == 0:
            return kills


@pytest.mark.parametrize(
    ("context", "n_kills"),
    [("fork", 3), pytest.param("spawn", 20, marks=pytest.mark.slow)],
)
def test_a_killed_process_goes_on_with_the_same_bits(tmp_path, context, n_kills):
    """It saves after every step, so that most kills hit while files are being written."""
    n_steps = 30 + 10 * n_kills  # enough that no run ends before its kill
    settings = replace(SETTINGS, n_steps=n_steps, checkpoint_every=1, log_every=1)
    train_toy(tmp_path / "whole", settings)
    assert kill_and_resume(tmp_path / "killed", settings, context, n_kills) == n_kills
    assert files_of(tmp_path / "killed") == files_of(tmp_path / "whole")


def test_a_run_of_constant_rate_may_be_prolonged(tmp_path):
    """The first run ends at step 5, where the longer one has no row."""
    constant = replace(SETTINGS, final_learning_rate=None)
    _, short = train_toy(tmp_path / "two", replace(constant, n_steps=5))
    assert short.column("step") == [0.0, 3.0, 5.0]
    train_toy(tmp_path / "two", constant)
    train_toy(tmp_path / "one", constant)
    names = ("checkpoint-000000006.safetensors", "log.csv", "log.json")
    one, two = files_of(tmp_path / "one"), files_of(tmp_path / "two")
    assert [one[name] for name in names] == [two[name] for name in names]


@pytest.mark.parametrize("constant", [True, False])
def test_fewer_steps_or_more_of_a_decay_are_another_run(tmp_path, constant):
    first = replace(SETTINGS, final_learning_rate=None) if constant else SETTINGS
    train_toy(tmp_path, first)
    n_steps = 5 if constant else 7
    with pytest.raises(CheckpointError, match=rf"settings\.n_steps is 6, here it is {n_steps}\."):
        train_toy(tmp_path, replace(first, n_steps=n_steps))


def test_a_finished_run_returns_at_once(tmp_path, monkeypatch):
    model, log = train_toy(tmp_path)
    (tmp_path / "log.csv").unlink()  # as if the run had been killed before it was written
    before = files_of(tmp_path)
    monkeypatch.setattr(ToyTask, "loss", None)  # nothing is computed
    again, same = train_toy(tmp_path)
    assert same == log
    assert torch.equal(again.weight, model.weight)
    assert files_of(tmp_path).items() > before.items()
    assert (tmp_path / "log.csv").read_text().splitlines()[0].startswith("step,loss")


def test_progress_is_told_after_every_step():
    calls: list[tuple[int, int, float]] = []
    _, log = train_toy(None, on_step=lambda *call: calls.append(call))
    assert [call[:2] for call in calls] == [(1, 6), (2, 6), (3, 6), (4, 6), (5, 6), (6, 6)]
    assert [calls[0][2], calls[3][2]] == log.column("loss")[:2]


def test_measuring_may_use_gradients():
    """`measure` leaves gradients behind here; the run is the same as without."""

    def greedy(model):
        other = ToyTask().sample(8, seed=5, index=0).to("cpu", torch.float32)
        ToyTask().loss(model, other).backward()
        return {"first": 0.0}

    model = ToyModel()
    train(model, ToyTask(), SETTINGS, measure=greedy)
    assert torch.equal(model.weight, train_toy(None)[0].weight)


def test_columns_of_measure_must_be_new():
    with pytest.raises(TrainingError, match="measure returned 'loss', a column that the log"):
        train(ToyModel(), ToyTask(), SETTINGS, measure=lambda model: {"loss": 0.0})


def test_a_model_without_parameters_is_refused():
    model = ToyModel().requires_grad_(False)
    with pytest.raises(TrainingError, match="ToyModel has no parameter that requires a gradient"):
        train(model, ToyTask(), SETTINGS)


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(FileError, match=r"Cannot write .*file/run: Not a directory\."):
        train_toy(tmp_path / "file" / "run")


def test_loggers_need_a_folder():
    with pytest.raises(SettingError, match="loggers has no effect without folder"):
        train_toy(None, loggers=["tensorboard"])


def press_ctrl_c(step: int, *_: object) -> None:
    """Press Ctrl-C in step 2, which is no step of a checkpoint."""
    if step == 2:
        signal.raise_signal(signal.SIGINT)


def test_after_ctrl_c_the_step_is_whole_and_training_goes_on_with_the_same_bits(tmp_path):
    train_toy(tmp_path / "whole")
    text = r"interrupted after 2 of 6 steps\. The checkpoint of this step is in .*stopped"
    with pytest.raises(InterruptedTrainingError, match=text):
        train_toy(str(tmp_path / "stopped"), on_step=press_ctrl_c)
    assert newest(tmp_path / "stopped").name == "checkpoint-000000002.safetensors"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    train_toy(tmp_path / "stopped")
    assert files_of(tmp_path / "stopped").keys() >= files_of(tmp_path / "whole").keys()
    last = "checkpoint-000000006.safetensors"
    same = [(tmp_path / name / last).read_bytes() for name in ("whole", "stopped")]
    assert same[0] == same[1]


def test_ctrl_c_without_a_folder_says_that_nothing_was_saved():
    with pytest.raises(KeyboardInterrupt, match=r"after 2 of 6 steps\. Nothing was saved"):
        train_toy(None, on_step=press_ctrl_c)


def test_ctrl_c_after_the_last_step_is_not_lost(monkeypatch):
    pressed = []

    @contextmanager
    def pressed_at_the_end():
        yield lambda: bool(pressed)
        pressed.append(True)

    monkeypatch.setattr("icgd_papers.training.loop.postponed_interrupt", pressed_at_the_end)
    with pytest.raises(InterruptedTrainingError, match="after 6 of 6 steps"):
        train_toy(None)


def test_checkpoints_may_be_written_more_often_on_the_way(tmp_path):
    train_toy(tmp_path / "whole")
    with pytest.raises(InterruptedTrainingError):
        train_toy(tmp_path / "run", replace(SETTINGS, checkpoint_every=4), on_step=press_ctrl_c)
    model, _ = train_toy(tmp_path / "run", replace(SETTINGS, checkpoint_every=1))
    assert torch.equal(model.weight, train_toy(None)[0].weight)


def test_a_second_training_in_a_folder_is_refused_and_harms_nothing(tmp_path):
    def train_here_too(step: int, *_: object) -> None:
        if step == 4:
            train_toy(tmp_path)

    with pytest.raises(RunFolderError, match=f"in use by process {os.getpid()}"):
        train_toy(tmp_path, on_step=train_here_too)
    model, _ = train_toy(tmp_path)
    assert torch.equal(model.weight, train_toy(None)[0].weight)


def test_parts_of_a_batch_have_the_gradient_of_the_whole():
    whole = replace(SETTINGS, dtype="float64")
    expected, log = train_toy(None, whole)
    model, parts = train_toy(None, replace(whole, accumulate=4))
    torch.testing.assert_close(model.weight, expected.weight, rtol=1e-13, atol=0)
    assert parts.column("loss") == pytest.approx(log.column("loss"), rel=1e-13)
    with pytest.raises(SettingError, match="accumulate=3 does not divide the 8 tasks"):
        train_toy(None, replace(whole, accumulate=3))


def test_adamw_decays_the_weights_of_every_step():
    """A step of AdamW shortens the weights by learning_rate * weight_decay, then is Adam's."""
    plain, _ = train_toy(None, FLOAT64)
    decaying = replace(FLOAT64, optimizer="adamw", weight_decay=0.5)
    decayed, _ = train_toy(None, decaying)
    start = all_parameters(ToyModel().double())
    expected = all_parameters(plain) - 0.1 * 0.5 * start
    torch.testing.assert_close(all_parameters(decayed), expected, rtol=1e-14, atol=1e-15)
    default, _ = train_toy(None, replace(FLOAT64, optimizer="adamw"))
    expected = all_parameters(plain) - 0.1 * 0.01 * start
    torch.testing.assert_close(all_parameters(default), expected, rtol=1e-14, atol=1e-15)


VALIDATED = replace(SETTINGS, n_validation=10, log_every=1)


def test_the_validation_loss_is_that_of_tasks_which_training_never_sees():
    batch = ToyTask().sample(10, seed=0, index=2**32 - 1).to("cpu", torch.float32)
    _, log = train_toy(None, VALIDATED)
    with torch.no_grad():
        expected = float(ToyTask().loss(ToyModel(), batch))
    assert log.rows[0]["validation_loss"] == pytest.approx(expected, rel=1e-6)
    assert log.column("loss") == train_toy(None, replace(SETTINGS, log_every=1))[1].column("loss")


def best_step(folder: Path) -> int:
    with safe_open(folder / "best.safetensors", framework="pt") as file:
        return json.loads(file.metadata()["icgd_checkpoint"])["step"]


def test_the_best_checkpoint_is_that_of_the_smallest_validation_loss(tmp_path):
    """Steps so long that the loss grows again."""
    settings = replace(VALIDATED, learning_rate=1.0, final_learning_rate=None, n_steps=12)
    _, log = train_toy(tmp_path, settings)
    losses = log.column("validation_loss")
    assert best_step(tmp_path) == losses.index(min(losses))
    assert 0 < best_step(tmp_path) < 12


def test_a_best_checkpoint_off_the_schedule_outlives_worse_rows_of_a_longer_run(tmp_path):
    """The loss is smallest at the end of the short run, where the longer one has no row."""
    rising = replace(VALIDATED, learning_rate=1.0, final_learning_rate=None)
    _, every = train_toy(None, replace(rising, n_steps=12))
    losses = every.column("validation_loss")
    best = losses.index(min(losses))
    train_toy(tmp_path, replace(rising, n_steps=best, log_every=best + 1))
    assert best_step(tmp_path) == best
    _, log = train_toy(tmp_path, replace(rising, n_steps=best + 1, log_every=best + 1))
    assert log.column("step") == [0.0, best + 1]
    assert best_step(tmp_path) == best


def test_patience_looks_at_the_validation_loss():
    still = {"learning_rate": 1e-30, "final_learning_rate": None}
    settings = replace(VALIDATED, n_steps=50, patience=4, **still)
    assert len(train_toy(None, settings)[1].rows) == 5  # equal ones are no better


def test_autocast_computes_in_bfloat16_and_keeps_the_parameters():
    class Multiplying(ToyModel):
        def forward(self, x, y):
            return (x[:, -1] @ self.weight[:, None])[:, 0] + self.bias

    model = Multiplying()
    log = train(model, ToyTask(), replace(SETTINGS, autocast=True))
    exact = train(Multiplying(), ToyTask(), SETTINGS)
    assert model.weight.dtype == torch.float32
    assert log.rows[0]["loss"] != exact.rows[0]["loss"]
    assert log.rows[0]["loss"] == pytest.approx(exact.rows[0]["loss"], rel=0.02)


def test_the_example_of_its_page_runs(monkeypatch, tmp_path, capsys):
    page = Path(__file__).parents[3] / "docs" / "training" / "loop.md"
    [example] = re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), flags=re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(example, {})
    first, last = map(float, capsys.readouterr().out.split())
    assert last < first / 4
    assert (tmp_path / "run" / "log.csv").read_text().count("\n") == 7


MODES = {
    "no gradients": torch.no_grad,
    "bfloat16": partial(torch.autocast, "cpu", torch.bfloat16),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("attention", ["softmax", "relu"])
@pytest.mark.parametrize("autocast", [False, True])
def test_modes_of_the_caller_change_no_bit(mode, attention, autocast):
    expected, log = trained_decoder(attention, autocast)
    with MODES[mode]():
        model, again = trained_decoder(attention, autocast)
        assert torch.is_autocast_enabled("cpu") == (mode == "bfloat16")
        assert torch.is_grad_enabled() == (mode != "no gradients")
    assert again == log
    assert all(map(torch.equal, model.state_dict().values(), expected.state_dict().values()))

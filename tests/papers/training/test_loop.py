"""What a step computes: gradients, updates, rows of the log, validation, buffers, callbacks."""

import re
from dataclasses import replace
from functools import partial
from math import cos, isnan, nan, pi
from pathlib import Path

import pytest
import torch
from torch.optim import Adam

from icgd.errors import MissingExtraError, SettingError, TrainingError
from icgd_papers.training import callbacks, devices
from icgd_papers.training.callbacks import TensorBoard
from icgd_papers.training.loop import Settings, TrainingRun, train
from icgd_papers.training.settings import OPTIMIZERS
from tests.papers.training.decoders import trained_decoder
from tests.papers.training.toy import SETTINGS, ToyModel, ToyTask, train_toy

FLOAT64 = replace(SETTINGS, dtype="float64", n_steps=1, clip_norm=None, final_learning_rate=None)
VALIDATED = replace(SETTINGS, n_validation=10, log_every=1)


def gradient_at_start() -> torch.Tensor:
    """Of the mean of (<w, x> + b - y)^2: the mean of 2 (<w, x> + b - y) (x, 1)."""
    batch = ToyTask().sample(8, seed=0, index=0)
    x = torch.cat([batch.x[:, -1], torch.ones(8, 1, dtype=torch.float64)], dim=1)
    start = all_parameters(ToyModel().double())
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


@pytest.mark.parametrize("clip_norm", [0.5, 1e3])
def test_a_long_gradient_is_scaled_down_to_the_norm_and_a_short_one_is_left(clip_norm):
    gradient = gradient_at_start()
    run = TrainingRun(ToyModel(), ToyTask(), replace(FLOAT64, clip_norm=clip_norm), None)
    run.evaluate()
    factor = 0.5 / (gradient.norm() + 1e-6) if clip_norm == 0.5 else 1.0
    clipped = torch.cat([p.grad.flatten() for p in (run.model.weight, run.model.bias)])
    torch.testing.assert_close(clipped, gradient * factor, rtol=1e-14, atol=0)
    assert run.log.rows[0]["gradient_norm"] == pytest.approx(gradient.norm().item(), rel=1e-14)


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


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_optimizer_lowers_the_loss(optimizer):
    _, log = train_toy(None, Settings(200, 16, 0.02, optimizer=optimizer))
    assert log.rows[-1]["loss"] < log.rows[0]["loss"] / 2


def test_adamw_decays_the_weights_of_every_step():
    """A step of AdamW shortens the weights by learning_rate * weight_decay, then is Adam's."""
    plain, _ = train_toy(None, FLOAT64)
    start = all_parameters(ToyModel().double())
    for given, decay in ((0.5, 0.5), (None, 0.01)):  # the second is torch's default
        decayed, _ = train_toy(None, replace(FLOAT64, optimizer="adamw", weight_decay=given))
        expected = all_parameters(plain) - 0.1 * decay * start
        torch.testing.assert_close(all_parameters(decayed), expected, rtol=1e-14, atol=1e-15)


def test_parts_of_a_batch_have_the_gradient_of_the_whole():
    whole = replace(SETTINGS, dtype="float64")
    expected, log = train_toy(None, whole)
    model, parts = train_toy(None, replace(whole, accumulate=4))
    torch.testing.assert_close(model.weight, expected.weight, rtol=1e-13, atol=0)
    assert parts.column("loss") == pytest.approx(log.column("loss"), rel=1e-13)
    with pytest.raises(SettingError, match="accumulate=3 does not divide the 8 tasks"):
        train_toy(None, replace(whole, accumulate=3))


def test_a_loss_that_falls_runs_on_and_an_equal_one_counts_as_no_better():
    falling = Settings(30, 8, 1e-3, resample_every=50, log_every=1, patience=1)
    assert len(train_toy(None, falling)[1].rows) == 31
    equal = replace(falling, learning_rate=1e-30, patience=4)
    assert len(train_toy(None, equal)[1].rows) == 5
    assert len(train_toy(None, replace(equal, n_validation=10))[1].rows) == 5


class SteepTask(ToyTask):
    """Its loss is 0 at first, but the gradient of the square root there is infinite."""

    def loss(self, model, batch):
        return (model.weight[0] - 0.5).square().sqrt() + 0.0 * super().loss(model, batch)


def test_a_gradient_that_is_no_number_stops_training():
    with pytest.raises(TrainingError, match=r"The norm of the gradient is nan at step 0;"):
        train(ToyModel(), SteepTask(), SETTINGS)


def test_on_step_is_called_after_every_step():
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


@pytest.mark.parametrize("name", ["loss", "validation_loss"])
def test_columns_of_measure_must_be_new(name):
    with pytest.raises(TrainingError, match=f"measure returned '{name}', a column that the log"):
        train(ToyModel(), ToyTask(), VALIDATED, measure=lambda model: {name: 0.0})


def test_a_model_without_parameters_is_refused():
    model = ToyModel().requires_grad_(False)
    with pytest.raises(TrainingError, match="ToyModel has no parameter that requires a gradient"):
        train(model, ToyTask(), SETTINGS)


def test_the_validation_loss_is_that_of_tasks_which_training_never_sees():
    """Ten tasks, eight and two at a time."""
    batch = ToyTask().sample(10, seed=0, index=2**32 - 1).to("cpu", torch.float32)
    model, log = train_toy(None, VALIDATED)
    with torch.no_grad():
        expected = float(ToyTask().loss(ToyModel(), batch))
    assert log.rows[0]["validation_loss"] == pytest.approx(expected, rel=1e-6)
    assert log.column("loss") == train_toy(None, replace(SETTINGS, log_every=1))[1].column("loss")
    assert model.training


class NanAtFirst(ToyModel):
    """Its first prediction outside training is not a number."""

    is_first = True

    def forward(self, x, y):
        wrong = not self.training and self.is_first
        self.is_first = self.is_first and self.training
        return super().forward(x, y) * (nan if wrong else 1.0)


def test_the_best_row_has_the_smallest_validation_loss_so_far_and_never_nan():
    settings = replace(VALIDATED, learning_rate=1.0, final_learning_rate=None, n_steps=12)
    run = TrainingRun(NanAtFirst(), ToyTask(), settings, None)
    best = []
    for _ in range(12):
        run.evaluate()
        best.append(run.is_best)
        run.update()
    losses = run.log.column("validation_loss")
    assert isnan(losses[0])
    assert best[:2] == [False, True]
    assert best[2:] == [losses[k] < min(losses[1:k]) for k in range(2, 12)]
    assert True in best[2:]
    assert False in best[2:]


class Averaging(ToyModel):
    """Count forward passes in training, and average the inputs, as batch norm does."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(2))
        self.register_buffer("n_passes", torch.tensor(0))

    def forward(self, x, y):
        if self.training:
            self.mean.mul_(0.5).add_(0.5 * x[:, -1].mean(0))
            self.n_passes.add_(1)
        return super().forward(x, y) + (0 if self.training else self.mean.sum())


def test_buffers_hold_one_forward_pass_per_update_whatever_else_is_measured(tmp_path):
    def again(model):
        batch = ToyTask().sample(2, seed=9, index=0).to("cpu", torch.float32)
        return {"again": ToyTask().loss(model, batch).item()}

    model, resumed = Averaging(), Averaging()
    settings = replace(VALIDATED, n_steps=4, final_learning_rate=None)
    train(model, ToyTask(), settings, measure=again, folder=tmp_path)
    assert model.n_passes == 4
    expected = torch.zeros(2)
    for step in range(4):
        drawn = ToyTask().sample(8, seed=0, index=step // SETTINGS.resample_every)
        expected = 0.5 * expected + 0.5 * drawn.x[:, -1].float().mean(0)
    torch.testing.assert_close(model.mean, expected)
    longer, whole = replace(settings, n_steps=6), Averaging()
    train(resumed, ToyTask(), longer, measure=again, folder=tmp_path)
    train(whole, ToyTask(), longer, measure=again)
    assert all(map(torch.equal, resumed.state_dict().values(), whole.state_dict().values()))


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


def test_training_without_lightning_fabric_names_the_extra(monkeypatch):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(devices, "import_module", missing)
    with pytest.raises(MissingExtraError, match=r"needs Lightning Fabric\. .*'icgd\[train\]'"):
        train_toy(None)


def test_training_says_nothing(capfd):
    train_toy(None, replace(SETTINGS, autocast=True))
    assert capfd.readouterr() == ("", "")


class Recorder:
    """A callback that keeps its calls."""

    def __init__(self):
        self.calls = []

    def on_row(self, step, row):
        self.calls.append((step, dict(row)))

    def on_end(self):
        self.calls.append("end")


def test_a_callback_gets_every_row_once_and_the_end(tmp_path):
    recorder = Recorder()
    _, log = train_toy(tmp_path, callbacks=[recorder])
    rows = [(int(row["step"]), {n: row[n] for n in row if n != "step"}) for row in log.rows]
    assert recorder.calls == [*rows, "end"]
    with pytest.raises(TrainingError):
        train(ToyModel(), SteepTask(), SETTINGS, callbacks=[recorder])
    assert recorder.calls == [*rows, "end", "end"]


def test_tensorboard_shows_every_row_once_also_after_an_interruption(tmp_path):
    reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")

    def interrupt(step: int, *_: object) -> None:
        if step == 5:
            raise KeyboardInterrupt

    settings = replace(SETTINGS, log_every=1)
    with pytest.raises(KeyboardInterrupt):  # rows 4 and 5 come after the checkpoint of step 3
        train_toy(tmp_path, settings, on_step=interrupt, callbacks=[TensorBoard(tmp_path)])
    for _ in range(2):  # a finished training adds nothing
        _, log = train_toy(tmp_path, settings, callbacks=[TensorBoard(tmp_path)])
    events = reading.EventAccumulator(str(tmp_path)).Reload().Scalars("first")
    assert [event.step for event in events] == [0, 1, 2, 3, 4, 5, 6]
    values = [event.value for event in events]
    assert values == pytest.approx(log.column("first"), rel=1e-6)


def test_tensorboard_without_its_package_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setattr(callbacks, "SummaryWriter", None)
    with pytest.raises(MissingExtraError, match=r"needs tensorboard\. .*'icgd\[train\]'"):
        TensorBoard(tmp_path)


def test_a_device_that_is_not_there_is_refused():
    with pytest.raises(SettingError, match="device='cuda:77' cannot be used here: "):
        train_toy(None, replace(SETTINGS, device="cuda:77"))


def test_the_examples_of_its_page_run(monkeypatch, tmp_path, capsys):
    page = Path(__file__).parents[3] / "docs" / "training" / "loop.md"
    examples = re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), flags=re.DOTALL)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(examples[0], names)
    first, last = map(float, capsys.readouterr().out.split())
    assert last < first / 4
    assert (tmp_path / "run" / "log.csv").read_text().count("\n") == 7
    for example in examples[1:]:
        exec(example, names)

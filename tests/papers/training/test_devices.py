import pytest
import torch

from icgd.errors import SettingError
from icgd_papers.training.devices import device_named


@pytest.mark.parametrize("there", [2, 0])
def test_a_device_is_taken_only_if_it_is_there(monkeypatch, there):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: there)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert device_named("cpu").place == torch.device("cpu")
    assert device_named("auto").place == torch.device("cuda:0" if there else "cpu")
    if there:
        assert device_named("cuda").place == torch.device("cuda:0")
        assert device_named("cuda:1").place == torch.device("cuda:1")
        with pytest.raises(SettingError, match=r"'cuda:2' is not there: torch finds cpu, cuda:0"):
            device_named("cuda:2")
    else:
        with pytest.raises(SettingError, match=r"device='cuda' is not there: torch finds cpu\."):
            device_named("cuda")
    with pytest.raises(SettingError, match="device='mps' is not there"):
        device_named("mps")


def test_a_precision_that_a_device_lacks_is_refused(monkeypatch):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert device_named("auto").place == torch.device("mps")
    with pytest.raises(SettingError, match="device='mps' does not compute in float64"):
        device_named("mps", "float64")
    monkeypatch.setattr(torch.amp, "is_autocast_available", lambda kind: False)
    with pytest.raises(SettingError, match=r"device='cpu' does not compute in bfloat16\."):
        device_named("cpu", autocast=True)


def test_autocast_is_on_only_if_asked_for():
    a = torch.ones(2, 2)
    for uses, dtype in ((True, torch.bfloat16), (False, torch.float32)):
        with device_named("cpu", autocast=uses).autocast():
            assert (a @ a).dtype == dtype


@pytest.mark.parametrize("name", ["x", "2,1", "1.5"])
def test_what_is_no_device_is_refused(name):
    with pytest.raises(SettingError, match="device must be a device of torch, got"):
        device_named(name)

import pytest

from icgd.errors import SettingError, SizeError
from icgd_papers.training.prompt_memory import require_prompts
from tests import machines

DATA = {"input_width": 5, "output_width": 2, "n_examples": 9, "hidden_width": 20, "labels": "exp"}


def limited(monkeypatch, n_bytes):
    machines.of_memory(monkeypatch, n_bytes)


@pytest.mark.parametrize(
    ("change", "batch_size", "n_bytes"),
    [
        ({}, 3, 8 * 3 * 10 * 7),
        ({"labels": "teachers"}, 3, 8 * 3 * (10 * 20 + 20 * 20)),
        ({"labels": "relu-network", "hidden_width": 2}, 3, 8 * 3 * (10 * 7 + 2 * 5)),
        ({"input_width": 40, "output_width": 1, "n_examples": 1}, 1, 8 * 40 * 40),
    ],
)
def test_a_batch_or_a_covariance_that_just_fits_is_let_through(
    monkeypatch, change, batch_size, n_bytes
):
    limited(monkeypatch, n_bytes)
    require_prompts(DATA | change, batch_size)
    limited(monkeypatch, n_bytes - 1)
    with pytest.raises(SizeError, match="a limit"):
        require_prompts(DATA | change, batch_size)


def test_the_message_has_the_sizes(monkeypatch):
    limited(monkeypatch, 2**30)
    with pytest.raises(SizeError) as refusal:
        require_prompts(DATA | {"n_examples": 2**20 - 1}, 2**10)
    assert str(refusal.value) == (
        "Drawing 1,024 prompts of 1,048,575 examples, 5 inputs and 2 outputs takes about "
        "56.0 GiB; 1.0 GiB may be used, a limit. Give narrower or fewer examples, or smaller "
        "batches."
    )
    with pytest.raises(SizeError, match=r"^The covariance of 100,000 inputs takes about 74\.5"):
        require_prompts(DATA | {"input_width": 10**5}, 1)


def test_counts_are_checked_first():
    with pytest.raises(SettingError, match="n_examples must be a whole number of at least 1"):
        require_prompts(DATA | {"n_examples": 0}, 4)

import re

import numpy as np
import pytest
import torch

from icgd.errors import OwnCodeError, SettingError, TrainingError
from icgd_papers.cli.own_code import explained_errors
from icgd_papers.training.config import read_config

LAW = read_config(None)
OWN = read_config(None, {"factory": "mine.py:make"})


def divided():
    return 1 / 0


def test_own_code_is_named_with_its_innermost_line():
    line = divided.__code__.co_firstlineno + 1
    said = "Your own code raised ZeroDivisionError: division by zero (test_own_code.py, line"
    expected = f"^{re.escape(f'{said} {line}).')}$"
    with pytest.raises(OwnCodeError, match=expected), explained_errors(OWN):
        divided()


def test_a_defect_without_own_code_and_an_error_of_icgd_stay_as_they_are():
    with pytest.raises(ZeroDivisionError), explained_errors(LAW):
        divided()
    with pytest.raises(SettingError, match="n_steps"), explained_errors(OWN):
        raise SettingError("n_steps must be a whole number of at least 1, got 0.")


@pytest.mark.parametrize(
    "make",
    [
        lambda: np.empty(2**62),
        lambda: np.empty(2**60),
        lambda: torch.empty(2**62),
        lambda: torch.empty(2**62, 2**62),
        lambda: torch.empty(2**50),
        lambda: [1.0] * 2**62,
    ],
)
def test_what_no_memory_holds_is_said_to_be_too_large(make):
    expected = r"^The tasks or the model do not fit into memory \("
    with pytest.raises(TrainingError, match=expected), explained_errors(LAW):
        make()

"""Which keys are idle beside which others; test_configured.py has every message."""

import pytest

from icgd.errors import SettingError
from icgd_papers.training.config import read_config
from icgd_papers.training.config_keys import SECTIONS
from icgd_papers.training.effective_keys import NEEDS, require_effective


def test_defaults_and_keys_with_an_effect_pass():
    require_effective(read_config())
    require_effective(read_config(None, {"kind": "decoder", "width": 32, "mlp_width": 32}))
    require_effective(read_config(None, {"labels": "teachers", "teacher_layers": 6}))
    growing = {"every_token": True, "curriculum_batches": 9, "first_examples": 3}
    require_effective(read_config(None, growing))


def test_every_key_that_needs_another_exists_beside_it():
    for (key, _), (section, dependent) in NEEDS.items():
        assert {key, *dependent} <= SECTIONS[section].keys()


def test_a_written_config_is_not_refused_for_its_defaults(tmp_path):
    config = read_config(None, {"kind": "decoder"})
    (tmp_path / "config.toml").write_text(config.text())
    require_effective(read_config(tmp_path / "config.toml"))
    with pytest.raises(SettingError, match="kernels has no effect without kind='kernel-transform"):
        require_effective(read_config(tmp_path / "config.toml", {"kernels": "exp"}))

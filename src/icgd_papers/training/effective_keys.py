"""Keys of a config that have an effect only beside another key."""

from __future__ import annotations

from icgd.errors import SettingError
from icgd_papers.training.config import Config
from icgd_papers.training.config_keys import SECTIONS

DECODER_KEYS = (
    "n_blocks",
    "width",
    "n_heads",
    "mlp_width",
    "attention",
    "tokens",
    "n_positions",
)
"""The keys of [model] that a decoder is made from."""

NEEDS: dict[tuple[str, object], tuple[str, tuple[str, ...]]] = {
    ("kind", "decoder"): ("model", DECODER_KEYS),
    ("kind", "kernel-transformer"): ("model", ("kernels", "n_layers", "transform_inputs")),
    ("inputs", "shifted-mixture"): ("data", ("weights", "centres")),
    ("labels", "teachers"): ("data", ("teacher_layers", "teacher_mean", "teacher_activation")),
    ("every_token", True): ("data", ("curriculum_batches",)),
}
"""What a key must say, and the keys of the same section that are idle otherwise."""


def require_effective(config: Config) -> None:
    """Raise `SettingError` if a key has been changed that has no effect beside the others."""
    for (key, value), (section, dependent) in NEEDS.items():
        if config[section][key] != value:
            _require_default(config, section, dependent, f"{key}={value!r}")
    if config["data"]["curriculum_batches"] is None:
        _require_default(config, "data", ("first_width", "first_examples"), "curriculum_batches")


def _require_default(config: Config, section: str, names: tuple[str, ...], missing: str) -> None:
    for name in names:
        if config[section][name] != SECTIONS[section][name].default:
            raise SettingError(f"{name} has no effect without {missing}; give both or neither.")

"""The keys of a training's config: what each is, its default, and how it is checked."""

from __future__ import annotations

from dataclasses import dataclass, replace
from os.path import realpath, relpath
from pathlib import Path
from typing import Any

from icgd.errors import SettingError, brief
from icgd.problems.settings import as_float, count, is_row
from icgd_papers.training.references import file_of

LARGEST = 2**63 - 1
"""The largest whole number that a TOML file must be able to hold."""

KINDS: dict[type, str] = {
    int: "a whole number",
    float: "a number",
    str: "a text",
    bool: "a truth value (true or false)",
}


@dataclass(frozen=True)
class Key:
    """One key: its kind, its default (None if it may be left out), and what it means.

    If `is_list`, the value is a list of that kind; an option of the shell joins it by commas.
    `names` says that the value names a "file" relative to the config's own folder, or "code",
    which is a Python file or a module.
    """

    name: str
    kind: type
    default: Any
    help: str
    is_list: bool = False
    names: str = ""

    def checked(self, value: object) -> Any:
        """The value, if it is of the key's kind."""
        if not self.is_list:
            return self._one(value)
        if isinstance(value, str):
            value = [self._parsed(part) for part in value.split(",")] if value else []
        if not is_row(value):
            raise SettingError(
                f"{self.name} must be a list, each {KINDS[self.kind]}, got {brief(value)}."
            )
        return [self._one(each) for each in value]

    def moved(self, value: Any, origin: Path, target: Path) -> Any:
        """A place relative to `origin` as one relative to `target`; module names have no place."""
        if self.is_list:
            return [replace(self, is_list=False).moved(each, origin, target) for each in value]
        if not value or not self.names:
            return value
        if self.names == "file":
            return _moved(value, origin, target)
        module, separator, function = value.rpartition(":") if ":" in value else (value, "", "")
        file = file_of(module, origin)
        return value if file is None else _moved(file, origin, target) + separator + function

    def _one(self, value: object) -> Any:
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        if self.kind is float and is_whole:
            return as_float(value)
        fits = is_whole if self.kind is int else isinstance(value, self.kind)
        if not fits:
            raise self._refusal(value)
        if isinstance(value, str) and not _is_writable(value):
            raise SettingError(
                f"{self.name} must be a text that can be written, got {brief(value)}."
            )
        return count(self.name, value, least=-LARGEST, most=LARGEST) if self.kind is int else value

    def _parsed(self, part: str) -> object:
        try:
            return self.kind(part)
        except ValueError:
            raise self._refusal(part) from None

    def _refusal(self, value: object) -> SettingError:
        return SettingError(f"{self.name} must be {KINDS[self.kind]}, got {brief(value)}.")


def _moved(path: str, origin: Path, target: Path) -> str:
    """A link's parent is that of what it links to, so links are followed first."""
    return Path(relpath(realpath(origin / path), realpath(target))).as_posix()


def _is_writable(text: str) -> bool:
    """Whether files can hold the text, and be called so: Python's own may have bytes instead."""
    return "\0" not in text and not any("\ud800" <= letter <= "\udfff" for letter in text)


def _section(*keys: Key) -> dict[str, Key]:
    return {key.name: key for key in keys}


RUN = _section(
    Key("folder", str, "run", "Folder of the run, which no other run may use.", names="file"),
    Key("imports", str, [], "Python files or modules to import first.", is_list=True, names="code"),
    Key("loggers", str, [], "Loggers beside CSV: tensorboard, wandb, mlflow.", is_list=True),
)

DATA = _section(
    Key(
        "tasks",
        str,
        None,
        "Tasks of your own: a CSV with a column `task`, or an NPZ with x, y.",
        names="file",
    ),
    Key(
        "label_columns",
        str,
        [],
        "Labels in that CSV. Default: the last column but `task`.",
        is_list=True,
    ),
    Key("validation_share", float, 0.1, "Share of those tasks that is held out for validation."),
    Key("shuffle_tokens", bool, False, "Put the tokens of those tasks in a random order."),
    Key(
        "generator",
        str,
        None,
        "Or a function that draws tasks, such as my_data.py:draw.",
        names="code",
    ),
    Key(
        "inputs",
        str,
        "gaussian",
        "Or a law of inputs: gaussian, ellipsoid, mixture, shifted-mixture ...",
    ),
    Key("spectrum", float, [], "Eigenvalues of its covariance. Default: all 1.", is_list=True),
    Key("n_clusters", int, 2, "Clusters of a mixture."),
    Key("weights", float, [1.0, 0.0], "Shares of a shifted-mixture's components.", is_list=True),
    Key("centres", float, [-2.0, 2.0], "Centres of those, the same in all inputs.", is_list=True),
    Key(
        "labels",
        str,
        "linear",
        "... and of labels: linear, relu-network, teachers, or a kernel's name.",
    ),
    Key("hidden_width", int, 20, "Hidden units of a relu-network, or of a teacher's layer."),
    Key("teacher_layers", int, 3, "Layers of the teachers."),
    Key("teacher_mean", float, 0.0, "Mean of the teachers' weights."),
    Key("teacher_activation", str, "relu", "Activation of the teachers."),
    Key("input_width", int, 5, "Entries of an input."),
    Key("output_width", int, 1, "Entries of a label, which are independent."),
    Key("n_examples", int, 20, "Examples in a prompt."),
    Key("average_labels", bool, False, "Average the loss over labels in closed form."),
    Key("every_token", bool, False, "Take the loss at every token; needs a decoder."),
    Key("curriculum_batches", int, None, "Then prompts grow for so many batches. Default: none."),
    Key("first_width", int, None, "Active inputs of the first one. Default: all."),
    Key("first_examples", int, None, "Examples of the first one. Default: all."),
)

MODEL = _section(
    Key(
        "factory",
        str,
        None,
        "A function that makes your own model, such as my_model.py:make.",
        names="code",
    ),
    Key("kind", str, "kernel-transformer", "Or a model of icgd: kernel-transformer, decoder."),
    Key("kernels", str, ["linear"], "Kernel transformer: a kernel a head.", is_list=True),
    Key("n_layers", int, 3, "Its layers."),
    Key("transform_inputs", bool, False, "Whether its layers change the inputs too."),
    Key("n_blocks", int, 4, "Decoder: its blocks."),
    Key("width", int, 64, "Entries of its stream, a multiple of n_heads."),
    Key("n_heads", int, 4, "Heads of a block."),
    Key("mlp_width", int, None, "Hidden units of a block. Default: 4 * width."),
    Key("attention", str, "softmax", "softmax or relu."),
    Key("tokens", str, "joint", "joint (an example at each) or interleaved (x, y, x, y)."),
    Key("n_positions", int, None, "Places with learnt positions. Default: none has one."),
    Key("model_seed", int, 0, "The seed of the model's first weights."),
)

TRAINING = _section(
    Key("n_steps", int, 1000, "Updates of the model."),
    Key("batch_size", int, 256, "Tasks in a batch, in all processes together."),
    Key("learning_rate", float, 0.01, "Learning rate."),
    Key("final_learning_rate", float, None, "It falls to this along a cosine. Default: constant."),
    Key("warmup_steps", int, 0, "Steps in which the learning rate rises from 0."),
    Key("optimizer", str, "adam", "adam or adamw."),
    Key("weight_decay", float, None, "Decay of adamw. Default: 0.01."),
    Key("clip_norm", float, None, "Longer gradients are shortened to this. Default: none."),
    Key("accumulate", int, 1, "Parts in which the gradient of a batch is gathered."),
    Key("resample_every", int, 1, "Steps that use the same batch."),
    Key("seed", int, 0, "The seed of all batches."),
    Key("n_validation", int, 0, "Tasks for validation at every row of the log."),
    Key("log_every", int, 100, "Steps between rows of the log."),
    Key("checkpoint_every", int, 1000, "Steps between checkpoints."),
    Key("patience", int, None, "Rows without a smaller loss after which it stops. Default: never."),
    Key("device", str, "cpu", "cpu, cuda, cuda:1, mps or auto."),
    Key("dtype", str, "float32", "float32 or float64."),
    Key("autocast", bool, False, "Compute in bfloat16 where torch deems it safe."),
)

SECTIONS: dict[str, dict[str, Key]] = {
    "": RUN,
    "data": DATA,
    "model": MODEL,
    "training": TRAINING,
}
"""The sections of a config; the keys of the first one stand at the top of the file."""

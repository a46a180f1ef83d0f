import pytest

from icgd.errors import files
from icgd.errors.files import ExportError, FileError
from tests.contracts.messages import assert_complete, assert_every_message_is_made, made

MESSAGES = [
    (
        made(FileError.other_training, "run", "a step is off by 1"),
        "run holds a program that does not train its problem: a step is off by 1. "
        "It was altered; compile it again.",
    ),
    (
        made(FileError.unfit, "run", KeyError("one")),
        "run holds a program whose parts do not fit each other (KeyError: 'one'). "
        "It was altered; compile it again.",
    ),
    (
        made(FileError.no_picture, "run.gif", [".svg", ".png"]),
        "The name of a picture must end in .svg or .png, but run.gif does not. Rename it.",
    ),
    (
        made(FileError.no_weights, "run.csv", [".safetensors", ".json"]),
        "Weights are written to a .safetensors or .json file; run.csv has another ending. "
        "Rename it.",
    ),
    (
        made(FileError.unreadable, "train.csv", "No such file or directory"),
        "Cannot read train.csv: No such file or directory.",
    ),
    (
        made(FileError.own_source, "train.csv"),
        "The certificate would replace train.csv, a file that it is about. Write it elsewhere.",
    ),
    (
        made(FileError.one_file, "run.svg", "run.safetensors"),
        "Cannot write run.svg: it is one file with run.safetensors, which this command reads or "
        "writes too. Nothing was changed; name another file.",
    ),
    (
        made(FileError.folder, "runs"),
        "runs is a folder; a file that icgd wrote is expected.",
    ),
    (
        made(ExportError.own_kernel, "ONNX", "mine", ["linear", "exp"]),
        "ONNX cannot hold the kernel 'mine', which is a function of your own. It has linear, exp. "
        "Use compiled.transformer(), a torch module.",
    ),
    (
        made(ExportError.activation, "ONNX", "gelu", ["relu", "tanh"]),
        "ONNX cannot hold gelu units. Compile with unit_activation=... one of relu, tanh, or use "
        "compiled.transformer(), a torch module.",
    ),
    (
        made(ExportError.kernel_attention, "TransformerLens", "exp attention"),
        "TransformerLens has softmax attention only; this functional descent has exp attention "
        "too. Use the softmax kernel without noise, icgd.exports.onnx, which writes every kernel, "
        "or compiled.transformer(), a torch module.",
    ),
    (
        made(FileError.unknown_name, "run.safetensors", "Unknown kernel 'mine'."),
        "run.safetensors needs what is not known here: Unknown kernel 'mine'. Register kernels of "
        "your own with icgd.register_kernel, and state their constants again, before loading.",
    ),
    (made(FileError.missing, "run.safetensors"), "There is no file run.safetensors."),
    (
        made(FileError.damaged, "run.safetensors", "header too short"),
        "run.safetensors is damaged or not a safetensors file (header too short). "
        "Compile it again.",
    ),
    (
        made(FileError.foreign, "run.safetensors"),
        "run.safetensors is a safetensors file, but not one that icgd wrote: "
        "its metadata has no 'icgd' entry.",
    ),
    (
        made(FileError.other_format, "run.safetensors", "7", ("1", "2")),
        "run.safetensors has file format 7; this version of icgd reads formats 1 and 2. "
        "Compile it again, or load it with the icgd that wrote it.",
    ),
    (
        made(FileError.one_length, "run.safetensors", "cot-glm", "5", 6),
        "run.safetensors has file format 5, in which cot-glm was made for one number of examples; "
        "this version of icgd writes format 6, in which it takes any. Compile it again, or load it "
        "with the icgd that wrote it.",
    ),
    (
        made(FileError.unusable, "standard output", "No space left on device"),
        "Cannot use standard output: No space left on device.",
    ),
    (
        made(FileError.unwritable, "run.safetensors", "disk full"),
        "Cannot write run.safetensors: disk full.",
    ),
    (
        made(FileError.unreadable_onnx, "run.onnx", "it has no input called stream"),
        "run.onnx cannot be run as an ONNX file of icgd: it has no input called stream. "
        "Export it again.",
    ),
    (
        made(
            ExportError.not_standard,
            "TransformerLens",
            "relu-stack",
            ["ReLU attention", "products"],
        ),
        "TransformerLens has softmax attention and MLP layers only; the transformer of relu-stack "
        "has ReLU attention and products too. Compile with construction='softmax-stack', or use "
        "icgd.exports.onnx, which writes every layer.",
    ),
    (
        made(ExportError.too_large, "ONNX", 5 * 2**29, 2**31),
        "The ONNX file would take 2.5 GiB; such a file can hold 2 GiB. Export with "
        "dtype='float32', or compile a smaller transformer: fewer pieces, or a smaller network.",
    ),
]


@pytest.mark.parametrize(("error", "text"), MESSAGES)
def test_the_message_is_complete(error, text):
    assert_complete(error, text)


def test_every_message_is_tested():
    assert_every_message_is_made(files)

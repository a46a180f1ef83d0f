"""Errors in saved files and in exports to other tools."""

from __future__ import annotations

from collections.abc import Sequence

from icgd.errors.base import IcgdError, brief, cut


class FileError(IcgdError, ValueError):
    """A file cannot be read as a compiled training run, or not be written."""

    @classmethod
    def missing(cls, path: object) -> FileError:
        return cls(f"There is no file {path}.")

    @classmethod
    def folder(cls, path: object) -> FileError:
        return cls(f"{path} is a folder; a file that icgd wrote is expected.")

    @classmethod
    def damaged(cls, path: object, problem: str) -> FileError:
        return cls(f"{path} is damaged or not a safetensors file ({problem}). Compile it again.")

    @classmethod
    def other_training(cls, path: object, problem: str) -> FileError:
        return cls(
            f"{path} holds a program that does not train its problem: {problem}. "
            "It was altered; compile it again."
        )

    @classmethod
    def unfit(cls, path: object, problem: Exception) -> FileError:
        kind = type(problem).__name__
        return cls(
            f"{path} holds a program whose parts do not fit each other ({kind}: {problem}). "
            "It was altered; compile it again."
        )

    @classmethod
    def unknown_name(cls, path: object, problem: str) -> FileError:
        return cls(
            f"{path} needs what is not known here: {problem} Register kernels of your own with "
            "icgd.register_kernel, and state their constants again, before loading."
        )

    @classmethod
    def foreign(cls, path: object) -> FileError:
        return cls(
            f"{path} is a safetensors file, but not one that icgd wrote: "
            "its metadata has no 'icgd' entry."
        )

    @classmethod
    def other_format(cls, path: object, version: str, known: Sequence[str]) -> FileError:
        return cls(
            f"{path} has file format {version}; this version of icgd reads formats "
            f"{' and '.join(known)}. Compile it again, or load it with the icgd that wrote it."
        )

    @classmethod
    def one_length(cls, path: object, construction: str, version: str, known: int) -> FileError:
        return cls(
            f"{path} has file format {version}, in which {construction} was made for one number of "
            f"examples; this version of icgd writes format {known}, in which it takes any. Compile "
            "it again, or load it with the icgd that wrote it."
        )

    @classmethod
    def unwritable(cls, path: object, problem: str) -> FileError:
        return cls(f"Cannot write {path}: {problem}.")

    @classmethod
    def unusable(cls, path: object, problem: str) -> FileError:
        return cls(f"Cannot use {cut(str(path))}: {problem}.")

    @classmethod
    def unreadable(cls, path: object, problem: str) -> FileError:
        return cls(f"Cannot read {path}: {problem}.")

    @classmethod
    def no_picture(cls, path: object, endings: Sequence[str]) -> FileError:
        known = " or ".join(endings)
        return cls(f"The name of a picture must end in {known}, but {path} does not. Rename it.")

    @classmethod
    def no_weights(cls, path: object, endings: Sequence[str]) -> FileError:
        known = " or ".join(endings)
        return cls(f"Weights are written to a {known} file; {path} has another ending. Rename it.")

    @classmethod
    def own_source(cls, path: object) -> FileError:
        return cls(
            f"The certificate would replace {path}, a file that it is about. Write it elsewhere."
        )

    @classmethod
    def one_file(cls, path: object, other: object) -> FileError:
        return cls(
            f"Cannot write {path}: it is one file with {other}, which this command reads or writes "
            "too. Nothing was changed; name another file."
        )

    @classmethod
    def unreadable_onnx(cls, path: object, problem: str) -> FileError:
        return cls(f"{path} cannot be run as an ONNX file of icgd: {problem}. Export it again.")


class ExportError(IcgdError, ValueError):
    """A compiled transformer does not fit another tool."""

    @classmethod
    def not_standard(cls, tool: str, construction: str, foreign: Sequence[str]) -> ExportError:
        return cls(
            f"{tool} has softmax attention and MLP layers only; the transformer of {construction} "
            f"has {' and '.join(foreign)} too. Compile with construction='softmax-stack', or use "
            "icgd.exports.onnx, which writes every layer."
        )

    @classmethod
    def kernel_attention(cls, tool: str, foreign: str) -> ExportError:
        return cls(
            f"{tool} has softmax attention only; this functional descent has {foreign} too. Use "
            "the softmax kernel without noise, icgd.exports.onnx, which writes every kernel, or "
            "compiled.transformer(), a torch module."
        )

    @classmethod
    def own_kernel(cls, tool: str, name: str, able: Sequence[str]) -> ExportError:
        return cls(
            f"{tool} cannot hold the kernel {brief(name)}, which is a function of your own. It has "
            f"{', '.join(able)}. Use compiled.transformer(), a torch module."
        )

    @classmethod
    def activation(cls, tool: str, name: str, able: Sequence[str]) -> ExportError:
        return cls(
            f"{tool} cannot hold {name} units. Compile with unit_activation=... one of "
            f"{', '.join(able)}, or use compiled.transformer(), a torch module."
        )

    @classmethod
    def too_large(cls, tool: str, needed: int, limit: int) -> ExportError:
        return cls(
            f"The {tool} file would take {needed / 2**30:.1f} GiB; such a file can hold "
            f"{limit / 2**30:.0f} GiB. Export with dtype='float32', or compile a smaller "
            "transformer: fewer pieces, or a smaller network."
        )

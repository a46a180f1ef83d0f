"""Errors in the settings of constructions, and in what is asked of a compiled program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from icgd.errors.base import brief, did_you_mean
from icgd.errors.settings import SettingError


class ConstructionError(SettingError):
    """A construction cannot be built with these settings, or is not the one that was meant."""

    @classmethod
    def no_setting(
        cls, construction: str, setting: str, own: Sequence[str], owners: Sequence[str]
    ) -> ConstructionError:
        has = f"its settings are {', '.join(own)}" if own else "it has no settings"
        text = f"{construction} has no setting {brief(setting)}; {has}."
        if owners:
            return cls(f"{text} {setting} is a setting of {', '.join(owners)}.")
        return cls(f"{text}{did_you_mean(setting, own)}")

    @classmethod
    def no_owner(
        cls, settings: Sequence[str], owned: Mapping[str, Sequence[str]]
    ) -> ConstructionError:
        known = [name for own in owned.values() for name in own]
        hints = (did_you_mean(name, known) for name in settings if name not in known)
        has = "; ".join(f"{name} has {', '.join(own) or 'none'}" for name, own in owned.items())
        return cls(
            f"No construction that serves this problem has all of the given settings "
            f"({', '.join(settings)}): {has}.{''.join(hints)}"
        )

    @classmethod
    def beside_construction(
        cls, construction: str, settings: Mapping[str, object]
    ) -> ConstructionError:
        given = ", ".join(f"{name}={brief(value)}" for name, value in settings.items())
        return cls(
            f"{given} was given beside a construction object, which has its own settings. Put it "
            f"into the object: {construction}({given})."
        )

    @classmethod
    def construction_class(cls, construction: str) -> ConstructionError:
        return cls(
            f"construction is the class {construction}; an object of it is expected, which has "
            f"settings. Give {construction}()."
        )

    @classmethod
    def unreachable_accuracy(cls, accuracy: float, best: float, n_points: int) -> ConstructionError:
        return cls(
            f"accuracy={accuracy:g} cannot be proved with {n_points} lattice points; "
            f"the smallest error is {best:.3g}. Ask for less, or use a smaller range."
        )

    @classmethod
    def scores_too_wide(cls, link: str, reach: float, n_tokens: int) -> ConstructionError:
        return cls(
            f"A head of {n_tokens} tokens cannot return the {link} mean of scores up to "
            f"{reach:.4g}. Give a smaller bound with Domain(score=...), or a smaller box."
        )

    @classmethod
    def too_few_pieces(cls, pieces: int, activation: str) -> ConstructionError:
        return cls(
            f"pieces={pieces} is too few for {activation}: the error of the fit grows with the "
            "interval, so no interval covers the layers' outputs. Give at least 2."
        )

    @classmethod
    def too_few_registers(cls, registers: int) -> ConstructionError:
        return cls(
            f"registers={registers} is too few for these ranges: the error of a look-up exceeds "
            "what it looks up. Give more registers, or use a smaller box or domain."
        )

    @classmethod
    def table_too_large(
        cls, levels: int, n_examples: int, entries: str, *, most: int
    ) -> ConstructionError:
        return cls(
            f"levels={levels} with n_examples={n_examples} needs a table of {entries} entries; "
            f"at most {most:,} fit. Give fewer levels or examples."
        )

    @classmethod
    def keys_too_close(cls, levels: int, n_examples: int) -> ConstructionError:
        return cls(
            f"levels={levels} with n_examples={n_examples} needs keys that are too close for "
            "float64 to tell apart. Give fewer levels or examples."
        )

    @classmethod
    def is_a_chain(cls, construction: str) -> ConstructionError:
        return cls(
            f"{construction} is one block of layers that writes a chain, not a stack of layers; "
            "its weights are those of block(). Compile with relu-stack for a whole transformer."
        )

    @classmethod
    def no_step_layer(cls, construction: str) -> ConstructionError:
        return cls(
            f"In {construction} the step size is not a factor of one layer and of nothing else, so "
            "it cannot be learnt. Compile with relu-stack, which is exact for piecewise-linear "
            "networks, or with softmax-stack."
        )

    @classmethod
    def steps_differ(cls, update: str) -> ConstructionError:
        return cls(
            f"The step size cannot be learnt of {update}: the layers of its steps differ from each "
            "other. Give an update with one step size for all steps and without an average."
        )

    @classmethod
    def not_a_chain(cls, construction: str) -> ConstructionError:
        return cls(
            "Only the block of cot-network trains networks of every depth, and this is "
            f"{construction}, whose layers belong to one depth. Compile with cot-network, or "
            "compile the deeper problem itself."
        )

    @classmethod
    def unlike_layers(cls, widths: Sequence[int], depth: int) -> ConstructionError:
        return cls(
            f"depth={depth} leaves open how wide the hidden layers are, because those of widths="
            f"{tuple(widths)} differ. Compile a target whose hidden layers all have one width."
        )

    @classmethod
    def not_in_block(cls, depth: int, activation: str) -> ConstructionError:
        return cls(
            f"A network of depth={depth} has layers with the activation {activation}, which the "
            "block was not compiled for. Compile a target that has a hidden layer."
        )

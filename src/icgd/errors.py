"""Every exception and warning of icgd, and what their messages share.

A message stands where it is raised: what happened, where, the value, what was expected, what to do.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from difflib import get_close_matches


class IcgdError(Exception):
    """Base of every error that icgd raises on purpose."""


LONGEST = 500
"""The most characters of a value that a message shows."""


def brief(value: object) -> str:
    """The value as a program would write it, in one line and cut short if it is long."""
    if isinstance(value, int) and value.bit_length() > 4 * LONGEST:
        return f"a whole number of {value.bit_length()} bits"
    try:
        text = " ".join(repr(value).split("\n"))
    except Exception:  # a value of any class may be wrong in any way
        return f"an object of type {type(value).__name__}"
    return cut(text)


def cut(text: str) -> str:
    """A long text without its middle."""
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 30]} ... {text[-20:]}"


def did_you_mean(name: str, known: Sequence[str]) -> str:
    """A question that names the known name nearest to `name`; empty if none is near."""
    closest = get_close_matches(name, known, n=1, cutoff=0.5)
    return f" Did you mean {closest[0]!r}?" if closest else ""


def listed(reasons: Mapping[str, object]) -> str:
    """Each reason once, after the names that share it."""
    texts = dict.fromkeys(map(str, reasons.values()))
    names = {text: [name for name in reasons if str(reasons[name]) == text] for text in texts}
    return " ".join(f"{', '.join(names[text])}: {text}" for text in texts)


def at(index: Sequence[int], columns: Sequence[str] = ()) -> str:
    """The place of an entry in an array, such as [2, 0], and its column if `columns` has names."""
    place = f"[{', '.join(str(i) for i in index)}]"
    return f"{place} (column {columns[index[-1]]!r})" if columns else place


class UnknownNameError(IcgdError, ValueError):
    """A name (activation, loss, construction, backend, ...) is not in its registry."""

    @classmethod
    def of(
        cls, kind: str, name: object, *, known: Sequence[str], where: str = ""
    ) -> UnknownNameError:
        """`kind` says what was looked up, such as "activation", and `where` such as " in a.csv"."""
        hint = did_you_mean(name, known) if isinstance(name, str) else ""
        return cls(f"Unknown {kind} {brief(name)}{where}; known are {', '.join(known)}.{hint}")


class SizeError(IcgdError, MemoryError):
    """Something takes more memory than may be used."""

    @classmethod
    def too_large(
        cls, what: str, needed: int, available: int, limit: str, remedy: str
    ) -> SizeError:
        return cls(
            f"{what} takes about {needed / 2**30:,.1f} GiB; {available / 2**30:,.1f} GiB may be "
            f"used, {limit}. {remedy}"
        )


class MissingExtraError(IcgdError, ImportError):
    """An optional package is not installed."""

    @classmethod
    def of(cls, package: str, extra: str, purpose: str) -> MissingExtraError:
        return cls(f"{purpose} needs {package}. Install it with: pip install 'icgd[{extra}]'")


class SettingError(IcgdError, ValueError):
    """A setting (a width, a step size, a count, ...) has an impossible value."""

    @classmethod
    def not_positive(cls, name: str, value: object) -> SettingError:
        return cls(f"{name} must be a positive finite number, got {brief(value)}.")

    @classmethod
    def negative_penalty(cls, name: str, value: float) -> SettingError:
        return cls(
            f"{name} must not be negative, got {brief(value)}: a penalty draws coefficients "
            "towards 0. Give 0 for none."
        )

    @classmethod
    def unbounded_slope(cls, link: str) -> SettingError:
        return cls(
            f"The {link} link has no largest slope, so no step size is safe for all coefficients. "
            "Give a step_size, or bound the scores by a box or by Domain(score=...)."
        )

    @classmethod
    def step_too_long(cls, step_size: float, limit: float) -> SettingError:
        return cls(
            f"step_size={step_size:g} is above 1 / beta = {limit:g}, and the theorems say nothing. "
            "Shorten the step, or leave it out to have it chosen from the data."
        )

    @classmethod
    def singular(cls, low: float, high: float, least: float) -> SettingError:
        """`low` is not above `least` times `high`."""
        noise = f"{0.01 * high - min(low, 0.0):.3g}"
        is_negative = low < -least * high  # not by rounding
        remedy = "another kernel" if is_negative else f"one constant step size below {2 / high:.3g}"
        return cls(
            f"low, the smallest eigenvalue of the kernel on the examples, is {low:.3g}, but it "
            f"must be above {least:g} times the largest one, which is {high:.3g}: no step makes "
            "the error smaller along its eigenvector. Add noise, such as icgd.spectrum(machine, X, "
            f"noise={noise}) and icgd.FunctionalStep(steps, noise={noise}). Or use {remedy}."
        )

    @classmethod
    def wrong_kind(cls, name: str, value: object, expected: str) -> SettingError:
        """`expected` is a type, or a phrase such as "a finite number"."""
        kind = expected if expected.startswith("a ") else f"of type {expected}"
        return cls(f"{name} must be {kind}, got {brief(value)}.")

    @classmethod
    def not_nesterov(cls, momentum: float, dampening: float) -> SettingError:
        found = f"momentum={momentum:g} and dampening={dampening:g}"
        return cls(f"nesterov=True needs a momentum above 0 and no dampening, got {found}.")

    @classmethod
    def not_count(cls, name: str, value: object, *, least: int) -> SettingError:
        return cls(f"{name} must be a whole number of at least {least}, got {brief(value)}.")

    @classmethod
    def too_large(cls, name: str, value: object, *, most: int) -> SettingError:
        return cls(f"{name} must be at most {most}, got {brief(value)}.")

    @classmethod
    def out_of_range(
        cls, name: str, value: object, *, least: float | int, most: float | int
    ) -> SettingError:
        return cls(f"{name} must lie between {least:g} and {most:g}, got {brief(value)}.")

    @classmethod
    def not_inside(cls, name: str, value: object, *, low: float, high: float) -> SettingError:
        return cls(f"{name} must lie strictly between {low:g} and {high:g}, got {brief(value)}.")

    @classmethod
    def not_one_of(cls, name: str, value: object, known: Sequence[object]) -> SettingError:
        return cls(f"{name} must be one of {', '.join(map(str, known))}, got {brief(value)}.")

    @classmethod
    def wrong_length(cls, name: str, got: int, expected: str) -> SettingError:
        return cls(f"{name} has {got} entries; expected {expected}.")

    @classmethod
    def too_many(cls, name: str, got: int, *, most: int) -> SettingError:
        return cls(f"{name} has {got:,} entries; at most {most:,} are read. Give fewer.")

    @classmethod
    def too_many_ends(cls, n_steps: int, most: int, update: str) -> SettingError:
        """`update` says in words which steps they are."""
        return cls(
            f"n_steps must be at most {most:,} here, got {n_steps:,}: {update}, differ from each "
            "other, and the layers of each are written down. Take fewer steps, or steps that are "
            "all alike: of one size, without averages and corrections."
        )

    @classmethod
    def unreadable_row(cls, name: str, problem: str) -> SettingError:
        return cls(f"{name} cannot be read as a row ({problem}). Give a list or an array.")

    @classmethod
    def starts_from_zero(cls) -> SettingError:
        return cls("A kernel machine starts from the function 0; leave `initial` out.")

    @classmethod
    def own_kernel(cls, name: str) -> SettingError:
        return cls(
            f"The kernel {brief(name)} is a function of your own, which no rigorous proof can "
            "enclose. Use one of icgd's kernels, or leave the rigorous proof out."
        )

    @classmethod
    def steps_with_kernels(cls, purpose: str) -> SettingError:
        return cls(
            f"{purpose} needs one kernel for all steps, with one transform for queries and keys; "
            "here steps have kernels of their own, as learnt layers have. Use icgd.verify, which "
            "measures and bounds every step."
        )

    @classmethod
    def has_momentum(cls, purpose: str) -> SettingError:
        return cls(
            f"{purpose} takes steps without momentum, and here they have some. Leave it out, or "
            "use icgd.verify without rigorous=True, which bounds every step."
        )

    @classmethod
    def only_linear_models(cls, construction: str) -> SettingError:
        return cls(
            "A guarantee is what theorems promise of a linear model (cot-ridge, cot-lasso, "
            f"cot-glm), and this is {construction}. Use verify for its bounds."
        )

    @classmethod
    def functions_do_not_stop(cls) -> SettingError:
        return cls(
            "stop_below is for runs that train weights; a function takes all its steps. "
            "Leave it out."
        )

    @classmethod
    def bad_interval(cls, low: float, high: float) -> SettingError:
        return cls(f"An interval needs finite ends low < high, got [{low}, {high}].")

    @classmethod
    def box_too_large(
        cls,
        name: str,
        half_widths: Sequence[float],
        units: str,
        error: float,
        accuracy: float,
        enough: int | None,
        *,
        most: int,
    ) -> SettingError:
        box = " x ".join(f"[{-width:g}, {width:g}]" for width in half_widths)
        more = f"About {enough} would do; or" if enough else f"Even {most} would not do:"
        return cls(
            f"The box {box} is too large for {units}: the error of {name} would be {error:.3g}, "
            f"above accuracy={accuracy:g}. {more} use a smaller box."
        )

    @classmethod
    def slope_jumps(cls, name: str, units: str, *, able: Sequence[str]) -> SettingError:
        return cls(
            f"s {name}'(t) jumps where {name} has a kink, and {units} units have no kink to put "
            f"there. Use units of {', '.join(able)}, or a smooth activation in place of {name}, "
            "such as softplus."
        )

    @classmethod
    def bound_too_small(cls, bound: float, least: float, units: str) -> SettingError:
        return cls(
            f"{units} units cannot clip to [-{bound:g}, {bound:g}]: their slopes grow like "
            f"1 / {bound:g}, beyond the range of float64. Use a box of at least {least:.2g}, or "
            "relu units, whose corners are sharp by themselves."
        )

    @classmethod
    def nothing_to_clip(cls, bound: float, reach: float) -> SettingError:
        return cls(
            f"reach={reach:g} must exceed bound={bound:g}: what stays within the bound is never "
            "clipped. Give the largest size before clipping as reach, or leave the clipping out."
        )

    @classmethod
    def no_slope_parts(cls, loss: str) -> SettingError:
        return cls(
            f"The slope of the {loss} loss couples all outputs; it is no sum of functions of one "
            "variable. Use squared, logistic or huber."
        )

    @classmethod
    def too_few_widths(cls, widths: Sequence[int]) -> SettingError:
        return cls(
            f"widths must name the input and at least one layer, such as (4, 16, 1), "
            f"got {tuple(widths)}."
        )

    @classmethod
    def unequal_shortcut(cls, ends: tuple[int, int], widths: Sequence[int]) -> SettingError:
        first, last = ends
        return cls(
            f"shortcut {ends} adds the {widths[first]} outputs of layer {first} to the "
            f"{widths[last]} of layer {last}; both must have one width. widths are {tuple(widths)}."
        )

    @classmethod
    def norm_of_one(cls, layer: int) -> SettingError:
        return cls(
            f"norms has layer {layer}, whose width is 1: a number less its own mean is 0. Norms "
            "need layers of width 2 or more."
        )

    @classmethod
    def twice(cls, name: str, entry: object) -> SettingError:
        return cls(f"{name} has {entry!r} twice; name it once.")

    @classmethod
    def wrong_linear_widths(cls, widths: Sequence[int]) -> SettingError:
        return cls(
            "widths of a linear model are its inputs and one output, such as 4,1, "
            f"got {','.join(map(str, widths))}."
        )

    @classmethod
    def both(cls, first: str, second: str) -> SettingError:
        return cls(f"Give either {first} or {second}, not both.")

    @classmethod
    def neither(cls, first: str, second: str) -> SettingError:
        return cls(f"Give {first} or {second}; got neither.")

    @classmethod
    def without(cls, given: str, missing: str) -> SettingError:
        return cls(f"{given} has no effect without {missing}; give both or neither.")

    @classmethod
    def not_power_of_two(cls, name: str, value: object) -> SettingError:
        return cls(
            f"{name} must be a power of two, such as 2**-13, so that dividing by it is exact, "
            f"got {brief(value)}."
        )

    @classmethod
    def no_device(cls, name: str, there: Sequence[str]) -> SettingError:
        return cls(
            f"device={brief(name)} is not there: torch finds {', '.join(there)}. "
            "Use one of these, or 'auto' to take what there is."
        )

    @classmethod
    def device_not_used(cls, name: str, figure: str) -> SettingError:
        return cls(
            f"device={brief(name)} would not be used: the studies of {figure} compute on the "
            "processor. Leave it out, or use 'auto'."
        )

    @classmethod
    def no_precision(cls, device: str, precision: str, remedy: str) -> SettingError:
        return cls(f"device={brief(device)} does not compute in {precision}. Use {remedy}.")

    @classmethod
    def nothing_held_out(cls, share: float, n_tasks: int) -> SettingError:
        return cls(
            f"validation_share={share:g} of {n_tasks} tasks holds none out for validation. Give a "
            "larger share, or n_validation=0."
        )

    @classmethod
    def all_held_out(cls, share: float, n_tasks: int) -> SettingError:
        return cls(
            f"validation_share={share:g} of {n_tasks} tasks holds all of them out for validation, "
            "and none is left to train on. Give a smaller share."
        )

    @classmethod
    def cannot_grow(cls, task: str) -> SettingError:
        return cls(
            f"A curriculum needs an InContextTask, whose sizes it can change; got {task}. "
            "Leave the curriculum out."
        )

    @classmethod
    def uneven_heads(cls, width: int, n_heads: int) -> SettingError:
        return cls(
            f"width={width} is no multiple of n_heads={n_heads}, and heads share it equally. "
            "Give a width that is a multiple of the number of heads."
        )

    @classmethod
    def uneven_parts(cls, share: int, n_parts: int) -> SettingError:
        return cls(
            f"accumulate={n_parts} does not divide the {share} tasks that a process takes in a "
            "step. Give a batch_size that is a multiple of it for each process."
        )

    @classmethod
    def no_score_at(cls, time: float) -> SettingError:
        return cls(
            f"A diffusion must begin at a time above 0, got first={brief(time)}: data without "
            "noise may have no score. Give a small time T_0, such as 0.02."
        )

    @classmethod
    def no_parts(cls, figure: str) -> SettingError:
        return cls(f"{figure} has no panels to choose from. Leave out --only.")

    @classmethod
    def beyond_prompt(cls, length: int, longest: int) -> SettingError:
        return cls(
            f"lengths go up to {length} examples, and a test prompt has {longest}, 1.5 times those "
            "of pretraining, for which the decoder has positions. Give shorter lengths, or more "
            "n_examples."
        )

    @classmethod
    def uneven_shares(cls, batch_size: int, n_processes: int) -> SettingError:
        return cls(
            f"batch_size={batch_size} cannot be shared evenly by {n_processes} processes. "
            f"Give a multiple of {n_processes}."
        )

    @classmethod
    def not_joined(cls, name: str, kind: str, example: str, text: str) -> SettingError:
        """`kind` says what stands between the commas, such as "whole numbers"."""
        return cls(f"{name} must be {kind} joined by commas, such as {example}, got {brief(text)}.")

    @classmethod
    def not_described(cls, what: str, problem: str) -> SettingError:
        return cls(
            f"data does not describe a {what}: {problem}. Give what the {what} told of itself."
        )

    @classmethod
    def no_origin(cls) -> SettingError:
        return cls(
            "This run does not know what it trained, because a backend made it on its own. Make it "
            "with compiled.run or compiled.run_task."
        )

    @classmethod
    def no_average(cls) -> SettingError:
        return cls("This run keeps no average of its weights. Give its update average=0.99, say.")

    @classmethod
    def not_traced(cls) -> SettingError:
        return cls(
            "The run recorded no slot, so there is no residual stream to draw. "
            "Run with trace=True, or name the slots, such as trace=['y']."
        )


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


class DataError(IcgdError, ValueError):
    """Data cannot be used: not numbers, not finite, of the wrong shape or type."""

    @classmethod
    def no_queries(cls) -> DataError:
        return cls(
            "tolerance_of='predictions' is about predictions at queries, and the task has none. "
            "Give them: icgd.as_task(problem, X, y, queries=...)."
        )

    @classmethod
    def not_finite(
        cls, name: str, index: Sequence[int], value: float, columns: Sequence[str] = ()
    ) -> DataError:
        """`columns` has the names of all columns, if they are known."""
        return cls(
            f"{name}{at(index, columns)} is {value}; every entry must be finite. "
            "Drop or fill such rows first."
        )

    @classmethod
    def no_number(
        cls, name: str, index: Sequence[int], value: object, columns: Sequence[str]
    ) -> DataError:
        return cls(
            f"{name}{at(index, columns)} is {brief(value)}, which is not a number. Remove the "
            "column or encode it as numbers; drop or fill what is missing."
        )

    @classmethod
    def negative_rate(cls, index: Sequence[int], value: float) -> DataError:
        return cls(
            f"rates{at(index)} is {value:.12g}; a rate is a number from 0 to domain.rate, by which "
            "the gradient of an example is multiplied."
        )

    @classmethod
    def wrong_state(
        cls, index: Sequence[int], value: float, name: str, low: float, high: float
    ) -> DataError:
        """`name` is what the optimiser remembers there, such as "momentum"."""
        why = (
            "a mean of squares, which is not negative"
            if low == 0.0
            else f"which lies within [{low:.6g}, {high:.6g}], or no digit of a weight is left"
        )
        return cls(
            f"initial{at(index)} is {value:.12g}; it belongs to the {name.replace('_', ' ')}, "
            f"{why}. Give another one, or weights alone: the optimiser then starts from 0."
        )

    @classmethod
    def other_columns(cls, name: str, columns: Sequence[str], expected: Sequence[str]) -> DataError:
        return cls(
            f"{name} has the columns {', '.join(columns)}, but X has {', '.join(expected)}. Give "
            "the same columns in the same order."
        )

    @classmethod
    def overflows(
        cls,
        name: str,
        index: Sequence[int],
        value: float,
        dtype: str,
        columns: Sequence[str] = (),
    ) -> DataError:
        return cls(
            f"{name}{at(index, columns)} is {value:.12g}, too large for {dtype}. "
            "Rescale the data, or run in float64."
        )

    @classmethod
    def not_an_array(cls, name: str, problem: str) -> DataError:
        return cls(
            f"{name} is not a rectangular array of numbers ({problem}). "
            "Every row must have the same length."
        )

    @classmethod
    def transformed(cls, name: str) -> DataError:
        return cls(
            f"{name} is inside a transform of torch.func, such as grad, jvp or vmap. A run records "
            "no gradients, so they would be 0. Use icgd.training.LearnableRun, which has gradients "
            "(torch.autograd), and a leading axis of tasks in place of vmap."
        )

    @classmethod
    def refused(cls, name: str, problem: str) -> DataError:
        """`problem` is in the words of the library that reads the data."""
        return cls(f"{name} cannot be used: {cut(problem)}")

    @classmethod
    def no_line(cls, name: str) -> DataError:
        return cls(
            f"{name} cannot be used: Complex data not supported, nor dates, durations and records. "
            "Give real numbers."
        )

    @classmethod
    def no_batch(cls) -> DataError:
        return cls("This is one task, which has no places. Use it as it is.")

    @classmethod
    def empty(cls, name: str, shape: Sequence[int]) -> DataError:
        return cls(f"{name} is empty: its shape is {tuple(shape)}. Give at least one row.")

    @classmethod
    def too_large_whole(cls, name: str, value: int, most: int) -> DataError:
        return cls(
            f"{name} holds the whole number {value}, beyond {most}, which float64 would round. "
            "Rescale the data, or convert them to float64 yourself."
        )

    @classmethod
    def wrong_dtype(cls, name: str, dtype: object) -> DataError:
        return cls(
            f"{name} has dtype {dtype}; float64, float32, integers or bool are expected. "
            "Convert it explicitly to one of them."
        )

    @classmethod
    def wrong_shape(cls, name: str, shape: Sequence[int], expected: str) -> DataError:
        return cls(f"{name} has shape {tuple(shape)}; expected {expected}.")

    @classmethod
    def other_precision(cls, name: str, dtype: object, expected: object) -> DataError:
        found, other = (str(kind).removeprefix("torch.") for kind in (dtype, expected))
        return cls(f"{name} has dtype {found}, and the other data {other}. Convert one of them.")

    @classmethod
    def too_long(cls, n_examples: int, n_places: int, n_positions: int) -> DataError:
        return cls(
            f"A prompt of {n_examples} examples and a query takes {n_places} places; the decoder "
            f"has n_positions={n_positions}. Give shorter prompts, or make a decoder with "
            f"n_positions={n_places}, or without positions (n_positions=None)."
        )

    @classmethod
    def other_number_of_examples(cls, got: int, expected: int) -> DataError:
        return cls(
            f"X has {got} examples, but the transformer was made for prompts of {expected}. "
            f"Give {expected}, or compile with n_examples={got}."
        )

    @classmethod
    def smaller_than_batch(cls, n_examples: int, batch_size: int) -> DataError:
        return cls(
            f"X has {n_examples} examples, fewer than batch_size={batch_size} that a step takes. "
            f"Give at least {batch_size}, or a smaller batch_size."
        )

    @classmethod
    def between_levels(
        cls, name: str, index: Sequence[int], value: float, low: float, high: float
    ) -> DataError:
        return cls(
            f"{name}{at(index)} is {value:.12g}, on the ramp between two levels: the table has no "
            f"entry for examples strictly between {low:.12g} and {high:.12g}. Move it out, or "
            "compile with a smaller kink_width."
        )

    @classmethod
    def wrong_label(
        cls, kind: str, name: str, index: Sequence[int], value: float, expected: str
    ) -> DataError:
        """`kind` is what allows certain labels only: "loss" or "link"."""
        other = {"loss": "squared", "link": "identity"}[kind]
        return cls(
            f"y{at(index)} is {value:.12g}; the {name} {kind} needs {expected}. "
            f"Recode the labels, or use {kind}={brief(other)}."
        )

    @classmethod
    def no_class(cls, index: Sequence[int], value: float, n_classes: int) -> DataError:
        return cls(
            f"y{at(index)} is {value:.12g}; the cross_entropy loss of {n_classes} outputs needs "
            f"classes from 0 to {n_classes - 1}, or a row of {n_classes} shares for each example."
        )

    @classmethod
    def no_class_number(cls, path: object, column: str, cell: str, n_classes: int) -> DataError:
        return cls(
            f"{path}, column {column!r} has the class {cell}; the cross_entropy loss of "
            f"{n_classes} outputs needs classes from 0 to {n_classes - 1}."
        )

    @classmethod
    def wrong_sum(cls, loss: str, index: Sequence[int], total: float) -> DataError:
        return cls(
            f"The labels of example {at(index)} add up to {total:.12g}; the {loss} loss needs "
            "shares that add up to 1, such as a 1 for the class and 0 for all others."
        )

    @classmethod
    def one_class(cls, value: object) -> DataError:
        return cls(
            f"All labels are of one class, {brief(value)}; a classifier needs examples of at least "
            "two classes."
        )

    @classmethod
    def no_weight(cls, n_rows: int) -> DataError:
        return cls(
            f"The weight of all {n_rows} examples is zero; at least one sample_weight must be "
            "positive."
        )

    @classmethod
    def not_counts(cls, least: float) -> DataError:
        """`least` is the smallest label."""
        found = f"one is {least:g}" if least < 0 else "all are 0, which no finite intercept fits"
        return cls(f"Labels of a poisson model are counts or rates of at least 0, but {found}.")

    @classmethod
    def score_too_large(cls, row: int, score: float, limit: float) -> DataError:
        return cls(
            f"The expected count of row {row} (counted from 0) is exp({score:.3g}) times as large "
            f"or small as the mean label, but the heads are made for up to exp({limit:g}). Leave "
            "such rows out, or clip their inputs to the range of the context."
        )

    @classmethod
    def text_cell(cls, path: object, line: int, column: str, cell: str) -> DataError:
        return cls(
            f"{path}, line {line}, column {brief(column)}: {brief(cell)} is not a number. Remove "
            "the column or encode it as numbers. `icgd run` can leave it out: --ignore "
            f"{shlex.quote(column)}."
        )

    @classmethod
    def not_finite_cell(cls, path: object, line: int, column: str, value: float) -> DataError:
        return cls(
            f"{path}, line {line}, column {brief(column)} is {value}; every number must be finite. "
            "Correct the cell, or remove the line."
        )

    @classmethod
    def missing_value(
        cls, path: object, line: int, columns: Sequence[str], total: int, remedy: str = ""
    ) -> DataError:
        """The first one is in `line` of the first of `columns`; there are `total` of them.

        `remedy` is what else would help, such as ", or give --missing drop".
        """
        rest = f" ({total:,} are missing, in {', '.join(columns)})" if total > 1 else ""
        return cls(
            f"{path}, line {line} has no value in column {columns[0]!r}{rest}. Fill it, or remove "
            f"the line{remedy}."
        )

    @classmethod
    def missing_in_query(cls, path: object, line: int, column: str) -> DataError:
        return cls(
            f"{path}, line {line} has no value in column {brief(column)}, and a query cannot be "
            "dropped. Fill it, or give --missing mean or median, which are those of the examples."
        )

    @classmethod
    def nothing_there(cls, path: object, column: str) -> DataError:
        return cls(
            f"{path}, column {brief(column)} has no value at all, so nothing can fill it. Leave it "
            f"out: --ignore {shlex.quote(column)}."
        )

    @classmethod
    def no_whole_row(cls, path: object) -> DataError:
        return cls(
            f"Every row of {path} lacks a value, so --missing drop leaves none. Use --missing mean "
            "or median, or leave the columns with gaps out (--ignore)."
        )

    @classmethod
    def other_type(cls, path: object, column: str, kind: str) -> DataError:
        return cls(
            f"{path}, column {brief(column)} holds {kind}; numbers are expected. Remove the column "
            "or encode it as numbers."
        )

    @classmethod
    def row_numbers(cls, path: object) -> DataError:
        return cls(
            f"The first column of {path} has no name and only counts the rows. Remove it, or give "
            "it a name if it is an input."
        )

    @classmethod
    def long_line(cls, path: object, delimiter: str) -> DataError:
        return cls(
            f"Cannot read {path}: a line has more cells than the first one, with "
            f"{brief(delimiter)} between cells. Mend the line, or give --delimiter."
        )

    @classmethod
    def unclear_header(cls, path: object, cells: Sequence[str]) -> DataError:
        shown = ", ".join(cells[:4]) + ", ..." * (len(cells) > 4)
        return cls(
            f"The first line of {path} ({shown}) may be a header or an example. Give --header or "
            "--no-header (header=True or False in Python)."
        )

    @classmethod
    def uneven_tasks(
        cls, path: object, first: float, n_first: int, other: float, n_other: int
    ) -> DataError:
        return cls(
            f"{path}: task {first:g} has {n_first} rows, but task {other:g} has {n_other}. Give "
            "every task as many rows: its examples, and last its query."
        )

    @classmethod
    def wrong_inputs(cls, path: object, inputs: Sequence[str], expected: int) -> DataError:
        """`inputs` are all columns but the labels."""
        shown = ", ".join(inputs[:6]) + ", ..." * (len(inputs) > 6)
        return cls(
            f"{path} has {len(inputs)} columns of inputs ({shown or 'none'}); the model has "
            f"{expected}. Name the label columns with --target and columns to leave out with "
            f"--ignore, or compile with --widths that begin with {len(inputs)}."
        )

    @classmethod
    def nothing_left(cls, path: object, ignored: Sequence[str]) -> DataError:
        return cls(
            f"{path} has no column beside those that are ignored: {', '.join(ignored)}. Ignore "
            "fewer of them."
        )

    @classmethod
    def ignored_label(cls, column: str) -> DataError:
        return cls(
            f"Column {brief(column)} is both a label and ignored. Name it with --target or with "
            "--ignore, not with both."
        )

    @classmethod
    def one_class_in(cls, path: object, column: str, name: str) -> DataError:
        return cls(
            f"{path}, column {brief(column)} has only the class {brief(name)}; two are needed. "
            "Name another column with --target."
        )

    @classmethod
    def wrong_classes(
        cls, path: object, column: str, names: Sequence[str], n_outputs: int
    ) -> DataError:
        shown = ", ".join(names[:5]) + ", ..." * (len(names) > 5)
        return cls(
            f"{path}, column {brief(column)} has {len(names)} classes ({shown}), but the model has "
            f"{n_outputs} output{'s' * (n_outputs > 1)}. Compile with --widths that end with "
            f"{len(names)}."
        )

    @classmethod
    def unknown_class(cls, path: object, column: str, cell: str, names: Sequence[str]) -> DataError:
        return cls(
            f"{path}, column {brief(column)} has the class {brief(cell)}, which the examples lack; "
            f"known are {', '.join(names)}.{did_you_mean(cell, names)}"
        )

    @classmethod
    def unreadable(cls, path: object, problem: str) -> DataError:
        return cls(f"Cannot read {path}: {problem}.")

    @classmethod
    def short_log(cls, name: str, n_rows: int) -> DataError:
        return cls(
            f"The log of {name} has {n_rows} row{'s' * (n_rows != 1)}; a curve needs two. Train "
            "longer, or with a smaller log_every."
        )

    @classmethod
    def repeated_column(cls, path: object, name: str) -> DataError:
        return cls(f"{path} has two columns called {brief(name)}; column names must be unique.")

    @classmethod
    def wrong_labels(cls, labels: Sequence[str], expected: int) -> DataError:
        return cls(
            f"The model has {expected} output{'s' * (expected > 1)}, but the label columns are "
            f"{', '.join(labels)}. Give --target once for each output."
        )

    @classmethod
    def wrong_query_columns(cls, path: object, got: int, expected: int) -> DataError:
        return cls(
            f"{path} has {got} columns; a query has {expected} inputs. Keep only those, or give "
            "both files a header, so that inputs are found by name."
        )


class DataTypeError(DataError, TypeError):
    """Data are of a type that holds no numbers."""

    @classmethod
    def of(cls, name: str, problem: str) -> DataTypeError:
        return cls(f"{name} cannot be used: {cut(problem)}")


class DomainError(IcgdError, ValueError):
    """Data or weights lie outside the bounds that the certificate relies on."""

    @classmethod
    def outside(
        cls,
        name: str,
        index: Sequence[int],
        value: float,
        bound: float,
        setting: str,
        columns: Sequence[str] = (),
    ) -> DomainError:
        return cls(
            f"{name}{at(index, columns)} is {value:.12g}, outside [-{bound:g}, {bound:g}]. "
            f"Rescale the data or compile with a larger {setting}."
        )

    @classmethod
    def column_outside(
        cls, path: object, column: str, value: float, bound: float, option: str, units: str
    ) -> DomainError:
        """`value` is the largest of the column; `units` are empty or those that it is in."""
        return cls(
            f"{path}, column {brief(column)} goes to {value:.6g}{units}, but the transformer was "
            f"made for {bound:g} at most. Compile with {option} {abs(value) * 1.001:.4g} or "
            "larger, or with --bounds-from a table that holds such values."
        )


class UnsupportedActivationError(IcgdError, ValueError):
    """An activation cannot approximate all functions, so no construction can use it."""

    @classmethod
    def polynomial(cls, name: str, degree: int | None) -> UnsupportedActivationError:
        of_degree = "" if degree is None else f" of degree {degree}"
        return cls(
            f"Activation {brief(name)} is a polynomial{of_degree}: so is every combination of "
            "its copies, and it decays only if it is zero. Use an activation that is none, such "
            "as relu or sigmoid."
        )

    @classmethod
    def no_decay(cls, name: str, order: int, share: float) -> UnsupportedActivationError:
        return cls(
            f"Activation {brief(name)} has no general decay: far out its differences up to order "
            f"{order} keep at least {share:.1%} of their size. Use relu, sigmoid or another "
            "activation that is nearly a line on either side."
        )

    @classmethod
    def not_differentiable(cls, name: str, reason: str) -> UnsupportedActivationError:
        return cls(
            f"Activation {brief(name)} must be a function of a tensor, entry by entry, that torch "
            f"can differentiate, but {reason.rstrip('.')}. Build it of torch functions, such as "
            "torch.tanh."
        )

    @classmethod
    def not_finite(cls, name: str, place: float) -> UnsupportedActivationError:
        return cls(
            f"Activation {brief(name)} has no finite value at x = {place:.3g}, but general decay "
            "is checked for |x| up to 1000. Use an activation that grows no faster than a line."
        )


class KernelError(IcgdError, ValueError):
    """A kernel cannot be used, or returned what no kernel may return."""

    @classmethod
    def wrong_shape(cls, name: str, got: str, expected: Sequence[int]) -> KernelError:
        return cls(
            f"Kernel {brief(name)} returned {got}; expected a tensor of shape {tuple(expected)}: "
            "a row for each point on the left, a column for each on the right."
        )

    @classmethod
    def wrong_dtype(cls, name: str, got: str, expected: str) -> KernelError:
        return cls(
            f"Kernel {brief(name)} returned {got.removeprefix('torch.')} for points of "
            f"{expected.removeprefix('torch.')}. Keep the type of the points."
        )

    @classmethod
    def not_finite(cls, name: str, index: Sequence[int], value: float) -> KernelError:
        return cls(
            f"Kernel {brief(name)} returned {value} at {at(index)}; every entry must be finite. "
            "Rescale the inputs, or use a kernel that stays bounded."
        )

    @classmethod
    def not_symmetric(
        cls, name: str, index: Sequence[int], value: float, mirrored: float
    ) -> KernelError:
        return cls(
            f"Kernel {brief(name)} is not symmetric: it is {value:.6g} at {at(index)} and "
            f"{mirrored:.6g} with the two points exchanged. Mend it, or register it with "
            "symmetric=False and do without what needs symmetry."
        )

    @classmethod
    def needs_symmetry(cls, name: str, purpose: str) -> KernelError:
        return cls(f"{purpose} needs a symmetric kernel, which {brief(name)} is not.")

    @classmethod
    def no_shape(cls, name: str, shape: float, shaped: Sequence[str]) -> KernelError:
        return cls(
            f"Kernel {brief(name)} has no shape, got shape={brief(shape)}; only "
            f"{' and '.join(shaped)} have one. Rescale inputs with the head's transform."
        )

    @classmethod
    def bad_name(cls, name: object) -> KernelError:
        return cls(
            f"The name of a kernel must be a non-empty string, got {brief(name)}. "
            "Call icgd.register_kernel('mine', function)."
        )

    @classmethod
    def not_callable(cls, name: str, function: object) -> KernelError:
        return cls(
            f"Kernel {brief(name)} must be a function of two tensors of points that returns a "
            f"tensor, got {brief(function)}."
        )

    @classmethod
    def bad_constant(cls, name: str, what: str, radius: float, value: object) -> KernelError:
        return cls(
            f"{what} of kernel {brief(name)} is {brief(value)} for points of norm up to "
            f"{radius:.6g}; expected a number that is not negative. Mend the function that was "
            f"given as {what}."
        )

    @classmethod
    def steeper(cls, name: str, change: float, distance: float, stated: float) -> KernelError:
        return cls(
            f"Kernel {brief(name)} contradicts its statement: it changes by {change:.6g} between "
            f"two points of these data that are {distance:.6g} apart, and lipschitz is "
            f"{stated:.6g}. Register it with a larger lipschitz; if it jumps, it has none: leave "
            "lipschitz out."
        )

    @classmethod
    def beyond_bound(
        cls, name: str, index: Sequence[int], value: float, stated: float
    ) -> KernelError:
        return cls(
            f"Kernel {brief(name)} contradicts its statement: it is {value:.6g} at {at(index)}, "
            f"and bound is {stated:.6g}. Register it with a larger bound."
        )

    @classmethod
    def rounds_more(
        cls, name: str, index: Sequence[int], change: float, allowed: float
    ) -> KernelError:
        return cls(
            f"Kernel {brief(name)} contradicts its statement: it changes by {change:.3g} at "
            f"{at(index)} if a point moves by its last digits, and lipschitz and rounding allow "
            f"{allowed:.3g}. Compute it without cancellation, such as distances by torch.cdist "
            "with compute_mode='donot_use_mm_for_euclid_dist', or register it with a larger "
            "rounding."
        )

    @classmethod
    def not_of_two_points(
        cls, name: str, index: Sequence[int], alone: float, among: float
    ) -> KernelError:
        return cls(
            f"Kernel {brief(name)} is no function of two points: at {at(index)} it is {alone:.6g} "
            f"for the pair alone and {among:.6g} among the others. Constants cannot be stated of "
            "it: leave lipschitz out."
        )

    @classmethod
    def taken(cls, name: str) -> KernelError:
        return cls(f"{brief(name)} is a kernel of icgd already; register yours under another name.")


class UnsupportedProblemError(IcgdError, ValueError):
    """The chosen construction cannot serve this problem."""

    @classmethod
    def of(
        cls, construction: str, reason: str, alternatives: Sequence[str]
    ) -> UnsupportedProblemError:
        hint = (
            f"Constructions that can: {', '.join(alternatives)}."
            if alternatives
            else "No construction takes it as it is."
        )
        return cls(f"{construction} cannot compile this problem: {reason} {hint}")

    @classmethod
    def by_all(cls, reasons: Mapping[str, str]) -> UnsupportedProblemError:
        return cls(f"No construction can compile this problem. {listed(reasons)}")


class UnreadableError(IcgdError, ValueError):
    """A PyTorch training run has a part that is not read, or that would change the result."""

    @classmethod
    def module(cls, where: str, name: str, known: Sequence[str]) -> UnreadableError:
        return cls(f"{where} is {name}, which is not read. It may be {', '.join(known)}.")

    @classmethod
    def option(cls, where: str, option: str, found: object, expected: object) -> UnreadableError:
        return cls(
            f"{where} has {option} = {brief(found)}, expected {brief(expected)}. Another value "
            "would give another training run than the one that is compiled."
        )

    @classmethod
    def misplaced(cls, where: str, name: str) -> UnreadableError:
        return cls(
            f"{where} is {name}, but no linear layer stands right before it. Every activation and "
            "every norm belongs to the Linear before it."
        )

    @classmethod
    def no_layers(cls, name: str) -> UnreadableError:
        return cls(
            f"The model is {name} without any Linear. Give an nn.Sequential of Linear layers and "
            "activations."
        )

    @classmethod
    def shared(cls) -> UnreadableError:
        return cls(
            "The model uses the same weights in two layers. Give every layer weights of its own."
        )

    @classmethod
    def some_biases(cls, found: Sequence[bool]) -> UnreadableError:
        have = ", ".join("with" if bias else "without" for bias in found)
        return cls(
            f"The layers of the model are {have} bias, in this order. Give all of them a bias, or "
            "none."
        )

    @classmethod
    def several_activations(cls, found: Sequence[str]) -> UnreadableError:
        return cls(
            f"The hidden layers have the activations {', '.join(found)}. Give all of them the "
            "same; the last layer may have another."
        )

    @classmethod
    def sum_of_unknown(cls) -> UnreadableError:
        return cls(
            'The loss has reduction="sum", whose gradient grows with the number of examples. Pass '
            "n_examples or batch_size."
        )

    @classmethod
    def has_stepped(cls, name: str) -> UnreadableError:
        return cls(
            f"The optimizer {name} has already taken steps, and remembers them. Give a new one, "
            "made from the model as it is now."
        )

    @classmethod
    def other_parameters(cls, missing: Sequence[str]) -> UnreadableError:
        found = (
            f"does not train the {', '.join(missing)}" if missing else "trains other parameters too"
        )
        return cls(f"The optimizer {found}. Give it exactly the parameters of the model.")

    @classmethod
    def looks_at_loss(cls, name: str) -> UnreadableError:
        return cls(
            f"The scheduler {name} looks at the loss, which a compiled run cannot. Use one whose "
            "step sizes are known beforehand, such as CosineAnnealingLR."
        )

    @classmethod
    def no_number_of_steps(cls, name: str) -> UnreadableError:
        return cls(f"The scheduler {name} needs n_steps: it gives a step size for each step.")

    @classmethod
    def other_shape(
        cls, name: str, found: tuple[int, ...] | None, expected: tuple[int, ...] | None
    ) -> UnreadableError:
        has = "is not there" if found is None else f"has shape {found}"
        wants = "has no such weights" if expected is None else f"expects {expected}"
        return cls(
            f"{name} of the run {has}, where the model {wants}. Load into a model of "
            "the shape that was compiled; of a batch of tasks, load one task."
        )


class SeparableDataError(IcgdError, ValueError):
    """A linear model has no minimiser: its coefficients would grow for ever."""

    @classmethod
    def of(
        cls, link: str, is_complete: bool, direction: Sequence[float], task: int | None
    ) -> SeparableDataError:
        """`direction` is one along which the loss falls for ever, `task` its place in a batch."""
        where = "" if task is None else f" of task {task}"
        extent = "completely" if is_complete else "quasi-completely"
        falls = "every example" if is_complete else "some examples and rises at none"
        largest = max(range(len(direction)), key=lambda i: abs(direction[i]))
        return cls(
            f"The data{where} are {extent} separable, so no minimiser exists: along a direction "
            f"(most of it coefficient {largest}) the {link} loss falls for ever at {falls}. "
            "Add an l2 penalty, such as l2=0.01."
        )

    @classmethod
    def intercept(cls, link: str, label: float, task: int | None) -> SeparableDataError:
        where = "" if task is None else f" of task {task}"
        return cls(
            f"Every label{where} is {label:g}, so no minimiser exists: the intercept of the {link} "
            "link grows for ever, and penalties leave it out. Use intercept=False, or give "
            "examples with other labels."
        )


class ToleranceError(IcgdError, ValueError):
    """No number of pieces or registers proves the tolerance.

    `tolerance` is given in words, such as "tolerance=1e-06 of the final weights".
    """

    @classmethod
    def unreachable(cls, tolerance: str, best: float, finest: str, reason: str) -> ToleranceError:
        return cls(
            f"{tolerance} cannot be proved: the smallest bound is {best:.3g}, with {finest}. "
            f"{reason}"
        )

    @classmethod
    def of_estimates(cls, tolerance: str, kernels: Sequence[str]) -> ToleranceError:
        names = ", ".join(map(repr, kernels))
        return cls(
            f"{tolerance} cannot be proved: no Lipschitz constant was stated of the "
            f"kernel {names}. Register it with icgd.register_kernel(..., lipschitz=...)."
        )

    @classmethod
    def no_room(cls, tolerance: str, construction: str, room: float) -> ToleranceError:
        return cls(f"{tolerance} takes {construction} more than {room:,.0f} weights.")

    @classmethod
    def by_all(cls, tolerance: str, refusals: Mapping[str, object]) -> ToleranceError:
        return cls(
            f"{tolerance} cannot be proved by any construction that serves this "
            f"problem. {listed(refusals)}"
        )


class LayoutError(IcgdError, ValueError):
    """A slot is missing or duplicated."""

    @classmethod
    def unknown_slot(cls, name: object, *, known: Sequence[str]) -> LayoutError:
        hint = did_you_mean(name, known) if isinstance(name, str) else ""
        return cls(f"Layout has no slot {brief(name)}; it has {', '.join(known)}.{hint}")

    @classmethod
    def duplicate_slot(cls, name: str) -> LayoutError:
        return cls(f"Layout names slot {brief(name)} twice; slot names must be unique.")

    @classmethod
    def no_coordinate(cls, coordinate: int, width: int) -> LayoutError:
        return cls(f"The residual stream has coordinates 0 to {width - 1}, got {coordinate}.")


class ProgramError(IcgdError, ValueError):
    """A program breaks one of the rules of `program/check.py`."""

    @classmethod
    def broken(cls, where: str, rule: str) -> ProgramError:
        return cls(f"{where}: {rule}")

    @classmethod
    def not_a_stack(cls, kind: str) -> ProgramError:
        return cls(
            f"A causal mask needs a program of type StackProgram, got one of type {kind}. Give "
            "compiled.stack of a run that was compiled with construction='softmax-stack'."
        )

    @classmethod
    def not_masked(cls, construction: str) -> ProgramError:
        return cls(
            f"A mask needs softmax attention alone; {construction} has other attention too. "
            "Compile with construction='softmax-stack'."
        )


class OverflowedRunError(IcgdError, ArithmeticError):
    """A run left the range of its floating-point numbers."""

    @classmethod
    def of(cls, dtype: str, step_size: float | Sequence[float] | None = None) -> OverflowedRunError:
        """`step_size` is None if it is not known."""
        largest = max(step_size) if isinstance(step_size, Sequence) else step_size
        blamed = "a step" if largest is None else f"step_size={largest:g}"
        return cls(
            f"The run leaves the range of {dtype}: {blamed} is too large for these data. "
            "Use a smaller step size."
        )

    @classmethod
    def of_reference(cls) -> OverflowedRunError:
        return cls(
            "Real training leaves the range of float64 on these data, so that there is nothing to "
            "compare the run with. Rescale the data, or use a smaller step size."
        )

    @classmethod
    def never_falls(cls, step_size: float) -> OverflowedRunError:
        return cls(
            f"The loss is larger after the run than before it, even with step_size={step_size:g}. "
            "Look for examples that are far larger than all others, or take fewer steps."
        )

    @classmethod
    def by_transforms(cls, dtype: str, largest: float) -> OverflowedRunError:
        """`largest` is the largest entry of the matrices that move the inputs."""
        return cls(
            f"The run leaves the range of {dtype}: transforms with entries of up to {largest:g} "
            "are too large for these data, as they let the inputs grow with every step. Use "
            "smaller transforms."
        )

    @classmethod
    def constant(cls, name: str, value: float, dtype: str) -> OverflowedRunError:
        return cls(
            f"The program's {name} is {value:g}, outside the range of {dtype}. "
            "Run in float64, or change the problem."
        )

    @classmethod
    def beyond_grid(
        cls, row: str, block: int, title: str, value: float, reach: float
    ) -> OverflowedRunError:
        return cls(
            f"Row {row} of block {block} ({title}) reaches {value:.6g}, but the grid that its "
            f"heads read ends at {reach:.6g}. Use a smaller step size, box or domain."
        )

    @classmethod
    def beyond_gates(
        cls, row: str, n_rounds: int, value: float, largest: float
    ) -> OverflowedRunError:
        return cls(
            f"The {row} of a weight is {value:.6g} after {n_rounds} rounds, but the gates of the "
            f"block close no more than {largest:.6g}. Use a smaller step size or momentum, or "
            "start from a smaller state."
        )

    @classmethod
    def beyond_root(cls, step: int, value: float, largest: float) -> OverflowedRunError:
        """`value` is the mean of squares, corrected as Adam does, whose root a step divides by."""
        return cls(
            f"Step {step} divides by the root of {value:.6g}, but the transformer was made for "
            f"roots of up to {largest:.6g}, which no run that starts from 0 leaves. Give initial "
            "with a smaller second moment, or without one."
        )

    @classmethod
    def beyond_scores(cls, where: str, row: int, value: float, reach: float) -> OverflowedRunError:
        return cls(
            f"The score <w, x> at {where} {row} (counted from 0) is {value:.6g}, but the heads are "
            f"made for scores up to {reach:.6g}. Compile with a larger Domain(score=...), or use a "
            "smaller step size or box."
        )


class InterruptedRunError(IcgdError, KeyboardInterrupt):
    """The user stopped a run; `partial` is the run up to the last whole step."""

    def __init__(self, message: str, partial: object) -> None:
        super().__init__(message)
        self.partial = partial

    def __reduce__(self) -> tuple[type[InterruptedRunError], tuple[str, object]]:
        """How it travels from one process to another."""
        return type(self), (str(self), self.partial)

    @classmethod
    def after(
        cls,
        n_steps: int,
        total: int,
        partial: object,
        next_example: int | None = None,
        *,
        can_go_on: bool = True,
    ) -> InterruptedRunError:
        """`next_example` is where the next batch starts; 0 is where a new run starts anyway."""
        first = (
            f" and with the examples from number {next_example} (counted from 0) first"
            if next_example
            else ""
        )
        then = (
            f"go on with initial=...[-1]{first}"
            if can_go_on
            else "no run goes on from there, because a run starts with the first of its steps"
        )
        return cls(
            f"The run was interrupted after {n_steps} of {total} steps. The weights so far are in "
            f"the error's `partial.parameters`; {then}.",
            partial,
        )

    @classmethod
    def of_tasks(
        cls, n_tasks: int, total: int, are_done: bool, partial: object
    ) -> InterruptedRunError:
        """`are_done` says that these tasks took all their steps."""
        steps = "whole runs" if are_done else "runs so far"
        return cls(
            f"The run was interrupted: the {steps} of the first {n_tasks} of {total} tasks are in "
            "the error's `partial`. Run the other tasks again.",
            partial,
        )


class ProofError(IcgdError, ArithmeticError):
    """A run cannot be certified."""

    @classmethod
    def no_steps(cls) -> ProofError:
        return cls(
            "The run has no steps, so there is nothing to certify. Compile at least one step."
        )

    @classmethod
    def unbounded(cls, step: int, bits: int) -> ProofError:
        return cls(
            f"Nothing can be proved of step {step}: {bits} bits enclose exact descent by no finite "
            "interval. Certify fewer steps, or take a smaller step size."
        )

    @classmethod
    def unknown_update(cls, update: str) -> ProofError:
        return cls(
            f"icgd-check knows plain gradient steps of one size, and no proof of {update}. Leave "
            "out `rigorous` or `certify`; bounds of single steps and of the run hold without it."
        )

    @classmethod
    def no_chain(cls, network: str) -> ProofError:
        return cls(
            f"icgd-check knows no shortcuts and layer norms, and no proof of a {network}. Leave "
            "out `rigorous` or `certify`; bounds of single steps and of the run hold without it."
        )

    @classmethod
    def rated(cls) -> ProofError:
        return cls(
            "icgd-check knows no rates of examples. Leave out `rigorous` or `certify`; bounds of "
            "single steps and of the run hold without it."
        )

    @classmethod
    def refused(cls, reason: str) -> ProofError:
        return cls(
            f"icgd-check would refuse a proof of this run: {reason}. "
            "Take fewer examples, or a narrower network."
        )


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


class DistributionError(IcgdError, ValueError):
    """A law of tasks that nothing can be drawn from."""

    @classmethod
    def not_square(cls, name: str, shape: Sequence[int]) -> DistributionError:
        return cls(
            f"{name} must be a square matrix, a row and a column for each input; "
            f"got shape {tuple(shape)}."
        )

    @classmethod
    def not_symmetric(
        cls, name: str, index: Sequence[int], value: float, mirrored: float
    ) -> DistributionError:
        return cls(
            f"{name} must be symmetric; it is {value:.6g} at {at(index)} and {mirrored:.6g} "
            "mirrored. Give (S + S^T) / 2."
        )

    @classmethod
    def not_positive_definite(cls, name: str, least: float) -> DistributionError:
        return cls(
            f"{name} must be positive definite; its smallest eigenvalue is {least:.3g}. "
            "Leave out the inputs without variance."
        )

    @classmethod
    def other_width(cls, labels: int, covariates: int) -> DistributionError:
        return cls(
            f"The labels are a function of {labels} inputs, but the covariates have {covariates}. "
            "Give both the same width."
        )

    @classmethod
    def overflows(cls, law: str, largest: float, limit: float) -> DistributionError:
        return cls(
            f"Labels of {law} overflow: the largest is {largest:.3g}, and training can square "
            f"labels up to {limit:.0e}. Give fewer layers, smaller widths, a mean nearer to 0, or "
            "smaller inputs."
        )

    @classmethod
    def not_shares(cls, name: str, values: object) -> DistributionError:
        return cls(f"{name} must be shares of at least 0 that add up to 1; got {values}.")

    @classmethod
    def descent_overflows(
        cls, teacher: int, number: int, largest: float, step_size: float, weight_scale: float
    ) -> DistributionError:
        return cls(
            f"The descent of student {teacher} overflows: a number of its chain is {largest:.3g} "
            f"in round {number}, with step_size={step_size:g} and weight_scale={weight_scale:g}. "
            "Make one of them smaller."
        )

    @classmethod
    def score_overflows(cls, time: float, x: Sequence[float]) -> DistributionError:
        place = ", ".join(f"{entry:.4g}" for entry in x)
        return cls(
            f"The score of the law is not a finite number at t = {time:g}, x = ({place}). Its "
            "components are too far apart or too narrow for float64. Scale the data to variance 1, "
            "or begin at a later time."
        )


class OwnCodeError(IcgdError, ImportError):
    """A function of the user's own cannot be used."""

    @classmethod
    def malformed(cls, reference: str) -> OwnCodeError:
        return cls(
            f"{brief(reference)} names no function; expected a file or a module, a colon and a "
            "name, such as my_data.py:draw."
        )

    @classmethod
    def cannot_import(cls, module: str, problem: str) -> OwnCodeError:
        return cls(f"{module} cannot be imported ({problem}).")

    @classmethod
    def no_function(cls, module: str, name: str, known: Sequence[str]) -> OwnCodeError:
        return cls(f"{module} has no function called {brief(name)}.{did_you_mean(name, known)}")

    @classmethod
    def raised(cls, problem: Exception, place: str) -> OwnCodeError:
        where = f" ({place})" if place else ""
        return cls(f"Your own code raised {type(problem).__name__}: {problem}{where}.")


class CheckpointError(IcgdError, ValueError):
    """A checkpoint cannot be used to go on with this run."""

    @classmethod
    def other_log(cls, path: object, step: int) -> CheckpointError:
        return cls(
            f"{path} was changed: its row of step {step} is not the one in the checkpoint beside "
            "it. `icgd train` on the same folder writes it again."
        )

    @classmethod
    def damaged(cls, path: object, problem: str) -> CheckpointError:
        return cls(
            f"{path} is damaged or not a checkpoint ({problem}). It was left as it is; "
            "remove it to train without it."
        )

    @classmethod
    def foreign(cls, path: object, version: object, known: int) -> CheckpointError:
        return cls(
            f"{path} has checkpoint format {brief(version)}; this version of icgd reads format "
            f"{known}. It was left as it is; use the icgd that wrote it, or train in another "
            "folder."
        )

    @classmethod
    def other_configuration(
        cls, path: object, name: str, stored: object, given: object
    ) -> CheckpointError:
        return cls(
            f"{path} belongs to another run: its {name} is {brief(stored)}, here it is "
            f"{brief(given)}. It was left as it is; go on with the old value, or train in another "
            "folder."
        )

    @classmethod
    def none_there(cls, folder: object, which: str) -> CheckpointError:
        if which == "best":
            return cls(
                f"{folder} has no best.safetensors, which a training with a validation split "
                "writes. Load its last checkpoint with which='last'."
            )
        return cls(
            f"{folder} has no checkpoint. Give the folder that a model was trained in, which holds "
            "files such as checkpoint-000001000.safetensors."
        )

    @classmethod
    def own_model(cls, path: object, kind: object, known: Sequence[str]) -> CheckpointError:
        return cls(
            f"{path} holds a model of kind {brief(kind)}, and icgd can build {', '.join(known)} "
            "only. Make a module of the same shape, and give it as load(folder, model=module)."
        )

    @classmethod
    def other_model(cls, path: object, name: str, stored: object, given: object) -> CheckpointError:
        texts = ["none" if shape is None else f"shape {shape}" for shape in (stored, given)]
        return cls(
            f"{path} holds another model: for {brief(name)} it has {texts[0]}, the module "
            f"{texts[1]}. Give a module of the shape that was trained."
        )


class RunFolderError(IcgdError, RuntimeError):
    """The folder of a run cannot be used now."""

    @classmethod
    def in_use(cls, folder: object, process: str) -> RunFolderError:
        """`process` is the number of the process that has the folder."""
        return cls(
            f"{folder} is in use by process {process}; two would overwrite each other's files. "
            "Nothing was changed; wait until that process ends, or use another folder."
        )

    @classmethod
    def foreign(cls, path: object) -> RunFolderError:
        return cls(
            f"{path} was not written by a training of icgd, which would replace it. Nothing was "
            "changed; move that file away, or train in another folder."
        )


class TrainingError(IcgdError, RuntimeError):
    """A model cannot be trained, or no further."""

    @classmethod
    def diverged(cls, name: str, value: float, step: int) -> TrainingError:
        return cls(
            f"The {name} is {value} at step {step}; training has stopped, and the last checkpoint "
            "is kept. Lower learning_rate or clip_norm, or train with dtype='float64'."
        )

    @classmethod
    def no_step(cls, reason: str) -> TrainingError:
        return cls(
            f"This model is no program of functional descent: {reason}. Compile "
            "nearest_descent(model).model in its place, or run the torch module itself."
        )

    @classmethod
    def does_not_fit(cls, problem: str) -> TrainingError:
        return cls(
            f"The tasks or the model do not fit into memory ({problem}). Give smaller sizes, or "
            "gather the gradient in parts (accumulate)."
        )

    @classmethod
    def nothing_to_train(cls, model: str) -> TrainingError:
        return cls(f"{model} has no parameter that requires a gradient; there is nothing to train.")

    @classmethod
    def taken_column(cls, name: str) -> TrainingError:
        return cls(
            f"measure returned {brief(name)}, which the log has of its own; call the column "
            "otherwise."
        )

    @classmethod
    def other_columns(cls, got: Sequence[str], expected: Sequence[str]) -> TrainingError:
        return cls(
            f"The log has columns {', '.join(expected)}; a row came with {', '.join(got)}. "
            "measure must return the same names, in the same order, each time."
        )


class InterruptedTrainingError(IcgdError, KeyboardInterrupt):
    """The user stopped a training; the model holds its last whole step."""

    @classmethod
    def after(cls, step: int, n_steps: int, folder: object | None) -> InterruptedTrainingError:
        """`folder` is where the checkpoint of the step is; None if there is none."""
        kept = "Nothing was saved; with a folder it could go on later."
        if folder is not None:
            kept = f"The checkpoint of this step is in {folder}; train again alike to go on."
        return cls(f"Training was interrupted after {step} of {n_steps} steps. {kept}")

    @classmethod
    def between_steps(cls, folder: object) -> InterruptedTrainingError:
        """Ctrl-C came before the first step of this process, or after its last."""
        return cls(
            f"Training was interrupted while no step was under way. Whatever {folder} holds is "
            "whole; train again alike to go on."
        )


class SweepError(IcgdError, RuntimeError):
    """A configuration of a sweep failed."""

    @classmethod
    def failed(cls, index: int, configuration: object, problem: BaseException) -> SweepError:
        return cls(
            f"Configuration {index}, {brief(configuration)}, failed with "
            f"{type(problem).__name__}: {problem}"
        )


class WorkerError(IcgdError, RuntimeError):
    """A process that does part of the work is gone."""

    @classmethod
    def ended(cls, exit_code: int | None) -> WorkerError:
        return cls(
            f"A worker's process ended with exit code {exit_code}; -9 often means that memory ran "
            "out. Use fewer workers."
        )


class InterruptedStudiesError(IcgdError, KeyboardInterrupt):
    """Ctrl-C ended the studies of a figure; what they found so far is kept."""

    @classmethod
    def after(
        cls, n_finished: int, n_begun: int, total: int, folder: object
    ) -> InterruptedStudiesError:
        return cls(
            f"Stopped with {n_finished} of {total} studies finished and {n_begun} begun; they are "
            f"kept in {folder}. Give the same command again to go on."
        )


class DivergenceWarning(UserWarning):
    """Step sizes let the error on the examples grow."""

    @classmethod
    def of(cls, eigenvalue: float, growth: float, step_size: float | None) -> DivergenceWarning:
        """`step_size` is None if steps differ."""
        start = f"The steps diverge on these data: the error grows {growth:.3g}-fold along "
        if eigenvalue < 0:
            return cls(
                f"{start}an eigenvector of eigenvalue {eigenvalue:.6g}. The kernel is not "
                "positive there: add noise of at least that size, or use another kernel."
            )
        largest = f"{start}the kernel's eigenvalue {eigenvalue:.6g}."
        if step_size is None:
            return cls(f"{largest} Choose steps for a spectrum that reaches that far.")
        limit = 2 / eigenvalue
        return cls(f"{largest} step_size is {step_size:.6g}; it must be below {limit:.6g}.")


class BoxWarning(UserWarning):
    """Training was held back by its box."""

    @classmethod
    def of_network(cls, box: float) -> BoxWarning:
        return cls(
            f"A weight ends at the box, {box:g}, which PyTorch does not have: the run is no longer "
            "the one of your script. Give a larger box."
        )

    @classmethod
    def of(cls, coefficient: int, box: float, names: Sequence[str] = ()) -> BoxWarning:
        """`names` are those of all coefficients, if they are known."""
        counted = f"Coefficient {coefficient} (counted from 0)"
        which = f"The coefficient of {names[coefficient]!r}" if names else counted
        return cls(
            f"{which} ends at the box, {box:g}: without it, it "
            "would be larger. Give a larger box, or a smaller step size if steps diverge."
        )


class EstimateWarning(UserWarning):
    """A bound rests on constants of a kernel that are estimated."""

    @classmethod
    def of(cls, kernels: Sequence[str]) -> EstimateWarning:
        names = ", ".join(map(repr, kernels))
        return cls(
            f"Bounds rest on Lipschitz constants of the kernel {names} that are estimated from "
            "these data: they prove nothing. State them with icgd.register_kernel(..., "
            "lipschitz=...)."
        )


class PrecisionWarning(UserWarning):
    """Weights that were chosen for float64 are written in float32."""

    @classmethod
    def of(cls, construction: str) -> PrecisionWarning:
        return cls(
            f"This {construction} was compiled for float64, but its weights are used in float32, "
            "where gradients lose several times more to rounding than they must. Compile with "
            "dtype='float32' (--dtype float32), or use float64 or backend='fused'."
        )

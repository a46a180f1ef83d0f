"""Errors in settings, such as widths, step sizes, counts and tolerances."""

from __future__ import annotations

from collections.abc import Sequence

from icgd.errors.base import IcgdError, brief


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

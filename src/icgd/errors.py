"""Every exception of icgd: what happened, where, the value, what was expected, what to do.

Messages are built here and nowhere else, and each is matched by a test in `tests/test_errors.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches


class IcgdError(Exception):
    """Base of every error that icgd raises on purpose."""


def _did_you_mean(name: str, known: Sequence[str]) -> str:
    closest = get_close_matches(name, known, n=1, cutoff=0.5)
    return f" Did you mean {closest[0]!r}?" if closest else ""


def _listed(reasons: Mapping[str, object]) -> str:
    """Each reason once, after the names that share it."""
    texts = dict.fromkeys(map(str, reasons.values()))
    names = {text: [name for name in reasons if str(reasons[name]) == text] for text in texts}
    return " ".join(f"{', '.join(names[text])}: {text}" for text in texts)


def _at(index: Sequence[int]) -> str:
    return f"[{', '.join(str(i) for i in index)}]"


class UnknownNameError(IcgdError, ValueError):
    """A name (activation, loss, construction, backend, ...) is not in its registry."""

    @classmethod
    def of(cls, kind: str, name: object, *, known: Sequence[str]) -> UnknownNameError:
        """`kind` says what was looked up, such as "activation"."""
        hint = _did_you_mean(name, known) if isinstance(name, str) else ""
        return cls(f"Unknown {kind} {name!r}; known are {', '.join(known)}.{hint}")


class SettingError(IcgdError, ValueError):
    """A setting (a width, a step size, a count, ...) has an impossible value."""

    @classmethod
    def not_positive(cls, name: str, value: object) -> SettingError:
        return cls(f"{name} must be a positive finite number, got {value!r}.")

    @classmethod
    def negative_penalty(cls, name: str, value: float) -> SettingError:
        return cls(
            f"{name} must not be negative, got {value!r}: a penalty draws coefficients towards 0. "
            "Give 0 for none."
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
    def wrong_kind(cls, name: str, value: object, expected: str) -> SettingError:
        return cls(f"{name} must be of type {expected}, got {value!r}.")

    @classmethod
    def not_count(cls, name: str, value: object, *, least: int) -> SettingError:
        return cls(f"{name} must be a whole number of at least {least}, got {value!r}.")

    @classmethod
    def too_large(cls, name: str, value: object, *, most: int) -> SettingError:
        return cls(f"{name} must be at most {most}, got {value!r}.")

    @classmethod
    def out_of_range(cls, name: str, value: object, *, least: float, most: float) -> SettingError:
        return cls(f"{name} must lie between {least:g} and {most:g}, got {value!r}.")

    @classmethod
    def not_inside(cls, name: str, value: object, *, low: float, high: float) -> SettingError:
        return cls(f"{name} must lie strictly between {low:g} and {high:g}, got {value!r}.")

    @classmethod
    def not_one_of(cls, name: str, value: object, known: Sequence[object]) -> SettingError:
        return cls(f"{name} must be one of {', '.join(map(str, known))}, got {value!r}.")

    @classmethod
    def wrong_length(cls, name: str, got: int, expected: str) -> SettingError:
        return cls(f"{name} has {got} entries; expected {expected}.")

    @classmethod
    def starts_from_zero(cls) -> SettingError:
        return cls("A kernel machine starts from the function 0; leave `initial` out.")

    @classmethod
    def other_examples(cls, given: int, found: int) -> SettingError:
        return cls(
            f"--examples is {given}, but the file of --step-from has {found} examples, for which "
            "the step size would be chosen. Leave --examples out."
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
    def no_setting(
        cls, construction: str, setting: str, own: Sequence[str], owners: Sequence[str]
    ) -> SettingError:
        has = f"its settings are {', '.join(own)}" if own else "it has no settings"
        text = f"{construction} has no setting {setting!r}; {has}."
        if owners:
            return cls(f"{text} {setting} is a setting of {', '.join(owners)}.")
        return cls(f"{text}{_did_you_mean(setting, own)}")

    @classmethod
    def beside_construction(cls, construction: str, settings: Mapping[str, object]) -> SettingError:
        given = ", ".join(f"{name}={value!r}" for name, value in settings.items())
        return cls(
            f"{given} was given beside a construction object, which has its own settings. Put it "
            f"into the object: {construction}({given})."
        )

    @classmethod
    def unreachable_accuracy(cls, accuracy: float, best: float, n_tokens: int) -> SettingError:
        return cls(
            f"accuracy={accuracy:g} cannot be proved with {n_tokens} grid tokens; "
            f"the smallest error is {best:.3g}. Ask for less, or use a smaller range."
        )

    @classmethod
    def scores_too_wide(cls, link: str, reach: float, n_tokens: int) -> SettingError:
        return cls(
            f"A head of {n_tokens} tokens cannot return the {link} mean of scores up to "
            f"{reach:.4g}. Give a smaller bound with Domain(score=...), or a smaller box."
        )

    @classmethod
    def too_few_pieces(cls, pieces: int, activation: str) -> SettingError:
        return cls(
            f"pieces={pieces} is too few for {activation}: the error of the fit grows with the "
            "interval, so no interval covers the layers' outputs. Give at least 2."
        )

    @classmethod
    def too_few_registers(cls, registers: int) -> SettingError:
        return cls(
            f"registers={registers} is too few for these ranges: the error of a look-up exceeds "
            "what it looks up. Give more registers, or use a smaller box or domain."
        )

    @classmethod
    def table_too_large(
        cls, levels: int, n_examples: int, entries: str, *, most: int
    ) -> SettingError:
        return cls(
            f"levels={levels} with n_examples={n_examples} needs a table of {entries} entries; "
            f"at most {most:,} fit. Give fewer levels or examples."
        )

    @classmethod
    def keys_too_close(cls, levels: int, n_examples: int) -> SettingError:
        return cls(
            f"levels={levels} with n_examples={n_examples} needs keys that are too close for "
            "float64 to tell apart. Give fewer levels or examples."
        )

    @classmethod
    def needs_examples(cls, construction: str) -> SettingError:
        return cls(
            f"{construction} has heads for every example; give their number: n_examples=len(X), or "
            "--examples on the command line."
        )

    @classmethod
    def is_a_chain(cls, construction: str) -> SettingError:
        return cls(
            f"{construction} is one block of layers that writes a chain, not a stack of layers; "
            "its weights are those of block(). Compile with relu-stack for a whole transformer."
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
            f"got {value!r}."
        )

    @classmethod
    def no_device(cls, name: str) -> SettingError:
        return cls(
            f"device={name!r} is not there: torch finds no CUDA device. "
            "Use device='cpu', or 'auto' to take what there is."
        )

    @classmethod
    def uneven_shares(cls, batch_size: int, n_processes: int) -> SettingError:
        return cls(
            f"batch_size={batch_size} cannot be shared evenly by {n_processes} processes. "
            f"Give a multiple of {n_processes}."
        )

    @classmethod
    def not_a_number_list(cls, name: str, text: str) -> SettingError:
        return cls(f"{name} must be whole numbers joined by commas, such as 4,16,1, got {text!r}.")

    @classmethod
    def not_numbers(cls, name: str, text: str, example: str) -> SettingError:
        return cls(f"{name} must be numbers joined by commas, such as {example}, got {text!r}.")


class UnsupportedActivationError(IcgdError, ValueError):
    """An activation cannot approximate all functions, so no construction can use it."""

    @classmethod
    def polynomial(cls, name: str, degree: int | None) -> UnsupportedActivationError:
        of_degree = "" if degree is None else f" of degree {degree}"
        return cls(
            f"Activation {name!r} is a polynomial{of_degree}: so is every combination of "
            "its copies, and it decays only if it is zero. Use an activation that is none, such "
            "as relu or sigmoid."
        )

    @classmethod
    def no_decay(cls, name: str, order: int, share: float) -> UnsupportedActivationError:
        return cls(
            f"Activation {name!r} has no general decay: far out its differences up to order "
            f"{order} keep at least {share:.1%} of their size. Use relu, sigmoid or another "
            "activation that is nearly a line on either side."
        )


class KernelError(IcgdError, ValueError):
    """A kernel cannot be used, or returned what no kernel may return."""

    @classmethod
    def wrong_shape(cls, name: str, got: str, expected: Sequence[int]) -> KernelError:
        return cls(
            f"Kernel {name!r} returned {got}; expected a tensor of shape {tuple(expected)}: "
            "a row for each point on the left, a column for each on the right."
        )

    @classmethod
    def wrong_dtype(cls, name: str, got: str, expected: str) -> KernelError:
        return cls(
            f"Kernel {name!r} returned {got.removeprefix('torch.')} for points of "
            f"{expected.removeprefix('torch.')}. Keep the type of the points."
        )

    @classmethod
    def not_finite(cls, name: str, index: Sequence[int], value: float) -> KernelError:
        return cls(
            f"Kernel {name!r} returned {value} at {_at(index)}; every entry must be finite. "
            "Rescale the inputs, or use a kernel that stays bounded."
        )

    @classmethod
    def not_symmetric(
        cls, name: str, index: Sequence[int], value: float, mirrored: float
    ) -> KernelError:
        return cls(
            f"Kernel {name!r} is not symmetric: it is {value:.6g} at {_at(index)} and "
            f"{mirrored:.6g} with the two points exchanged. Mend it, or register it with "
            "symmetric=False and do without what needs symmetry."
        )

    @classmethod
    def needs_symmetry(cls, name: str, purpose: str) -> KernelError:
        return cls(f"{purpose} needs a symmetric kernel, which {name!r} is not.")

    @classmethod
    def no_shape(cls, name: str, shape: float, shaped: Sequence[str]) -> KernelError:
        return cls(
            f"Kernel {name!r} has no shape, got shape={shape!r}; only {' and '.join(shaped)} have "
            "one. Rescale inputs with the head's transform."
        )

    @classmethod
    def taken(cls, name: str) -> KernelError:
        return cls(f"{name!r} is a kernel of icgd already; register yours under another name.")


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
            f"{name} must be symmetric; it is {value:.6g} at {_at(index)} and {mirrored:.6g} "
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


class DataError(IcgdError, ValueError):
    """Data cannot be used: not numbers, not finite, of the wrong shape or type."""

    @classmethod
    def not_finite(cls, name: str, index: Sequence[int], value: float) -> DataError:
        return cls(
            f"{name}{_at(index)} is {value}; every entry must be finite. "
            "Drop or fill such rows first."
        )

    @classmethod
    def overflows(cls, name: str, index: Sequence[int], value: float, dtype: str) -> DataError:
        return cls(
            f"{name}{_at(index)} is {value:.12g}, too large for {dtype}. "
            "Rescale the data, or run in float64."
        )

    @classmethod
    def not_an_array(cls, name: str, problem: str) -> DataError:
        return cls(
            f"{name} is not a rectangular array of numbers ({problem}). "
            "Every row must have the same length."
        )

    @classmethod
    def empty(cls, name: str, shape: Sequence[int]) -> DataError:
        return cls(f"{name} is empty: its shape is {tuple(shape)}. Give at least one row.")

    @classmethod
    def wrong_dtype(cls, name: str, dtype: object) -> DataError:
        return cls(
            f"{name} has dtype {dtype}; float64 or float32 is expected. "
            "Convert it explicitly to one of them."
        )

    @classmethod
    def wrong_shape(cls, name: str, shape: Sequence[int], expected: str) -> DataError:
        return cls(f"{name} has shape {tuple(shape)}; expected {expected}.")

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
            f"{name}{_at(index)} is {value:.12g}, on the ramp between two levels: the table has no "
            f"entry for examples strictly between {low:.12g} and {high:.12g}. Move it out, or "
            "compile with a smaller kink_width."
        )

    @classmethod
    def label_range(cls, loss: str, index: Sequence[int], value: float) -> DataError:
        return cls(
            f"y{_at(index)} is {value:.12g}; the {loss} loss needs labels between 0 and 1. "
            "Rescale the labels, or use loss='squared'."
        )

    @classmethod
    def outside_support(
        cls, link: str, index: Sequence[int], value: float, expected: str
    ) -> DataError:
        return cls(
            f"y{_at(index)} is {value:.12g}; the {link} link needs {expected}. "
            "Recode the labels, or use link='identity'."
        )

    @classmethod
    def text_cell(cls, path: object, line: int, column: str, cell: str) -> DataError:
        return cls(
            f"{path}, line {line}, column {column!r}: {cell!r} is not a number. "
            "Remove the column or encode it as numbers."
        )

    @classmethod
    def ragged_csv(cls, path: object, line: int, got: int, expected: int) -> DataError:
        return cls(f"{path}, line {line} has {got} cells; the first line has {expected}.")

    @classmethod
    def too_few_columns(cls, path: object, got: int, expected: int) -> DataError:
        return cls(
            f"{path} has {got} columns; the model needs {expected} "
            "(inputs first, then labels; name label columns with --label)."
        )

    @classmethod
    def unreadable(cls, path: object, problem: str) -> DataError:
        return cls(f"Cannot read {path}: {problem}.")

    @classmethod
    def repeated_column(cls, path: object, name: str) -> DataError:
        return cls(f"{path} has two columns called {name!r}; column names must be unique.")

    @classmethod
    def wrong_labels(cls, labels: Sequence[str], expected: int) -> DataError:
        return cls(
            f"The model has {expected} outputs, but the label columns are {', '.join(labels)}. "
            "Give --label once for each output."
        )

    @classmethod
    def wrong_query_columns(cls, path: object, got: int, expected: int) -> DataError:
        return cls(
            f"{path} has {got} columns; a query has {expected} inputs. Keep only those, or give "
            "both files a header, so that inputs are found by name."
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


class DomainError(IcgdError, ValueError):
    """Data or weights lie outside the bounds that the certificate relies on."""

    @classmethod
    def outside(
        cls, name: str, index: Sequence[int], value: float, bound: float, setting: str
    ) -> DomainError:
        return cls(
            f"{name}{_at(index)} is {value:.12g}, outside [-{bound:g}, {bound:g}]. "
            f"Rescale the data or compile with a larger {setting}."
        )


class OverflowedRunError(IcgdError, ArithmeticError):
    """A run left the range of its floating-point numbers."""

    @classmethod
    def of(cls, dtype: str, step_size: float | Sequence[float]) -> OverflowedRunError:
        largest = max(step_size) if isinstance(step_size, Sequence) else step_size
        return cls(
            f"The run leaves the range of {dtype}: step_size={largest:g} is too large for "
            "these data."
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

    @classmethod
    def after(
        cls, n_steps: int, total: int, partial: object, next_example: int | None = None
    ) -> InterruptedRunError:
        """`next_example` is where the next batch starts; 0 is where a new run starts anyway."""
        first = (
            f" and with the examples from number {next_example} (counted from 0) first"
            if next_example
            else ""
        )
        return cls(
            f"The run was interrupted after {n_steps} of {total} steps. The weights so far are in "
            f"the error's `partial.parameters`; go on with initial=...[-1]{first}.",
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
    """A linear model's descent was held back by its box."""

    @classmethod
    def of(cls, coefficient: int, box: float) -> BoxWarning:
        return cls(
            f"Coefficient {coefficient} (counted from 0) ends at the box, {box:g}: without it, it "
            "would be larger. Give a larger box, or a smaller step size if steps diverge."
        )


class PrecisionWarning(UserWarning):
    """Weights that were chosen for float64 are written in float32."""

    @classmethod
    def of(cls, construction: str) -> PrecisionWarning:
        return cls(
            f"This {construction} was compiled for float64, but its weights are used in float32, "
            "where gradients lose about 10 times more to rounding than they must. Compile with "
            "dtype='float32' (--dtype float32), or use float64 or backend='fused'."
        )


class LayoutError(IcgdError, ValueError):
    """A slot is missing or duplicated."""

    @classmethod
    def unknown_slot(cls, name: str, *, known: Sequence[str]) -> LayoutError:
        hint = _did_you_mean(name, known)
        return cls(f"Layout has no slot {name!r}; it has {', '.join(known)}.{hint}")

    @classmethod
    def duplicate_slot(cls, name: str) -> LayoutError:
        return cls(f"Layout names slot {name!r} twice; slot names must be unique.")

    @classmethod
    def no_coordinate(cls, coordinate: int, width: int) -> LayoutError:
        return cls(f"The residual stream has coordinates 0 to {width - 1}, got {coordinate}.")


class ProgramError(IcgdError, ValueError):
    """A program breaks one of the rules of `program/check.py`."""

    @classmethod
    def broken(cls, where: str, rule: str) -> ProgramError:
        return cls(f"{where}: {rule}")

    @classmethod
    def not_masked(cls, construction: str) -> ProgramError:
        return cls(
            f"A mask needs softmax attention alone; {construction} has other attention too. "
            "Compile with construction='softmax-stack'."
        )


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
        return cls(f"No construction can compile this problem. {_listed(reasons)}")


class ToleranceError(IcgdError, ValueError):
    """No number of pieces or registers proves the tolerance."""

    @classmethod
    def unreachable(cls, tolerance: float, best: float, finest: str, reason: str) -> ToleranceError:
        return cls(
            f"tolerance={tolerance:g} cannot be proved: the smallest bound is {best:.3g}, "
            f"with {finest}. {reason}"
        )

    @classmethod
    def no_room(cls, tolerance: float, construction: str, room: float) -> ToleranceError:
        return cls(f"tolerance={tolerance:g} takes {construction} more than {room:,.0f} weights.")

    @classmethod
    def by_all(cls, tolerance: float, refusals: Mapping[str, object]) -> ToleranceError:
        return cls(
            f"tolerance={tolerance:g} cannot be proved by any construction that serves this "
            f"problem. {_listed(refusals)}"
        )


class DenseSizeError(IcgdError, MemoryError):
    """The dense transformer does not fit in memory."""

    @classmethod
    def too_large(cls, needed: int, available: int, parameters: int) -> DenseSizeError:
        return cls(
            f"The dense transformer has {parameters:,} weights and needs {needed / 2**30:.1f} GiB; "
            f"{available / 2**30:.1f} GiB may be used. "
            "Run with backend='fused', which needs no weights."
        )


class FileError(IcgdError, ValueError):
    """A file cannot be read as a compiled training run, or not be written."""

    @classmethod
    def missing(cls, path: object) -> FileError:
        return cls(f"There is no file {path}.")

    @classmethod
    def damaged(cls, path: object, problem: str) -> FileError:
        return cls(f"{path} is damaged or not a safetensors file ({problem}). Compile it again.")

    @classmethod
    def unknown_name(cls, path: object, problem: str) -> FileError:
        return cls(
            f"{path} needs what is not known here: {problem} Register kernels of your own with "
            "icgd.register_kernel before loading."
        )

    @classmethod
    def foreign(cls, path: object) -> FileError:
        return cls(
            f"{path} is a safetensors file, but not one that icgd wrote: "
            "its metadata has no 'icgd' entry."
        )

    @classmethod
    def newer(cls, path: object, version: object, known: int) -> FileError:
        return cls(
            f"{path} has file format {version!r}; this version of icgd reads format {known}. "
            "Upgrade icgd or compile it again."
        )

    @classmethod
    def unwritable(cls, path: object, problem: str) -> FileError:
        return cls(f"Cannot write {path}: {problem}.")

    @classmethod
    def unreadable_onnx(cls, path: object, problem: str) -> FileError:
        return cls(f"{path} cannot be run as an ONNX file of icgd: {problem}. Export it again.")


class CheckpointError(IcgdError, ValueError):
    """A checkpoint cannot be used to go on with this run."""

    @classmethod
    def damaged(cls, path: object, problem: str) -> CheckpointError:
        return cls(
            f"{path} is damaged or not a checkpoint ({problem}). It was left as it is; "
            "remove it to train without it."
        )

    @classmethod
    def foreign(cls, path: object, version: object, known: int) -> CheckpointError:
        return cls(
            f"{path} has checkpoint format {version!r}; this version of icgd reads format {known}. "
            "It was left as it is; use the icgd that wrote it, or train in another folder."
        )

    @classmethod
    def other_configuration(
        cls, path: object, name: str, stored: object, given: object
    ) -> CheckpointError:
        return cls(
            f"{path} belongs to another run: its {name} is {stored!r}, here it is {given!r}. "
            "It was left as it is; go on with the old value, or train in another folder."
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
    def nothing_to_train(cls, model: str) -> TrainingError:
        return cls(f"{model} has no parameter that requires a gradient; there is nothing to train.")

    @classmethod
    def taken_column(cls, name: str) -> TrainingError:
        return cls(
            f"measure returned {name!r}, which the log has of its own; call the column otherwise."
        )

    @classmethod
    def other_columns(cls, got: Sequence[str], expected: Sequence[str]) -> TrainingError:
        return cls(
            f"The log has columns {', '.join(expected)}; a row came with {', '.join(got)}. "
            "measure must return the same names, in the same order, each time."
        )


class SweepError(IcgdError, RuntimeError):
    """A configuration of a sweep failed."""

    @classmethod
    def failed(cls, index: int, configuration: object, problem: BaseException) -> SweepError:
        return cls(
            f"Configuration {index}, {configuration!r}, failed with "
            f"{type(problem).__name__}: {problem}"
        )


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
    def kernel_attention(cls, tool: str) -> ExportError:
        return cls(
            f"{tool} cannot hold kernel attention, of which functional descent is made. Use "
            "compiled.transformer(), a torch module."
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


class MissingExtraError(IcgdError, ImportError):
    """An optional package is not installed."""

    @classmethod
    def of(cls, package: str, extra: str, purpose: str) -> MissingExtraError:
        return cls(f"{purpose} needs {package}. Install it with: pip install 'icgd[{extra}]'")

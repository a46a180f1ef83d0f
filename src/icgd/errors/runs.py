"""Errors in runs of a transformer."""

from __future__ import annotations

from collections.abc import Sequence

from icgd.errors.base import IcgdError


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

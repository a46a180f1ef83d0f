"""What icgd warns of."""

from __future__ import annotations

from collections.abc import Sequence


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

"""Errors in what a problem is made of, such as activations and kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from icgd.errors.base import IcgdError, at, brief, listed


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

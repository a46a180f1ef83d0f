"""The interface of constructions: each turns a problem into a program."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import ClassVar

from icgd.environment import one_thread
from icgd.errors import SettingError
from icgd.problems.data import dtype_name, dtype_named
from icgd.problems.kernel_machine import KernelMachine
from icgd.problems.linear_model import LinearModel
from icgd.problems.mlp import MLP
from icgd.problems.optimisers import AbstractGradientStep
from icgd.problems.problem import Problem
from icgd.problems.sets import sets_in_words
from icgd.problems.settings import count, positive, power_of_two, require_between
from icgd.problems.steps import FunctionalStep, ProximalStep
from icgd.program.check import check_program
from icgd.program.program import AbstractProgram

TRAINED = {
    MLP: "the weights of a network",
    KernelMachine: "the function of a kernel",
    LinearModel: "the coefficients of a linear model",
}
"""The trained quantity of each kind of target, for messages."""


@dataclass(frozen=True)
class AbstractConstruction(ABC):
    """One theorem, which turns a problem into a program.

    Subclasses are final. Their fields are their settings; each has a default and is checked in
    `__post_init__`.
    """

    name: ClassVar[str]
    target: ClassVar[type] = MLP
    refined_by: ClassVar[str | None] = None
    """The integer setting that controls the accuracy; None if there is none."""
    coarsest: ClassVar[int] = 1
    finest: ClassVar[int] = 1
    """The range of that setting in which compilation to a tolerance searches."""
    why_no_finer: ClassVar[str] = (
        "Rounding or the size of the domain limits the accuracy; use a smaller box or domain."
    )
    """Why the finest setting may still not prove a tolerance."""
    takes_batches: ClassVar[bool] = False
    """Whether a step may use a batch of the examples."""
    takes_biases: ClassVar[bool] = False
    """Whether it trains networks with biases."""
    takes_shortcuts: ClassVar[bool] = False
    """Whether it trains networks with shortcuts and layer norms."""
    takes_rates: ClassVar[bool] = False
    """Whether examples may have rates."""
    needs_batches: ClassVar[bool] = False
    """Whether every step must have a batch size."""
    takes_rules: ClassVar[bool] = False
    """Whether it takes updates other than plain gradient steps of one size."""
    takes_averages: ClassVar[bool] = False
    """Whether it supports averages of the weights."""
    takes_groups: ClassVar[bool] = False
    """Whether some weights may have a step size or a weight decay of their own."""
    takes_roots: ClassVar[bool] = False
    """Whether it takes updates that divide by a root, as Adam does."""
    takes_sets: ClassVar[bool] = False
    """Whether layers and weights may be projected onto sets other than one box for all."""
    takes_simplices: ClassVar[bool] = False
    """Whether it sorts rows, to project them onto a simplex of more than two weights."""
    is_last_resort: ClassVar[bool] = False
    """Whether it is chosen only if no other construction serves."""

    @classmethod
    def settings(cls) -> tuple[str, ...]:
        """Return the names of the settings.

        Returns:
            The names, in the order of the fields.

        Example:
            >>> import icgd
            >>> icgd.ReluStack.settings()
            ('pieces', 'kink_width')
        """
        return tuple(field.name for field in fields(cls))

    def why_not(self, problem: Problem) -> str | None:
        """Return the reason why this construction cannot serve `problem`, or None if it can.

        Args:
            problem: the problem.

        Returns:
            The reason, a sentence about the construction ("it ...").

        Example:
            >>> import icgd
            >>> network, step = icgd.MLP((2, 1)), icgd.GradientStep(0.1, box=1.0)
            >>> problem = icgd.Problem(network, "squared", step, icgd.Domain(x=1.0, y=1.0))
            >>> icgd.LinearStack().why_not(problem)
            'it trains the coefficients of a linear model, not the weights of a network.'
        """
        if not self.trains(problem):
            return f"it trains {TRAINED[self.target]}, not {TRAINED[type(problem.target)]}."
        if self.target is not MLP:
            return self.objection(problem)
        network, update = problem.network, problem.gradient_step
        if update.batch_size is not None and not self.takes_batches:
            return (
                "its attention averages over all examples of the prompt in every step, and takes "
                f"no batch_size, got {update.batch_size}; use relu-stack or softmax-stack."
            )
        if not update.is_plain and not self.takes_rules:
            return (
                f"it takes plain gradient steps of one size without averages, not "
                f"{update.in_words()}; use relu-stack or softmax-stack."
            )
        if update.groups and not self.takes_groups:
            return (
                "it moves all weights by one rule, without groups; use relu-stack or softmax-stack."
            )
        if update.average is not None and not self.takes_averages:
            return "it keeps no averages of weights; use relu-stack or softmax-stack."
        if update.has_root and not self.takes_roots:
            return f"it has no layers for the root of {update.name_in_words()}; use relu-stack."
        sets = problem.network_oracle.sets
        if sets.bound is None and not self.takes_sets:
            return (
                f"it projects all weights onto one box, not onto {sets_in_words(update.box)}; use "
                "relu-stack or softmax-stack."
            )
        if not self.takes_simplices and any(layer.simplex for layer in sets.layers):
            return (
                "it does not sort rows, which a simplex of more than two weights needs; use "
                "relu-stack."
            )
        if network.biases and not self.takes_biases:
            return (
                "its layers have no biases; use relu-stack or softmax-stack, or give X a "
                "constant-1 feature, which is a bias of the first layer."
            )
        if not network.is_chain and not self.takes_shortcuts:
            return "its networks have no shortcuts and no layer norms; use relu-stack."
        if problem.domain.rate is not None and not self.takes_rates:
            return "its examples have no rates; use relu-stack."
        return self.objection(problem)

    def trains(self, problem: Problem) -> bool:
        """Return whether the construction trains targets of this kind.

        Args:
            problem: the problem.

        Returns:
            True if it does.

        Example:
            >>> import icgd
            >>> network, step = icgd.MLP((2, 1)), icgd.GradientStep(0.1, box=1.0)
            >>> problem = icgd.Problem(network, "squared", step, icgd.Domain(x=1.0, y=1.0))
            >>> icgd.ReluStack().trains(problem), icgd.Functional().trains(problem)
            (True, False)
        """
        return type(problem.target) is self.target

    @abstractmethod
    def objection(self, problem: Problem) -> str | None:
        """Return the construction's own reason against `problem`, or None if there is none.

        `why_not` checks the kind of target and the flags of the class first.

        Args:
            problem: the problem.

        Returns:
            The reason or None.

        Example:
            >>> import icgd
            >>> network, step = icgd.MLP((2, 1)), icgd.GradientStep(0.1, box=1.0)
            >>> problem = icgd.Problem(network, "squared", step, icgd.Domain(x=1.0, y=1.0))
            >>> icgd.CotNetwork().objection(problem)
            'its blocks have a column for each example of a round; give batch_size=1 ...'
        """

    def finer(self, setting: int, excess: float) -> int:
        """Return the setting for which the error is about `excess` times smaller.

        Args:
            setting: the current value of the setting named by `refined_by`.
            excess: the current error divided by the wanted error.

        Returns:
            The new value.

        Example:
            >>> import icgd
            >>> icgd.ReluStack().finer(64, excess=100.0)
            647
        """
        positive("excess", excess)
        return count("setting", setting)

    def narrower(self, problem: Problem) -> AbstractConstruction | None:
        """Return the same construction with narrower ramps, if their width was left open.

        Args:
            problem: the problem.

        Returns:
            A construction, or None.

        Example:
            >>> import icgd
            >>> network, step = icgd.MLP((2, 1)), icgd.GradientStep(0.1, box=1.0)
            >>> problem = icgd.Problem(network, "squared", step, icgd.Domain(x=1.0, y=1.0))
            >>> icgd.ReluStack().narrower(problem) is None
            True
        """
        return None

    def may_be_accurate(self, problem: Problem) -> bool:
        """Return whether the functions of the program may be exact up to rounding.

        The problem alone decides; nothing is fitted.

        Args:
            problem: the problem.

        Returns:
            False if fitted functions must err by more than rounding.

        Example:
            >>> import icgd
            >>> network, step = icgd.MLP((2, 1)), icgd.GradientStep(0.1, box=1.0)
            >>> problem = icgd.Problem(network, "squared", step, icgd.Domain(x=1.0, y=1.0))
            >>> icgd.ReluStack().may_be_accurate(problem)  # a linear network has no curves
            True
        """
        return True

    def sketch(self, problem: Problem) -> AbstractProgram | None:
        """Return a cheap program with at most as many weights as that of `build`, if there is one.

        Args:
            problem: the problem.

        Returns:
            The program or None.

        Example:
            >>> import icgd
            >>> network, step = icgd.MLP((2, 1)), icgd.GradientStep(0.1, box=1.0)
            >>> problem = icgd.Problem(network, "squared", step, icgd.Domain(x=1.0, y=1.0))
            >>> icgd.ReluStack().sketch(problem) is None
            True
        """
        return None

    @abstractmethod
    def build(self, problem: Problem, n_steps: int) -> AbstractProgram:
        """Return the program that performs `n_steps` updates of `problem` and then predicts.

        Args:
            problem: the problem; `why_not` has no reason against it.
            n_steps: the number of training steps.

        Returns:
            The program.

        Raises:
            SettingError: if a setting, or a schedule of steps, does not suit the problem.

        Example:
            >>> import icgd
            >>> network, step = icgd.MLP((2, 1)), icgd.GradientStep(0.1, box=1.0)
            >>> problem = icgd.Problem(network, "squared", step, icgd.Domain(x=1.0, y=1.0))
            >>> icgd.ReluStack().build(problem, n_steps=3).n_steps
            3
        """

    def program(self, problem: Problem, n_steps: int) -> AbstractProgram:
        """Build the program and check that it obeys all rules on programs.

        Args:
            problem: the problem; `why_not` has no reason against it.
            n_steps: the number of training steps.

        Returns:
            The program.

        Raises:
            ProgramError: if the program breaks a rule.

        Example:
            >>> import icgd
            >>> network, step = icgd.MLP((2, 1)), icgd.GradientStep(0.1, box=1.0)
            >>> problem = icgd.Problem(network, "squared", step, icgd.Domain(x=1.0, y=1.0))
            >>> icgd.ReluStack().program(problem, n_steps=3).construction
            'relu-stack'
        """
        with one_thread():  # the last bits of fits depend on the number of threads
            program = self.build(problem, count("n_steps", n_steps, least=0))
        check_program(program)
        return program


def valid_dtype(dtype: str) -> str:
    """Return the name of a dtype, or raise `UnknownNameError`."""
    return dtype_name(dtype_named(dtype))


def checked_kink_width(width: float | None) -> float | None:
    """Require a power of two from 2^-60 to 1; None leaves the width open."""
    if width is None:
        return None
    number = power_of_two("kink_width", width)
    require_between("kink_width", number, 2.0**-60, 1.0)
    return number


def require_few_steps(
    update: AbstractGradientStep | FunctionalStep | ProximalStep, n_steps: int, most: int
) -> None:
    """Raise `SettingError` if more than `most` steps need separate layers."""
    if n_steps > most and not update.is_constant:
        raise SettingError(
            f"n_steps must be at most {most:,} here, got {n_steps:,}: {update.in_words()}, differ "
            "from each other, so each has separate layers. Use fewer steps, or steps that are all "
            "equal: of one size, without averages and corrections."
        )

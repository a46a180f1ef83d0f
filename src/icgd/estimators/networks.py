"""Networks of any depth, trained by Adam or another optimiser in a transformer's forward pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from functools import partial
from math import ceil, sqrt
from typing import Any

import numpy as np
import torch
from scipy.special import expit
from sklearn.utils.validation import check_is_fitted

from icgd.constructions.network import MOST_SUMS
from icgd.constructions.relu_stack import ReluStack
from icgd.errors import SettingError
from icgd.estimators.base import (
    ROOM,
    AbstractClassifier,
    AbstractInContext,
    AbstractRegressor,
    Array,
    FitRequest,
    Scaling,
    at_once,
    bound_above,
    read_examples,
    read_weights,
    seed_of,
)
from icgd.problems.data import Domain, Task, as_task
from icgd.problems.mlp import MLP
from icgd.problems.optimisers import AdamStep, GradientStep, MomentumStep, RmspropStep
from icgd.problems.oracles import NetworkOracle
from icgd.problems.problem import Problem
from icgd.problems.settings import (
    MOST_STEPS,
    count,
    entries,
    is_row,
    named,
    not_negative,
    positive,
    require_between,
)

# The step size is the inverse of how sharply the risk curves where a run begins. Descent with step
# size s falls while s times the largest eigenvalue of the Hessian stays below 2. At 1 / (that
# eigenvalue at the start) there is room for the curvature to grow as the network learns.

N_TURNS = 20
"""Products with the Hessian; the largest eigenvalue is then known to a few per cent."""

NUDGE = 1e-4
"""The length of the move over which a product with the Hessian is a difference of gradients."""

FLAT = 1e-6
"""The least curvature that counts; a flatter start says nothing of the run."""


def sharpness(oracle: NetworkOracle, task: Task) -> float:
    """Return the size of the Hessian's largest eigenvalue at the task's initial weights, in O(n
    |w|).
    """
    start, generator = task.initial.double(), torch.Generator().manual_seed(0)
    slope = oracle.gradient(task, start)
    direction = torch.randn(start.shape, generator=generator, dtype=torch.float64).to(start.device)
    size = float(direction.norm())
    for _ in range(N_TURNS):
        direction = direction / size
        direction = (oracle.gradient(task, start + NUDGE * direction) - slope) / NUDGE
        size = max(float(direction.norm()), FLAT)
    return size


LONGEST_STEP = 1e15
"""The longest step: data are standardised, so that much shorter ones overshoot already."""

FINE = ReluStack(pieces=512)
"""Activations to about 5e-6, which takes no longer to run than fewer pieces."""

NO_BOX = 2.0**20
"""A box that holds all weights; the real one is found with the step size."""


@dataclass(frozen=True)
class Solver:
    """An optimiser by the name that users know.

    Its first step has `step_size`. Weights move by at most `reach` times the sum of all step sizes,
    if that is known.
    """

    update: Callable[..., MomentumStep | AdamStep | RmspropStep]
    step_size: float
    reach: float | None = None

    @property
    def has_root(self) -> bool:
        """Whether a step divides by a root, as Adam does."""
        return self.reach is not None


def _adam_reach(first: float, second: float) -> float:
    """Return the largest move of Adam divided by the step size, by the inequality of Cauchy and
    Schwarz.

    A step divides a mean of gradients g_i with weights a_i by the root of a mean of their squares
    with weights b_i, which is at most the root of sum_i a_i^2 / b_i.
    """
    return (1 - first) / sqrt((1 - second) * (1 - first**2 / second))


GRADIENT = "gradient"

SOLVERS = {
    "adam": Solver(AdamStep, 0.01, _adam_reach(0.9, 0.999)),
    "adamw": Solver(partial(AdamStep, decoupled=True), 0.01, _adam_reach(0.9, 0.999)),
    "rmsprop": Solver(RmspropStep, 0.01, 1 / sqrt(1 - 0.99)),
    "momentum": Solver(MomentumStep, 0.05),
    "nesterov": Solver(partial(MomentumStep, nesterov=True), 0.05),
    GRADIENT: Solver(partial(MomentumStep, momentum=0.0), 1.0),
}
"""The optimisers. The size of plain gradient steps is found from the curvature."""

BATCH = 200
"""The default size of a batch, as scikit-learn has it."""

ENOUGH_STEPS, MOST_PASSES, PLAIN_STEPS = 1600, 150, 300
"""By default a run takes as many passes as make so many steps, but no more passes than the second.
Plain gradient descent on all examples takes so many steps as the third says."""

LARGEST_RATE = 2.0**10
"""The least bound of weights of mean 1. Roots are fitted for the gradients that it allows. Without
weights it is the same, so that a weight of 2 trains as the same example twice does, to rounding."""

SCALES = {"squared": 1.0, "logistic": 2.0}
"""The objective by half the mean loss: half of the mean square, and the whole logistic loss, are
what scikit-learn's networks descend, so that `alpha` means the same."""


@dataclass(eq=False, repr=False)
class AbstractNetwork(AbstractInContext):
    """A network without biases; a constant input of 1 is the bias of its first layer.

    Args:
        hidden_layer_sizes: widths of the hidden layers; () is a linear model.
        activation: the activation of hidden layers, such as "tanh" or "relu".
        construction: the construction that is compiled, an object or a name as for `icgd.compile`;
            the default is `icgd.ReluStack(pieces=512)`.
        solver: the optimiser: "adam", "adamw", "rmsprop", "momentum", "nesterov", or "gradient",
            plain gradient descent.
        alpha: the l2 penalty of scikit-learn's networks: the objective has the term
            alpha |w|^2 / 2 divided by the number of examples in a batch. With "adamw" weights
            decay by step size times alpha, divided in the same way.
        batch_size: how many examples a step takes; "auto" is 200, or all if there are fewer or if
            the solver is "gradient". Rows are shuffled once, and batches go round.
        max_iter: the number of passes over the examples. The default is as many as make 1,600
            steps, but at most 150 passes; with "gradient" it is 300.
        step_size: the size of the first step, which falls linearly to 0 during the run. The default
            is 0.05 with momentum, otherwise 0.01. With "gradient" all steps have one size, by
            default the inverse of the sharpest curvature at the start, halved until the loss falls
            all along.
        random_state: the seed of the initial weights and of the order of rows.

    Attributes:
        n_iter_: the number of passes over the examples.
        coefs_: the trained matrices.

    Raises:
        UnknownNameError: by `fit`, if no activation, construction or solver has this name.
        UnsupportedProblemError: by `fit`, if the construction has no such solver, batches or
            weights.
        OverflowedRunError: by `fit`, if no step size makes the loss fall.
    """

    hidden_layer_sizes: Any = (32,)
    activation: Any = "tanh"
    _: KW_ONLY
    construction: Any = None
    solver: Any = "adam"
    alpha: Any = 1e-4
    batch_size: Any = "auto"
    max_iter: Any = None
    step_size: Any = None
    random_state: Any = None

    def _rows(self, X: Array) -> Array:
        return np.hstack([self._scaling.applied(X), np.ones((len(X), 1))])

    @property
    def _columns(self) -> tuple[str, ...]:
        names = super()._columns
        return (*names, "the constant 1") if names else ()

    def _teach(self, X: Array, labels: Array, loss: str, weights: Array | None) -> None:
        """Learn from raw rows and scaled labels, which count as much as their weights say."""
        self._scaling = Scaling.of(X, weights)
        rows = self._rows(X)
        if weights is not None:  # what counts nothing takes no place in a batch
            rows, labels, weights = (part[weights > 0] for part in (rows, labels, weights))
        n = len(rows)
        solver = named("solver", self.solver, SOLVERS)
        is_plain = self.solver == GRADIENT
        size = self.batch_size
        if isinstance(size, str) and size == "auto":
            size = n if is_plain else min(BATCH, n)
        size = min(n, count("batch_size", size))
        steps_per_iter = ceil(n / size)
        n_iter = self.max_iter
        if n_iter is None:
            n_iter = PLAIN_STEPS if is_plain else ceil(ENOUGH_STEPS / steps_per_iter)
            n_iter = n_iter if is_plain else min(MOST_PASSES, n_iter)
        n_iter = count("max_iter", n_iter, most=MOST_STEPS)
        n_steps = n_iter * steps_per_iter
        seed = seed_of(self.random_state)
        total, rates, largest_rate = float(n), None, None
        if weights is None and solver.has_root:
            weights = np.ones(n)
        if weights is not None:
            total = float(weights.sum())
            rates = weights * (n / total)
            largest_rate = bound_above(rates, [LARGEST_RATE])
        if size < n:
            order = np.random.default_rng(seed).permutation(n)
            rows, labels = rows[order], labels[order]
            rates = None if rates is None else rates[order]

        given = self.hidden_layer_sizes
        hidden = entries(given) if is_row(given) else [given]
        widths = (rows.shape[1], *(count("hidden_layer_sizes", w) for w in hidden), labels.shape[1])
        target = MLP(widths, activation=self.activation)
        if not is_plain:
            self._require_few_steps(solver, target, n, n_iter, steps_per_iter)
        domain = Domain(bound_above(rows, room=ROOM), bound_above(labels), rate=largest_rate)
        first = Problem(target, loss, GradientStep(1.0, NO_BOX), domain)
        task = as_task(first, rows, labels, seed=seed, rates=rates)
        step_size: Any = self.step_size
        if step_size is None:
            step_size = solver.step_size
            if is_plain:
                step_size = 1 / (sharpness(first.network_oracle, task) * SCALES[loss])
        require_between(
            "step_size", step_size := positive("step_size", step_size), 0.0, LONGEST_STEP
        )

        # A box that no run reaches. Plain descent lowers the risk by |d|^2 / (2 s) in each step d
        # of size s, so that L steps that lower it from R to 0 move weights by at most
        # sqrt(2 s L R); momentum is taken for steps that are 1 / (1 - 0.9) times as long.
        risk = SCALES[loss] * float(first.oracle.risk(task, task.initial))
        if solver.reach is None:
            longer = 1.0 if is_plain else 10.0
            reach = sqrt(2 * longer * step_size * n_steps * risk)
        else:
            reach = solver.reach * step_size * n_steps
        box = bound_above(task.initial.abs().max() + reach)

        batches = None if size == n else size
        decay = not_negative("alpha", self.alpha) / (size * total / n)
        if is_plain and decay == 0:  # which every construction has
            update: Any = GradientStep(step_size * SCALES[loss], box, batches)
        else:
            sizes: Any = tuple(step_size * (1 - step / n_steps) for step in range(n_steps))
            update = solver.update(
                step_size=step_size if is_plain else sizes,
                box=box,
                batch_size=batches,
                weight_decay=decay,
                gradient_scale=SCALES[loss],
            )
        self._learn(
            FitRequest(
                Problem(target, loss, update, domain),
                rows,
                labels,
                n_iter,
                steps_per_iter,
                rates=rates,
                initial=task.initial,
                construction=FINE if self.construction is None else self.construction,
                may_shorten=is_plain and self.step_size is None,
            )
        )

    def _require_few_steps(
        self, solver: Solver, target: MLP, n: int, n_iter: int, steps_per_iter: int
    ) -> None:
        """Raise `SettingError` for more steps of different sizes than can be written down."""
        n_numbers = 1 + len(solver.update(step_size=1.0, box=1.0).remembered)
        most = MOST_SUMS // (target.depth * n_numbers)
        if n_iter * steps_per_iter <= most:
            return
        remedy = f"Take max_iter={most // steps_per_iter:,} or fewer passes, larger batches"
        if steps_per_iter > most:
            remedy = f"Take batch_size={ceil(n / most):,} or larger batches"
        raise SettingError(
            f"max_iter={n_iter:,} passes of {steps_per_iter:,} steps are "
            f"{n_iter * steps_per_iter:,} steps, but {self.solver} steps, which differ from each "
            f"other, can be at most {most:,} in a network of this depth. {remedy}, or "
            "solver='gradient', whose steps are all alike."
        )

    @property
    def coefs_(self) -> list[Array]:
        """The trained matrices, one a layer, for scaled inputs and a constant 1 as last input."""
        check_is_fitted(self)
        problem = self.compiled_.problem
        weights = problem.network_oracle.weights_of(self._run.parameters[-1])
        return [matrix.cpu().numpy() for matrix in problem.network.matrices(weights)]


class InContextRegressor(AbstractRegressor, AbstractNetwork):
    """A network that a frozen transformer trains on the squared loss, in its forward pass.

    Inputs and labels are standardised inside.

    Attributes:
        loss_curve_: half the mean squared error on scaled labels, before and after every pass.

    Example:
        >>> from icgd.estimators import InContextRegressor
        >>> model = InContextRegressor(hidden_layer_sizes=(3,), max_iter=300, random_state=0)
        >>> model = model.fit([[0.0], [1.0], [2.0], [3.0]], [0.0, 1.0, 2.0, 3.0])
        >>> bool(model.loss_curve_[-1] < model.loss_curve_[0])
        True
    """

    @at_once
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> InContextRegressor:
        """Store the examples as context, scale them, compile and run.

        Args:
            X: rows of the inputs.
            y: a number for each row.
            sample_weight: how much each row counts. The transformer multiplies the gradient of an
                example by its weight, divided by the mean of all weights.

        Returns:
            The estimator itself.

        Raises:
            SettingError: if a setting is out of its range.
            DataError: if the weights of all rows are 0.
            OverflowedRunError: if no step size makes the loss fall.

        Example:
            >>> from icgd.estimators import InContextRegressor
            >>> model = InContextRegressor(hidden_layer_sizes=(3,), max_iter=300, random_state=0)
            >>> model.fit([[0.0], [1.0], [2.0]], [0.0, 1.0, 2.0]).n_iter_
            300
        """
        X, y = read_examples(self, X, y)
        weights = None if sample_weight is None else read_weights(sample_weight, X)
        labels = np.asarray(y, dtype=np.float64).reshape(-1, 1)
        self._label_scaling = Scaling.of(labels, weights)
        self._teach(X, self._label_scaling.applied(labels), "squared", weights)
        return self


@dataclass(eq=False, repr=False)
class InContextClassifier(AbstractClassifier, AbstractNetwork):
    """A network that a frozen transformer trains to tell classes, in its forward pass.

    Inputs are standardised inside. Each class has an output with the logistic loss of that class
    against the rest; two classes share one output.

    Args:
        class_weight: a weight for each class, 1 for those that are not named, or "balanced", which
            makes all classes count alike. It multiplies `sample_weight`.

    Attributes:
        classes_: the classes, in the order of probabilities.
        loss_curve_: half the mean logistic loss, summed over outputs, before and after every pass.

    Raises:
        DataError: by `fit`, if there are fewer than two classes.

    Example:
        >>> from icgd.estimators import InContextClassifier
        >>> model = InContextClassifier(hidden_layer_sizes=(3,), max_iter=300, random_state=0)
        >>> model = model.fit([[0.0], [1.0], [2.0], [3.0]], ["no", "no", "yes", "yes"])
        >>> model.predict([[0.0], [3.0]]).tolist()
        ['no', 'yes']
    """

    _: KW_ONLY
    class_weight: Any = None

    @at_once
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> InContextClassifier:
        """Store the examples as context, scale them, compile and run.

        Args:
            X: rows of the inputs.
            y: a class for each row.
            sample_weight: how much each row counts, as for `InContextRegressor`.

        Returns:
            The estimator itself.

        Raises:
            DataError: if there are fewer than two classes.
            SettingError: if a setting is out of its range.
            OverflowedRunError: if no step size makes the loss fall.

        Example:
            >>> from icgd.estimators import InContextClassifier
            >>> model = InContextClassifier(hidden_layer_sizes=(3,), max_iter=300, random_state=0)
            >>> model.fit([[0.0], [1.0], [2.0]], [0, 0, 1]).n_iter_
            300
        """
        X, labels, weights = self._encoded(X, y, sample_weight, self.class_weight)
        self._teach(X, labels, "logistic", weights)
        return self

    def decision_function(self, X: Any) -> Array:
        """Return the outputs of the network: log-odds of each class against the rest.

        Args:
            X: rows of the inputs.

        Returns:
            An array (n_rows, n_classes), or (n_rows,) for the second of two classes.

        Example:
            >>> from icgd.estimators import InContextClassifier
            >>> model = InContextClassifier(hidden_layer_sizes=(3,), max_iter=300, random_state=0)
            >>> model.fit([[0.0], [1.0], [2.0]], [0, 1, 2]).decision_function([[0.5]]).shape
            (1, 3)
        """
        outputs = self._answers(X)
        return outputs.ravel() if outputs.shape[1] == 1 else outputs

    def _shares(self, X: Any) -> Array:
        shares: Array = expit(self._answers(X))
        return shares

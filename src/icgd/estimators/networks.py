"""Networks that a transformer trains in its forward pass, by Adam or another optimiser."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from functools import partial
from math import ceil, sqrt
from typing import Any

import numpy as np
import torch
from scipy.special import expit, softmax
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
    atomic,
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

# Plain gradient descent with step size s lowers the risk while s times the largest eigenvalue of
# the Hessian stays below 2. The default, 1 / (that eigenvalue at the start), leaves room for the
# curvature to grow while the network learns.

POWER_ITERATIONS = 20
"""Products with the Hessian, which give its largest eigenvalue to a few per cent."""

DIFFERENCE_STEP = 1e-4
"""A product with the Hessian is a difference of gradients at this distance."""

LEAST_CURVATURE = 1e-6
"""Lower bound of `sharpness`: at a flatter start, its inverse would be no useful step size."""


def sharpness(oracle: NetworkOracle, task: Task) -> float:
    """Return the Hessian's largest absolute eigenvalue at the initial weights, by power iteration.

    No Hessian is formed: the cost is that of `POWER_ITERATIONS` gradients.
    """
    start, generator = task.initial.double(), torch.Generator().manual_seed(0)
    gradient = oracle.gradient(task, start)
    vector = torch.randn(start.shape, generator=generator, dtype=torch.float64).to(start.device)
    eigenvalue = float(vector.norm())
    for _ in range(POWER_ITERATIONS):
        vector = vector / eigenvalue
        moved = oracle.gradient(task, start + DIFFERENCE_STEP * vector)
        vector = (moved - gradient) / DIFFERENCE_STEP
        eigenvalue = max(float(vector.norm()), LEAST_CURVATURE)
    return eigenvalue


LARGEST_STEP_SIZE = 1e15
"""The largest accepted step size; data are standardised, so far smaller ones diverge already."""

FINE = ReluStack(pieces=512)
"""The default construction: activations to about 5e-6. Fewer pieces run no faster."""

INITIAL_BOX = 2.0**20
"""The box of the problem from which risk and curvature at the start are computed."""


@dataclass(frozen=True)
class Solver:
    """An optimiser and its default step size.

    `reach` bounds the distance that a weight moves, divided by the sum of all step sizes; None if
    there is no such bound.
    """

    update: Callable[..., MomentumStep | AdamStep | RmspropStep]
    step_size: float
    reach: float | None = None

    @property
    def has_root(self) -> bool:
        """Whether steps are divided by the root of a mean square, as Adam's are."""
        return self.reach is not None


def _adam_reach(first: float, second: float) -> float:
    """Return an upper bound of Adam's moves divided by the step size, with betas `first`, `second`.

    A step divides sum_i a_i g_i, a mean of the gradients g_i, by the root of sum_i b_i g_i^2. By
    Cauchy and Schwarz the quotient is at most the root of sum_i a_i^2 / b_i, a geometric series.
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
"""Optimisers by name. The step size of "gradient" follows from the curvature instead."""

BATCH = 200
"""The default batch size, which is scikit-learn's."""

MIN_STEPS, MAX_PASSES, PLAIN_STEPS = 3200, 150, 300
"""The default `max_iter`: as many passes as make `MIN_STEPS` steps, but at most `MAX_PASSES`.

Plain gradient descent takes `PLAIN_STEPS` steps on all examples."""

RATE_BOUND = 2.0**10
"""The domain's bound on rates, unless a sample weight exceeds it relative to the mean of all.

The approximation of roots depends on it. It is the same without sample weights, so that a weight
of 2 trains like a repeated row, up to rounding."""

SCALES = {"squared": 1.0, "logistic": 2.0, "cross_entropy": 2.0}
"""The objective divided by half the mean loss, for each loss.

scikit-learn's networks minimise half the mean square, or the mean logistic loss or cross-entropy.
With the same objective, `alpha` means the same."""


def falling_step_sizes(first: float, n_steps: int) -> tuple[float, ...]:
    """Return step sizes that equal `first` for half of the run and then fall linearly to 0.

    Falling from the start underfits: on 16,000 rows, 1,600 steps of Adam then end 0.5 to 2 points
    of accuracy lower. Without the fall, the noise of the batches stays in the weights.
    """
    return tuple(first * min(1.0, 2 * (1 - step / n_steps)) for step in range(n_steps))


@dataclass(eq=False, repr=False)
class AbstractNetwork(AbstractInContext):
    """A network without biases; a constant input of 1 is the bias of its first layer.

    Args:
        hidden_layer_sizes: the widths of the hidden layers; () is a linear model.
        activation: the activation of the hidden layers, such as "tanh" or "relu".
        construction: the construction to compile, an object or a name as for `icgd.compile`;
            the default is `icgd.ReluStack(pieces=512)`.
        solver: the optimiser: "adam", "adamw", "rmsprop", "momentum", "nesterov", or "gradient",
            plain gradient descent.
        alpha: the l2 penalty of scikit-learn's networks: the objective has the term
            alpha |w|^2 / 2 divided by the number of examples in a batch. The default is the batch
            size divided by the number of examples, a penalty |w|^2 / 2 on the sum of all losses.
            With "adamw" weights decay by step size times alpha, divided in the same way.
        batch_size: how many examples a step takes; "auto" is 200, or all if there are fewer or if
            the solver is "gradient". Rows are shuffled once, and batches cycle through them.
        max_iter: the number of passes over the examples. The default is as many as make 3,200
            steps, but at most 150 passes; with "gradient" it is 300.
        step_size: the step size for the first half of the run; it then falls linearly to 0. The
            default is 0.05 with momentum, otherwise 0.01. With "gradient" all steps have one size,
            by default the inverse of the largest curvature at the start, halved until the loss
            falls throughout.
        random_state: the seed of the initial weights and of the order of rows.

    Attributes:
        n_iter_: the number of passes over the examples.
        coefs_: the trained matrices.

    Raises:
        UnknownNameError: by `fit`, if no activation, construction or solver has this name.
        UnsupportedProblemError: by `fit`, if the construction does not support the solver, the
            loss, batches or weights.
        OverflowedRunError: by `fit`, if no step size makes the loss fall.
    """

    hidden_layer_sizes: Any = (32,)
    activation: Any = "tanh"
    _: KW_ONLY
    construction: Any = None
    solver: Any = "adam"
    alpha: Any = None
    batch_size: Any = "auto"
    max_iter: Any = None
    step_size: Any = None
    random_state: Any = None

    def _rows(self, X: Array) -> Array:
        return np.hstack([self._scaling.transform(X), np.ones((len(X), 1))])

    @property
    def _columns(self) -> tuple[str, ...]:
        names = super()._columns
        return (*names, "the constant 1") if names else ()

    def _fit_network(self, X: Array, labels: Array, loss: str, weights: Array | None) -> None:
        """Train the network on raw rows, scaled labels and, if given, a weight for each row."""
        self._scaling = Scaling.of(X, weights)
        rows = self._rows(X)
        if weights is not None:  # rows of weight 0 would only take places in batches
            is_used = weights > 0
            rows, labels, weights = rows[is_used], labels[is_used], weights[is_used]

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
            n_passes = min(MAX_PASSES, ceil(MIN_STEPS / steps_per_iter))
            n_iter = PLAIN_STEPS if is_plain else n_passes
        n_iter = count("max_iter", n_iter, most=MOST_STEPS)
        n_steps = n_iter * steps_per_iter

        seed = seed_of(self.random_state)
        total, rates, rate_bound = float(n), None, None
        if weights is None and solver.has_root:
            weights = np.ones(n)
        if weights is not None:
            total = float(weights.sum())
            rates = weights * (n / total)
            rate_bound = bound_above(rates, [RATE_BOUND])
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
        domain = Domain(bound_above(rows, room=ROOM), bound_above(labels), rate=rate_bound)
        at_start = Problem(target, loss, GradientStep(1.0, INITIAL_BOX), domain)
        task = as_task(at_start, rows, labels, seed=seed, rates=rates)
        step_size: Any = self.step_size
        if step_size is None:
            step_size = solver.step_size
            if is_plain:
                step_size = 1 / (sharpness(at_start.network_oracle, task) * SCALES[loss])
        step_size = positive("step_size", step_size)
        require_between("step_size", step_size, 0.0, LARGEST_STEP_SIZE)

        # A box that no run reaches. Plain descent lowers the risk by |d|^2 / (2 s) in each step d
        # of size s, so that L steps that lower it from R to 0 move weights by at most
        # sqrt(2 s L R). Momentum 0.9 counts as steps that are 1 / (1 - 0.9) times as long.
        risk = SCALES[loss] * float(at_start.oracle.risk(task, task.initial))
        if solver.reach is None:
            lengthening = 1.0 if is_plain else 10.0
            reach = sqrt(2 * lengthening * step_size * n_steps * risk)
        else:
            reach = solver.reach * step_size * n_steps
        box = bound_above(task.initial.abs().max() + reach)

        # The penalty is alpha divided by the weight of the examples in a batch.
        #
        # A penalty |w|^2 / 2 on the sum of all losses is minus the logarithm of a standard normal
        # prior: training then maximises the posterior density. Without it a network overfits
        # hundreds of rows; with many thousands of rows it hardly matters.
        decay = 1 / total
        if self.alpha is not None:
            decay = not_negative("alpha", self.alpha) / (size * total / n)
        batch_size = None if size == n else size
        if is_plain and decay == 0:  # the only update that every construction supports
            update: Any = GradientStep(step_size * SCALES[loss], box, batch_size)
        else:
            update = solver.update(
                step_size=step_size if is_plain else falling_step_sizes(step_size, n_steps),
                box=box,
                batch_size=batch_size,
                weight_decay=decay,
                gradient_scale=SCALES[loss],
            )
        self._train(
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
        """Raise `SettingError` if a schedule has more steps than constructions write layers for."""
        n_quantities = 1 + len(solver.update(step_size=1.0, box=1.0).remembered)
        most = MOST_SUMS // (target.depth * n_quantities)
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
        """The trained matrix of each layer, for scaled inputs followed by a constant 1."""
        check_is_fitted(self)
        problem = self.compiled_.problem
        weights = problem.network_oracle.weights_of(self._run.parameters[-1])
        return [matrix.cpu().numpy() for matrix in problem.network.matrices(weights)]


class InContextRegressor(AbstractRegressor, AbstractNetwork):
    """A network that a frozen transformer trains on the squared loss in its forward pass.

    Inputs and labels are standardised internally.

    Attributes:
        loss_curve_: half the mean squared error on scaled labels, before and after every pass.

    Example:
        >>> from icgd.estimators import InContextRegressor
        >>> model = InContextRegressor(hidden_layer_sizes=(3,), max_iter=300, random_state=0)
        >>> model = model.fit([[0.0], [1.0], [2.0], [3.0]], [0.0, 1.0, 2.0, 3.0])
        >>> bool(model.loss_curve_[-1] < model.loss_curve_[0])
        True
    """

    @atomic
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
        self._fit_network(X, self._label_scaling.transform(labels), "squared", weights)
        return self


@dataclass(eq=False, repr=False)
class InContextClassifier(AbstractClassifier, AbstractNetwork):
    """A classifier network that a frozen transformer trains in its forward pass.

    Inputs are standardised internally. Two classes have one output and the logistic loss. More
    classes have an output each, and the cross-entropy of their softmax.

    Args:
        class_weight: a dict of class weights, 1 for classes that it leaves out; or "balanced",
            which gives all classes the same total weight. It multiplies `sample_weight`.

    Attributes:
        classes_: the classes, in the order of probabilities.
        loss_curve_: half the mean loss, before and after every pass.

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

    @atomic
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
        loss = "logistic" if labels.shape[1] == 1 else "cross_entropy"
        self._fit_network(X, labels, loss, weights)
        return self

    def decision_function(self, X: Any) -> Array:
        """Return the outputs of the network: log-probabilities up to a constant for each row.

        Of two classes, the output is the log-odds of the second.

        Args:
            X: rows of the inputs.

        Returns:
            An array (n_rows, n_classes), or (n_rows,) for two classes.

        Example:
            >>> from icgd.estimators import InContextClassifier
            >>> model = InContextClassifier(hidden_layer_sizes=(3,), max_iter=300, random_state=0)
            >>> model.fit([[0.0], [1.0], [2.0]], [0, 1, 2]).decision_function([[0.5]]).shape
            (1, 3)
        """
        outputs = self._outputs(X)
        return outputs.ravel() if outputs.shape[1] == 1 else outputs

    def _output_probabilities(self, X: Any) -> Array:
        outputs = self._outputs(X)
        is_single = outputs.shape[1] == 1
        probabilities: Array = expit(outputs) if is_single else softmax(outputs, axis=1)
        return probabilities

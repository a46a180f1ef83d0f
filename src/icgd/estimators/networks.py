"""Networks of any depth, trained by gradient descent in a transformer's forward pass."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt
from typing import Any

import numpy as np
import torch
from scipy.special import expit
from sklearn.base import RegressorMixin
from sklearn.utils.validation import check_is_fitted

from icgd.constructions.relu_stack import ReluStack
from icgd.estimators.base import (
    ROOM,
    AbstractClassifier,
    AbstractInContext,
    Array,
    Lesson,
    Scaling,
    at_once,
    bound_above,
    read_examples,
    seed_of,
)
from icgd.problems.data import Domain, Task, as_task
from icgd.problems.mlp import MLP
from icgd.problems.optimisers import GradientStep
from icgd.problems.oracles import NetworkOracle
from icgd.problems.problem import Problem
from icgd.problems.settings import MOST_STEPS, count, entries, is_row, positive, within

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
    """The size of the Hessian's largest eigenvalue at the task's initial weights, in O(n |w|)."""
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


class AbstractNetwork(AbstractInContext):
    """A network without biases; a constant input of 1 is the bias of its first layer."""

    def __init__(
        self,
        hidden_layer_sizes: Any = (32,),
        activation: Any = "tanh",
        *,
        construction: Any = None,
        max_iter: Any = 300,
        step_size: Any = None,
        random_state: Any = None,
        device: Any = "cpu",
        cache_context: Any = True,
    ) -> None:
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.construction = construction
        self.max_iter = max_iter
        self.step_size = step_size
        self.random_state = random_state
        self.device = device
        self.cache_context = cache_context

    def _rows(self, X: Array) -> Array:
        return np.hstack([self._scaling.applied(X), np.ones((len(X), 1))])

    def _teach(self, X: Array, labels: Array, loss: str) -> None:
        """Learn from raw rows and scaled labels."""
        self._scaling = Scaling.of(X)
        rows = self._rows(X)
        given = self.hidden_layer_sizes
        hidden = entries(given) if is_row(given) else [given]
        widths = (rows.shape[1], *(count("hidden_layer_sizes", w) for w in hidden), labels.shape[1])
        target = MLP(widths, activation=self.activation)
        domain = Domain(bound_above(rows, room=ROOM), bound_above(labels))
        first = Problem(target, loss, GradientStep(1.0, NO_BOX), domain)
        seed = seed_of(self.random_state)
        task = as_task(first, rows, labels, seed=seed)
        size = self.step_size
        size = 1 / sharpness(first.network_oracle, task) if size is None else size
        within("step_size", positive("step_size", size), 0.0, LONGEST_STEP)
        update = GradientStep(positive("step_size", size), self._box(first, task, size))
        problem = Problem(target, loss, update, domain)
        construction = FINE if self.construction is None else self.construction
        lesson = Lesson(problem, rows, labels, task.initial, construction)
        self._learn(replace(lesson, may_shorten=self.step_size is None))

    def _box(self, problem: Problem, task: Any, size: float) -> float:
        """A box that descent does not reach: L steps of size s that lower the risk from R to 0.

        Each step d of them lowers it by |d|^2 / (2 s), so that all together move weights by at
        most sqrt(2 s L R).
        """
        risk = float(problem.oracle.risk(task, task.initial))
        reach = sqrt(2 * size * count("max_iter", self.max_iter, most=MOST_STEPS) * risk)
        return bound_above(task.initial.abs().max() + reach)

    @property
    def coefs_(self) -> list[Array]:
        """The trained matrices, one a layer, for scaled inputs and a constant 1 as last input."""
        check_is_fitted(self)
        matrices = self.compiled_.problem.network.matrices(self._run.parameters[-1])
        return [matrix.cpu().numpy() for matrix in matrices]


class InContextRegressor(RegressorMixin, AbstractNetwork):  # type: ignore[misc]
    """A network that a frozen transformer trains on the squared loss, in its forward pass.

    Inputs and labels are standardised inside. Descent is plain gradient descent on all examples.

    Args:
        hidden_layer_sizes: widths of the hidden layers; () is a linear model.
        activation: the activation of hidden layers, such as "tanh" or "relu".
        construction: the construction that is compiled, an object or a name as for `icgd.compile`;
            the default is `icgd.ReluStack(pieces=512)`.
        max_iter: the number of gradient steps.
        step_size: the step size; by default the inverse of the sharpest curvature at the start,
            halved until the loss falls all along.
        random_state: the seed of the initial weights.
        device: the torch device that runs it.
        cache_context: whether `predict` uses the weights that `fit` reached; if not, it runs the
            whole transformer on context and rows, with the same answers, bit for bit.

    Attributes:
        compiled_: the compiled run, with `transformer()`, `summary()` and `listing()`.
        n_iter_: the number of steps taken.
        loss_curve_: half the mean squared error on scaled labels, before and after every step.
        convergence_: how far from its end descent stopped.
        certificate_: what `icgd.verify` measures and proves of the run; made when it is asked for.
        coefs_: the trained matrices.
        n_features_in_: the number of inputs.
        feature_names_in_: their names, if X was a data frame.

    Raises:
        SettingError: by `fit`, if a setting is out of its range.
        UnknownNameError: by `fit`, if no activation or construction has this name.
        OverflowedRunError: by `fit`, if no step size makes the loss fall.

    Example:
        >>> from icgd.estimators import InContextRegressor
        >>> model = InContextRegressor(hidden_layer_sizes=(3,), max_iter=300, random_state=0)
        >>> model = model.fit([[0.0], [1.0], [2.0], [3.0]], [0.0, 1.0, 2.0, 3.0])
        >>> bool(model.loss_curve_[-1] < model.loss_curve_[0])
        True
    """

    @at_once
    def fit(self, X: Any, y: Any) -> InContextRegressor:
        """Store the examples as context, scale them, compile and run.

        Args:
            X: rows of the inputs.
            y: a number for each row.

        Returns:
            The estimator itself.

        Raises:
            SettingError: if a setting is out of its range.
            OverflowedRunError: if no step size makes the loss fall.

        Example:
            >>> from icgd.estimators import InContextRegressor
            >>> model = InContextRegressor(hidden_layer_sizes=(3,), max_iter=300, random_state=0)
            >>> model.fit([[0.0], [1.0], [2.0]], [0.0, 1.0, 2.0]).n_iter_
            300
        """
        X, y = read_examples(self, X, y)
        labels = np.asarray(y, dtype=np.float64).reshape(-1, 1)
        self._label_scaling = Scaling.of(labels)
        self._teach(X, self._label_scaling.applied(labels), "squared")
        return self

    def predict(self, X: Any) -> Array:
        """The expected label of every row.

        Args:
            X: rows of the inputs.

        Returns:
            An array (n_rows,).

        Example:
            >>> from icgd.estimators import InContextRegressor
            >>> model = InContextRegressor(hidden_layer_sizes=(3,), max_iter=300, random_state=0)
            >>> model.fit([[0.0], [1.0], [2.0]], [0.0, 1.0, 2.0]).predict([[0.5]]).shape
            (1,)
        """
        answers = self._answers(X)
        return self._label_scaling.undone(answers).ravel()


class InContextClassifier(AbstractClassifier, AbstractNetwork):
    """A network that a frozen transformer trains to tell classes, in its forward pass.

    Inputs are standardised inside. Each class has an output with the logistic loss of that class
    against the rest; two classes share one output.

    Args:
        hidden_layer_sizes: widths of the hidden layers; () is a linear model.
        activation: the activation of hidden layers, such as "tanh" or "relu".
        construction: the construction that is compiled, an object or a name as for `icgd.compile`;
            the default is `icgd.ReluStack(pieces=512)`.
        max_iter: the number of gradient steps.
        step_size: the step size; by default the inverse of the sharpest curvature at the start,
            halved until the loss falls all along.
        random_state: the seed of the initial weights.
        device: the torch device that runs it.
        cache_context: whether `predict` uses the weights that `fit` reached; if not, it runs the
            whole transformer on context and rows, with the same answers, bit for bit.

    Attributes:
        classes_: the classes, in the order of probabilities.
        compiled_: the compiled run, with `transformer()`, `summary()` and `listing()`.
        n_iter_: the number of steps taken.
        loss_curve_: half the mean logistic loss, summed over outputs, before and after every step.
        convergence_: how far from its end descent stopped.
        certificate_: what `icgd.verify` measures and proves of the run; made when it is asked for.
        coefs_: the trained matrices.
        n_features_in_: the number of inputs.
        feature_names_in_: their names, if X was a data frame.

    Raises:
        SettingError: by `fit`, if a setting is out of its range.
        UnknownNameError: by `fit`, if no activation or construction has this name.
        DataError: by `fit`, if there are fewer than two classes.
        OverflowedRunError: by `fit`, if no step size makes the loss fall.

    Example:
        >>> from icgd.estimators import InContextClassifier
        >>> model = InContextClassifier(hidden_layer_sizes=(3,), max_iter=300, random_state=0)
        >>> model = model.fit([[0.0], [1.0], [2.0], [3.0]], ["no", "no", "yes", "yes"])
        >>> model.predict([[0.0], [3.0]]).tolist()
        ['no', 'yes']
    """

    @at_once
    def fit(self, X: Any, y: Any) -> InContextClassifier:
        """Store the examples as context, scale them, compile and run.

        Args:
            X: rows of the inputs.
            y: a class for each row.

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
        X, labels = self._encoded(X, y)
        self._teach(X, labels, "logistic")
        return self

    def decision_function(self, X: Any) -> Array:
        """The outputs of the network: log-odds of each class against the rest.

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

"""The oracles on bare arrays, for tests that have no task: a network's, and a linear model's."""

from torch import Tensor

from icgd.problems.data import Domain, Task
from icgd.problems.linear_model import LinearModel
from icgd.problems.oracles import Descent, LinearOracle
from icgd.problems.problem import Problem
from icgd.problems.steps import ProximalStep


def bare_task(x: Tensor, y: Tensor, initial: Tensor) -> Task:
    return Task(x, y, x[..., :0, :], initial)


class NetworkOnArrays:
    """A problem's oracle."""

    @staticmethod
    def risk(problem: Problem, weights: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return problem.oracle.risk(bare_task(x, y, weights), weights)

    @staticmethod
    def gradient(problem: Problem, weights: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return problem.network_oracle.gradient(bare_task(x, y, weights), weights)

    @staticmethod
    def step(problem: Problem, weights: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return problem.oracle.step(bare_task(x, y, weights), weights)

    @staticmethod
    def train(problem: Problem, initial: Tensor, x: Tensor, y: Tensor, n_steps: int) -> Tensor:
        return problem.oracle.train(bare_task(x, y, initial), n_steps)


class LinearOnArrays:
    """The oracle of a model and an update, for data of any size."""

    @staticmethod
    def oracle(model: LinearModel, update: ProximalStep) -> LinearOracle:
        return LinearOracle(model, "matching", update, Domain(1e9, 1e9))

    @classmethod
    def objective(cls, model, update, w: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return cls.oracle(model, update).objective(bare_task(x, y, w), w)

    @classmethod
    def gradient(cls, model, update, w: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return cls.oracle(model, update).gradient(bare_task(x, y, w), w)

    @classmethod
    def step(cls, model, update, w: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return cls.oracle(model, update).step(bare_task(x, y, w), w)

    @classmethod
    def train(cls, model, update, w: Tensor, x: Tensor, y: Tensor, n_steps: int) -> Tensor:
        return cls.oracle(model, update).train(bare_task(x, y, w), n_steps)

    @classmethod
    def descend(cls, model, update, w: Tensor, x: Tensor, y: Tensor, **limits: float) -> Descent:
        return cls.oracle(model, update).descend(bare_task(x, y, w), **limits)


on_network, on_linear_model = NetworkOnArrays(), LinearOnArrays()

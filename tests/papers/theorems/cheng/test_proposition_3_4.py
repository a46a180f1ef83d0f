from icgd.problems.kernel_machine import KernelMachine
from icgd.problems.oracles import FunctionOracle
from icgd_papers.theorems.cheng.proposition_3_4 import bayes, rate
from icgd_papers.training.covariates import Ellipsoid


def test_a_limit_that_is_not_kernel_regression_is_noticed(monkeypatch):
    assert rate(seed=0).holds
    limit = FunctionOracle.limit
    monkeypatch.setattr(FunctionOracle, "limit", lambda *parts: 1.5 * limit(*parts))
    assert not rate(seed=0).holds


def test_too_few_layers_are_not_yet_bayes_estimator():
    machine, inputs = KernelMachine(5, "rbf"), Ellipsoid.sphere(5)
    few, many = (bayes(machine, inputs, 8, n_layers, seed=0) for n_layers in (5, 600))
    assert not few.holds
    assert many.holds
    assert few.measured > 1e-3

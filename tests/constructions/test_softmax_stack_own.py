"""softmax-stack with functions that a text defines: proved to 1e-9, on the literal transformer."""

import pytest
import torch

import icgd
from icgd.errors import UnsupportedProblemError
from tests.cases import make_case

ANALYTIC = {
    "mish": "x * tanh(log(1 + exp(x)))",
    "sin": "sin(x)",
    "erf": "erf(x)",
    "gelu of tanh": "x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3))) / 2",
    "quick gelu": "x / (1 + exp(-1.702 * x))",
    "slope of log-cosh": "tanh(x)",
    "cauchit": "1 / 2 + atan(x) / pi",
    "cloglog": "1 - exp(-exp(x))",
    "snake": "x + sin(x)**2",
    "gaussian": "exp(-x**2)",
    "softplus": "log(1 + exp(x))",
}
FEW = ("mish", "snake", "softplus")


def own(name: str) -> icgd.Function:
    return icgd.Function(name, ANALYTIC[name], *((-6.0, 6.0) if name == "cloglog" else ()))


def case_of(activation, loss="squared", widths=(3, 4, 1), box=1.0):
    domain = icgd.Domain(x=1.0, y=1.0)
    network = icgd.MLP(widths, activation)
    return make_case(network, loss, box=box, domain=domain, seed=4, step_size=0.2)


def verified(compiled, case):
    task = case.task()
    return icgd.verify(
        compiled, task.x, task.y, initial=task.initial, backend="literal", rigorous=False
    )


def require_close(case):
    """A tolerance is proved of every step on the domain; the literal transformer keeps it."""
    compiled = icgd.compile(case.problem, "softmax-stack", n_steps=1, tolerance=1e-9)
    report = verified(compiled, case)
    assert (report.step_errors <= report.step_bounds).all()
    assert 0 < float(report.step_errors.max()) <= float(report.step_bounds.max()) <= 1e-9
    return compiled


@pytest.mark.parametrize("name", FEW)
def test_analytic_activations_are_trained_to_1e_9(name):
    require_close(case_of(own(name)))


@pytest.mark.slow
@pytest.mark.parametrize("name", ANALYTIC)
@pytest.mark.parametrize("widths", [(3, 4, 1), (2, 3, 3, 2)])
def test_all_analytic_activations_are_trained_to_1e_9(name, widths):
    require_close(case_of(own(name), widths=widths, box=0.5))


def test_lines_between_knots_are_exact():
    case = case_of("relu6")
    compiled = icgd.compile(case.problem, "softmax-stack", n_steps=2)
    assert float(verified(compiled, case).step_errors.max()) <= 1e-12


def test_a_function_that_grows_gets_a_gate_and_only_then():
    mish, softplus = own("mish"), own("softplus")
    assert (mish.gate, mish.rest) == (icgd.Function("", "tanh(softplus(x))"), None)
    assert softplus.gate == icgd.Function("", "sigmoid(x)")
    assert softplus.rest == icgd.Function("", "softplus(x) - x * sigmoid(x)")
    steep = icgd.Function("steep", "2 * x + sqrt(1 + x**2)")
    z = torch.linspace(-64, 64, 1001, dtype=torch.float64)
    torch.testing.assert_close(z * steep.gate(z) + steep.rest(z), steep(z))
    assert float(steep.rest(z).abs().max()) < 2
    for bounded in ("sin", "erf", "gaussian"):
        assert own(bounded).gate is None


def test_a_wide_domain_takes_few_registers_because_of_the_gate():
    """Preactivations reach 300; without its gate mish would take some 3,000 points."""
    mish = icgd.Function("mish", ANALYTIC["mish"], -2000.0, 2000.0)
    case = case_of(mish, box=100.0)
    compiled = icgd.compile(case.problem, "softmax-stack", n_steps=1)
    assert compiled.program.functions[0].half < 200
    report = verified(compiled, case)
    assert (report.step_errors <= report.step_bounds).all()


def test_a_file_holds_the_functions_by_their_text(tmp_path):
    case = case_of(own("snake"))
    compiled = icgd.compile(case.problem, "softmax-stack", n_steps=2)
    compiled.save(tmp_path / "run.safetensors")
    loaded = icgd.load(tmp_path / "run.safetensors")
    assert loaded.program == compiled.program
    task = case.task()
    runs = [c.run(task.x, task.y, initial=task.initial).parameters for c in (compiled, loaded)]
    assert torch.equal(*runs)


def test_a_smooth_loss_of_the_error_is_looked_up():
    require_close(case_of("tanh", "log_cosh"))


def test_a_loss_whose_slope_jumps_is_refused():
    with pytest.raises(UnsupportedProblemError, match="slope of the l1 loss jumps at 0"):
        icgd.compile(case_of("tanh", "l1").problem, "softmax-stack", n_steps=1)


def test_a_line_of_one_s_own_is_refused():
    line = icgd.Function("double", "2*x")
    with pytest.raises(
        UnsupportedProblemError, match=r"its only linear activation is identity, not 2\*x"
    ):
        icgd.compile(case_of(line).problem, "softmax-stack", n_steps=1)
    report = icgd.compile(case_of(line).problem, "relu-stack", n_steps=1).certificate()
    assert report.domain_step < 1e-9


@pytest.mark.parametrize("name", ["elu", "selu", "hardswish", "softsign"])
def test_curved_pieces_are_refused_with_the_reason(name):
    with pytest.raises(UnsupportedProblemError, match="accurate for analytic functions only"):
        icgd.compile(case_of(name).problem, "softmax-stack", n_steps=1)


def test_arguments_outside_the_domain_are_refused():
    narrow = icgd.Function("narrow", "sin(x)", -1.0, 1.0)
    with pytest.raises(UnsupportedProblemError, match=r"is defined on \[-1, 1\] only"):
        icgd.compile(case_of(narrow, box=3.0).problem, "softmax-stack", n_steps=1)

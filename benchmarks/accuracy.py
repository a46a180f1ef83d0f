"""How close: fits beside the best possible, and trained weights beside the real ones."""

from random import Random
from time import perf_counter

import torch

import icgd
from icgd.approximation.lattice import fit_to_accuracy, identity
from icgd.approximation.relu_sum import fit_relu_sum
from icgd.approximation.ridge import (
    fit_loss_slope,
    fit_product,
    fit_ridge_sum,
    fit_slope_product,
)
from icgd.problems.functions import ACTIVATIONS, TANH, UNIT_ACTIVATIONS, SmoothFunction
from icgd.problems.losses import LOGISTIC
from icgd.program.functions import RidgeSum
from tests.approximation.yardsticks import asymptotic_optimum, choose_lattice, evaluate


def fits() -> list[dict[str, object]]:
    """Certified error with 64 pieces on [-6, 6], over the asymptotic optimum."""
    smooth = [a.value for a in ACTIVATIONS.values() if isinstance(a.value, SmoothFunction)]
    return [_fit(function) for value in smooth for function in (value, value.derivative())]


def _fit(function: SmoothFunction) -> dict[str, object]:
    fit = fit_relu_sum(function, -6.0, 6.0, 64)
    best = asymptotic_optimum(function, -6.0, 6.0, 64)
    return {
        "function": function.name,
        "error": fit.error,
        "optimum": best,
        "ratio": fit.error / best,
        "limit": 1.25,
    }


def lattices() -> list[dict[str, object]]:
    """Tokens of a softmax lattice for an accuracy: the identity on [-1, 1], tanh on [-6, 6]."""
    line = identity(choose_lattice(1.0, 1e-13))
    tanh = [fit_to_accuracy((TANH,), 6.0, accuracy)[0] for accuracy in (1e-6, 1e-9, 1e-11)]
    return [
        {
            "function": head.name,
            "tokens": len(head.values),
            "certified error": head.error,
            "largest value": max(map(abs, head.values)),
            "nearest token instead": head.reach / len(head.values),
        }
        for head in (line, *tanh)
    ]


def weights() -> list[dict[str, object]]:
    """Widths 3-4-4-2, tanh, n = 6, 5 steps, step 0.5, box 3, over the number of pieces."""
    return [_weights(pieces) for pieces in (8, 32, 64, 128, 256, 512)]


def _weights(pieces: int) -> dict[str, object]:
    problem = icgd.Problem(
        target=icgd.MLP((3, 4, 4, 2), "tanh", "tanh"),
        loss="squared",
        update=icgd.GradientStep(step_size=0.5, box=3.0),
        domain=icgd.Domain(x=4.0, y=2.0),
    )
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(6, 3, generator=generator, dtype=torch.float64).clamp(-4, 4)
    y = torch.rand(6, 2, generator=generator, dtype=torch.float64)
    compiled = icgd.compile(problem, "relu-stack", n_steps=5, pieces=pieces)
    report = icgd.verify(compiled, x, y, seed=0, backend="dense")
    task = compiled.task(x, y, seed=0)
    real = problem.oracle.train(task, 5)
    return {
        "pieces": pieces,
        "largest weight error": float(report.trajectory_errors.max()),
        "largest step error": float(report.step_errors.max()),
        "step bound, this run": float(report.step_bounds.max()),
        "step bound, domain": report.certificate.domain_step,
        "step bound, paper": report.certificate.paper_step,
        "weights moved": float((real[-1] - real[0]).abs().max()),
        "verdict": report.verdict.name,
    }


def softmax_weights() -> list[dict[str, object]]:
    """Widths 3-4-4-2, n = 6, 5 steps, step 0.3, box 1: tanh, relu, and tanh made for float32."""
    return [
        _softmax_weights("tanh", "float64", 66),
        _softmax_weights("tanh", "float64", None),
        _softmax_weights("relu", "float64", None),
        _softmax_weights("tanh", "float32", None),
    ]


def _softmax_weights(activation: str, dtype: str, registers: int | None) -> dict[str, object]:
    problem = icgd.Problem(
        target=icgd.MLP((3, 4, 4, 2), activation),
        loss="squared",
        update=icgd.GradientStep(step_size=0.3, box=1.0),
        domain=icgd.Domain(x=2.0, y=2.0),
    )
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(6, 3, generator=generator, dtype=torch.float64).clamp(-2, 2)
    y = torch.rand(6, 2, generator=generator, dtype=torch.float64)
    compiled = icgd.compile(
        problem, n_steps=5, construction="softmax-stack", registers=registers, dtype=dtype
    )
    report = icgd.verify(compiled, x, y, seed=1, backend="dense", dtype=dtype)
    fused = icgd.verify(compiled, x, y, seed=1, dtype=dtype)
    summary = compiled.summary()
    return {
        "activation": activation,
        "dtype": dtype,
        "registers": summary.n_registers,
        "layers a step": summary.layers_per_step,
        "heads": summary.n_heads,
        "largest weight error": float(report.trajectory_errors.max()),
        "fused": float(fused.trajectory_errors.max()),
        "bound, this run": float(report.trajectory_bounds.max()),
        "step bound, domain": report.certificate.domain_step,
        "near-kink events": report.near_kinks.count,
        "verdict": report.verdict.name,
    }


def kinks() -> list[dict[str, object]]:
    """Relu networks: the default ramp beside one of 2^-13, on both backends, in both precisions."""
    cases = (((8, 64, 64, 1), 64, 200, "fused"), ((3, 8, 8, 1), 32, 60, "dense"))
    return [
        _kinks(construction, widths, n, n_steps, backend, dtype, width)
        for construction in ("relu-stack", "softmax-stack")
        for widths, n, n_steps, backend in cases
        for dtype in ("float64", "float32")
        for width in (2.0**-13, None)
    ]


def _kinks(
    construction: str,
    widths: tuple[int, ...],
    n: int,
    n_steps: int,
    backend: str,
    dtype: str,
    width: float | None,
) -> dict[str, object]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, widths[0], generator=generator, dtype=torch.float64).clamp(-2, 2)
    y = x.sin().mean(1, keepdim=True)
    step, domain = icgd.GradientStep(step_size=0.1, box=2.0), icgd.Domain.of(x, y)
    problem = icgd.Problem(icgd.MLP(widths, "relu"), "squared", step, domain)
    made_for = {"dtype": dtype} if construction == "softmax-stack" else {}
    compiled = icgd.compile(problem, construction, n_steps=n_steps, kink_width=width, **made_for)
    report = icgd.verify(compiled, x, y, seed=1, backend=backend, dtype=dtype)
    return {
        "construction": construction,
        "widths": "-".join(map(str, widths)),
        "n": n,
        "steps": n_steps,
        "backend": backend,
        "dtype": dtype,
        "kink_width": "default" if width is None else width,
        "near-kink events": report.near_kinks.count,
        "largest step error": float(report.step_errors.max()),
        "step bound, this run": float(report.step_bounds.max()),
        "largest weight error": float(report.trajectory_errors.max()),
        "verdict": report.verdict.name,
    }


def bounds() -> list[dict[str, object]]:
    """How far bound (b) lies above the measured step error, over random problems."""
    return [
        _bounds(construction, dtype, backend, n_problems)
        for construction, n_problems in (("relu-stack", 100), ("softmax-stack", 40))
        for dtype in ("float64", "float32")
        for backend in ("fused", "dense")
    ]


def _bounds(construction: str, dtype: str, backend: str, n_problems: int) -> dict[str, object]:
    draw = Random(0)
    ratios, verdicts = [], []
    for seed in range(n_problems):
        compiled, x, y = _random_run(construction, dtype, draw, seed)
        report = icgd.verify(compiled, x, y, seed=seed, backend=backend, dtype=dtype)
        verdicts.append(report.verdict)
        if (measured := float(report.step_errors.max())) > 0:
            ratios.append(float(report.step_bounds.max()) / measured)
    ratios.sort()
    return {
        "construction": construction,
        "dtype": dtype,
        "backend": backend,
        "problems": n_problems,
        "verdicts that hold": sum(verdict.holds for verdict in verdicts),
        "with an error": len(ratios),
        "median bound / measured": ratios[len(ratios) // 2],
        "90th percentile": ratios[len(ratios) * 9 // 10],
    }


def _random_run(
    construction: str, dtype: str, draw: Random, seed: int
) -> tuple[icgd.Compiled, torch.Tensor, torch.Tensor]:
    """Depth 1 to 4, any activation and loss, step sizes up to 1, data over the whole domain."""
    widths = tuple(draw.randint(1, 5) for _ in range(draw.randint(2, 5)))
    problem = icgd.Problem(
        target=icgd.MLP(widths, draw.choice(list(ACTIVATIONS)), draw.choice(list(ACTIVATIONS))),
        loss=draw.choice(["squared", "logistic", "huber"]),
        update=icgd.GradientStep(step_size=draw.uniform(0.01, 1.0), box=draw.uniform(0.5, 4.0)),
        domain=icgd.Domain(x=draw.uniform(0.5, 4.0), y=1.0),
    )
    generator = torch.Generator().manual_seed(seed)
    x = 2 * torch.rand(6, widths[0], generator=generator, dtype=torch.float64) - 1
    y = torch.rand(6, widths[-1], generator=generator, dtype=torch.float64)
    size = draw.randint(4, 64)
    if construction == "relu-stack":
        return icgd.compile(problem, construction, n_steps=3, pieces=size), problem.domain.x * x, y
    compiled = icgd.compile(
        problem, n_steps=3, construction=construction, registers=32 + size, dtype=dtype
    )
    return compiled, problem.domain.x * x, y


def ridge_sums() -> list[dict[str, object]]:
    """Certified errors of sums of every activation; the second row of each is for float32."""
    return [
        _ridge_sum(activation, units, dtype)
        for activation in UNIT_ACTIVATIONS
        for units in (50, 200, 800)
        for dtype in (torch.float64, torch.float32)
    ]


def _ridge_sum(activation: str, units: int, dtype: torch.dtype) -> dict[str, object]:
    start = perf_counter()
    roundoff = torch.finfo(dtype).eps / 2
    box = (2.0, 2.0)
    fits = {
        "s tanh'(t)": fit_slope_product(TANH, box, activation, units, roundoff=roundoff),
        "a b": fit_product(box, activation, units, roundoff=roundoff),
        "tanh": fit_ridge_sum(TANH, 2.0, activation, units, roundoff=roundoff),
        "u logistic": fit_loss_slope(LOGISTIC, (2.0, 1.0), activation, units, roundoff=roundoff),
    }
    seconds = perf_counter() - start
    slopes, products = fits["s tanh'(t)"], fits["a b"]
    z = 4 * torch.rand(20_000, 2, generator=torch.Generator().manual_seed(0)).double() - 2
    s, t = z.T
    return {
        "activation": activation,
        "dtype": str(dtype).removeprefix("torch."),
        "units": units,
        **{name: fit.error for name, fit in fits.items()},
        "s tanh'(t), run": _largest_gap(slopes, z, s * TANH.tower[1](t), dtype),
        "a b, run": _largest_gap(products, z, s * t, dtype),
        "units used": (slopes.n_units, products.n_units),
        "largest coefficient": max(fit.largest_coefficient for fit in fits.values()),
        "seconds to fit": seconds,
    }


def _largest_gap(fit: RidgeSum, z: torch.Tensor, wanted: torch.Tensor, dtype: torch.dtype) -> float:
    ours = torch.cat([evaluate(fit, rows.to(dtype)) for rows in z.split(2000)])
    return float((ours.double() - wanted).abs().max())

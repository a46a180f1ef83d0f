"""recursion: trained weights beside the real ones, and fused runs beside those of relu-stack."""

import torch

import icgd
from benchmarks.problems import problem_of, task_of
from icgd.problems.functions import UNIT_ACTIVATIONS
from icgd.timing import interleaved_medians

N_STEPS, N_EXAMPLES = 5, 6
WIDE = (32, 32, 32, 1)
SIZES = ((2, 4, 1), (2, 3, 3, 1), (3, 4, 4, 2), (8, 32, 1), (8, 32, 32, 1))


def weights() -> list[dict[str, object]]:
    """Widths 2-4-1 and 2-3-3-1, tanh, step 0.5, box 2, 200 units of every activation."""
    return [
        row
        for widths in ((2, 4, 1), (2, 3, 3, 1))
        for units in UNIT_ACTIVATIONS
        for row in _weights(widths, units)
    ]


def _weights(widths: tuple[int, ...], units: str) -> list[dict[str, object]]:
    problem = icgd.Problem(
        target=icgd.MLP(widths, "tanh"),
        loss="squared",
        update=icgd.GradientStep(step_size=0.5, box=2.0),
        domain=icgd.Domain(x=1.0, y=1.0),
    )
    compiled = icgd.compile(
        problem, n_steps=N_STEPS, construction="recursion", units=200, unit_activation=units
    )
    return [_weight_row(compiled, units, backend) for backend in ("dense", "fused")]


def _weight_row(compiled: icgd.Compiled, units: str, backend: str) -> dict[str, object]:
    widths, summary = compiled.problem.target.widths, compiled.summary()
    generator = torch.Generator().manual_seed(0)
    x = 2 * torch.rand(N_EXAMPLES, widths[0], generator=generator, dtype=torch.float64) - 1
    y = 2 * torch.rand(N_EXAMPLES, widths[-1], generator=generator, dtype=torch.float64) - 1
    report = icgd.verify(compiled, x, y, seed=0, backend=backend)
    task = compiled.task(x, y, seed=0)
    real = compiled.problem.oracle.train(task, N_STEPS)
    return {
        "widths": "-".join(map(str, widths)),
        "units": units,
        "backend": backend,
        "heads": summary.n_heads,
        "weights": summary.parameters,
        "largest weight error": float(report.trajectory_errors.max()),
        "bound, this run": float(report.trajectory_bounds.max()),
        "largest step error": float(report.step_errors.max()),
        "step bound, this run": float(report.step_bounds.max()),
        "step bound, domain": report.certificate.domain_step,
        "clip, at a corner": compiled.program.ridge_sum("clip").largest_error,
        "weights moved": float((real[-1] - real[0]).abs().max()),
        "verdict": report.verdict.name,
    }


def speed() -> list[dict[str, object]]:
    """Fused recursion over fused relu-stack: own units, one task, defaults; then dear cases.

    The clip of four layers is fitted on a wide interval, where it needs units everywhere; units
    near a kink are summed one by one.
    """
    asked = [_speed(widths, "tanh", n, 10.0) for widths in SIZES for n in (6, 64)]
    dear = [(WIDE, "tanh"), (WIDE, "relu"), (WIDE[1:], "relu")]
    return asked + [_speed((8, *widths), activation, 64, 5.0) for widths, activation in dear]


def _speed(widths: tuple[int, ...], activation: str, n: int, limit: float) -> dict[str, object]:
    problem = problem_of(widths, activation)
    task, n_steps = task_of(problem, n, None), 50
    runs = {
        construction: icgd.compile(problem, n_steps=n_steps, construction=construction)
        for construction in ("relu-stack", "recursion")
    }
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # at these sizes a second thread waits more than it works
    seconds = interleaved_medians(
        {
            name: lambda compiled=compiled: compiled.run_task(task, history=False)
            for name, compiled in runs.items()
        }
    )
    torch.set_num_threads(before)
    return {
        "widths": "-".join(map(str, widths)),
        "n": n,
        "activation": activation,
        "recursion us/step": 1e6 * seconds["recursion"] / n_steps,
        "relu-stack us/step": 1e6 * seconds["relu-stack"] / n_steps,
        "ratio": seconds["recursion"] / seconds["relu-stack"],
        "limit": limit,
    }

"""The problems and data that all benchmarks share."""

import torch

import icgd


def problem_of(widths: tuple[int, ...], activation: str) -> icgd.Problem:
    return icgd.Problem(
        target=icgd.MLP(widths=widths, activation=activation),
        loss="squared",
        update=icgd.GradientStep(step_size=0.1, box=3.0),
        domain=icgd.Domain(x=4.0, y=2.0),
    )


def task_of(problem: icgd.Problem, n: int, n_tasks: int | None) -> icgd.Task:
    generator = torch.Generator().manual_seed(0)
    batch = () if n_tasks is None else (n_tasks,)
    x = torch.randn(*batch, n, problem.target.input_width, generator=generator).double()
    y = torch.randn(*batch, n, problem.target.output_width, generator=generator).double()
    return icgd.as_task(problem, x.clamp(-4, 4), y.clamp(-2, 2), seed=0)

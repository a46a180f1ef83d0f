"""Linear models with data, for the tests of every stage."""

import torch
from torch import Tensor

import icgd
from icgd.compiled import Compiled
from icgd.problems.data import Task
from icgd.problems.linear_model import LINKS

N_EXAMPLES, N_QUERIES, WIDTH = 6, 3, 3


def problem_of(link: str, *, intercept: bool = True, **settings: object) -> icgd.Problem:
    """Steps of 0.3 with both penalties in a box of 1, unless said otherwise."""
    chosen = {"step_size": 0.3, "l2": 0.1, "l1": 0.02, "box": 1.0, "score": 5.0, **settings}
    reduction = chosen.pop("reduction", "mean")
    domain = icgd.Domain(2.0, 2.0, score=chosen.pop("score"))
    model = icgd.LinearModel(WIDTH, link, intercept, reduction)
    return icgd.Problem(model, "matching", icgd.ProximalStep(**chosen), domain)


def data(
    tasks: tuple[int, ...] = (), seed: int = 0, sizes: tuple[int, int] = (N_EXAMPLES, N_QUERIES)
) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs, labels between 0 and 1 (which suit every link), and queries."""
    draw = {"generator": torch.Generator().manual_seed(seed), "dtype": torch.float64}
    x = torch.randn(*tasks, sizes[0], WIDTH, **draw).clamp(-2, 2)
    y = torch.rand(*tasks, sizes[0], 1, **draw)
    return x, y, torch.rand(*tasks, sizes[1], WIDTH, **draw)


def task_of(
    problem: icgd.Problem,
    tasks: tuple[int, ...] = (),
    sizes: tuple[int, int] = (N_EXAMPLES, N_QUERIES),
) -> Task:
    x, y, queries = data(tasks, sizes=sizes)
    return icgd.as_task(problem, x, y, queries=queries if sizes[1] else None)


def compiled_of(
    problem: icgd.Problem, n_steps: int = 4, construction: str = "linear-stack", **settings: int
) -> Compiled:
    return icgd.compile(problem, n_steps=n_steps, construction=construction, **settings)


PROBLEMS = {link: problem_of(link) for link in LINKS}
FISTA = {link: problem_of(link, momentum=(0.0, 0.28, 0.43, 0.53), nesterov=True) for link in LINKS}
HEAVY = {link: problem_of(link, intercept=False, l1=0.0, momentum=0.6) for link in LINKS}
PLAIN = {link: problem_of(link, intercept=False, l2=0.0, l1=0.0, score=None) for link in LINKS}

"""icgd compiles a training run into the weights of a transformer and proves how close it comes."""

from icgd.backends.run import Run
from icgd.certificates.certificate import Certificate, Report, Verdict
from icgd.compiled import Compiled
from icgd.pipeline import compile, load, verify
from icgd.problems.mlp import MLP
from icgd.problems.problem import Domain, GradientStep, Problem
from icgd.problems.task import Task, as_task

__version__ = "0.1.0"

__all__ = [
    "MLP",
    "Certificate",
    "Compiled",
    "Domain",
    "GradientStep",
    "Problem",
    "Report",
    "Run",
    "Task",
    "Verdict",
    "as_task",
    "compile",
    "load",
    "verify",
]

"""icgd compiles a training run into the weights of a transformer and proves how close it comes."""

from icgd.approximation.general_decay import GeneralDecay, general_decay
from icgd.backends.causal import run_causal
from icgd.backends.run import Run
from icgd.certificates.certificate import Certificate, Report, Verdict
from icgd.certificates.guarantee import Guarantee
from icgd.compiled import Compiled
from icgd.constructions.cot_linear import CotGlm, CotLasso, CotRidge
from icgd.constructions.cot_network import CotNetwork
from icgd.constructions.functional import Functional
from icgd.constructions.recursion import Recursion
from icgd.constructions.relu_stack import ReluStack
from icgd.constructions.softmax_stack import SoftmaxStack
from icgd.constructions.universal import Universal
from icgd.pipeline import compile, guarantee, load, verify
from icgd.problems.domain import Domain
from icgd.problems.entry import as_task
from icgd.problems.kernel_machine import KernelHead, KernelMachine
from icgd.problems.kernels import register_kernel
from icgd.problems.linear_model import LinearModel
from icgd.problems.mlp import MLP
from icgd.problems.problem import Problem
from icgd.problems.proximal_step import ProximalStep
from icgd.problems.sizing import sized_problem
from icgd.problems.spectrum import spectrum
from icgd.problems.task import Task
from icgd.problems.updates import FunctionalStep, GradientStep, chebyshev_steps

__version__ = "0.1.0"

__all__ = [
    "MLP",
    "Certificate",
    "Compiled",
    "CotGlm",
    "CotLasso",
    "CotNetwork",
    "CotRidge",
    "Domain",
    "Functional",
    "FunctionalStep",
    "GeneralDecay",
    "GradientStep",
    "Guarantee",
    "KernelHead",
    "KernelMachine",
    "LinearModel",
    "Problem",
    "ProximalStep",
    "Recursion",
    "ReluStack",
    "Report",
    "Run",
    "SoftmaxStack",
    "Task",
    "Universal",
    "Verdict",
    "as_task",
    "chebyshev_steps",
    "compile",
    "general_decay",
    "guarantee",
    "load",
    "register_kernel",
    "run_causal",
    "sized_problem",
    "spectrum",
    "verify",
]

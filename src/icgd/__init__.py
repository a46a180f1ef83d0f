"""icgd compiles a training run into the weights of a transformer and proves how close it comes.

What a user may call stands here. Each name is imported from its home when it is first used, so that
`import icgd` takes no time and `icgd --help` needs no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
    from icgd.problems.accelerated import (
        chebyshev_momentum,
        heavy_ball,
        nesterov,
        newton_schulz,
    )
    from icgd.problems.data import as_task
    from icgd.problems.domain import Domain
    from icgd.problems.from_torch import from_torch
    from icgd.problems.kernel_machine import KernelHead, KernelMachine
    from icgd.problems.kernels import register_kernel
    from icgd.problems.linear_model import LinearModel
    from icgd.problems.mlp import MLP
    from icgd.problems.momentum import fista_momenta, nesterov_momentum
    from icgd.problems.optimisers.adam_step import AdamStep, RmspropStep
    from icgd.problems.optimisers.gradient_step import GradientStep
    from icgd.problems.optimisers.momentum_step import MomentumStep
    from icgd.problems.problem import Problem
    from icgd.problems.proximal_step import ProximalStep
    from icgd.problems.sizing import sized_problem
    from icgd.problems.spectrum import spectrum
    from icgd.problems.task import Task
    from icgd.problems.updates import FunctionalStep, chebyshev_steps

__version__ = "0.1.0"

__all__ = [
    "MLP",
    "AdamStep",
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
    "MomentumStep",
    "Problem",
    "ProximalStep",
    "Recursion",
    "ReluStack",
    "Report",
    "RmspropStep",
    "Run",
    "SoftmaxStack",
    "Task",
    "Universal",
    "Verdict",
    "as_task",
    "chebyshev_momentum",
    "chebyshev_steps",
    "compile",
    "fista_momenta",
    "from_torch",
    "general_decay",
    "guarantee",
    "heavy_ball",
    "load",
    "nesterov",
    "nesterov_momentum",
    "newton_schulz",
    "register_kernel",
    "run_causal",
    "sized_problem",
    "spectrum",
    "verify",
]

_HOMES = {
    "icgd.approximation.general_decay": (
        "GeneralDecay",
        "general_decay",
    ),
    "icgd.backends.causal": ("run_causal",),
    "icgd.backends.run": ("Run",),
    "icgd.certificates.certificate": (
        "Certificate",
        "Report",
        "Verdict",
    ),
    "icgd.certificates.guarantee": ("Guarantee",),
    "icgd.compiled": ("Compiled",),
    "icgd.constructions.cot_linear": (
        "CotGlm",
        "CotLasso",
        "CotRidge",
    ),
    "icgd.constructions.cot_network": ("CotNetwork",),
    "icgd.constructions.functional": ("Functional",),
    "icgd.constructions.recursion": ("Recursion",),
    "icgd.constructions.relu_stack": ("ReluStack",),
    "icgd.constructions.softmax_stack": ("SoftmaxStack",),
    "icgd.constructions.universal": ("Universal",),
    "icgd.pipeline": (
        "compile",
        "guarantee",
        "load",
        "verify",
    ),
    "icgd.problems.accelerated": (
        "chebyshev_momentum",
        "heavy_ball",
        "nesterov",
        "newton_schulz",
    ),
    "icgd.problems.domain": ("Domain",),
    "icgd.problems.data": ("as_task",),
    "icgd.problems.from_torch": ("from_torch",),
    "icgd.problems.kernel_machine": (
        "KernelHead",
        "KernelMachine",
    ),
    "icgd.problems.kernels": ("register_kernel",),
    "icgd.problems.linear_model": ("LinearModel",),
    "icgd.problems.mlp": ("MLP",),
    "icgd.problems.momentum": (
        "fista_momenta",
        "nesterov_momentum",
    ),
    "icgd.problems.optimisers.adam_step": (
        "AdamStep",
        "RmspropStep",
    ),
    "icgd.problems.optimisers.gradient_step": ("GradientStep",),
    "icgd.problems.optimisers.momentum_step": ("MomentumStep",),
    "icgd.problems.problem": ("Problem",),
    "icgd.problems.proximal_step": ("ProximalStep",),
    "icgd.problems.sizing": ("sized_problem",),
    "icgd.problems.spectrum": ("spectrum",),
    "icgd.problems.task": ("Task",),
    "icgd.problems.updates": (
        "FunctionalStep",
        "chebyshev_steps",
    ),
}
"""The modules that define these names."""

_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
_STAGES = ("training", "exports")
"""Folders that a user calls by name, such as `icgd.training.train`."""


def __getattr__(name: str) -> Any:
    """What is called `name`, imported now."""
    if name in _STAGES:
        return import_module(f"icgd.{name}")
    if name not in _HOME_OF:
        raise AttributeError(f"module 'icgd' has no attribute {name!r}")
    return getattr(import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    return [*__all__, *_STAGES, "__version__"]

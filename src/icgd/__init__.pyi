"""The list of all public names, with the module that defines each."""

from icgd import exports as exports
from icgd.approximation.general_decay import (
    GeneralDecay as GeneralDecay,
)
from icgd.approximation.general_decay import (
    general_decay as general_decay,
)
from icgd.backends.decoder import Decoded as Decoded
from icgd.backends.run import Run as Run
from icgd.certificates.guarantee import Guarantee as Guarantee
from icgd.certificates.report import (
    Certificate as Certificate,
)
from icgd.certificates.report import (
    Report as Report,
)
from icgd.certificates.report import (
    Verdict as Verdict,
)
from icgd.compiled import Compiled as Compiled
from icgd.constructions.cot_network import CotNetwork as CotNetwork
from icgd.constructions.cot_section3 import (
    CotGlm as CotGlm,
)
from icgd.constructions.cot_section3 import (
    CotLasso as CotLasso,
)
from icgd.constructions.cot_section3 import (
    CotRidge as CotRidge,
)
from icgd.constructions.functional import Functional as Functional
from icgd.constructions.linear_stack import LinearStack as LinearStack
from icgd.constructions.recursion import Recursion as Recursion
from icgd.constructions.relu_stack import ReluStack as ReluStack
from icgd.constructions.softmax_stack import SoftmaxStack as SoftmaxStack
from icgd.constructions.universal import Universal as Universal
from icgd.learnable import (
    LearnableRun as LearnableRun,
)
from icgd.learnable import (
    UntiedRun as UntiedRun,
)
from icgd.learnable import (
    unrolled_descent as unrolled_descent,
)
from icgd.looked_up import FunctionReport as FunctionReport
from icgd.looked_up import UniversalFunction as UniversalFunction
from icgd.looked_up import universal as universal
from icgd.many_tasks import TaskResults as TaskResults
from icgd.many_tasks import run_tasks as run_tasks
from icgd.pipeline import (
    compile as compile,
)
from icgd.pipeline import (
    decode as decode,
)
from icgd.pipeline import (
    guarantee as guarantee,
)
from icgd.pipeline import (
    load as load,
)
from icgd.pipeline import (
    run_causal as run_causal,
)
from icgd.pipeline import (
    verify as verify,
)
from icgd.problems.convergence import sized_problem as sized_problem
from icgd.problems.data import Domain as Domain
from icgd.problems.data import Task as Task
from icgd.problems.data import as_task as as_task
from icgd.problems.from_torch import from_torch as from_torch
from icgd.problems.kernel_machine import (
    KernelHead as KernelHead,
)
from icgd.problems.kernel_machine import (
    KernelMachine as KernelMachine,
)
from icgd.problems.kernel_machine import (
    register_kernel as register_kernel,
)
from icgd.problems.linear_model import LinearModel as LinearModel
from icgd.problems.losses import Loss as Loss
from icgd.problems.mlp import MLP as MLP
from icgd.problems.optimisers import (
    AdamStep as AdamStep,
)
from icgd.problems.optimisers import (
    GradientStep as GradientStep,
)
from icgd.problems.optimisers import (
    MomentumStep as MomentumStep,
)
from icgd.problems.optimisers import (
    RmspropStep as RmspropStep,
)
from icgd.problems.piecewise import Function as Function
from icgd.problems.preprocessing import Preprocessing as Preprocessing
from icgd.problems.problem import Problem as Problem
from icgd.problems.sets import (
    Box as Box,
)
from icgd.problems.sets import (
    HalfSpace as HalfSpace,
)
from icgd.problems.sets import (
    Simplex as Simplex,
)
from icgd.problems.spectrum import spectrum as spectrum
from icgd.problems.steps import (
    FunctionalStep as FunctionalStep,
)
from icgd.problems.steps import (
    ProximalStep as ProximalStep,
)
from icgd.problems.steps import (
    chebyshev_momentum as chebyshev_momentum,
)
from icgd.problems.steps import (
    chebyshev_steps as chebyshev_steps,
)
from icgd.problems.steps import (
    fista_momenta as fista_momenta,
)
from icgd.problems.steps import (
    heavy_ball as heavy_ball,
)
from icgd.problems.steps import (
    nesterov as nesterov,
)
from icgd.problems.steps import (
    nesterov_momentum as nesterov_momentum,
)
from icgd.problems.steps import (
    newton_schulz as newton_schulz,
)

__version__: str
__all__: list[str]

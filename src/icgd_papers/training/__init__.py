"""Learnt models: data, the training loop, and measures of what training found.

The public names; each is documented where it is defined.
"""

from icgd_papers.training.averaged import AveragedTask
from icgd_papers.training.callbacks import Callback, TensorBoard
from icgd_papers.training.config import Config, read_config
from icgd_papers.training.constructed import compare_with_constructions
from icgd_papers.training.covariates import Ellipsoid, Gaussian, GaussianMixture, ShiftedMixture
from icgd_papers.training.decoder import Decoder
from icgd_papers.training.descents import as_compiled, nearest_descent, why_not_descent
from icgd_papers.training.labels import KernelProcess, LinearFunctions, ReluNetworks, Teachers
from icgd_papers.training.loading import load, read_log
from icgd_papers.training.logs import Log
from icgd_papers.training.loop import train
from icgd_papers.training.models import KernelTransformer
from icgd_papers.training.own_data import GeneratedTask, TaskTable
from icgd_papers.training.run_config import Trained, train_config
from icgd_papers.training.settings import Settings
from icgd_papers.training.similarity import similarity
from icgd_papers.training.tasks import (
    AbstractTask,
    Batch,
    CausalTask,
    Curriculum,
    InContextTask,
    QueryTask,
)

__all__ = [
    "AbstractTask",
    "AveragedTask",
    "Batch",
    "Callback",
    "CausalTask",
    "Config",
    "Curriculum",
    "Decoder",
    "Ellipsoid",
    "Gaussian",
    "GaussianMixture",
    "GeneratedTask",
    "InContextTask",
    "KernelProcess",
    "KernelTransformer",
    "LinearFunctions",
    "Log",
    "QueryTask",
    "ReluNetworks",
    "Settings",
    "ShiftedMixture",
    "TaskTable",
    "Teachers",
    "TensorBoard",
    "Trained",
    "as_compiled",
    "compare_with_constructions",
    "load",
    "nearest_descent",
    "read_config",
    "read_log",
    "similarity",
    "train",
    "train_config",
    "why_not_descent",
]

"""Learnt models: data, the training loop, and measures of what training found.

What a user needs stands here; each name is explained where it is defined.
"""

from icgd.training.averaged import AveragedTask
from icgd.training.causal_task import CausalTask, Curriculum
from icgd.training.config import Config, read_config
from icgd.training.configured import Trained, train_config
from icgd.training.constructed import compare_with_constructions
from icgd.training.covariates import Ellipsoid, Gaussian, GaussianMixture, ShiftedMixture
from icgd.training.decoder import Decoder
from icgd.training.descents import as_compiled, nearest_descent, why_not_descent
from icgd.training.labels import KernelProcess, LinearFunctions, ReluNetworks
from icgd.training.loading import load, read_log
from icgd.training.loggers import AbstractLogger
from icgd.training.logs import Log
from icgd.training.loop import train
from icgd.training.models import KernelTransformer
from icgd.training.own_data import GeneratedTask, TaskTable
from icgd.training.query_task import QueryTask
from icgd.training.settings import Settings
from icgd.training.similarity import similarity
from icgd.training.sweeps import sweep
from icgd.training.tasks import AbstractTask, Batch, InContextTask
from icgd.training.teachers import Teachers
from icgd.training.through_the_run import LearnableRun, UntiedRun, unrolled_descent

__all__ = [
    "AbstractLogger",
    "AbstractTask",
    "AveragedTask",
    "Batch",
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
    "LearnableRun",
    "LinearFunctions",
    "Log",
    "QueryTask",
    "ReluNetworks",
    "Settings",
    "ShiftedMixture",
    "TaskTable",
    "Teachers",
    "Trained",
    "UntiedRun",
    "as_compiled",
    "compare_with_constructions",
    "load",
    "nearest_descent",
    "read_config",
    "read_log",
    "similarity",
    "sweep",
    "train",
    "train_config",
    "unrolled_descent",
    "why_not_descent",
]

"""Every exception of icgd: what happened, where, the value, what was expected, what to do.

Messages are built here and nowhere else, and each is matched by a test in `tests/errors/`.
"""

from icgd.errors.base import (
    IcgdError,
    MissingExtraError,
    SizeError,
    UnknownNameError,
    at,
    brief,
    cut,
    did_you_mean,
)
from icgd.errors.constructions import ConstructionError
from icgd.errors.data import DataError, DataTypeError, DomainError
from icgd.errors.files import ExportError, FileError
from icgd.errors.problems import (
    KernelError,
    SeparableDataError,
    UnreadableError,
    UnsupportedActivationError,
    UnsupportedProblemError,
)
from icgd.errors.program import LayoutError, ProgramError
from icgd.errors.runs import (
    InterruptedRunError,
    OverflowedRunError,
    ProofError,
)
from icgd.errors.settings import SettingError
from icgd.errors.tolerance import ToleranceError
from icgd.errors.training import (
    CheckpointError,
    DistributionError,
    InterruptedStudiesError,
    InterruptedTrainingError,
    OwnCodeError,
    RunFolderError,
    SweepError,
    TrainingError,
    WorkerError,
)
from icgd.errors.warnings import (
    BoxWarning,
    DivergenceWarning,
    EstimateWarning,
    PrecisionWarning,
)

__all__ = [
    "BoxWarning",
    "CheckpointError",
    "ConstructionError",
    "DataError",
    "DataTypeError",
    "DistributionError",
    "DivergenceWarning",
    "DomainError",
    "EstimateWarning",
    "ExportError",
    "FileError",
    "IcgdError",
    "InterruptedRunError",
    "InterruptedStudiesError",
    "InterruptedTrainingError",
    "KernelError",
    "LayoutError",
    "MissingExtraError",
    "OverflowedRunError",
    "OwnCodeError",
    "PrecisionWarning",
    "ProgramError",
    "ProofError",
    "RunFolderError",
    "SeparableDataError",
    "SettingError",
    "SizeError",
    "SweepError",
    "ToleranceError",
    "TrainingError",
    "UnknownNameError",
    "UnreadableError",
    "UnsupportedActivationError",
    "UnsupportedProblemError",
    "WorkerError",
    "at",
    "brief",
    "cut",
    "did_you_mean",
]

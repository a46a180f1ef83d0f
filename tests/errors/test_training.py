import pytest

from icgd.errors import training
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
from tests.contracts.messages import assert_complete, assert_every_message_is_made, made

MESSAGES = [
    (
        made(CheckpointError.other_log, "run/log.json", 40),
        "run/log.json was changed: its row of step 40 is not the one in the checkpoint beside it. "
        "`icgd train` on the same folder writes it again.",
    ),
    (
        made(DistributionError.not_square, "covariance", (2, 3)),
        "covariance must be a square matrix, a row and a column for each input; got shape (2, 3).",
    ),
    (
        made(DistributionError.not_symmetric, "covariance", (0, 1), 0.5, 0.25),
        "covariance must be symmetric; it is 0.5 at [0, 1] and 0.25 mirrored. Give (S + S^T) / 2.",
    ),
    (
        made(DistributionError.not_positive_definite, "covariance", -1.0),
        "covariance must be positive definite; its smallest eigenvalue is -1. Leave out the inputs "
        "without variance.",
    ),
    (
        made(DistributionError.other_width, 4, 5),
        "The labels are a function of 4 inputs, but the covariates have 5. Give both the same "
        "width.",
    ),
    (
        made(DistributionError.overflows, "Teachers", 2.5e30, 1e18),
        "Labels of Teachers overflow: the largest is 2.5e+30, and training can square labels up to "
        "1e+18. Give fewer layers, smaller widths, a mean nearer to 0, or smaller inputs.",
    ),
    (
        made(DistributionError.not_shares, "weights", (0.5, 0.4)),
        "weights must be shares of at least 0 that add up to 1; got (0.5, 0.4).",
    ),
    (
        made(DistributionError.descent_overflows, 3, 7, 1.5e21, 50.0, 1.0),
        "The descent of student 3 overflows: a number of its chain is 1.5e+21 in round 7, with "
        "step_size=50 and weight_scale=1. Make one of them smaller.",
    ),
    (
        made(DistributionError.score_overflows, 0.02, (1e200, -0.5)),
        "The score of the law is not a finite number at t = 0.02, x = (1e+200, -0.5). Its "
        "components are too far apart or too narrow for float64. Scale the data to variance 1, or "
        "begin at a later time.",
    ),
    (
        made(OwnCodeError.malformed, "my_data.py"),
        "'my_data.py' names no function; expected a file or a module, a colon and a name, such as "
        "my_data.py:draw.",
    ),
    (
        made(OwnCodeError.cannot_import, "my_data.py", "NameError: name 'x' is not defined"),
        "my_data.py cannot be imported (NameError: name 'x' is not defined).",
    ),
    (
        made(OwnCodeError.no_function, "my_data.py", "drew", ["draw"]),
        "my_data.py has no function called 'drew'. Did you mean 'draw'?",
    ),
    (
        made(OwnCodeError.raised, ValueError("no luck"), "mine.py, line 5"),
        "Your own code raised ValueError: no luck (mine.py, line 5).",
    ),
    (
        made(TrainingError.does_not_fit, "tried to allocate 8 TB"),
        "The tasks or the model do not fit into memory (tried to allocate 8 TB). Give smaller "
        "sizes, or gather the gradient in parts (accumulate).",
    ),
    (
        made(CheckpointError.damaged, "run/checkpoint", "its checksum does not match"),
        "run/checkpoint is damaged or not a checkpoint (its checksum does not match). It was left "
        "as it is; remove it to train without it.",
    ),
    (
        made(CheckpointError.foreign, "run/checkpoint", None, 1),
        "run/checkpoint has checkpoint format None; this version of icgd reads format 1. It was "
        "left as it is; use the icgd that wrote it, or train in another folder.",
    ),
    (
        made(CheckpointError.other_configuration, "run/checkpoint", "settings.seed", 0, 3),
        "run/checkpoint belongs to another run: its settings.seed is 0, here it is 3. It was left "
        "as it is; go on with the old value, or train in another folder.",
    ),
    (
        made(RunFolderError.in_use, "run", "4711"),
        "run is in use by process 4711; two would overwrite each other's files. Nothing was "
        "changed; wait until that process ends, or use another folder.",
    ),
    (
        made(RunFolderError.foreign, "run/log.csv"),
        "run/log.csv was not written by a training of icgd, which would replace it. Nothing was "
        "changed; move that file away, or train in another folder.",
    ),
    (
        made(CheckpointError.none_there, "run", "last"),
        "run has no checkpoint. Give the folder that a model was trained in, which holds files "
        "such as checkpoint-000001000.safetensors.",
    ),
    (
        made(CheckpointError.none_there, "run", "best"),
        "run has no best.safetensors, which a training with a validation split writes. Load its "
        "last checkpoint with which='last'.",
    ),
    (
        made(CheckpointError.own_model, "run/checkpoint", "Mine", ["kernel transformer"]),
        "run/checkpoint holds a model of kind 'Mine', and icgd can build kernel transformer only. "
        "Make a module of the same shape, and give it as load(folder, model=module).",
    ),
    (
        made(CheckpointError.other_model, "run/checkpoint", "r", [3, 1], None),
        "run/checkpoint holds another model: for 'r' it has shape [3, 1], the module none. Give a "
        "module of the shape that was trained.",
    ),
    (
        made(TrainingError.no_step, "r = 0.1 in layer 0, head 0, and a step of descent has r < 0"),
        "This model is no program of functional descent: r = 0.1 in layer 0, head 0, and a step of "
        "descent has r < 0. Compile nearest_descent(model).model in its place, or run the torch "
        "module itself.",
    ),
    (
        made(TrainingError.diverged, "loss", float("nan"), 12),
        "The loss is nan at step 12; training has stopped, and the last checkpoint is kept. Lower "
        "learning_rate or clip_norm, or train with dtype='float64'.",
    ),
    (
        made(TrainingError.nothing_to_train, "ToyModel"),
        "ToyModel has no parameter that requires a gradient; there is nothing to train.",
    ),
    (
        made(TrainingError.taken_column, "loss"),
        "measure returned 'loss', which the log has of its own; call the column otherwise.",
    ),
    (
        made(TrainingError.other_columns, ("step", "lost"), ("step", "loss")),
        "The log has columns step, loss; a row came with step, lost. measure must return the same "
        "names, in the same order, each time.",
    ),
    (
        made(InterruptedTrainingError.after, 3, 9, "run"),
        "Training was interrupted after 3 of 9 steps. The checkpoint of this step is in run; train "
        "again alike to go on.",
    ),
    (
        made(InterruptedTrainingError.after, 3, 9, None),
        "Training was interrupted after 3 of 9 steps. Nothing was saved; with a folder it could go "
        "on later.",
    ),
    (
        made(InterruptedTrainingError.between_steps, "run"),
        "Training was interrupted while no step was under way. Whatever run holds is whole; train "
        "again alike to go on.",
    ),
    (
        made(WorkerError.ended, -9),
        "A worker's process ended with exit code -9; -9 often means that memory ran out. Use fewer "
        "workers.",
    ),
    (
        made(InterruptedStudiesError.after, 3, 2, 8, "results/.paper.partial"),
        "Stopped with 3 of 8 studies finished and 2 begun; they are kept in "
        "results/.paper.partial. Give the same command again to go on.",
    ),
    (
        made(SweepError.failed, 1, {"seed": 0}, ZeroDivisionError("division by zero")),
        "Configuration 1, {'seed': 0}, failed with ZeroDivisionError: division by zero",
    ),
]


@pytest.mark.parametrize(("error", "text"), MESSAGES)
def test_the_message_is_complete(error, text):
    assert_complete(error, text)


def test_every_message_is_tested():
    assert_every_message_is_made(training)

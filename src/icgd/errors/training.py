"""Errors in learnt models: laws of tasks, checkpoints, training, sweeps."""

from __future__ import annotations

from collections.abc import Sequence

from icgd.errors.base import IcgdError, at, brief, did_you_mean


class DistributionError(IcgdError, ValueError):
    """A law of tasks that nothing can be drawn from."""

    @classmethod
    def not_square(cls, name: str, shape: Sequence[int]) -> DistributionError:
        return cls(
            f"{name} must be a square matrix, a row and a column for each input; "
            f"got shape {tuple(shape)}."
        )

    @classmethod
    def not_symmetric(
        cls, name: str, index: Sequence[int], value: float, mirrored: float
    ) -> DistributionError:
        return cls(
            f"{name} must be symmetric; it is {value:.6g} at {at(index)} and {mirrored:.6g} "
            "mirrored. Give (S + S^T) / 2."
        )

    @classmethod
    def not_positive_definite(cls, name: str, least: float) -> DistributionError:
        return cls(
            f"{name} must be positive definite; its smallest eigenvalue is {least:.3g}. "
            "Leave out the inputs without variance."
        )

    @classmethod
    def other_width(cls, labels: int, covariates: int) -> DistributionError:
        return cls(
            f"The labels are a function of {labels} inputs, but the covariates have {covariates}. "
            "Give both the same width."
        )

    @classmethod
    def overflows(cls, law: str, largest: float, limit: float) -> DistributionError:
        return cls(
            f"Labels of {law} overflow: the largest is {largest:.3g}, and training can square "
            f"labels up to {limit:.0e}. Give fewer layers, smaller widths, a mean nearer to 0, or "
            "smaller inputs."
        )

    @classmethod
    def not_shares(cls, name: str, values: object) -> DistributionError:
        return cls(f"{name} must be shares of at least 0 that add up to 1; got {values}.")

    @classmethod
    def descent_overflows(
        cls, teacher: int, number: int, largest: float, step_size: float, weight_scale: float
    ) -> DistributionError:
        return cls(
            f"The descent of student {teacher} overflows: a number of its chain is {largest:.3g} "
            f"in round {number}, with step_size={step_size:g} and weight_scale={weight_scale:g}. "
            "Make one of them smaller."
        )

    @classmethod
    def score_overflows(cls, time: float, x: Sequence[float]) -> DistributionError:
        place = ", ".join(f"{entry:.4g}" for entry in x)
        return cls(
            f"The score of the law is not a finite number at t = {time:g}, x = ({place}). Its "
            "components are too far apart or too narrow for float64. Scale the data to variance 1, "
            "or begin at a later time."
        )


class OwnCodeError(IcgdError, ImportError):
    """A function of the user's own cannot be used."""

    @classmethod
    def malformed(cls, reference: str) -> OwnCodeError:
        return cls(
            f"{brief(reference)} names no function; expected a file or a module, a colon and a "
            "name, such as my_data.py:draw."
        )

    @classmethod
    def cannot_import(cls, module: str, problem: str) -> OwnCodeError:
        return cls(f"{module} cannot be imported ({problem}).")

    @classmethod
    def no_function(cls, module: str, name: str, known: Sequence[str]) -> OwnCodeError:
        return cls(f"{module} has no function called {brief(name)}.{did_you_mean(name, known)}")

    @classmethod
    def raised(cls, problem: Exception, place: str) -> OwnCodeError:
        where = f" ({place})" if place else ""
        return cls(f"Your own code raised {type(problem).__name__}: {problem}{where}.")


class CheckpointError(IcgdError, ValueError):
    """A checkpoint cannot be used to go on with this run."""

    @classmethod
    def other_log(cls, path: object, step: int) -> CheckpointError:
        return cls(
            f"{path} was changed: its row of step {step} is not the one in the checkpoint beside "
            "it. `icgd train` on the same folder writes it again."
        )

    @classmethod
    def damaged(cls, path: object, problem: str) -> CheckpointError:
        return cls(
            f"{path} is damaged or not a checkpoint ({problem}). It was left as it is; "
            "remove it to train without it."
        )

    @classmethod
    def foreign(cls, path: object, version: object, known: int) -> CheckpointError:
        return cls(
            f"{path} has checkpoint format {brief(version)}; this version of icgd reads format "
            f"{known}. It was left as it is; use the icgd that wrote it, or train in another "
            "folder."
        )

    @classmethod
    def other_configuration(
        cls, path: object, name: str, stored: object, given: object
    ) -> CheckpointError:
        return cls(
            f"{path} belongs to another run: its {name} is {brief(stored)}, here it is "
            f"{brief(given)}. It was left as it is; go on with the old value, or train in another "
            "folder."
        )

    @classmethod
    def none_there(cls, folder: object, which: str) -> CheckpointError:
        if which == "best":
            return cls(
                f"{folder} has no best.safetensors, which a training with a validation split "
                "writes. Load its last checkpoint with which='last'."
            )
        return cls(
            f"{folder} has no checkpoint. Give the folder that a model was trained in, which holds "
            "files such as checkpoint-000001000.safetensors."
        )

    @classmethod
    def own_model(cls, path: object, kind: object, known: Sequence[str]) -> CheckpointError:
        return cls(
            f"{path} holds a model of kind {brief(kind)}, and icgd can build {', '.join(known)} "
            "only. Make a module of the same shape, and give it as load(folder, model=module)."
        )

    @classmethod
    def other_model(cls, path: object, name: str, stored: object, given: object) -> CheckpointError:
        texts = ["none" if shape is None else f"shape {shape}" for shape in (stored, given)]
        return cls(
            f"{path} holds another model: for {brief(name)} it has {texts[0]}, the module "
            f"{texts[1]}. Give a module of the shape that was trained."
        )


class RunFolderError(IcgdError, RuntimeError):
    """The folder of a run cannot be used now."""

    @classmethod
    def in_use(cls, folder: object, process: str) -> RunFolderError:
        """`process` is the number of the process that has the folder."""
        return cls(
            f"{folder} is in use by process {process}; two would overwrite each other's files. "
            "Nothing was changed; wait until that process ends, or use another folder."
        )

    @classmethod
    def foreign(cls, path: object) -> RunFolderError:
        return cls(
            f"{path} was not written by a training of icgd, which would replace it. Nothing was "
            "changed; move that file away, or train in another folder."
        )


class TrainingError(IcgdError, RuntimeError):
    """A model cannot be trained, or no further."""

    @classmethod
    def diverged(cls, name: str, value: float, step: int) -> TrainingError:
        return cls(
            f"The {name} is {value} at step {step}; training has stopped, and the last checkpoint "
            "is kept. Lower learning_rate or clip_norm, or train with dtype='float64'."
        )

    @classmethod
    def no_step(cls, reason: str) -> TrainingError:
        return cls(
            f"This model is no program of functional descent: {reason}. Compile "
            "nearest_descent(model).model in its place, or run the torch module itself."
        )

    @classmethod
    def does_not_fit(cls, problem: str) -> TrainingError:
        return cls(
            f"The tasks or the model do not fit into memory ({problem}). Give smaller sizes, or "
            "gather the gradient in parts (accumulate)."
        )

    @classmethod
    def nothing_to_train(cls, model: str) -> TrainingError:
        return cls(f"{model} has no parameter that requires a gradient; there is nothing to train.")

    @classmethod
    def taken_column(cls, name: str) -> TrainingError:
        return cls(
            f"measure returned {brief(name)}, which the log has of its own; call the column "
            "otherwise."
        )

    @classmethod
    def other_columns(cls, got: Sequence[str], expected: Sequence[str]) -> TrainingError:
        return cls(
            f"The log has columns {', '.join(expected)}; a row came with {', '.join(got)}. "
            "measure must return the same names, in the same order, each time."
        )


class InterruptedTrainingError(IcgdError, KeyboardInterrupt):
    """The user stopped a training; the model holds its last whole step."""

    @classmethod
    def after(cls, step: int, n_steps: int, folder: object | None) -> InterruptedTrainingError:
        """`folder` is where the checkpoint of the step is; None if there is none."""
        kept = "Nothing was saved; with a folder it could go on later."
        if folder is not None:
            kept = f"The checkpoint of this step is in {folder}; train again alike to go on."
        return cls(f"Training was interrupted after {step} of {n_steps} steps. {kept}")

    @classmethod
    def between_steps(cls, folder: object) -> InterruptedTrainingError:
        """Ctrl-C came before the first step of this process, or after its last."""
        return cls(
            f"Training was interrupted while no step was under way. Whatever {folder} holds is "
            "whole; train again alike to go on."
        )


class SweepError(IcgdError, RuntimeError):
    """A configuration of a sweep failed."""

    @classmethod
    def failed(cls, index: int, configuration: object, problem: BaseException) -> SweepError:
        return cls(
            f"Configuration {index}, {brief(configuration)}, failed with "
            f"{type(problem).__name__}: {problem}"
        )


class WorkerError(IcgdError, RuntimeError):
    """A process that does part of the work is gone."""

    @classmethod
    def ended(cls, exit_code: int | None) -> WorkerError:
        return cls(
            f"A worker's process ended with exit code {exit_code}; -9 often means that memory ran "
            "out. Use fewer workers."
        )


class InterruptedStudiesError(IcgdError, KeyboardInterrupt):
    """Ctrl-C ended the studies of a figure; what they found so far is kept."""

    @classmethod
    def after(
        cls, n_finished: int, n_begun: int, total: int, folder: object
    ) -> InterruptedStudiesError:
        return cls(
            f"Stopped with {n_finished} of {total} studies finished and {n_begun} begun; they are "
            f"kept in {folder}. Give the same command again to go on."
        )

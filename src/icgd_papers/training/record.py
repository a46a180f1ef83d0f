"""The folder of a training: its checkpoints, its logs, its loggers, and its lock."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

from icgd.errors import TrainingError
from icgd.weights.files import whole_file
from icgd_papers.training.checkpoints import Checkpoints
from icgd_papers.training.config_keys import SECTIONS
from icgd_papers.training.lock import foreign, locked
from icgd_papers.training.loggers import AbstractLogger, MakeLogger
from icgd_papers.training.logs import write_csv, write_json
from icgd_papers.training.training_run import TrainingRun

LOGS = {
    "log.csv": "step,loss,learning_rate,gradient_norm",
    "log.json": '[\n{"step": 0, "loss": ',
}
"""How the logs of a training begin that has not reached its first checkpoint."""

NO_ROWS = (b"", b"\n", b"[\n\n]\n")
"""The logs of a training that failed before its first row."""

CONFIG_START = f"# {SECTIONS['']['folder'].help}"
"""How a config begins that icgd wrote, which its user may have changed."""


@contextmanager
def recorded(
    training: TrainingRun,
    folder: Path,
    loggers: Sequence[MakeLogger] = (),
    texts: Mapping[str, str] | None = None,
) -> Iterator[Record]:
    """Keep a training in its folder while the block runs; what the folder holds is continued.

    The folder gets `texts`, files by name. Where no training was, files of a training's names are
    somebody else's, unless they look like those of one that ended before its first checkpoint.

    The first process locks and writes the folder. At the end the whole log is written, also if
    training diverged: its last rows tell why.
    """
    with locked(folder) if training.processes.rank == 0 else nullcontext():
        record = Record(training, folder, loggers, texts or {})
        try:
            record.keep(texts or {})
            yield record
        except TrainingError:
            record.finish()
            raise
        finally:
            record.close()
        record.finish()


class Record:
    """The files of a training, which its first process writes."""

    def __init__(
        self,
        training: TrainingRun,
        folder: Path,
        loggers: Sequence[MakeLogger],
        texts: Mapping[str, str],
    ) -> None:
        self.training, self.folder = training, folder
        self.writes = training.processes.rank == 0
        self._checkpoints = Checkpoints(folder, training.configuration())
        state = self._checkpoints.load()
        if state is not None:
            training.resume(state, self._checkpoints.best_log())
        else:
            self._require_own_files(texts)
        training.processes.wait()  # nobody writes while another still reads
        has_loggers = self.writes and not training.is_over
        self._loggers = [self._begun(make) for make in loggers] if has_loggers else []

    def _require_own_files(self, texts: Mapping[str, str]) -> None:
        """Raise an error if the training would replace what no training wrote."""
        configs = [name for name, text in texts.items() if text.startswith(CONFIG_START)]
        for name, start in (LOGS | dict.fromkeys(configs, CONFIG_START)).items():
            if not _is_own(self.folder / name, start.encode()):
                raise foreign(self.folder / name)
        if self.training.settings.n_validation:
            self._checkpoints.require_own_best()

    def _begun(self, make: MakeLogger) -> AbstractLogger:
        return make(self.folder, self.training.step, self.training.configuration())

    def keep(self, texts: Mapping[str, str]) -> None:
        """Write these texts into the folder, as files of these names."""
        for name, text in texts.items() if self.writes else ():
            with whole_file(self.folder / name) as temporary:
                temporary.write_text(text, encoding="utf-8")

    def save(self) -> None:
        """Send and write the rows before the checkpoint, which counts them as logged.

        So a kill in between leaves no log of another run beside a checkpoint: the rows after an
        earlier checkpoint may be other ones when they are measured again.
        """
        if self.writes:
            for logger in self._loggers:
                logger.write(self.training.log)
            self._write_logs()
            self._checkpoints.save(self.training.state())

    def save_best(self) -> None:
        """Keep this state as the best one so far."""
        if self.writes:
            self._checkpoints.save_best(self.training.state())

    def finish(self) -> None:
        """Write the whole log, and remove what is no longer needed."""
        if self.writes:
            self._write_logs()
            self._checkpoints.tidy()

    def close(self) -> None:
        """End the loggers."""
        for logger in self._loggers:
            logger.close()

    def _write_logs(self) -> None:
        write_csv(self.training.log, self.folder / "log.csv")
        write_json(self.training.log, self.folder / "log.json")


def _is_own(path: Path, start: bytes) -> bool:
    """Whether a file begins like this, has no rows, or is not there."""
    if not path.is_file():
        return not path.exists()
    with suppress(OSError), path.open("rb") as file:
        found = file.read(len(start))
        return found in (start, *NO_ROWS)
    return False

"""The entry of a training run, for a Job and for `jaxport train`. Imports no JAX until it runs."""

from __future__ import annotations

from train_job.preemption import Preemption
from train_job.settings import TrainSettings


def train(settings: TrainSettings) -> int:
    """Trains until done (returns 0) or until SIGTERM, SIGINT or SIGHUP (saves, returns 75).

    Starting the same settings again resumes at the last checkpoint, or returns 0 at once when the run is done.

    Raises:
        UsageError (exit 2): the settings do not fit the data or the run on disk. CheckFailed (3): a digest or
        a loss is wrong. EnvironmentUnfit (4): the run is busy, the disk full, the volume read-only.
    """
    with Preemption(settings.run_dir) as preemption:
        with preemption.nothing_to_save():
            from train_job.training import train_run  # seconds of imports, in which a signal may come
        return train_run(settings, preemption)

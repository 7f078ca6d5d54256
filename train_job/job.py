"""The entry of a training run, for a Job and for `jaxport train`. Imports no JAX until it runs."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from train_job.flags import processes_from, settings_from
from train_job.preemption import Preemption
from train_job.settings import TrainSettings
from train_job.supervisor import supervised


def train_as(options: argparse.Namespace, environment: Mapping[str, str]) -> int:
    """The run that parsed flags describe, as the process that the environment names; see `train`."""
    processes = processes_from(options, environment)
    return supervised(lambda: train(settings_from(options, processes)), processes)


def train(settings: TrainSettings) -> int:
    """Trains until done (returns 0) or until SIGTERM, SIGINT or SIGHUP (saves, returns 75).

    Starting the same settings again resumes at the last checkpoint, or returns 0 at once when the run is done. Of
    several processes, all stop where one is told to; one that loses a peer ends at once with 75.

    Raises:
        UsageError (exit 2): the settings do not fit the data or the run on disk. CheckFailed (3): a digest or
        a loss is wrong. EnvironmentUnfit (4): the run is busy, the disk full, the volume read-only.
    """
    with Preemption(settings.run_dir) as preemption:
        with preemption.nothing_to_save():
            from train_job.training import train_run  # seconds of imports, in which a signal may come
        return train_run(settings, preemption)

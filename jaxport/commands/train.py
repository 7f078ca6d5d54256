"""jaxport train --preset nano [--steps N] [--set key=value ...]"""

import argparse

from train_job.flags import add_flags, settings_from

__all__ = ["add_flags", "run"]


def run(options: argparse.Namespace) -> int:
    settings = settings_from(options)
    # After the flags are checked: JAX and flax take seconds to import.
    from train_job.job import train

    return train(settings)

"""jaxport train --preset nano [--steps N] [--set key=value ...]"""

import argparse
import os

from train_job.flags import add_flags
from train_job.job import train_as

__all__ = ["add_flags", "run"]


def run(options: argparse.Namespace) -> int:
    return train_as(options, os.environ)

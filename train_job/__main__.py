"""`python -m train_job --preset nano --root work`: one training run, as a Job runs it."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from jaxport.stopping import end, leaving_on_signals


def main(arguments: Sequence[str] | None = None) -> int:
    """Trains; returns the exit code (0 done, 2 usage, 3 a check failed, 4 environment, 75 preempted)."""
    with leaving_on_signals(75):  # until the run has taken the signals over
        from train_job.errors import TrainError
        from train_job.flags import add_flags
        from train_job.job import train_as

        parser = argparse.ArgumentParser(prog="python -m train_job", description=__doc__, allow_abbrev=False)
        add_flags(parser)
        parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
        namespace = parser.parse_args(arguments)
        try:
            return train_as(namespace, os.environ)
        except TrainError as error:
            if namespace.debug:
                raise
            print(f"error: {error}", file=sys.stderr)
            return error.exit_code


if __name__ == "__main__":
    end(main())

"""`python -m train_job --preset nano --root work`: `jaxport train`, where that command is not on the path."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from jaxport import cli
from jaxport.stopping import end


def main(arguments: Sequence[str] | None = None) -> int:
    """Trains; returns the exit code (0 done, 2 usage, 3 a check failed, 4 environment, 75 preempted)."""
    return cli.main(["train", *(sys.argv[1:] if arguments is None else arguments)])


if __name__ == "__main__":
    end(main())

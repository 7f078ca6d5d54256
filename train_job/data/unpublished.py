"""A folder that appears whole or not at all."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from train_job.errors import EnvironmentUnfit
from train_job.runs import sync_directory, sync_tree

_LOCK = ".lock"


@contextmanager
def unpublished(out: Path) -> Iterator[Path]:
    """A hidden folder beside `out`, which becomes `out` as the block ends, and goes where it raises.

    What a killed process left there is removed by the next that writes the same `out`; two at once are not let.
    `out` must not be there, or be an empty folder.

    Raises:
        EnvironmentUnfit: another process writes it. OSError: as of the file system.
    """
    folder = out.with_name(f".{out.name}.unfinished")
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / _LOCK).open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not os.path.samestat(os.fstat(lock.fileno()), (folder / _LOCK).stat()):
                raise FileNotFoundError  # it was published or removed, and begun again, since it was opened
        except (BlockingIOError, FileNotFoundError):
            raise EnvironmentUnfit(
                f"--out {out}: another process is writing it; wait for it or stop it"
            ) from None
        try:
            for left in folder.iterdir():
                if left.name != _LOCK:
                    left.unlink()
            yield folder
            sync_tree(folder)
            folder.rename(out)
        except BaseException:  # an interrupt too: nothing half-written stays
            shutil.rmtree(folder, ignore_errors=True)
            raise
        (out / _LOCK).unlink()
        sync_directory(out)
        sync_directory(out.parent)

"""What every worker of a run of the suite uses and one of them makes."""

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


class OncePerRun:
    """Folders below the run's own temporary one; a worker of pytest-xdist has its own in that."""

    def __init__(self, factory: pytest.TempPathFactory) -> None:
        own = factory.getbasetemp()
        self._root = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "once"
        self._root.mkdir(exist_ok=True)

    def folder(self, name: str, make: Callable[[Path], object]) -> Path:
        """What `make` wrote into the folder that it was given: whole, whoever asks, and to be read only."""
        made, writing = self._root / name, self._root / f".{name}"
        with self._alone(name):
            if not made.exists():
                shutil.rmtree(writing, ignore_errors=True)  # of one that failed
                writing.mkdir()
                make(writing)
                writing.rename(made)
        return made

    @contextmanager
    def _alone(self, name: str) -> Iterator[None]:
        with (self._root / f"{name}.lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

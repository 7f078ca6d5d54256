"""What is wrong with a checkpoint that cannot be read: damaged, being deleted, or not ours to read."""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from train_job.errors import CheckFailed, EnvironmentUnfit

ORBAX_LOG = logging.getLogger("absl")
_ASYNCIO_LOG = logging.getLogger("asyncio")
_DELETION_S = 0.5  # a folder from which nothing has gone for so long is not being deleted


class Unreadable(Exception):
    """A checkpoint whose files do not give what a checkpoint holds."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self._path, self._reason = path, reason

    def explained(self, others: Sequence[int]) -> CheckFailed | EnvironmentUnfit:
        """The one line to end with; `others` are the steps present besides, ascending.

        None of them is taken in its place: which steps to do again is for a person to decide.
        """
        if self._reason == "permission denied":
            return EnvironmentUnfit(f"{self._path}: {self._reason}; make it readable for this user")
        if others:
            cure = (
                f"present besides: {', '.join(map(str, others))}; export one of them (--step {others[-1]}), "
                f"or remove this folder to resume from step {others[-1]}"
            )
        else:
            cure = "no other checkpoint is present; start over with --no-resume"
        return CheckFailed(f"{self._path}: the checkpoint is damaged ({self._reason}); {cure}")


class _WithoutReadsOf(logging.Filter):
    """Drops the log records about failed reads below a folder."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        return str(self._path) not in str(error)


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Keeps out of the log what Orbax writes there of an error that is raised here in one line.

    A read that fails leaves others beside it that fail too, and asyncio reports each when it is collected, which
    is after this has ended: so on an error its filter, which knows this folder only, stays.
    """
    level, unheard = ORBAX_LOG.level, _WithoutReadsOf(path)
    ORBAX_LOG.setLevel(logging.CRITICAL)
    _ASYNCIO_LOG.addFilter(unheard)
    try:
        yield
        _ASYNCIO_LOG.removeFilter(unheard)
    finally:
        ORBAX_LOG.setLevel(level)


@contextlib.contextmanager
def without_late_answers() -> Iterator[None]:
    """Keeps from standard error what TensorStore's threads have to say of a save that has failed already.

    The write that failed ended the save and its event loop; the others come back to that, where nobody can raise. The
    failure itself is raised to whoever waits for the save.
    """
    before = sys.unraisablehook

    def heard(unraisable: Any) -> None:
        error = unraisable.exc_value
        if not (isinstance(error, RuntimeError) and str(error) == "Event loop is closed"):
            before(unraisable)

    sys.unraisablehook = heard
    try:
        yield
    finally:
        sys.unraisablehook = before


def file_names(path: Path) -> set[Path]:
    """Everything below `path`; empty when it is not there."""
    return set(path.rglob("*"))


def is_vanishing(path: Path, before: set[Path]) -> bool:
    """Whether files went away since `before`, or still go: a deletion takes the folder file by file."""
    deadline = time.monotonic() + _DELETION_S
    while path.is_dir() and not before - file_names(path):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True

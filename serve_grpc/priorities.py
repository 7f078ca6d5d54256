"""Who goes first when cores are short: receiving and answering, then computing, then loading.

Linux gives every thread a nice value and a policy of its own, and giving way needs no privilege. Elsewhere nothing is
changed.
"""

import contextlib
import os
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

# Of XLA's own threads on a CPU, by the beginning of the names it gives them.
COMPUTING = ("tf_XLAEigen", "tf_XLAExecute")
COMPILING = ("tf_XLACompile",)
COMPUTING_NICE = 5
LOADING_NICE = 10


def compute_after_requests() -> None:
    """XLA's threads that run programs give way to those that receive, refuse and answer.

    A run that keeps every core busy would hold up a refusal, which takes none of its time. Call once programs have run.
    """
    _renice(_named(COMPUTING), COMPUTING_NICE)


def load_after_requests() -> None:
    """The calling thread, those that it will start, and XLA's compiling ones give way to everything else."""
    _renice([threading.get_native_id(), *_named(COMPILING)], LOADING_NICE)


@contextlib.contextmanager
def sending_in_turn() -> Iterator[None]:
    """Threads that are started inside do not interrupt the thread that wakes them: one that hands over twenty answers
    is not stopped twenty times, each time for one to be sent. On a core that is idle they run at once, as any other.
    """
    if sys.platform != "linux":
        yield
        return
    before = os.sched_getscheduler(0)
    with contextlib.suppress(OSError):  # a sandbox does not allow it
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, before, os.sched_param(0))


def _named(beginnings: tuple[str, ...]) -> list[int]:
    """Threads of this process by their names."""
    found = []
    for task in Path("/proc/self/task").glob("*"):
        with contextlib.suppress(OSError):  # it has ended
            if (task / "comm").read_text().startswith(beginnings):
                found.append(int(task.name))
    return found


def _renice(threads: Iterable[int], by: int) -> None:
    if sys.platform != "linux":
        return
    for thread in threads:
        with contextlib.suppress(OSError):  # it has ended, or a sandbox does not allow it: only order is lost
            os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + by)

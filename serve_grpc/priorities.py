"""Who goes first when cores are short: receiving and answering, then computing, then loading.

Linux gives every thread a nice value of its own, and raising it needs no privilege. Elsewhere nothing is changed.
"""

import contextlib
import os
import sys
import threading
from collections.abc import Iterable
from pathlib import Path

# Of XLA's own threads on a CPU, by the beginning of the names it gives them.
COMPUTING = ("tf_XLAEigen", "tf_XLAExecute")
COMPILING = ("tf_XLACompile",)
COMPUTING_NICE = 10
LOADING_NICE = 15


def compute_after_requests() -> None:
    """XLA's threads that run programs give way to those that receive, refuse and answer.

    A run that keeps every core busy would hold up a refusal, which takes none of its time. Call once programs have run.
    """
    _renice(_named(COMPUTING), COMPUTING_NICE)


def load_after_requests() -> None:
    """The calling thread, those that it will start, and XLA's compiling ones give way to everything else."""
    _renice([threading.get_native_id(), *_named(COMPILING)], LOADING_NICE)


def this_thread_computes() -> None:
    """The calling thread gives way as those of `compute_after_requests` do."""
    _renice((threading.get_native_id(),), COMPUTING_NICE)


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

"""Servers as processes: started with a log, their CPU counted over the whole tree, ended by process id."""

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

TICK = os.sysconf("SC_CLK_TCK")
PROC = Path("/proc")
ENDED = ("Z", "X")
END_SECONDS = 2.0


class NotStarted(Exception):
    """A server ended, or said nothing, before it was ready."""


@dataclass(frozen=True)
class Stat:
    """What /proc/<pid>/stat says. seconds: user and system, with children that were waited for.

    started: clock ticks from boot to its start; a number that was given again has another. state: one letter.
    """

    pid: int
    parent: int
    session: int
    seconds: float
    started: int
    state: str


def read_stat(pid: int) -> Stat | None:
    """None where the process is gone."""
    try:
        text = (PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    # The name, in brackets, may hold anything; the rest is numbers. Fields as in proc(5), from 3 on.
    rest = text.rpartition(")")[2].split()
    ticks = sum(int(value) for value in rest[11:15])
    return Stat(pid, int(rest[1]), int(rest[3]), ticks / TICK, int(rest[19]), rest[0])


def tree(root: int) -> list[Stat]:
    """`root`, its descendants, and whatever is left in the session it leads."""
    stats = [s for entry in PROC.iterdir() if entry.name.isdigit() and (s := read_stat(int(entry.name)))]
    found = {s.pid for s in stats if s.pid == root or s.session == root}
    while more := {s.pid for s in stats if s.parent in found} - found:
        found |= more
    return [s for s in stats if s.pid in found]


def cpu_seconds(root: int) -> float:
    return sum(stat.seconds for stat in tree(root))


class Server:
    """A process that leads a session of its own. `root` is its process id."""

    def __init__(
        self, command: Sequence[str], log: Path, *, word: str = "READY", folder: Path, env: Mapping[str, str]
    ) -> None:
        """word: what its log has once it is ready. folder: to run in. env: beside what this process has."""
        log.parent.mkdir(parents=True, exist_ok=True)
        self.log, self._word = log, word
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, cwd=folder,
                env={**os.environ, **env}, start_new_session=True,
            )  # fmt: skip
        self.root = self._process.pid

    def wait(self, seconds: float) -> None:
        """Waits until it says that it is ready. Raises NotStarted with the log's last line."""
        end = time.monotonic() + seconds
        while self._word not in self.log.read_text(errors="replace"):
            if self._process.poll() is not None:
                raise NotStarted(f"ended with {self._process.returncode}: {self.last_line()}")
            if time.monotonic() > end:
                raise NotStarted(f"not ready after {seconds:.0f} s: {self.last_line()}")
            time.sleep(0.1)

    def last_line(self) -> str:
        lines = [line.strip() for line in self.log.read_text(errors="replace").splitlines()]
        return next((line for line in reversed(lines) if line), "it printed nothing")[:200]

    def alive(self) -> bool:
        return self._process.poll() is None

    def stop(self, seconds: float = 5.0) -> None:
        """SIGTERM to the leader, then SIGKILL to what is left of the tree."""
        self.resume()
        ours = tree(self.root)
        if self.alive():
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(seconds)
        ours += tree(self.root)
        # multiprocessing's tracker ends by itself, and takes shared memory and semaphores with it.
        trackers = [stat for stat in ours if b"resource_tracker" in _command_line(stat.pid)]
        _signal([stat for stat in ours if stat not in trackers], signal.SIGKILL)
        _wait_for_end(trackers)
        _signal(trackers, signal.SIGKILL)
        _wait_for_end(ours)
        self._process.wait()

    def pause(self) -> None:
        """Freezes the tree: some servers turn over in a loop also when nobody asks."""
        _signal(tree(self.root), signal.SIGSTOP)

    def resume(self) -> None:
        _signal(tree(self.root), signal.SIGCONT)

    def settle(self, seconds: float = 15.0) -> None:
        """Waits until the tree rests: requests that nobody waits for any more may still be worked on."""
        end = time.monotonic() + seconds
        before = cpu_seconds(self.root)
        while time.monotonic() < end:
            time.sleep(0.2)
            now = cpu_seconds(self.root)
            if now - before < 0.03:
                return
            before = now


def _runs(stat: Stat) -> bool:
    now = read_stat(stat.pid)
    return now is not None and now.started == stat.started and now.state not in ENDED


def _signal(stats: Sequence[Stat], number: signal.Signals) -> None:
    for stat in filter(_runs, stats):
        with contextlib.suppress(ProcessLookupError):
            os.kill(stat.pid, number)


def _wait_for_end(stats: Sequence[Stat]) -> None:
    end = time.monotonic() + END_SECONDS
    while any(map(_runs, stats)) and time.monotonic() < end:
        time.sleep(0.05)


def _command_line(pid: int) -> bytes:
    try:
        return (PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return b""


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]

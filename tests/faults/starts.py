"""Starts of a run that is to be struck: its processes, what each is doing, and how each ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.train_job.pairs import free_port

REPOSITORY = Path(__file__).resolve().parents[2]
DATA = Path(__file__).with_name("mutate.py")
SIGNALS = (signal.SIGKILL, signal.SIGTERM)
NAMES = {signal.SIGKILL: "kill -9", signal.SIGTERM: "SIGTERM"}
ALIVE_S = 600
NOTHING = {"phase": "before imports", "done": 0, "saving": 0, "saved": 0, "resumed": None}


@dataclass(frozen=True)
class Strike:
    """What was found while the processes were halted, and how each ended."""

    number: int
    whom: Sequence[int]
    parent: bool
    states: Sequence[Mapping[str, Any]]  # of every process
    unfinished: bool  # a save lay in the folder
    heard: bool  # whoever was struck had taken SIGTERM over
    codes: tuple[int, ...]
    said: tuple[str, ...]
    saved: int  # the last step that is whole now

    @property
    def name(self) -> str:
        return NAMES[signal.Signals(self.number)]

    @property
    def state(self) -> Mapping[str, Any]:
        return self.states[self.whom[0]]

    @property
    def place(self) -> str:
        phase = self.state["phase"]
        under_way = self.state["saving"] or phase == "starting a save"  # else it is of a start before
        return f"{phase}{', a save on its way' if self.unfinished and under_way else ''}"

    def __str__(self) -> str:
        who = "both" if len(self.whom) > 1 else f"process {self.whom[0]}"
        one = len(self.states) == 1
        target = "" if one else f"{who}{' (its parent)' * (self.parent and self.number == signal.SIGKILL)}, "
        began = self.state["resumed"]
        since = "" if began is None else f", begun at {began}"
        return (
            f"{self.name}: {target}{self.place}, step {self.state['done']}{since}; exits "
            f"{' '.join(map(str, self.codes))}; goes on from {self.saved}"
        )


class Started:
    """All processes of one start."""

    def __init__(self, root: Path, processes: Sequence[subprocess.Popen[bytes]]) -> None:
        self._root, self._processes = root, processes
        self._checkpoints = root / "runs" / "toy" / "checkpoints"
        self.began = time.monotonic()

    def state(self, index: int) -> Mapping[str, Any]:
        try:
            return {**NOTHING, **json.loads(phase_file(self._root, index).read_bytes() or b"{}")}
        except (FileNotFoundError, ValueError):
            return NOTHING

    def until(self, phase: str) -> float:
        """Seconds from the start until process 0 is there."""
        while self.state(0)["phase"] != phase and self.runs(0):
            time.sleep(0.005)
        return time.monotonic() - self.began

    def runs(self, index: int) -> bool:
        return self._processes[index].poll() is None

    def halt_after(self, seconds: float, whom: Sequence[int]) -> bool | None:
        """Halts those processes then; True. None where one of them has ended before."""
        while time.monotonic() - self.began < seconds:
            if not self.runs(whom[0]):
                return None
            time.sleep(0.003)
        return self._halt(whom)

    def halted(self, whom: Sequence[int]) -> bool | None:
        """Waits until the first of those processes has halted itself, and halts the others; None where it has ended."""
        while self.runs(whom[0]):
            if _state(self._trains(whom[0])) == "T":
                return self._halt(whom)
            time.sleep(0.003)
        return None

    def strike(self, whom: tuple[int, ...], number: int, parent: bool) -> Strike:
        """Strikes the halted processes and waits for the end of all."""
        states = tuple(self.state(index) for index in range(len(self._processes)))
        heard = all(_takes_sigterm(self._processes[index].pid) for index in whom)
        unfinished = self._unfinished()
        halted = [self._trains(index) for index in whom]  # to be found while their parents live
        for index, trains in zip(whom, halted, strict=True):
            process = self._processes[index].pid
            # Those of a container are told alike; the system kills for memory whoever has it.
            os.kill(process if parent or number == signal.SIGTERM else trains, number)
        for process in halted:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGCONT)
        codes = tuple(self.end())
        saved = max(map(int, filter(str.isdecimal, _names(self._checkpoints))), default=0)
        return Strike(number, whom, parent, states, unfinished, heard, codes, self.said(), saved)

    def end(self) -> list[int]:
        """Their exit codes, once all have ended."""
        try:
            return [process.wait(ALIVE_S) for process in self._processes]
        finally:
            for process in self._processes:
                process.kill()

    def said(self) -> tuple[str, ...]:
        return tuple(_log(self._root, index).read_text() for index in range(len(self._processes)))

    def _unfinished(self) -> bool:
        return any(".orbax-checkpoint-tmp" in name for name in _names(self._checkpoints))

    def _halt(self, whom: Sequence[int]) -> bool | None:
        if not all(self.runs(index) for index in whom):
            return None
        self._signal(whom, signal.SIGSTOP)
        for index in whom:
            if not _halts(self._trains(index)):
                self._signal(whom, signal.SIGCONT)
                return None
        return True

    def _signal(self, whom: Sequence[int], number: int) -> None:
        for index in whom:
            try:
                os.kill(self._trains(index), number)
            except ProcessLookupError:
                continue

    def _trains(self, index: int) -> int:
        """The process with the training in it: the child, once there is one."""
        own = self._processes[index].pid
        try:
            children = Path(f"/proc/{own}/task/{own}/children").read_text().split()
        except OSError:
            return own
        return int(children[0]) if children and len(self._processes) > 1 else own


@dataclass(frozen=True)
class Halting:
    """The process of that index halts itself as `phases` says."""

    index: int
    when: str
    unfinished: bool


def begin(
    root: Path, processes: int, flags: Sequence[str], cache: Path | None, halting: Halting | None = None
) -> Started:
    """Starts all processes of a run. cache: where compiled programs are kept, if they are."""
    root.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "train_job", "--model", "tests.faults.struck:toy", "--data", str(DATA)]
    command += ["--root", str(root), "--wait-for-peers", "120", *flags]
    port, begun = free_port(), []
    for index in range(processes):
        phase_file(root, index).unlink(missing_ok=True)
        place = {
            "JAX_NUM_PROCESSES": str(processes),
            "JAX_PROCESS_ID": str(index),
            "JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{port}",
            "PHASE": str(phase_file(root, index)),
            "PYTHONUNBUFFERED": "1",
            "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",  # they train for seconds
        }
        environment = {
            name: value for name, value in os.environ.items() if name != "JAX_COMPILATION_CACHE_DIR"
        }
        if cache is not None:
            place |= {
                "JAX_COMPILATION_CACHE_DIR": str(cache),
                "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
                "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
            }
        if halting is not None and halting.index == index:
            place["HALT"] = halting.when
            if halting.unfinished:
                place["UNFINISHED"] = str(root / "runs" / "toy" / "checkpoints")
        with _log(root, index).open("wb") as log:
            begun.append(
                subprocess.Popen(
                    command,
                    cwd=REPOSITORY,
                    env={**environment, **place},
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
            )
    return Started(root, begun)


def phase_file(root: Path, index: int) -> Path:
    return root / f"phase-{index}"


def _log(root: Path, index: int) -> Path:
    return root / f"log-{index}"


def _names(folder: Path) -> list[str]:
    try:
        return [path.name for path in folder.iterdir()]
    except FileNotFoundError:
        return []


def _halts(process: int) -> bool:
    """Waits until the kernel has halted it."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if (state := _state(process)) in ("T", "Z", "X", ""):
            return state == "T"
        time.sleep(0.0005)
    return False


def _state(process: int) -> str:
    """As the kernel has it: R, S, T for one that is halted; empty for none."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def _takes_sigterm(process: int) -> bool:
    """Whether a process has a handler for SIGTERM, ignores it or waits for it itself."""
    masks = 0
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in ("SigBlk", "SigCgt", "SigIgn"):
            masks |= int(value, 16)
    return bool(masks >> (signal.SIGTERM - 1) & 1)

"""What a run is doing, written down by itself at every moment, for whoever is about to strike it.

PHASE in the environment names the file, a few bytes of JSON mapped into memory: writing is a copy, and what was
written last outlives a kill -9. Without PHASE nothing is changed. HALT, as in "evaluating 3 0.01", makes the process halt
itself so many seconds after it has come to a phase for the third time; with UNFINISHED, the folder of the checkpoints,
only while that holds an unfinished save. Imports nothing slow, so that it is there before what is.
"""

from __future__ import annotations

import dataclasses
import json
import mmap
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

SIZE = 256


class Halt:
    """SIGSTOP from the process to itself, so that no phase is too short to be met."""

    def __init__(self, when: str) -> None:
        phase, times, delay = when.rsplit(" ", 2)
        self._phase, self._left, self._delay = phase, int(times), float(delay)
        self._folder = os.environ.get("UNFINISHED")

    def came_to(self, phase: str) -> None:
        if phase == self._phase:
            self._left -= 1
            if self._left == 0:
                threading.Thread(target=self._stop, daemon=True).start()
                if not self._delay:
                    time.sleep(0.2)  # here, and not a step later

    def _stop(self) -> None:
        time.sleep(self._delay)
        while self._folder is not None and not _holds_unfinished(self._folder):
            time.sleep(0.0005)
        os.kill(os.getpid(), signal.SIGSTOP)


def _holds_unfinished(folder: str) -> bool:
    try:
        return any(".orbax-checkpoint-tmp" in name for name in os.listdir(folder))  # noqa: PTH208 (quick)
    except FileNotFoundError:
        return False


class Phase:
    """What the process is doing: phase, done (steps begun), saving (the step of a save that is under way, else 0),
    saved (the last that was seen whole in this start), resumed (where it went on from)."""

    def __init__(self, path: str) -> None:
        Path(path).write_bytes(b" " * SIZE)
        with Path(path).open("r+b") as file:
            self._place = mmap.mmap(file.fileno(), SIZE)
        self._halt = Halt(os.environ["HALT"]) if "HALT" in os.environ else None
        self.now: dict[str, Any] = {"phase": "", "done": 0, "saving": 0, "saved": 0, "resumed": None}

    def at(self, phase: str, **facts: Any) -> None:
        came = phase != self.now["phase"]
        self.now = {**self.now, "phase": phase, **facts}
        self._place[:] = json.dumps(self.now).encode().ljust(SIZE)
        if came and self._halt is not None:
            self._halt.came_to(phase)

    @contextmanager
    def during(self, phase: str) -> Iterator[None]:
        before = self.now["phase"]
        self.at(phase)
        yield
        self.at(before)

    def noting(self, function: Callable[..., Any], phase: str, then: str | None = None) -> Callable[..., Any]:
        @wraps(function)
        def noted(*args: Any, **kwargs: Any) -> Any:
            with self.during(phase):
                result = function(*args, **kwargs)
            if then is not None:
                self.at(then)
            return result

        return noted


def instrument(phase: Phase) -> None:
    """Once the training is imported: the run's own functions, each with a note before and after it."""
    from train_job import training

    joined, start, compile_programs = training.joined, training._starting_state, training.compile_programs

    @contextmanager
    def joining(*args: Any) -> Iterator[None]:
        phase.at("waiting for peers")
        with joined(*args):
            phase.at("laying out")
            yield
            phase.at("leaving its peers")

    def starting(*args: Any) -> Any:
        with phase.during("restoring"):
            state, done = start(*args)
        phase.at(phase.now["phase"], done=done, resumed=done)
        return state, done

    def compiling(*args: Any) -> Any:
        with phase.during("compiling"):
            programs = compile_programs(*args)
        return dataclasses.replace(programs, step=_counted(programs.step, phase))

    training.joined, training._starting_state, training.compile_programs = joining, starting, compiling
    training._begin = phase.noting(training._begin, "beginning")
    training._train_under_lock = phase.noting(training._train_under_lock, "beginning", then="leaving")
    training._finish = phase.noting(training._finish, "marking the run finished")
    training.Loop._look = phase.noting(training.Loop._look, "evaluating")
    _note_saves(training.Checkpoints, phase)


def _counted(step: Callable[..., Any], phase: Phase) -> Callable[..., Any]:
    first = True

    def counted(*args: Any) -> Any:
        nonlocal first
        phase.at("the first step" if first else "stepping", done=phase.now["done"] + 1)
        first = False
        return step(*args)

    return counted


def _note_saves(checkpoints: Any, phase: Phase) -> None:
    save, wait = checkpoints.save, checkpoints.wait

    def saving(self: Any, step: int, *rest: Any) -> None:
        with phase.during("starting a save"):
            save(self, step, *rest)
        phase.at(phase.now["phase"], saving=step)

    def waiting(self: Any) -> None:
        with phase.during("waiting for a save" if phase.now["saving"] else phase.now["phase"]):
            wait(self)
        if phase.now["saving"]:
            phase.at(phase.now["phase"], saving=0, saved=phase.now["saving"])

    checkpoints.save, checkpoints.wait = saving, waiting


NOTED: Phase | None = None
if "PHASE" in os.environ:
    NOTED = Phase(os.environ["PHASE"])
    NOTED.at("importing")

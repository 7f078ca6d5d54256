"""Which of the processes of a run this one is, read once from the environment. Imports no JAX."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from train_job.errors import UsageError

_COORDINATOR, _COUNT, _INDEX = "JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"
WAIT_S = 300
SILENCE_S = 60


@dataclass(frozen=True)
class Processes:
    """How many processes train one run together, and which of them this is.

    coordinator: "host:port" where process 0 listens and the others find it; empty for a process alone.
    wait_s: how long the processes wait for each other at the start: pods come up one by one.
    silence_s: after how long without a sign of life a process counts as lost. One that was killed is noticed
    at once where its connections break with it; this is for a machine that went away, and for one that hangs.
    """

    count: int = 1
    index: int = 0
    coordinator: str = ""
    wait_s: int = WAIT_S
    silence_s: int = SILENCE_S

    @property
    def alone(self) -> bool:
        """Whether there is no other: nothing is connected, and no port opened."""
        return self.count == 1

    @property
    def first(self) -> bool:
        """Whether this is the one that holds the run's lock and writes its record, metrics and plot."""
        return self.index == 0

    @classmethod
    def from_environment(
        cls, environment: Mapping[str, str], wait_s: str | int = WAIT_S, silence_s: str | int = SILENCE_S
    ) -> Processes:
        """What an Indexed Job sets: JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID.

        Raises:
            UsageError: naming the variable or flag, the value found and what would be accepted.
        """
        count = _number(_COUNT, environment.get(_COUNT, "1"), 1, 2**16)
        wait = _number("--wait-for-peers", wait_s, 1, 2**16)
        silence = _number("--peer-timeout", silence_s, 1, 2**16)
        if _COUNT in environment and _INDEX in environment:
            _number(_INDEX, environment[_INDEX], 0, count - 1, f" ({_COUNT} is {count})")
        if count == 1:
            return cls(wait_s=wait, silence_s=silence)
        for name in (_INDEX, _COORDINATOR):
            if not environment.get(name):
                raise UsageError(f"{name}: not set, but {_COUNT} is {count}; set it for each process")
        return cls(count, int(environment[_INDEX]), _address(environment[_COORDINATOR]), wait, silence)


ALONE = Processes()


def _number(name: str, text: str | int, least: int, most: int, why: str = "") -> int:
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if not least <= number <= most:
        raise UsageError(f"{name}: found {text!r}, needs a whole number from {least} to {most}{why}")
    return number


def _address(text: str) -> str:
    host, colon, port = text.rpartition(":")
    if not host or not colon or not (port.isdecimal() and 0 < int(port) < 2**16) or "/" in text:
        raise UsageError(
            f"{_COORDINATOR}: found {text!r}, needs host:port of process 0, such as train-0.train:8476"
        )
    return text

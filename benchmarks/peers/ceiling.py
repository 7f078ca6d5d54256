"""The process that shows what the device gives without a server: servers/ceiling.py."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.candidates import SERVERS
from benchmarks.peers.programs import Served


@dataclass(frozen=True)
class CeilingWindow:
    """bucket: rows of a run, the best that the concurrency can fill."""

    rows_per_s: float
    bucket: int
    cpu_us_per_row: float


class Ceiling:
    """Runs only while it is asked. Use as a context manager."""

    def __init__(self, model: Served, log: Path) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self._log = log.open("wb")
        self._process = subprocess.Popen(
            [sys.executable, str(SERVERS / "ceiling.py"), str(model.folder)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True,
            cwd=SERVERS, env={**os.environ, "JAX_PLATFORMS": "cpu"},
        )  # fmt: skip

    def __enter__(self) -> "Ceiling":
        self._line()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        with self._process:  # waits, and closes the pipes
            pass
        self._log.close()

    def measure(self, concurrency: int, seconds: float) -> CeilingWindow:
        print(concurrency, seconds, file=self._process.stdin, flush=True)
        return CeilingWindow(**json.loads(self._line()))

    def _line(self) -> str:
        line = next(iter(self._process.stdout or ()), "")
        if not line:
            raise SystemExit(f"the in-process measurement ended; its log is {self._log.name}")
        return line

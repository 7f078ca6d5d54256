"""A real `jaxport serve` on free ports of the loopback, for tests that talk to one."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

READY = re.compile(r"\bready grpc=(\S+) http=(\S+)")
SECONDS = 90.0


@dataclass(frozen=True)
class RunningServer:
    process: subprocess.Popen[bytes]
    address: str
    http: str
    log: Path


@contextlib.contextmanager
def running_server(models: Path, log: Path, *flags: str) -> Iterator[RunningServer]:
    """Ready when it yields; must drain and exit 0 on SIGTERM at the end."""
    command = [sys.executable, "-m", "jaxport", "serve", "--models", str(models)]
    command += ["--grpc-port", "0", "--http-port", "0", "--poll-seconds", "0.2", "--drain-delay", "0", *flags]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        address, http = _ready(process, log)
        yield RunningServer(process, address, http, log)
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0, log.read_text()
    finally:
        process.kill()
        process.wait()


def _ready(process: subprocess.Popen[bytes], log: Path) -> tuple[str, str]:
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        if found := READY.search(log.read_text()):
            return found[1], found[2]
        time.sleep(0.05)
    raise AssertionError(f"the server did not get ready:\n{log.read_text()}")


def jaxport(
    *arguments: str, cwd: Path | None = None, timeout: float = 300
) -> subprocess.CompletedProcess[str]:
    """Runs the command as a person would, without a terminal."""
    environment = {**os.environ, "COLUMNS": "200"}
    command = [sys.executable, "-m", "jaxport", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=cwd, timeout=timeout, env=environment
    )

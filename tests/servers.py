"""The command as a person runs it, and a real `jaxport serve` that has to end well."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.server_process import ServerProcess


@contextlib.contextmanager
def running_server(models: Path, *flags: str) -> Iterator[ServerProcess]:
    """Ready when it yields; drains and exits 0 on SIGTERM at the end."""
    with ServerProcess(models, *flags) as server:
        yield server.ready()
        if server.alive:
            server.signal()
        assert server.wait() == 0, "".join(server.lines)


def jaxport(
    *arguments: str, cwd: Path | None = None, timeout: float = 900
) -> subprocess.CompletedProcess[str]:
    """Runs the command without a terminal."""
    environment = {**os.environ, "COLUMNS": "200"}
    command = [sys.executable, "-m", "jaxport", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=cwd, timeout=timeout, env=environment
    )

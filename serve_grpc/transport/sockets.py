"""Unix sockets: is a path somebody's?"""

import contextlib
import os
import shutil
import socket
import tempfile
import time
from pathlib import Path

from serve_grpc.errors import EnvironmentUnfit

# Between the making of a socket and its first connection.
STARTING_SECONDS = 60


def refuse_taken_socket(target: str) -> None:
    """Raises EnvironmentUnfit for a unix socket in use: binding it would leave the other server deaf."""
    if target.startswith("unix:") and _is_listened_to(target.removeprefix("unix:")):
        raise EnvironmentUnfit(f"--grpc-socket {target}: another server listens there; choose another")


def remove_left_behind(prefix: str, name: str) -> None:
    """Temporary folders of servers that were killed: with a socket of that name that refuses, and has for a while."""
    for path in Path(tempfile.gettempdir()).glob(f"{prefix}*/{name}"):
        with contextlib.suppress(OSError):
            found = path.lstat()
            if found.st_uid != os.getuid() or time.time() - found.st_mtime < STARTING_SECONDS:
                continue
            with socket.socket(socket.AF_UNIX) as probe:
                try:
                    probe.settimeout(1.0)
                    probe.connect(str(path))
                except ConnectionRefusedError:
                    shutil.rmtree(path.parent, ignore_errors=True)


def _is_listened_to(path: str) -> bool:
    """Whether a process accepts on the socket; one that a killed server left behind refuses."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except OSError:
            return False
    return True

"""Unix sockets: is a path somebody's?"""

import socket

from serve_grpc.errors import EnvironmentUnfit


def refuse_taken_socket(target: str) -> None:
    """Raises EnvironmentUnfit for a unix socket in use: binding it would leave the other server deaf."""
    if target.startswith("unix:") and _is_listened_to(target.removeprefix("unix:")):
        raise EnvironmentUnfit(f"--grpc-socket {target}: another server listens there; choose another")


def _is_listened_to(path: str) -> bool:
    """Whether a process accepts on the socket; one that a killed server left behind refuses."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except OSError:
            return False
    return True

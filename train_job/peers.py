"""The processes of a run: how they find each other, and what it leads to when one is lost."""

from __future__ import annotations

import atexit
import os
import re
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import jax

from train_job.errors import EnvironmentUnfit, PeerLost, TrainError, chain, is_of_storage, root_cause
from train_job.preemption import EXIT_PREEMPTED
from train_job.processes import Processes

_LOOPBACK = re.compile(r"(localhost|127\.[\d.]+|\[::1\]):")
# What the collectives of CPUs and GPUs, and JAX's coordination service, say of a peer that does not answer. Not
# every error of the runtime: memory that is full is full the next time too.
_OF_PEERS = re.compile(
    r"gloo|nccl|coordination|barrier|heartbeat|UNAVAILABLE|DEADLINE_EXCEEDED", re.IGNORECASE
)
_QUOTED = re.compile(r"""\"[^\"]*\"|'[^']*'""")  # names of files, which may be any word
_STATUS = re.compile(r"[A-Z_]+: ")
_JAX_WAITS_LONGER_S = 60  # its own timeout takes seconds more than it is given, and ends in an abort


@contextmanager
def joined(processes: Processes) -> Iterator[None]:
    """Connects the processes; a process alone opens nothing. Without its peers it is aborted (see `supervisor`)."""
    if processes.alone:
        yield
        return
    # JAX's own would take SIGTERM away from `Preemption`.
    jax.config.update("jax_enable_preemption_service", False)
    own = processes.coordinator if _LOOPBACK.match(processes.coordinator) else None
    if processes.first:
        _require_port(processes.coordinator, everywhere=own is None)
    with _at_most(processes):
        jax.distributed.initialize(
            processes.coordinator,
            processes.count,
            processes.index,
            cluster_detection_method="deactivate",  # else it asks Kubernetes, with a token that the pod does not have
            initialization_timeout=processes.wait_s + _JAX_WAITS_LONGER_S,
            heartbeat_timeout_seconds=processes.silence_s,
            shutdown_timeout_seconds=processes.silence_s,
            coordinator_bind_address=own,
        )
    try:
        with peers(processes):
            yield
            jax.distributed.shutdown()  # all together: who leaves without a word is lost to the others
    except BaseException as error:
        atexit.register(_leave_at_once, getattr(error, "exit_code", 1))
        raise


@contextmanager
def peers(processes: Processes) -> Iterator[None]:
    """Within, a lost peer ends the process with a line and exit 75, before anything waits for what will not come.

    A process alone has lost none, whatever the library of its devices' collectives says.
    """
    try:
        yield
    except Exception as error:  # each library wraps the runtime's error in one of its own
        if processes.alone or not of_a_peer(error):
            raise
        with suppress(OSError):
            lost = PeerLost(
                f"a peer process was lost ({root_cause(error)}); start again to go on from the last complete checkpoint"
            )
            print(f"error: {lost}", file=sys.stderr, flush=True)
            sys.stdout.flush()
        os._exit(EXIT_PREEMPTED)


def of_a_peer(error: BaseException) -> bool:
    """Whether a peer that is gone is what this error comes from, and not a volume, whatever its folders are called."""
    if is_of_storage(error):
        return False
    return any(_of_runtime(link) and _OF_PEERS.search(_QUOTED.sub("", str(link))) for link in chain(error))


def _of_runtime(error: BaseException) -> bool:
    """A program that has run before raises the runtime's status as a ValueError."""
    return isinstance(error, jax.errors.JaxRuntimeError) or (
        isinstance(error, ValueError) and _STATUS.match(str(error)) is not None
    )


@contextmanager
def _at_most(processes: Processes) -> Iterator[None]:
    """Within, the process ends with a line and its exit code when the others have not come in time."""
    timer = threading.Timer(processes.wait_s, _give_up, [processes])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _give_up(processes: Processes) -> None:
    error = not_joined(processes)
    with suppress(OSError):
        print(f"error: {error}", file=sys.stderr, flush=True)
    _leave_at_once(error.exit_code)


def not_joined(processes: Processes) -> TrainError:
    """Why the processes have not found each other, as far as this one can know."""
    where, waited = processes.coordinator, f"within {processes.wait_s} s"
    if processes.first and not _is_here(where):
        return EnvironmentUnfit(
            f"JAX_COORDINATOR_ADDRESS: found {where}, which is no address of the machine of process 0, and it was not "
            f"reached there {waited}; set it to where process 0 listens"
        )
    return PeerLost(
        f"JAX_COORDINATOR_ADDRESS: not all of {processes.count} processes were at {where} {waited}; start again, or "
        "raise --wait-for-peers"
    )


def _is_here(address: str) -> bool:
    """Whether the host of an address is this machine, by one of its addresses. A name that is not known is not."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return any(_can_bind(family, place) for family, _, _, _, place in found)


def _can_bind(family: int, place: Any) -> bool:
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind(place)
    except OSError:
        return False
    return True


def _require_port(address: str, everywhere: bool) -> None:
    """Where it cannot listen, JAX's coordinator ends the process by a segmentation fault."""
    host, _, port = address.rpartition(":")
    host = "" if everywhere else host.strip("[]")
    both = everywhere and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both or ":" in host else socket.AF_INET
    try:
        socket.create_server((host, int(port)), family=family, dualstack_ipv6=both).close()
    except OSError as error:
        raise EnvironmentUnfit(
            f"JAX_COORDINATOR_ADDRESS: process 0 cannot listen on {address}: {os.strerror(error.errno or 0)}; choose another address or port"
        ) from error


def _leave_at_once(code: int) -> None:
    """Past the farewell that JAX holds at the exit, with peers that do not come to it."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)

"""The devices of a run as one mesh, and what its processes say to each other: all that knows of distribution.

What is cut over which axis is in `partition`; what that does not name is a copy on every device. One device in one
process is the mesh of size 1.
"""

from __future__ import annotations

import atexit
import json
import math
import os
import re
import socket
import sys
import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding, Sharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

from train_job.errors import EnvironmentUnfit, PeerLost, TrainError, UsageError, chain
from train_job.partition import PartitionRules
from train_job.preemption import EXIT_PREEMPTED, Preemption
from train_job.presets import Dataset
from train_job.processes import Processes
from train_job.settings import AXES

_LOOPBACK = re.compile(r"(localhost|127\.[\d.]+|\[::1\]):")
# What the collectives of CPUs and GPUs, and JAX's coordination service, say of a peer that does not answer. Not
# every error of the runtime: memory that is full is full the next time too.
_OF_PEERS = re.compile(
    r"gloo|nccl|coordination|barrier|heartbeat|UNAVAILABLE|DEADLINE_EXCEEDED", re.IGNORECASE
)
_STATUS = re.compile(r"[A-Z_]+: ")
_JAX_WAITS_LONGER_S = 60  # its own timeout takes seconds more than it is given, and ends in an abort


@dataclass(frozen=True)
class Layout:
    """Where the arrays of a run lie. `batch_rows` are those of a step, over all devices of all processes."""

    mesh: Mesh
    processes: Processes
    batch_rows: int
    rules: PartitionRules = field(default_factory=PartitionRules)

    @property
    def axes(self) -> dict[str, int]:
        """How many devices each axis has, by name."""
        return dict(self.mesh.shape)

    @property
    def pieces(self) -> int:
        """Into how many parts the rows of a batch are spread; devices along the axis tensor have the same."""
        return math.prod(self.axes[axis] for axis in self.rules.rows)

    @property
    def copies(self) -> Sharding:
        """The same on every device: the random state, the position, and every measured mean."""
        return self._sharding(P())

    @property
    def rows(self) -> Sharding:
        """The first dimension spread over the devices: a batch, in the order of the devices."""
        return self._sharding(P(self.rules.rows))

    @property
    def ballots(self) -> Sharding:
        """One element for each device."""
        return self._sharding(P(self.mesh.axis_names))

    def weights(self, shapes: Mapping[str, Any], trainable: Collection[str]) -> dict[str, Sharding]:
        """Where each weight lies, by name. Arguments and errors as of `PartitionRules.weights`."""
        specs = self.rules.weights(shapes, trainable, self.axes)
        return {name: self._sharding(spec) for name, spec in specs.items()}

    @property
    def own_rows(self) -> slice:
        """The rows of the global batch that the devices of this process hold: one piece of it."""
        pieces = self.rows.addressable_devices_indices_map((self.batch_rows,)).values()
        bounds = [piece[0].indices(self.batch_rows) for piece in pieces if piece is not None]
        return slice(min(first for first, _, _ in bounds), max(last for _, last, _ in bounds))

    def batch(self, data: Dataset, seed: int, step: int) -> Mapping[str, Any]:
        """The batch of a step, of which a process with peers makes its own rows alone."""
        if self.processes.alone:
            return data.batch(seed, step, self.batch_rows)
        own = data.batch(seed, step, self.batch_rows, self.own_rows)
        return {name: self._of_own_rows(values) for name, values in own.items()}

    def evaluation(self, batches: Mapping[str, np.ndarray]) -> dict[str, jax.Array]:
        """Fixed batches [batches, rows, ...] on the devices: spread where the rows can be, else a copy on each."""
        return {name: self._placed(values) for name, values in batches.items()}

    def votes(self, preemption: Preemption) -> Votes:
        """The vote of this process in each step."""
        return Votes(preemption) if self.processes.alone else PeerVotes(preemption, self)

    def said_by_first(self, number: int) -> int:
        """Process 0's `number`, for all. Returns when all have asked."""
        if self.processes.alone:
            return number
        return int(multihost_utils.broadcast_one_to_all(np.asarray(number, np.int32)))

    def sent_by_first(self, content: bytes) -> bytes:
        """Process 0's `content`, for all."""
        if self.processes.alone:
            return content
        size = self.said_by_first(len(content))
        own = np.frombuffer(content, np.uint8) if self.processes.first else np.zeros(size, np.uint8)
        return multihost_utils.broadcast_one_to_all(own).tobytes()

    def said_by_all(self, values: np.ndarray) -> np.ndarray:
        """The `values` of every process, one row for each; all of one shape and dtype."""
        return np.asarray(multihost_utils.process_allgather(values))

    def require_same(self, start: Mapping[str, Any]) -> None:
        """`start` is what all are to be started with, plain values under the names a person would change.

        Raises:
            UsageError: in every process where it is not the same in all, and then before any of them goes on. One
            that differs from process 0 names what does.
        """
        if self.processes.alone:
            return
        text = json.dumps(start)
        first = self.sent_by_first(text.encode()).decode()
        others = np.flatnonzero(self.said_by_all(np.asarray(text != first)))
        if text != first:
            name, found, needed = _difference(json.loads(text), json.loads(first))
            raise UsageError(
                f"{name}: found {found!r} in process {self.processes.index}, needs {needed!r} as in process 0; "
                "start all processes with the same flags"
            )
        if others.size:
            raise UsageError(
                f"process {others[0]} was started with other flags than process 0: its log says which; start all "
                "processes with the same"
            )

    def vote(self, stop: bool) -> jax.Array:
        """int32, one element for each device: what this process says goes on its own devices."""
        size = self.mesh.size
        own = np.full(len(self.mesh.local_devices), stop, np.int32)
        return jax.make_array_from_process_local_data(self.ballots, own, (size,))

    def _sharding(self, spec: P) -> Sharding:
        if self.mesh.size > 1:
            return NamedSharding(self.mesh, spec)
        return SingleDeviceSharding(self.mesh.devices.item())  # the same, and a step starts some 40 us sooner

    def _of_own_rows(self, values: np.ndarray) -> jax.Array:
        return jax.make_array_from_process_local_data(self.rows, values, (self.batch_rows, *values.shape[1:]))

    def _placed(self, values: np.ndarray) -> jax.Array:
        spread = values.shape[1] % self.pieces == 0
        sharding = self._sharding(P(None, self.rules.rows) if spread else P())
        return jax.make_array_from_callback(values.shape, sharding, values.__getitem__)


def lay_out(
    asked: Mapping[str, int], batch_rows: int, processes: Processes, rules: PartitionRules | None = None
) -> Layout:
    """All devices of all processes. `asked` are the axes of `--mesh`: data takes what the others leave where it is none.

    Raises:
        UsageError: the mesh is not that of the devices there are, or the rows cannot be spread evenly.
    """
    devices, rules = jax.devices(), rules or PartitionRules()
    where = f" in {processes.count} processes" if not processes.alone else ""
    left = len(devices) // math.prod(size for axis, size in asked.items() if axis != "data")
    axes = {axis: asked.get(axis, left if axis == "data" else 1) for axis in AXES}
    if math.prod(axes.values()) != len(devices):
        raise UsageError(
            f"--mesh: found {said(asked)}, needs {len(devices)} devices in all, those that JAX finds{where}; pass "
            f"--mesh data={len(devices)}, leave it out, or change how many devices are visible"
        )
    # In this order neighbours along tensor, which say most to each other, are neighbours in a process.
    mesh = Mesh(np.array(devices).reshape(tuple(axes.values())), AXES, axis_types=(AxisType.Auto,) * 3)
    layout = Layout(mesh, processes, batch_rows, rules)
    if batch_rows % layout.pieces:
        over = said({axis: axes[axis] for axis in rules.rows if axes[axis] > 1})
        raise UsageError(
            f"--set batch_size: found {batch_rows}, needs a multiple of {layout.pieces}: rows are spread over the "
            f"devices{where} (--mesh {over})"
        )
    return layout


def said(axes: Mapping[str, int]) -> str:
    """data=2,fsdp=4, as `--mesh` takes it: the axes of more than one device, or all where none has."""
    return ",".join(f"{axis}={size}" for axis, size in axes.items() if size > 1) or "data=1"


def _difference(own: Mapping[str, Any], first: Mapping[str, Any]) -> tuple[str, Any, Any]:
    """The first name under which two unequal mappings differ, and what each has there."""
    names = [*first, *(name for name in own if name not in first)]
    return next((name, own.get(name), first.get(name)) for name in names if own.get(name) != first.get(name))


class Votes:
    """Whether to stop before the next step. A process alone decides for itself, and at once."""

    def __init__(self, preemption: Preemption) -> None:
        self._preemption = preemption

    @property
    def stop(self) -> bool:
        """Whether to end here: at the same step in all processes."""
        return self._preemption.requested

    def cast(self) -> tuple[jax.Array, ...]:
        """What the step takes besides state and batch."""
        return ()

    def settle(self, outcome: Any) -> None:
        """Waits for a step that was started a while ago: for what it returned besides the state, here the loss."""
        outcome.block_until_ready()


class PeerVotes(Votes):
    """Every step adds up what the processes say, in the all-reduce that it has anyway. All read the same sum of the
    same step, and so stop at the same one, whichever of them got the signal."""

    def __init__(self, preemption: Preemption, layout: Layout) -> None:
        super().__init__(preemption)
        self._ballots = layout.vote(False), layout.vote(True)
        self._decided = False

    @property
    def stop(self) -> bool:
        return self._decided

    def cast(self) -> tuple[jax.Array, ...]:
        return (self._ballots[self._preemption.requested],)

    def settle(self, outcome: tuple[jax.Array, jax.Array]) -> None:
        _, votes = outcome
        self._decided = self._decided or int(votes) > 0


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
        with peers():
            yield
            jax.distributed.shutdown()  # all together: who leaves without a word is lost to the others
    except BaseException as error:
        atexit.register(_leave_at_once, getattr(error, "exit_code", 1))
        raise


@contextmanager
def peers() -> Iterator[None]:
    """Within, a lost peer ends the process with a line and exit 75, before anything waits for what will not come."""
    try:
        yield
    except Exception as error:  # each library wraps the runtime's error in one of its own
        if not of_a_peer(error):
            raise
        with suppress(OSError):
            lost = PeerLost("a peer process was lost; start again to go on from the last complete checkpoint")
            print(f"error: {lost}", file=sys.stderr, flush=True)
            sys.stdout.flush()
        os._exit(EXIT_PREEMPTED)


def of_a_peer(error: BaseException) -> bool:
    """Whether a peer that is gone is what this error comes from."""
    return any(_of_runtime(link) and _OF_PEERS.search(str(link)) for link in chain(error))


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

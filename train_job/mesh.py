"""The devices of a run as one mesh, and what its processes say to each other over it.

What is cut over which axis is in `partition`; what that does not name is a copy on every device. One device in one
process is the mesh of size 1. How the processes come together and lose each other is in `peers`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding, Sharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

from train_job.errors import UsageError
from train_job.partition import PartitionRules
from train_job.preemption import Preemption
from train_job.presets import Dataset
from train_job.processes import Processes
from train_job.settings import AXES


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

    def batch(self, data: Dataset, seed: int, step: int) -> Mapping[str, jax.Array]:
        """The batch of a step on the devices, of which a process with peers makes its own rows alone. No collective."""
        if self.processes.alone:
            return jax.device_put(data.batch(seed, step, self.batch_rows), self.rows)
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
            f"--mesh: found {said(asked)}, needs {len(devices)} in all, as many devices as JAX finds{where}; pass "
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

    def settle(self, votes: jax.Array | None) -> None:
        """Hears the sum of the votes in a step that was started a while ago; None where there is nobody to vote with."""


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

    def settle(self, votes: jax.Array | None) -> None:
        self._decided = self._decided or (votes is not None and int(votes) > 0)

"""Where the weights of a program for several devices lie.

Inputs and outputs are whole on every device, so that a batch of any size goes through.
"""

import contextlib
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from converters.cuts import Cut, said
from converters.errors import DevicesMissing
from converters.manifest import Manifest

COUNT_FLAG = "--xla_force_host_platform_device_count"


@dataclass(frozen=True)
class Placement:
    """cuts: by weight, for each dimension the axes that it is cut over; a weight without one is copied to every device."""

    mesh: Mesh
    cuts: Mapping[str, Cut]

    @classmethod
    def of(cls, manifest: Manifest, what: str, devices: Sequence[Any] | None = None) -> "Placement | None":
        """That of a bundle on the first of `devices`, JAX's own by default; None for programs of one device.

        Raises DevicesMissing, which names `what`.
        """
        if not manifest.mesh:
            return None
        return cls(make_mesh(manifest.mesh, what, devices), manifest.shardings)

    @property
    def copies(self) -> NamedSharding:
        """Whole on every device."""
        return NamedSharding(self.mesh, PartitionSpec())

    def weight(self, name: str) -> NamedSharding:
        """Where a weight lies."""
        return NamedSharding(self.mesh, PartitionSpec(*self.cuts.get(name, ())))

    def place(self, weights: Mapping[str, Any]) -> dict[str, jax.Array]:
        """The weights on their devices, each of which holds its part."""
        return jax.device_put(dict(weights), {name: self.weight(name) for name in weights})

    def jit(self, program: Any, names: Sequence[str]) -> Any:
        """jax.jit of a function of (weights, inputs) for these devices. names: of the weights."""
        by_name = {name: self.weight(name) for name in names}
        return jax.jit(program, in_shardings=(by_name, self.copies), out_shardings=self.copies)


def place(weights: Mapping[str, Any], placement: Placement | None) -> dict[str, jax.Array]:
    """The weights where the programs want them."""
    return jax.device_put(dict(weights)) if placement is None else placement.place(weights)


def make_mesh(axes: Mapping[str, int], what: str, devices: Sequence[Any] | None = None) -> Mesh:
    """A mesh over the first of the devices. DevicesMissing where there are too few; it names `what`."""
    has, needed = list(jax.devices() if devices is None else devices), math.prod(axes.values())
    if len(has) < needed:
        raise DevicesMissing(f"{what}: {missing(axes, len(has), has[0].platform)}")
    # Auto: the compiler moves what it has to; under Explicit axes the function would have to say where its values lie.
    auto = (AxisType.Auto,) * len(axes)
    return Mesh(np.array(has[:needed]).reshape(tuple(axes.values())), tuple(axes), axis_types=auto)


def missing(axes: Mapping[str, int], found: int, platform: str) -> str:
    """What to say where there are too few devices."""
    needed = math.prod(axes.values())
    cure = (
        f"set XLA_FLAGS={COUNT_FLAG}={needed} to simulate them on the CPU"
        if platform == "cpu"
        else f"make {needed} devices visible to this process, in a pod with nvidia.com/gpu: {needed}"
    )
    return f"wants {needed} devices ({said(axes)}), here {'is' if found == 1 else 'are'} {found}; {cure}"


def simulate(count: int) -> None:
    """Gives a CPU `count` devices, unless XLA_FLAGS or JAX_NUM_CPU_DEVICES says how many, or JAX has looked for devices.

    Who needs them and has fewer is told so by `make_mesh`.
    """
    if count > 1 and COUNT_FLAG not in os.environ.get("XLA_FLAGS", "") and _unsaid():
        with contextlib.suppress(RuntimeError):  # JAX has its devices already
            jax.config.update("jax_num_cpu_devices", count)


def _unsaid() -> bool:
    return jax.config.jax_num_cpu_devices < 1  # pyright: ignore[reportAttributeAccessIssue]

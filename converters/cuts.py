"""How weights are cut over a mesh of devices: axes of a name and a size each, and for each weight the axes it is cut over.

Without JAX, as who only reads a manifest may have none.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from converters.errors import BadSpec

# For each dimension an axis of the mesh, several, or None for whole; as a jax.sharding.PartitionSpec has it.
Cut = tuple[str | tuple[str, ...] | None, ...]


def axes_of(part: str | Sequence[str] | None) -> tuple[str, ...]:
    """Of one dimension."""
    return (part,) if isinstance(part, str) else tuple(part or ())


def pieces(cut: Sequence[Any], axes: Mapping[str, int]) -> int:
    """Into how many equal parts a weight is cut, of which each device holds one."""
    return math.prod(axes[name] for part in cut for name in axes_of(part))


def said(axes: Mapping[str, int]) -> str:
    """tensor=2, or data=2, tensor=4."""
    return ", ".join(f"{name}={size}" for name, size in axes.items())


def misfit(cut: Sequence[Any], shape: Sequence[int], axes: Mapping[str, int]) -> str:
    """Why a weight of this shape cannot be cut so; empty where it can."""
    if len(cut) > len(shape):
        return f"has {len(cut)} entries, the shape is {list(shape)}"
    used: list[str] = []
    for size, part in zip(shape, cut, strict=False):
        names = axes_of(part)
        if any(name not in axes for name in names) or len({*used, *names}) < len(used) + len(names):
            return f"{list(cut)}; axes of the mesh are needed, each once: {', '.join(axes)}"
        used += names
        if size % (count := pieces([part], axes)):
            return f"{size} elements do not go into {count} equal pieces; leave it whole, or take another number of devices"
    return ""


def parse_mesh(mesh: Any) -> dict[str, int]:
    """Sizes by axis of a mapping or of a jax.sharding.Mesh; empty for one device. BadSpec."""
    shape = getattr(mesh, "shape", mesh) or {}
    if not isinstance(shape, Mapping):
        raise BadSpec(
            f"mesh: {shape!r} is no mapping; axes with how many devices each are needed, as {{'tensor': 2}}"
        )
    axes = dict(shape)
    for name, size in axes.items():
        if not (isinstance(name, str) and name.isidentifier()):
            raise BadSpec(f"mesh: axis {name!r}; a name is needed, as in {{'tensor': 2}}")
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise BadSpec(f"mesh: {name} is {size!r}; a number of devices, at least 1, is needed")
    return axes if math.prod(axes.values()) > 1 else {}


def parse_axes(flag: str) -> dict[str, int]:
    """--mesh tensor=2 as sizes by axis. BadSpec."""
    axes: dict[str, int] = {}
    for part in filter(None, flag.split(",")):
        name, _, size = part.strip().partition("=")
        if name in axes or not (size.isascii() and size.isdigit()):
            raise BadSpec(f"--mesh {flag!r}: axes with how many devices each are needed, as in tensor=2")
        axes[name] = int(size)
    return parse_mesh(axes)

"""How an export is made, whatever it is of: for which devices, in which form, and what is let through."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from converters.cuts import parse_mesh, said
from converters.errors import BadSpec
from converters.formats import Formats

if TYPE_CHECKING:
    from converters.draft import Draft

Accept = Callable[[Sequence["Draft"], Mapping[str, Any]], None]


@dataclass(frozen=True)
class ExportOptions:
    """`export_bundle` has the meaning of each."""

    platforms: Sequence[str] = ("cpu", "cuda")
    formats: Formats | Sequence[str] = ()
    allow: Mapping[str, str] = field(default_factory=dict)
    weights_dtype: str | None = None
    calling_convention: int | None = None
    accept: Accept | None = None
    vjp_order: int = 0
    mesh: Mapping[str, int] | Any = field(default_factory=dict)
    shardings: Mapping[str, Sequence[Any]] = field(default_factory=dict)

    @property
    def axes(self) -> dict[str, int]:
        """Devices by axis; empty for one device.

        BadSpec for a mesh that is none, or further formats beside several devices.
        """
        axes = parse_mesh(self.mesh)
        if axes and self.formats:
            raise BadSpec(
                f"formats: {min(self.formats)} beside a mesh of {math.prod(axes.values())} devices ({said(axes)}); it holds a "
                "program for one device: leave one of the two out, or make a version for each"
            )
        return axes

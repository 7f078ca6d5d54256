"""How an export is made, whatever it is of: for which devices, in which form, and what is let through."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

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

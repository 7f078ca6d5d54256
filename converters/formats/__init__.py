"""Further formats of a model beside its program, each a module of this folder that is imported when it is asked for.

A module NAME has one function, `write(folder, proven, **options)`: it writes below `folder`, the bundle as it lies
before it is published, and returns what the manifest's `formats` says of it. Every file it leaves there gets a digest.
"""

import importlib
import pkgutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax.export
import numpy as np

from converters.errors import BadSpec, PlatformMissing
from converters.manifest import Signature
from converters.program import Program
from converters.proof import Proof

Formats = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class ProvenSignature:
    """One signature whose program was shown to answer as its source does.

    function: (weights by name, inputs by name) -> outputs by name, for another exporter to trace. exported: the
    programs, by the batch they are for; 0 is any. proof: its goldens, and the tolerances by platform and output.
    """

    signature: Signature
    function: Program
    exported: Mapping[int, jax.export.Exported]
    proof: Proof


@dataclass(frozen=True)
class ProvenBundle:
    """What is about to be published as models/<model>/<version>. weights: on the host, by name, in the programs' order."""

    model: str
    signatures: Mapping[str, ProvenSignature]
    weights: Mapping[str, np.ndarray]
    platforms: tuple[str, ...]
    usage: Mapping[str, str]


def parse_formats(asked: Formats | Sequence[str]) -> dict[str, dict[str, Any]]:
    """Options by format; a sequence of names has none. BadSpec for a format that there is not."""
    named = (
        {name: dict(options) for name, options in asked.items()}
        if isinstance(asked, Mapping)
        else {n: {} for n in asked}
    )
    known = sorted(module.name for module in pkgutil.iter_modules(__path__))
    for name in named:
        if name not in known:
            raise BadSpec(f"formats: {name!r} is none; there are: {', '.join(known) or 'none yet'}")
    return named


def write_formats(folder: Path, proven: ProvenBundle, asked: Formats) -> dict[str, dict[str, Any]]:
    """Writes each asked-for format below `folder`; the facts of each by name.

    Raises PlatformMissing where a format's library is not installed, and what the format itself refuses.
    """
    return {name: _module(name).write(folder, proven, **options) for name, options in asked.items()}


def _module(name: str) -> Any:
    try:
        return importlib.import_module(f"{__name__}.{name}")
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        raise PlatformMissing(
            f"formats: {name} needs {missing}, which is not installed; install it"
        ) from error

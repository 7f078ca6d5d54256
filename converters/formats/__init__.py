"""Further formats of a model beside its program, each a module of this folder that is imported when it is asked for.

A module NAME has four functions. `write(folder, proven, **options)` writes below `folder`, the bundle as it lies before
it is published, and returns what the manifest's `formats` says of it; every file it leaves there gets a digest.
`covers(facts, **options)` says whether a `write` with these options would add nothing to what has these facts.
`runner(written, signature)` runs what was written as its readers would, and `runtime()` says with what.
Nothing here imports JAX or a format's library before it is needed: the one that runs a format may lack the other.
"""

import importlib
import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from converters.errors import BadSpec, LibraryMissing
from converters.formats.answers import Case, Written, check_answers
from converters.manifest import Signature

if TYPE_CHECKING:
    import jax.export
    import numpy as np

    from converters.program import Program
    from converters.proof import Proof

Formats = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Format:
    """What a format needs beside JAX: modules to write it, the extra that brings them, and modules to run it."""

    writes: tuple[str, ...] = ()
    extra: str = ""
    runs: tuple[str, ...] = ()


FORMATS: dict[str, Format] = {
    "savedmodel": Format(("tensorflow",), "export-tf", ("tensorflow",)),
    "stablehlo": Format(runs=("iree.compiler", "iree.runtime")),
    "onnx": Format(("jax2onnx", "onnxruntime"), "export-onnx", ("onnxruntime",)),
}


@dataclass(frozen=True)
class ProvenSignature:
    """One signature whose program was shown to answer as its source does.

    function: (weights by name, inputs by name) -> outputs by name, for another exporter to trace. exported: the
    programs, by the batch they are for; 0 is any. proof: its goldens, and the tolerances by platform and output.
    """

    signature: Signature
    function: "Program"
    exported: "Mapping[int, jax.export.Exported]"
    proof: "Proof"


@dataclass(frozen=True)
class ProvenBundle:
    """What is about to be published as models/<model>/<version>. weights: on the host, by name, in the programs' order."""

    model: str
    signatures: Mapping[str, ProvenSignature]
    weights: "Mapping[str, np.ndarray]"
    platforms: tuple[str, ...]
    usage: Mapping[str, str]


def parse_formats(asked: Formats | Sequence[str]) -> dict[str, dict[str, Any]]:
    """Options by format; a sequence of names has none.

    BadSpec for a format that there is not; LibraryMissing, before any work is done, for one that cannot be written here.
    """
    named = (
        {name: dict(options) for name, options in asked.items()}
        if isinstance(asked, Mapping)
        else {n: {} for n in asked}
    )
    for name in named:
        if name not in FORMATS:
            raise BadSpec(f"formats: {name!r} is none; there are: {', '.join(FORMATS)}")
        for module in missing(FORMATS[name].writes):
            raise LibraryMissing(
                f"formats: {name} needs {module}, which is not installed; "
                f"pip install 'jaxport[{FORMATS[name].extra}]'"
            )
    return named


def missing(modules: Sequence[str]) -> list[str]:
    """Those that cannot be imported here, by their first name."""
    return list(dict.fromkeys(name.partition(".")[0] for name in modules if not _is_installed(name)))


def write_formats(folder: Path, proven: ProvenBundle, asked: Formats) -> dict[str, dict[str, Any]]:
    """Writes each asked-for format below `folder`; the facts of each by name.

    What can be run here is run before it is published: `checked` in its facts says with what, and how far it was off.
    GoldenMismatch, BundleError: it answers otherwise, or not at all; and what a format itself refuses.
    """
    return {name: _write(name, folder, proven, options) for name, options in asked.items()}


def _write(name: str, folder: Path, proven: ProvenBundle, options: Mapping[str, Any]) -> dict[str, Any]:
    module = load_format(name)
    facts = dict(module.write(folder, proven, **options))
    if FORMATS[name].runs and not missing(FORMATS[name].runs):
        written = Written(folder, facts, lambda: proven.weights)
        cases = [
            Case(one.signature, one.proof.goldens, reference_tolerances(one.proof.tolerances))
            for one in proven.signatures.values()
        ]
        seen = check_answers(name, module, written, cases)
        facts["checked"] = {"with": module.runtime(), "worst_difference": seen.worst_difference}
    return facts


def all_written(facts: Formats, asked: Formats) -> bool:
    """Whether a bundle whose manifest says `facts` of its formats has each that is asked for, with its options.

    Facts that are none of that format's say nothing.
    """
    try:
        return all(
            name in facts and load_format(name).covers(facts[name], **options)
            for name, options in asked.items()
        )
    except (KeyError, TypeError, AttributeError, ValueError):
        return False


def reference_tolerances[T](by_platform: Mapping[str, T]) -> T:
    """A format is run on a CPU, and held to what a CPU is held to; of a bundle without one, to its first platform's."""
    return by_platform["cpu"] if "cpu" in by_platform else next(iter(by_platform.values()))


def load_format(name: str) -> Any:
    """The module of a format of FORMATS."""
    return importlib.import_module(f"{__name__}.{name}")


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ModuleNotFoundError, ValueError):  # a folder above it is missing, or was taken out of sys.modules
        return False

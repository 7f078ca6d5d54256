"""Any JAX function as a bundle.

from converters import TensorSpec, export_bundle
export_bundle("models/iris/1", fn, params, inputs={"x": TensorSpec("float32", "b, 4")},
              outputs=("logits",), example={"x": x_example}, platforms=("cpu", "cuda"))
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.export

from converters.bundle import parse_version
from converters.draft import Target, draft_signature
from converters.errors import BadSpec, PlatformMissing
from converters.formats import Formats, parse_formats
from converters.manifest import SequenceSpec
from converters.publish import claimed_version
from converters.spec import SignatureSpec, TensorSpec
from converters.weights import flatten_params
from converters.writer import Contents, write_bundle

__all__ = ["SequenceSpec", "SignatureSpec", "TensorSpec", "export_bundle"]

PLATFORMS = ("cpu", "cuda", "rocm", "tpu")
SIGNATURE = "predict"


def export_bundle(
    path: Path | str,
    fn: Callable[..., Any],
    params: Any,
    *,
    inputs: Mapping[str, TensorSpec],
    outputs: Sequence[str],
    example: Mapping[str, Any],
    platforms: Sequence[str] = ("cpu", "cuda"),
    usage: Mapping[str, str] | None = None,
    provenance: Mapping[str, Any] | None = None,
    sequence: SequenceSpec | None = None,
    pad: Mapping[str, float] | None = None,
    formats: Formats | Sequence[str] = (),
) -> Path:
    """Exports `fn(params, **inputs)` into models/<name>/<version> and returns that folder.

    path: the last part is a positive integer, or "next". params: any pytree of arrays. outputs: names, in the order
    of the function's tuple; a dict has its own. example: arrays of at least one row, from which the goldens are made.
    usage: strings for clients, as {"task": "next_token"}. provenance: where the weights come from. sequence: declares
    the symbol that inputs may have as second dimension, as in SequenceSpec("t", most=256) for "b, t": a server then
    takes any length up to `most`, and pads rows behind their end. What depends on a row's length has to come from an
    input along it, as a mask: the proof varies lengths. pad: the value it pads an input with, 0 if not here.
    formats: what to write beside the program, by name with the options of each, or just the names.

    Raises BadSpec (the arguments do not fit each other), ExportRefused (the program would be wrong or fail later),
    PlatformMissing (this machine has none of `platforms`), VersionTaken, StorageError.
    """
    path = Path(path)
    model_dir, version = path.parent, parse_version_name(path.name)
    target, asked = _target(tuple(platforms)), parse_formats(formats)
    spec = SignatureSpec(fn, inputs, outputs, example, sequence, pad)
    weights = flatten_params(params)
    draft = draft_signature(SIGNATURE, spec, weights, target)
    contents = Contents(
        model=model_dir.absolute().name,
        drafts=(draft,),
        weights=weights.arrays,
        platforms=target.platforms,
        precision=target.precision,
        usage=usage or {},
        origin={"source": "function", "function": _qualified(fn)} if provenance is None else provenance,
        formats=asked,
    )
    with claimed_version(model_dir.absolute(), version) as (number, folder):
        write_bundle(folder, contents)
    return model_dir / str(number)


def parse_version_name(name: str) -> int | None:
    """A version as a path or a flag has it; None is the next free one."""
    if name == "next":
        return None
    if parse_version(name) is None:
        raise BadSpec(
            f"version {name!r}: a positive integer below 2**63 or 'next' is needed, as in models/iris/1"
        )
    return int(name)


def local_platform() -> str:
    """jax.export's name for this process's device: "cpu", "cuda", "rocm" or "tpu"."""
    return jax.export.default_export_platform()


def _target(platforms: tuple[str, ...]) -> Target:
    """BadSpec for a platform that there is not, PlatformMissing where this machine's is not among them."""
    unknown = [p for p in platforms if p not in PLATFORMS]
    if unknown or not platforms:
        raise BadSpec(f"platforms: {list(platforms)}; some of {', '.join(PLATFORMS)} are needed")
    here = local_platform()
    if here not in platforms:
        raise PlatformMissing(
            f"platforms: {', '.join(platforms)}; the program is proven on this machine before it is published, and "
            f"this machine is {here}: add {here}, or export on a machine with one of them"
        )
    precision = str(jax.config.jax_default_matmul_precision or "default")  # pyright: ignore[reportAttributeAccessIssue]
    return Target(platforms, here, precision)


def _qualified(fn: Callable[..., Any]) -> str:
    return f"{getattr(fn, '__module__', '?')}:{getattr(fn, '__qualname__', type(fn).__name__)}"

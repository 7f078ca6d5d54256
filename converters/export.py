"""Any JAX function as a bundle.

from converters import TensorSpec, export_bundle
export_bundle("models/iris/1", fn, params, inputs={"x": TensorSpec("float32", "b, 4")},
              outputs=("logits",), example={"x": x_example}, platforms=("cpu", "cuda"))
"""

import hashlib
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any

import jax
import jax.export
import numpy as np

from converters.bundle import MANIFEST, MANIFEST_DIGEST, WEIGHTS, array_sha256, digest_line, parse_version
from converters.errors import BadSpec, ExportRefused, PlatformMissing
from converters.golden import pack_goldens
from converters.manifest import FileDigest, Manifest, SequenceSpec, Signature, TensorInfo, WeightSpec
from converters.program import (
    as_program,
    as_source,
    constants,
    export_program,
    serialization_version,
    stablehlo_version,
)
from converters.proof import Proof, batch_outputs, prove
from converters.publish import claimed_version
from converters.sequence_proof import Padding, prove_sequence
from converters.spec import TensorSpec, parse_example, parse_inputs, parse_pad
from converters.weights import flatten_params
from converters.window import window_ends

__all__ = ["SequenceSpec", "TensorSpec", "export_bundle"]

PLATFORMS = ("cpu", "cuda", "rocm", "tpu")
SIGNATURE = "predict"
CONSTANT_LIMIT = 64 << 10


@dataclass(frozen=True)
class _Draft:
    """An export that has been proven and lies nowhere yet."""

    exported: jax.export.Exported
    program: bytes
    weights: Mapping[str, np.ndarray]
    signature: Signature
    proof: Proof
    precision: str


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
) -> Path:
    """Exports `fn(params, **inputs)` into models/<name>/<version> and returns that folder.

    path: the last part is a positive integer, or "next". params: any pytree of arrays. outputs: names, in the order
    of the function's tuple; a dict has its own. example: arrays of at least one row, from which the goldens are made.
    usage: strings for clients, as {"task": "next_token"}. provenance: where the weights come from. sequence: declares
    the symbol that inputs may have as second dimension, as in SequenceSpec("t", most=256) for "b, t": a server then
    takes any length up to `most`, and pads rows behind their end. What depends on a row's length has to come from an
    input along it, as a mask: the proof varies lengths. pad: the value it pads an input with, 0 if not here.

    Raises BadSpec (the arguments do not fit each other), ExportRefused (the program would be wrong or fail later),
    PlatformMissing (this machine has none of `platforms`), VersionTaken, StorageError.
    """
    path = Path(path)
    model_dir, version = path.parent, parse_version_name(path.name)
    draft = _draft(fn, params, inputs, tuple(outputs), example, tuple(platforms), sequence, pad or {})
    with claimed_version(model_dir.absolute(), version) as (number, folder):
        files = _write_files(folder, draft)
        origin = (
            {"source": "function", "function": _qualified(fn)} if provenance is None else dict(provenance)
        )
        manifest = _manifest(model_dir.absolute().name, draft, files, usage or {}, origin)
        data = manifest.to_json().encode()
        (folder / MANIFEST).write_bytes(data)
        (folder / MANIFEST_DIGEST).write_text(digest_line(data))
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


def _draft(
    fn: Callable[..., Any],
    params: Any,
    inputs: Mapping[str, TensorSpec],
    outputs: tuple[str, ...],
    example: Mapping[str, Any],
    platforms: tuple[str, ...],
    sequence: SequenceSpec | None,
    pad: Mapping[str, float],
) -> _Draft:
    here = _check_platforms(platforms)
    if not outputs or len(set(outputs)) < len(outputs):
        raise BadSpec(f"outputs: {list(outputs)}; at least one name is needed, each once")
    symbol, tensors = parse_inputs(inputs, sequence)
    rows, fill = parse_example(tensors, example, sequence), parse_pad(tensors, pad)
    weights, rebuild = flatten_params(params)
    program = as_program(fn, rebuild, outputs)
    constraints = () if sequence is None else (f"{sequence.symbol} <= {sequence.most}",)
    try:
        exported = export_program(program, weights, tensors, platforms, constraints)
    except ExportRefused as error:
        if sequence is None:
            raise
        cure = (
            f"where the length cannot be a symbol, fix it: a number for {sequence.symbol!r}, and no sequence="
        )
        raise ExportRefused(f"{error}; {cure}") from error
    shapes = batch_outputs(exported, outputs, symbol, sequence and sequence.symbol)
    _refuse_constants(exported)
    precision = str(jax.config.jax_default_matmul_precision or "default")  # pyright: ignore[reportAttributeAccessIssue]
    facts = (as_source(fn, params, outputs), exported, weights, rows, here, precision)
    if sequence is None:
        proof = prove(*facts)
    else:
        along = frozenset(name for name, shape in shapes.items() if sequence.symbol in shape)
        proof = prove_sequence(*facts, Padding(sequence, fill, rows.along, along))
    data = bytes(exported.serialize())
    signature = Signature(
        name=SIGNATURE,
        inputs=tensors,
        outputs=tuple(TensorInfo(n, proof.goldens[0].outputs[n].dtype.name, shapes[n]) for n in outputs),
        batch_symbol=symbol,
        constraints=constraints,
        pad=fill,
        program_sha256=hashlib.sha256(data).hexdigest(),
        sequence=sequence,
    )
    return _Draft(exported, data, weights, signature, proof, precision)


def _check_platforms(platforms: tuple[str, ...]) -> str:
    """This machine's platform, which is among `platforms`."""
    unknown = [p for p in platforms if p not in PLATFORMS]
    if unknown or not platforms:
        raise BadSpec(f"platforms: {list(platforms)}; some of {', '.join(PLATFORMS)} are needed")
    here = local_platform()
    if here not in platforms:
        raise PlatformMissing(
            f"platforms: {', '.join(platforms)}; the program is proven on this machine before it is published, and "
            f"this machine is {here}: add {here}, or export on a machine with one of them"
        )
    return here


def _refuse_constants(exported: jax.export.Exported) -> None:
    for kind, size in constants(exported):
        if size > CONSTANT_LIMIT:
            raise ExportRefused(
                f"the program holds a constant of {size} bytes ({kind}), allowed are {CONSTANT_LIMIT}: an array that "
                "the function captures instead of taking it through params; move it there"
            )


def _write_files(folder: Path, draft: _Draft) -> dict[str, FileDigest]:
    """Writes everything but the manifest, and returns the digests of what was written."""
    for name, data in (
        (draft.signature.program, draft.program),
        (draft.signature.golden, pack_goldens(draft.proof.goldens)),
    ):
        (folder / name).parent.mkdir()
        (folder / name).write_bytes(data)
    _save_weights(folder / WEIGHTS, draft.weights)
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): _digest(path) for path in paths}


def _save_weights(folder: Path, weights: Mapping[str, np.ndarray]) -> None:
    from orbax.checkpoint import v1 as ocp

    # Orbax stores no array without elements; the manifest's shape and dtype say all there is.
    stored = {name: w for name, w in weights.items() if w.size}
    if stored:
        ocp.save(str(folder.absolute()), stored)


def _digest(path: Path) -> FileDigest:
    with path.open("rb") as file:
        return FileDigest(hashlib.file_digest(file, "sha256").hexdigest(), path.stat().st_size)


def _manifest(
    model: str, draft: _Draft, files: dict[str, FileDigest], usage: Mapping[str, str], origin: dict[str, Any]
) -> Manifest:
    exported = draft.exported
    origin.setdefault("git_commit", _git_commit())
    tolerances = {
        platform: {f"{SIGNATURE}/{name}": tolerance for name, tolerance in outputs.items()}
        for platform, outputs in draft.proof.tolerances.items()
    }
    weights = tuple(
        WeightSpec(name, w.dtype.name, w.shape, array_sha256(w)) for name, w in draft.weights.items()
    )
    return Manifest(
        model=model,
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        provenance=origin,
        jax_version=jax.__version__,
        jaxlib_version=installed("jaxlib"),
        serialization_version=serialization_version(draft.program),
        calling_convention=exported.calling_convention_version,
        stablehlo_version=stablehlo_version(exported),
        window_ends=window_ends(installed("jaxlib")).isoformat(),
        platforms=tuple(exported.platforms),
        nr_devices=exported.nr_devices,
        matmul_precision=draft.precision,
        signatures={SIGNATURE: draft.signature},
        weights=weights,
        tolerances=tolerances,
        usage=dict(usage),
        files=files,
    )


def _qualified(fn: Callable[..., Any]) -> str:
    return f"{getattr(fn, '__module__', '?')}:{getattr(fn, '__qualname__', type(fn).__name__)}"


def _git_commit() -> str | None:
    """The commit of the working directory, where the model's source lies; None in an image or without git."""
    try:
        done = subprocess.run(
            ["git", "rev-parse", "HEAD"],
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError:
        return None
    return done.stdout.strip() or None

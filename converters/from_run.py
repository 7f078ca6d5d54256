"""A checkpoint of a training run as a bundle. The only module here that knows train_job, and through it flax."""

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any

import jax

from converters.bundle import MODEL_NAME, list_versions, open_bundle, read_manifest
from converters.errors import BadSpec, ConvertError, StorageError
from converters.export import SIGNATURE, Accept, export_bundle, parse_version_name
from converters.fewer_bits import fewer_bits, parse_weights_dtype
from converters.formats import Formats, all_written
from converters.manifest import SequenceSpec
from converters.program import Program
from converters.publish import find_or_publish, storage_errors
from converters.spec import TensorSpec, parse_batches
from converters.weights import flatten_params
from train_job.checkpoints import StepInfo, choose_step, load_params
from train_job.errors import EnvironmentUnfit
from train_job.held_out import held_out
from train_job.presets import get_preset
from train_job.runs import RunRecord, read_run

EXAMPLE_ROWS = 64  # as many as the largest batch that an export proves
WAIT_SECONDS = 5.0
# One stale handle of NFS, as the record is replaced, does not end a wait of hours.
MOST_UNREADABLE = 12


@dataclass(frozen=True)
class RunExport:
    """Which checkpoint becomes which bundle. `step` is "latest", "best" or a number; `name` None takes the run's.

    dynamic_length: each request chooses the length of its sequences. skip_existing: a version that was made of the
    same checkpoint, for the same platforms, lengths, batches, dtype of weights and formats with their options, by the same
    JAX, is as good as a new one. origin: what the provenance says beside the checkpoint. allow, formats, weights_dtype,
    fixed_batches, calling_convention, accept, vjp_order: as in export_bundle.
    """

    root: Path
    run: str
    step: str = "latest"
    name: str | None = None
    version: str = "next"
    platforms: Sequence[str] = ("cpu", "cuda")
    wait: bool = False
    dynamic_length: bool = False
    skip_existing: bool = False
    allow: Mapping[str, str] = field(default_factory=dict)
    formats: Formats = field(default_factory=dict)
    weights_dtype: str | None = None
    calling_convention: int | None = None
    origin: Mapping[str, Any] = field(default_factory=dict)
    accept: Accept | None = None
    vjp_order: int = 0
    fixed_batches: Sequence[int] | None = None


def export_run(settings: RunExport, say: Callable[[str], None] = print) -> tuple[Path, bool]:
    """Writes <root>/models/<name>/<version>; returns it, and whether it was written now.

    Errors are those of train_job's readers and export_bundle.
    """
    name = settings.run if settings.name is None else settings.name
    for flag, value in (("--run", settings.run), ("--name", name)):
        if not MODEL_NAME.fullmatch(value):
            raise BadSpec(
                f"{flag} {value!r}: letters, digits, '.', '_' and '-' are allowed, the first no '.'"
            )
    parse_version_name(settings.version)
    run_dir = settings.root / "runs" / settings.run
    record = _finished(run_dir, say) if settings.wait else read_run(run_dir)
    chosen = choose_step(run_dir, settings.step)
    preset = get_preset(record.preset)
    signature = preset.predict_signature
    predict = preset.predict_fn()
    takes, sequence = signature.inputs, None
    if settings.dynamic_length:
        if not signature.any_length:
            raise BadSpec(
                f"--dynamic-length: preset {record.preset} has no sequence; its inputs are of fixed sizes"
            )
        takes, sequence = signature.any_length, SequenceSpec("t", signature.longest)

    def function(params: Mapping[str, Any], **inputs: Any) -> dict[str, Any]:
        return predict(params, inputs)

    provenance = _provenance(record, chosen) | dict(settings.origin)
    model_dir = settings.root / "models" / name

    def write() -> Path:
        say(f"exporting step {chosen.step} of run {settings.run} for {', '.join(settings.platforms)}")
        params = load_params(run_dir, chosen.step)
        measured = _held_out(run_dir, record, params, settings.weights_dtype, say)
        return export_bundle(
            model_dir / settings.version,
            function,
            params,
            inputs={name: TensorSpec(*spec) for name, spec in takes.items()},
            outputs=signature.outputs,
            example=preset.example_inputs(EXAMPLE_ROWS, seed=0),
            platforms=settings.platforms,
            usage=signature.usage,
            provenance=provenance | measured,
            sequence=sequence,
            allow=settings.allow,
            formats=settings.formats,
            weights_dtype=settings.weights_dtype,
            calling_convention=settings.calling_convention,
            accept=settings.accept,
            vjp_order=settings.vjp_order,
            fixed_batches=settings.fixed_batches,
        )

    if not settings.skip_existing:
        return write(), True
    path, written = find_or_publish(
        model_dir, lambda: _alike(settings, model_dir, provenance, sequence), write, say
    )
    if not written:
        say(f"step {chosen.step} of run {settings.run} is exported already")
    return path, written


def _held_out(
    run_dir: Path, record: RunRecord, params: Mapping[str, Any], dtype: str | None, say: Callable[[str], None]
) -> dict[str, Any]:
    """Of weights in fewer bits: says what that changes on data the run never saw, and returns it for the provenance."""
    if parse_weights_dtype(dtype) is None:
        return {}
    stored, _ = fewer_bits(flatten_params(params), str(dtype))
    found = held_out(run_dir, record, [params, stored.params])
    if found is None:
        say("held out: not measured, as the data of the run is not here")
        return {}
    headline, (trained, fewer) = found
    say(f"held out: {headline} {trained[headline]:.4f} as trained, {fewer[headline]:.4f} in {dtype}")
    return {"held_out": {"as_trained": trained, str(dtype): fewer}}


def source_of_run(provenance: Mapping[str, Any], signature: str) -> Program:
    """The function that a bundle of a run was exported from, of weights and inputs by name, from its preset's source.

    Raises BadSpec where `signature` is none of a run's, UsageError where the preset is not to be found here.
    """
    if signature != SIGNATURE:
        raise BadSpec(f"signature {signature!r}: a preset's function is {SIGNATURE!r}")
    predict = get_preset(str(provenance.get("preset"))).predict_fn()
    return lambda weights, inputs: dict(predict(weights, inputs))


def checkpoint_of(run_dir: Path, step: str) -> dict[str, Any]:
    """The provenance of a checkpoint that is there, as an export of it says it. Errors are those of train_job's readers."""
    return _provenance(read_run(run_dir), choose_step(run_dir, step))


def _alike(
    settings: RunExport, model_dir: Path, provenance: Mapping[str, Any], sequence: SequenceSpec | None
) -> Path | None:
    """The highest whole version that an export with these settings would only repeat."""
    wanted = (
        set(settings.platforms), jax.__version__, installed("jaxlib"), sequence, settings.weights_dtype,
        settings.vjp_order, parse_batches(settings.fixed_batches),
    )  # fmt: skip
    with storage_errors(model_dir):
        versions = list_versions(model_dir)
    for version in reversed(versions):
        path = model_dir / str(version)
        with suppress(ConvertError, OSError):  # one that is damaged is a reason to write another
            manifest = read_manifest(path)
            signature = manifest.signatures.get(SIGNATURE)
            has = (
                set(manifest.platforms), manifest.jax_version, manifest.jaxlib_version,
                signature and signature.sequence, manifest.stored_weights and manifest.stored_weights.dtype,
                signature and signature.vjp_order,
                signature and signature.batches,
            )  # fmt: skip
            granted = manifest.allowed.items() <= settings.allow.items()
            called = settings.calling_convention in (None, manifest.calling_convention)
            whole = all_written(manifest.formats, settings.formats)
            if not (has == wanted and granted and called and whole):
                continue
            if provenance.items() <= manifest.provenance.items():
                return open_bundle(path).path
    return None


def _finished(run_dir: Path, say: Callable[[str], None]) -> RunRecord:
    """The record of the run once it is finished. A run that is not there yet is waited for, too."""
    told, unreadable = False, 0
    while True:
        try:
            if (record := _record(run_dir)) is not None and record.finished:
                return record
            unreadable = 0
        except StorageError as error:
            unreadable += 1
            if unreadable == MOST_UNREADABLE:
                raise
            say(f"{error}; trying again")
        if not told:
            say(f"waiting for {run_dir} to finish")
            told = True
        time.sleep(WAIT_SECONDS)


def _record(run_dir: Path) -> RunRecord | None:
    """None: there is none yet. StorageError: the volume does not give it now."""
    with storage_errors(run_dir):
        if not (run_dir / "run.json").exists():
            return None
        try:
            return read_run(run_dir)
        except EnvironmentUnfit as error:
            raise error.__cause__ or error from None


def _provenance(record: RunRecord, chosen: StepInfo) -> dict[str, Any]:
    fingerprint = json.dumps(record.fingerprint, sort_keys=True).encode()
    return {
        "source": "run",
        "run": record.run,
        "preset": record.preset,
        "step": chosen.step,
        "metrics": dict(chosen.metrics),
        "fingerprint": hashlib.sha256(fingerprint).hexdigest(),
        "data": dict(record.data),
        "run_created_at": record.created_at,
    }

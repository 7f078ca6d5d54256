"""A checkpoint of a training run as a bundle. The only module here that knows train_job, and through it flax."""

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any

import jax

from converters.bundle import MODEL_NAME, list_versions, open_bundle, read_manifest
from converters.cuts import said
from converters.errors import BadSpec, ConvertError, StorageError
from converters.export import SIGNATURE, export_signatures, parse_version_name
from converters.fewer_bits import fewer_bits, parse_weights_dtype
from converters.formats import all_written, parse_formats
from converters.manifest import SequenceSpec
from converters.options import ExportOptions
from converters.program import Program
from converters.publish import find_or_publish, storage_errors
from converters.spec import SignatureSpec, TensorSpec, parse_batches
from converters.weights import flatten_params
from train_job.checkpoints import StepInfo, choose_step, load_params
from train_job.data.shards import TOKENIZER, read_tokenizer
from train_job.errors import EnvironmentUnfit
from train_job.held_out import held_out
from train_job.presets import Preset, preset_of_run
from train_job.runs import RunRecord, read_run

EXAMPLE_ROWS = 64  # as many as the largest batch that an export proves
WAIT_SECONDS = 5.0
# One stale handle of NFS, as the record is replaced, does not end a wait of hours.
MOST_UNREADABLE = 12


@dataclass(frozen=True)
class RunExport:
    """Which checkpoint becomes which bundle. `step` is "latest", "best" or a number; `name` None takes the run's.

    dynamic_length: each request chooses the length of its sequences. skip_existing: a version that was made of the
    same checkpoint, for the same platforms, devices, lengths, batches, dtype of weights and formats with their options, by
    the same JAX, is as good as a new one. origin: what the provenance says beside the checkpoint. fixed_batches, options: as in
    export_bundle.
    """

    root: Path
    run: str
    step: str = "latest"
    name: str | None = None
    version: str = "next"
    wait: bool = False
    dynamic_length: bool = False
    skip_existing: bool = False
    origin: Mapping[str, Any] = field(default_factory=dict)
    fixed_batches: Sequence[int] | None = None
    options: ExportOptions = field(default_factory=ExportOptions)

    @property
    def model(self) -> str:
        """The model's name."""
        return self.run if self.name is None else self.name


def export_run(settings: RunExport, say: Callable[[str], None] = print) -> tuple[Path, bool]:
    """Writes <root>/models/<name>/<version>; returns it, and whether it was written now.

    Errors are those of train_job's readers and export_bundle.
    """
    _check_names(settings)
    model_dir, run_dir = settings.root / "models" / settings.model, settings.root / "runs" / settings.run
    record = _finished(run_dir, say) if settings.wait else read_run(run_dir)
    chosen = choose_step(run_dir, settings.step)
    preset = preset_of_run(record.preset, record.data)
    sequence = _sequence(preset, record.preset) if settings.dynamic_length else None
    options = _placed(settings.options, preset, record.preset)
    provenance = _provenance(record, chosen) | dict(settings.origin)

    def write() -> Path:
        say(f"exporting step {chosen.step} of run {settings.run} for {', '.join(options.platforms)}")
        params = load_params(run_dir, chosen.step)
        measured = _held_out(run_dir, record, params, options.weights_dtype, say)
        return export_signatures(
            model_dir / settings.version,
            params,
            {SIGNATURE: _spec(preset, sequence, settings.fixed_batches)},
            options,
            usage=preset.predict_signature.usage,
            provenance=provenance | measured,
            named=False,
            attached=_tokenizer(run_dir, record),
        )

    if not settings.skip_existing:
        return write(), True
    path, written = find_or_publish(
        model_dir, lambda: _alike(settings, model_dir, provenance, sequence), write, say
    )
    if not written:
        say(f"step {chosen.step} of run {settings.run} is exported already")
    return path, written


def _check_names(settings: RunExport) -> None:
    for flag, value in (("--run", settings.run), ("--name", settings.model)):
        if not MODEL_NAME.fullmatch(value):
            raise BadSpec(
                f"{flag} {value!r}: letters, digits, '.', '_' and '-' are allowed, the first no '.'"
            )
    parse_version_name(settings.version)


def _sequence(preset: Preset, name: str) -> SequenceSpec:
    if not preset.predict_signature.any_length:
        raise BadSpec(f"--dynamic-length: preset {name} has no sequence; its inputs are of fixed sizes")
    return SequenceSpec("t", preset.predict_signature.longest)


def _spec(preset: Preset, sequence: SequenceSpec | None, batches: Sequence[int] | None) -> SignatureSpec:
    predict, signature = preset.predict_fn(), preset.predict_signature

    def function(params: Mapping[str, Any], **inputs: Any) -> dict[str, Any]:
        return predict(params, inputs)

    takes = signature.inputs if sequence is None else signature.any_length
    return SignatureSpec(
        function,
        {name: TensorSpec(*spec) for name, spec in takes.items()},
        signature.outputs,
        preset.example_inputs(EXAMPLE_ROWS, seed=0),
        sequence=sequence,
        fixed_batches=batches,
    )


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


def _tokenizer(run_dir: Path, record: RunRecord) -> dict[str, bytes]:
    """The tokenizer of the run's text, where that is not bytes: it goes with the model. Raises as its reader."""
    tokens = record.data.get("tokens")
    return {TOKENIZER: read_tokenizer(run_dir, tokens["sha256"])} if tokens else {}


def source_of_run(provenance: Mapping[str, Any], signature: str) -> Program:
    """The function that a bundle of a run was exported from, of weights and inputs by name, from its preset's source.

    Raises BadSpec where `signature` is none of a run's, UsageError where the preset is not to be found here.
    """
    if signature != SIGNATURE:
        raise BadSpec(f"signature {signature!r}: a preset's function is {SIGNATURE!r}")
    predict = preset_of_run(str(provenance.get("preset")), provenance.get("data") or {}).predict_fn()
    return lambda weights, inputs: dict(predict(weights, inputs))


def checkpoint_of(run_dir: Path, step: str) -> dict[str, Any]:
    """The provenance of a checkpoint that is there, as an export of it says it. Errors are those of train_job's readers."""
    return _provenance(read_run(run_dir), choose_step(run_dir, step))


def _placed(options: ExportOptions, preset: Preset, name: str) -> ExportOptions:
    """With the model's own rules for the axis `tensor`, where there are several devices."""
    if not (axes := options.axes):
        return options
    if set(axes) != {"tensor"}:
        raise BadSpec(f"--mesh {said(axes)}: of a run only tensor=N is known, as --mesh tensor=2")
    if not (rules := getattr(preset.model, "tensor_parallel", None)):
        raise BadSpec(
            f"--mesh {said(axes)}: the model of preset {name} does not say how its weights are cut: give its configuration a "
            "tensor_parallel, as train_job/models/transformer.py has"
        )
    return replace(options, shardings=rules)


def _alike(
    settings: RunExport, model_dir: Path, provenance: Mapping[str, Any], sequence: SequenceSpec | None
) -> Path | None:
    """The highest whole version that an export with these settings would only repeat."""
    options = settings.options
    wanted = (
        set(options.platforms), jax.__version__, installed("jaxlib"), sequence, options.weights_dtype,
        options.vjp_order, parse_batches(settings.fixed_batches), options.axes,
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
                signature and signature.batches, dict(manifest.mesh),
            )  # fmt: skip
            granted = manifest.allowed.items() <= options.allow.items()
            called = options.calling_convention in (None, manifest.calling_convention)
            whole = all_written(manifest.formats, parse_formats(options.formats))
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

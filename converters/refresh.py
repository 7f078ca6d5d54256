"""A bundle written anew by the JAX of this process, from the run that it came of.

path, share = refresh("work/models/nano/1")

What is published answers the goldens of the old bundle within their tolerances: those are what its users have seen.
"""

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax

from converters.bundle import MANIFEST, MODEL_NAME, Bundle, open_bundle
from converters.draft import Draft
from converters.errors import BadSpec, BundleError, GoldenMismatch
from converters.export import local_platform
from converters.formats.stablehlo import batch_of
from converters.manifest import Manifest, Signature
from converters.options import ExportOptions
from converters.placement import simulate
from converters.run import program_runner

MODELS = "models"
ROOT_ABOVE = 2  # ROOT/models/NAME/VERSION
# What makes a checkpoint this one, and no other of the same name.
SAME = ("run_created_at", "fingerprint", "preset")


@dataclass(frozen=True)
class Refreshed:
    """path: the new version. goldens: of the old one, that it answers; worst_share: the largest error as a share of
    what is allowed (0: bit for bit).
    """

    path: Path
    old: Bundle
    goldens: int
    worst_share: float


def refresh(path: Path | str, root: Path | None = None, say: Callable[[str], None] = print) -> Refreshed:
    """Exports the checkpoint of the bundle at `path` once more, into the next version of its model.

    root: holds runs/ and models/; None takes that of a bundle at ROOT/models/NAME/VERSION, else ./work. Platforms,
    devices, lengths, precision, dtype of the stored weights, formats and what was allowed are the old bundle's.

    Raises BundleNotFound and BundleError for the old bundle, BadSpec where it does not come of a run, or the run or its step
    is gone, GoldenMismatch where the new program answers otherwise, and what an export raises; then nothing is
    published.
    """
    old = open_bundle(path)
    simulate(old.manifest.nr_devices)
    root, name = _home(old, root)
    origin = old.manifest.provenance
    if not old.manifest.of_a_run:
        raise BadSpec(_of_a_function(old, origin))
    # flax takes seconds to import, and is not there where bundles are only read.
    from converters.from_run import RunExport, checkpoint_of, export_run

    said = {key: origin.get(key) for key in ("run", "step")}
    try:
        now = checkpoint_of(root / "runs" / str(said["run"]), str(said["step"]))
    except Exception as error:
        if getattr(error, "exit_code", None) != BadSpec.exit_code:
            raise
        raise BadSpec(
            f"{old.path}: comes of step {said['step']} of run {said['run']!r}, which is needed below {root / 'runs'} "
            f"({error}); restore it or name another --root, or export a step that is left: jaxport export --run {said['run']} --name {name}"
        ) from error
    for key in SAME:
        if now.get(key) != origin.get(key):
            raise BadSpec(
                f"{old.path}: comes of another run {said['run']!r} than the one in {root / 'runs'}: {key} was "
                f"{str(origin.get(key))[:40]} and is {str(now.get(key))[:40]}; restore that one or name another --root"
            )
    shares: list[float] = []
    settings = RunExport(
        root=root,
        run=str(said["run"]),
        step=str(said["step"]),
        name=name,
        dynamic_length=any(s.sequence is not None for s in old.manifest.signatures.values()),
        fixed_batches=next((s.batches for s in old.manifest.signatures.values() if s.batches), None),
        origin={"refreshes": _named(old)},
        options=replace(
            _options(old.manifest, old.path),
            accept=lambda drafts, weights: shares.extend(_shares(old, drafts, weights)),
        ),
    )
    with _precision(old.manifest.matmul_precision):
        new, _ = export_run(settings, say)
    return Refreshed(new, old, len(shares), max(shares, default=0.0))


def _options(manifest: Manifest, source: Path) -> ExportOptions:
    """With which the bundle at `source` was exported, as far as it says. BundleError."""
    stored = manifest.stored_weights
    try:
        formats = _formats(manifest)
    except (KeyError, TypeError, AttributeError, ValueError):
        raise BundleError(
            f"{source / MANIFEST}: formats does not say how each was written; export it again"
        ) from None
    return ExportOptions(
        platforms=manifest.platforms,
        formats=formats,
        allow=manifest.allowed,
        weights_dtype=stored and stored.dtype,
        vjp_order=max(signature.vjp_order for signature in manifest.signatures.values()),
        mesh=manifest.mesh,
    )


def _formats(manifest: Manifest) -> dict[str, dict[str, Any]]:
    """The options of each further format, as they show in what was written."""
    asked: dict[str, dict[str, Any]] = {name: {} for name in manifest.formats}
    if (facts := manifest.formats.get("savedmodel")) is not None:
        asked["savedmodel"] = {"platforms": tuple(facts["platforms"])}
    if (facts := manifest.formats.get("stablehlo")) is not None:
        batches = {batch_of(key) for each in facts["signatures"].values() for key in each["files"]}
        asked["stablehlo"] = {"platform": facts["platform"], "batches": tuple(sorted(batches))}
    return asked


def _named(old: Bundle) -> dict[str, Any]:
    """The old bundle in the provenance of the new one."""
    digest = hashlib.sha256((old.path / MANIFEST).read_bytes()).hexdigest()
    return {"version": old.version, "manifest_sha256": digest, "jax_version": old.manifest.jax_version}


def _home(old: Bundle, root: Path | None) -> tuple[Path, str]:
    """(root, name of the model): where the bundle lies says both, unless it lies alone."""
    whole = old.path.absolute()
    name = whole.parent.name
    if old.version == 0 or whole.parent.parent.name != MODELS or not MODEL_NAME.fullmatch(name):
        return root or Path("work"), old.manifest.model
    given = old.path if len(old.path.parents) > ROOT_ABOVE else whole
    return root or given.parents[ROOT_ABOVE], name


def _of_a_function(old: Bundle, origin: Mapping[str, Any]) -> str:
    function, params = origin.get("function", "unknown"), origin.get("params")
    again = "call export_bundle on it again"
    if params is not None:
        again = f"jaxport export --fn {function} --params {params} --name {old.manifest.model}, with the whole path of --params"
    return f"{old.path}: comes of function {function}, whose checkpoint only its owner knows; {again}"


def _shares(old: Bundle, drafts: Sequence[Draft], weights: Mapping[str, jax.Array]) -> Iterator[float]:
    """The error of the new programs at each golden of the old bundle, as a share of what is allowed."""
    made = {draft.signature.name: draft for draft in drafts}
    for name, signature in old.manifest.signatures.items():
        _require_same(old, signature, made[name].signature if name in made else None)
        run = program_runner(made[name].proven.exported, weights, signature.pad)
        for golden in old.goldens(name):
            yield old.check_golden(name, golden, run(golden.inputs), local_platform())


def _require_same(old: Bundle, before: Signature, now: Signature | None) -> None:
    """GoldenMismatch where callers of the old version could not call the new one."""
    sides = ((before.inputs, now.inputs), (before.outputs, now.outputs)) if now is not None else ()
    if now is None or any(one != other for one, other in sides):
        gives = "absent" if now is None else ", ".join(map(str, (*now.inputs, *now.outputs)))
        raise GoldenMismatch(
            f"{old.path}: signature {before.name!r} has {', '.join(map(str, (*before.inputs, *before.outputs)))} and "
            f"would be {gives}: the preset has changed; jaxport export makes a version that is not the same"
        )


@contextlib.contextmanager
def _precision(name: str) -> Iterator[None]:
    """Products are as precise as in the old bundle."""
    before = jax.config.jax_default_matmul_precision  # pyright: ignore[reportAttributeAccessIssue]
    jax.config.update("jax_default_matmul_precision", None if name == "default" else name)
    try:
        yield
    finally:
        jax.config.update("jax_default_matmul_precision", before)

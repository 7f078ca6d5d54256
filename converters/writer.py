"""Proven signatures as the files of a bundle: programs, goldens, weights, further formats, and the manifest over them."""

import hashlib
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any

import jax
import numpy as np

from converters.bundle import MANIFEST, MANIFEST_DIGEST, WEIGHTS, array_sha256, digest_line
from converters.draft import Draft
from converters.formats import Formats, ProvenBundle, write_formats
from converters.golden import pack_goldens
from converters.manifest import FileDigest, Manifest, StoredWeights, Tolerance, WeightSpec
from converters.manifest_json import to_json
from converters.placement import Placement
from converters.program import serialization_version, stablehlo_version
from converters.window import window_ends


@dataclass(frozen=True)
class Contents:
    """All that a bundle is made of. formats: options of each further format by name. origin: the provenance.

    allowed: what the rules found and were told to let through, the reason by code. placement: of the weights, for
    programs of several devices. attached: further files by name, which only those who know of them read.
    """

    model: str
    drafts: Sequence[Draft]
    weights: Mapping[str, np.ndarray]
    platforms: tuple[str, ...]
    precision: str
    usage: Mapping[str, str]
    origin: Mapping[str, Any]
    formats: Formats
    allowed: Mapping[str, str] = field(default_factory=dict)
    stored_weights: StoredWeights | None = None
    placement: Placement | None = None
    attached: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def proven(self) -> ProvenBundle:
        """What a writer of a further format is given."""
        signatures = {draft.signature.name: draft.proven for draft in self.drafts if not draft.signature.loss}
        return ProvenBundle(self.model, signatures, self.weights, self.platforms, self.usage)


def write_bundle(folder: Path, contents: Contents) -> None:
    """Writes everything into `folder`, which is there and empty; the manifest and its digest come last."""
    for draft in contents.drafts:
        for batch, path in draft.signature.programs.items():
            _write(folder / path, draft.programs[batch])
        _write(folder / draft.signature.golden, pack_goldens(draft.proven.proof.goldens))
        if draft.gradient is not None:
            _write(folder / draft.signature.gradient_golden, pack_goldens([draft.gradient.golden]))
    for name, content in contents.attached.items():
        _write(folder / name, content)
    _save_weights(folder / WEIGHTS, contents.weights)
    formats = write_formats(folder, contents.proven, contents.formats)
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    files = {path.relative_to(folder).as_posix(): _digest(path) for path in paths}
    data = to_json(_manifest(contents, formats, files)).encode()
    (folder / MANIFEST).write_bytes(data)
    (folder / MANIFEST_DIGEST).write_text(digest_line(data))


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)


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
    contents: Contents, formats: Mapping[str, Mapping[str, Any]], files: Mapping[str, FileDigest]
) -> Manifest:
    # What one export writes is of one JAX: any program speaks for all of them.
    first = contents.drafts[0]
    batch, exported = next(iter(first.proven.exported.items()))
    weights = tuple(
        WeightSpec(name, w.dtype.name, w.shape, array_sha256(w)) for name, w in contents.weights.items()
    )
    return Manifest(
        model=contents.model,
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        provenance={**contents.origin, "git_commit": contents.origin.get("git_commit") or _git_commit()},
        jax_version=jax.__version__,
        jaxlib_version=installed("jaxlib"),
        serialization_version=serialization_version(first.programs[batch]),
        calling_convention=exported.calling_convention_version,
        stablehlo_version=stablehlo_version(exported),
        window_ends=window_ends(installed("jaxlib")).isoformat(),
        platforms=tuple(exported.platforms),
        nr_devices=exported.nr_devices,
        matmul_precision=contents.precision,
        signatures={draft.signature.name: draft.signature for draft in contents.drafts},
        weights=weights,
        tolerances=_tolerances(contents.drafts),
        usage=dict(contents.usage),
        files=files,
        formats=formats,
        allowed=dict(contents.allowed),
        stored_weights=contents.stored_weights,
        mesh={} if contents.placement is None else dict(contents.placement.mesh.shape),
        shardings={} if contents.placement is None else dict(contents.placement.cuts),
    )


def _tolerances(drafts: Sequence[Draft]) -> dict[str, dict[str, Tolerance]]:
    found: dict[str, dict[str, Tolerance]] = {}
    for draft in drafts:
        for platform, outputs in draft.proven.proof.tolerances.items():
            named = {f"{draft.signature.name}/{name}": tolerance for name, tolerance in outputs.items()}
            found.setdefault(platform, {}).update(named)
            if draft.gradient is not None:
                of_groups = draft.gradient.tolerances[platform].items()
                found[platform] |= {f"{draft.signature.name}/vjp/{group}": t for group, t in of_groups}
    return found


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

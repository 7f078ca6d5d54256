"""manifest.json read and written: with signature_json.py all that knows its JSON.

The file is written once by an export and read by everyone else, so whatever it says is checked before it is believed.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from datetime import date
from typing import Any

from converters import fields
from converters.cuts import Cut, misfit
from converters.errors import BundleError
from converters.manifest import (
    SCHEMA_VERSION,
    FileDigest,
    Manifest,
    OutputError,
    StoredWeights,
    Tolerance,
    WeightSpec,
)
from converters.signature_json import OF_A_SIGNATURE, parse_dimensions, parse_signature

LONGEST_AXIS = 64
LONGEST_VERSION = 64
# Fields that are left out where they say nothing: as readers know it that have never heard of them.
OF_A_MANIFEST = ("formats", "allowed", "stored_weights", "mesh", "shardings")
TEXTS = ("model", "created_at", "jax_version", "jaxlib_version", "stablehlo_version", "matmul_precision")
NUMBERS = ("serialization_version", "calling_convention")
NEEDED_OF_A_MANIFEST = (
    *("schema_version", *TEXTS, *NUMBERS, "provenance", "window_ends", "platforms", "nr_devices"),
    *("signatures", "weights", "tolerances", "usage", "files"),
)


def to_json(manifest: Manifest) -> str:
    """The text of manifest.json."""
    raw = {"schema_version": manifest.schema_version, **asdict(manifest)}
    for part, names in ((raw, OF_A_MANIFEST), *((s, OF_A_SIGNATURE) for s in raw["signatures"].values())):
        for name in names:
            if not part[name]:
                del part[name]
    return json.dumps(raw, indent=2) + "\n"


def parse_manifest(data: bytes, source: str) -> Manifest:
    """Reads manifest.json's bytes; BundleError names `source` and the field that is not understood."""
    try:
        raw = json.loads(data)
        version = raw["schema_version"]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise BundleError(f"{source}: not a manifest ({error})") from None
    if version != SCHEMA_VERSION or not isinstance(version, int) or isinstance(version, bool):
        said = version if isinstance(version, str) else json.dumps(version)
        raise BundleError(
            f"{source}: schema_version is {ascii(said[: fields.SHOWN])[1:-1]}, this jaxport reads {SCHEMA_VERSION}; "
            "read it with the jaxport that wrote it, or export again"
        )
    try:
        return _manifest(raw)
    except ValueError as error:
        raise BundleError(f"{source}: a field is missing or malformed ({error})") from None
    # What no check above has thought of is no manifest either.
    except (KeyError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        raise BundleError(
            f"{source}: a field is missing or malformed ({fields.shown(repr(error))})"
        ) from None


def _manifest(raw: Any) -> Manifest:
    found = fields.record(raw, "", NEEDED_OF_A_MANIFEST, OF_A_MANIFEST)
    for name in TEXTS:
        fields.text(found[name], name)
    for name in NUMBERS:
        fields.whole(found[name], name)
    if len(found["jaxlib_version"]) > LONGEST_VERSION:
        raise fields.wrong(found["jaxlib_version"], "jaxlib_version", f"at most {LONGEST_VERSION} characters")
    if not 2000 <= _date(found["window_ends"], "window_ends").year <= 9000:
        raise fields.wrong(found["window_ends"], "window_ends", "a year from 2000 to 9000")
    found["provenance"] = fields.mapping(fields.plain(raw["provenance"], "provenance"), "provenance")
    if not found["platforms"] or not found["signatures"]:
        raise ValueError("platforms and signatures may not be empty")
    platforms = fields.items(found["platforms"], "platforms")
    found["platforms"] = tuple(fields.text(p, f"platforms[{i}]") for i, p in enumerate(platforms))
    found["files"] = {
        name: _file(name, value) for name, value in fields.mapping(found["files"], "files").items()
    }
    found["signatures"] = {
        name: parse_signature(name, value)
        for name, value in fields.mapping(found["signatures"], "signatures").items()
    }
    for name, signature in found["signatures"].items():
        gradient = (signature.gradient_golden,) if signature.vjp_order else ()
        for path in (*signature.programs.values(), signature.golden, *gradient):
            if path not in found["files"]:
                raise ValueError(f"files has no {path}, which is part of the signature {name}")
    found["weights"] = tuple(
        _weight(each, f"weights[{index}]")
        for index, each in enumerate(fields.items(found["weights"], "weights"))
    )
    found["tolerances"] = {
        platform: {
            output: _tolerance(value, fields.at(f"tolerances.{platform}", output))
            for output, value in fields.mapping(outputs, fields.at("tolerances", platform)).items()
        }
        for platform, outputs in fields.mapping(found["tolerances"], "tolerances").items()
    }
    found["usage"] = fields.texts(found["usage"], "usage")
    found["allowed"] = fields.texts(found.get("allowed", {}), "allowed")
    formats = fields.plain(found.get("formats", {}), "formats")
    found["formats"] = {
        name: fields.mapping(facts, fields.at("formats", name))
        for name, facts in fields.mapping(formats, "formats").items()
    }
    stored = found.get("stored_weights")
    found["stored_weights"] = None if stored is None else _stored_weights(stored, "stored_weights")
    found["mesh"] = _mesh(found.get("mesh", {}), found["nr_devices"])
    found["shardings"] = _shardings(found.get("shardings", {}), found["weights"], found["mesh"])
    return Manifest(**found)


def _date(value: Any, where: str) -> date:
    try:
        return date.fromisoformat(fields.text(value, where))
    except ValueError:
        raise fields.wrong(value, where, "a date, as 2027-04-21") from None


def _file(name: str, value: Any) -> FileDigest:
    where = f"files[{fields.shown(name)}]"
    if not name or name.startswith("/") or ".." in name.split("/"):
        raise ValueError(f"{where} leaves the bundle")
    found = fields.record(value, where, ("sha256", "bytes"))
    return FileDigest(
        fields.digest(found["sha256"], f"{where}.sha256"), fields.whole(found["bytes"], f"{where}.bytes")
    )


def _weight(value: Any, where: str) -> WeightSpec:
    found = fields.record(value, where, ("name", "dtype", "shape", "sha256"))
    return WeightSpec(
        fields.text(found["name"], f"{where}.name"),
        fields.text(found["dtype"], f"{where}.dtype"),
        tuple(
            fields.whole(size, f"{where}.shape")
            for size in parse_dimensions(found["shape"], f"{where}.shape")
        ),
        fields.digest(found["sha256"], f"{where}.sha256"),
    )


def _stored_weights(value: Any, where: str) -> StoredWeights:
    found = fields.record(value, where, ("dtype", "computes_in", "bytes_before", "bytes_after", "errors"))
    errors = {}
    for name, error in fields.mapping(found["errors"], f"{where}.errors").items():
        here = fields.at(f"{where}.errors", name)
        both = fields.record(error, here, ("largest", "relative"))
        errors[name] = OutputError(
            **{key: fields.number(each, f"{here}.{key}") for key, each in both.items()}
        )
    return StoredWeights(
        fields.text(found["dtype"], f"{where}.dtype"),
        fields.texts(found["computes_in"], f"{where}.computes_in"),
        fields.whole(found["bytes_before"], f"{where}.bytes_before"),
        fields.whole(found["bytes_after"], f"{where}.bytes_after"),
        errors,
    )


def _mesh(value: Any, devices: Any) -> dict[str, int]:
    """Sizes by axis, which make as many devices as are said."""
    fields.whole(devices, "nr_devices", 1)
    mesh = fields.mapping(value, "mesh")
    for name, size in mesh.items():
        if not name.isidentifier() or len(name) > LONGEST_AXIS:
            raise fields.wrong(name, "an axis of the mesh", f"a name of at most {LONGEST_AXIS} characters")
        fields.whole(size, f"mesh.{name}", 1)
    if math.prod(mesh.values()) != devices or (mesh and devices == 1):
        raise ValueError(f"the mesh is {fields.shown(mesh)} for {devices} devices")
    return mesh


def _shardings(value: Any, weights: tuple[WeightSpec, ...], mesh: Mapping[str, int]) -> dict[str, Cut]:
    """How weights are cut, into equal pieces."""
    shapes, cuts = {weight.name: weight.shape for weight in weights}, {}
    for name, cut in fields.mapping(value, "shardings").items():
        where = fields.at("shardings", name)
        if name not in shapes:
            raise ValueError(f"{where} is of no weight")
        cuts[name] = tuple(_part(part, where) for part in fields.items(cut, where))
        if why := misfit(cuts[name], shapes[name], mesh):
            raise ValueError(f"{where}: {why[:80]}")
    return cuts


def _part(value: Any, where: str) -> str | tuple[str, ...] | None:
    if isinstance(value, list):
        return tuple(fields.text(name, where) for name in value)
    return None if value is None else fields.text(value, where)


def _tolerance(value: Any, where: str) -> Tolerance:
    """What allows everything, infinity or no number, would let any answer pass."""
    found = fields.record(value, where, ("atol", "rtol", "wrong"))
    for key, each in found.items():
        fields.number(each, f"{where}.{key}")
        if key != "wrong" and not (math.isfinite(each) and each >= 0):
            raise ValueError(f"{where}.{key}: the tolerance {each}; needed: a finite number from 0")
    return Tolerance(**found)

"""A manifest whose digest is right may hold anything: it is refused in one line with the field, or all of it works."""

import copy
import dataclasses
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from converters import describe
from converters.bundle import Bundle, open_bundle
from converters.errors import BundleError
from converters.formats import all_written
from converters.golden import Golden, pack_goldens, unpack_goldens
from converters.loaded import load_bundle
from converters.manifest_json import parse_manifest
from converters.refresh import _options as refresh_options
from converters.verify import _tolerances as format_tolerances
from jaxport.cli import main
from tests.converters.test_bundle import rewrite_manifest

DEEP = json.loads("[" * 500 + "]" * 500)
WRONG = (
    *(5, -1, 1.5, 10**30, 10**400, float("nan"), float("inf"), True, None),
    *("x", "", "\ud800", "a\0b", "9" * 300, [], {}, ["a"], [5, 5], {"a": 5}, DEEP),
)


def everything(bundle: Path) -> dict[str, Any]:
    """What a bundle has, and all that one may have."""
    m = json.loads((bundle / "manifest.json").read_text())
    m["weights"] = m["weights"][:2]
    predict, file = m["signatures"]["predict"], m["files"]["golden/predict.npz"]
    of_a_name = {name: file for name in m["files"] if name.startswith(("programs/", "golden/"))}
    free = {
        "name": "free",
        "sequence": {"symbol": "t", "most": 16},
        "constraints": ["k >= 2"],
        "sizes": {"k": [2, 4]},
    }
    free |= {"bounds": {"k": [2, None], "2*k": [4, None]}, "vjp_order": 1, "pad": {"x": 0, "y": 0}}
    free |= {"inputs": [{"name": "x", "dtype": "float32", "shape": ["b", "t", "k"]}]}
    free["inputs"].append({"name": "y", "dtype": "int8", "shape": ["b", "2*k"]})
    loss = {"name": "loss", "outputs": [{"name": "loss", "dtype": "float32", "shape": []}], "loss": True}
    fixed = {"name": "fixed", "batches": [1, 4]}
    m["signatures"] |= {each["name"]: predict | each for each in (free, loss, fixed)}
    for name in ("free", "loss"):
        of_a_name |= {
            f"programs/{name}.jaxexport": file,
            f"golden/{name}.npz": file,
            f"golden/{name}.vjp.npz": file,
        }
    of_a_name |= {f"programs/fixed.b{n}.jaxexport": file for n in (1, 4)} | {"golden/fixed.npz": file}
    m["files"] = copy.deepcopy(of_a_name)
    m["tolerances"] = {"cpu": {"predict/logits": m["tolerances"]["cpu"]["predict/logits"]}}
    m["nr_devices"], m["mesh"] = 2, {"tensor": 2}
    m["shardings"] = {"layers.0.w": [["tensor"], None], "layers.0.b": ["tensor"]}
    m["allowed"], m["usage"] = {"JP101": "it is right"}, {"task": "flowers", "tokenizer": "bytes"}
    checked = {"with": "tensorflow 2.21.0", "worst_difference": 1e-7}
    m["formats"] = {
        "savedmodel": {"path": "savedmodel/1", "signatures": {"predict": "predict"}, "checked": checked}
    }
    m["stored_weights"] = {
        "dtype": "int8",
        "computes_in": {"layers.0.w": "float32"},
        "bytes_before": 9,
        "bytes_after": 3,
    }
    m["stored_weights"]["errors"] = {"predict/logits": {"largest": 0.1, "relative": 0.01}}
    run = {"source": "run", "run": "r", "preset": "tiny", "step": 9, "metrics": {"val_loss": 1.5}}
    m["provenance"] = run | {"data": {"name": "text"}, "refreshes": {"version": 1, "jax_version": "0.11.2"}}
    return json.loads(json.dumps(m))


def places(value: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Of every leaf and container, from the outside in."""
    for key, each in value.items() if isinstance(value, dict) else enumerate(value):
        yield (*way, key)
        if isinstance(each, dict | list):
            yield from places(each, (*way, key))


def changed(manifest: dict[str, Any], way: tuple[Any, ...]) -> Iterator[None]:
    """The manifest with each wrong value at the place, without it, and with a name more; then as it was."""
    at: Any = manifest
    for key in way[:-1]:
        at = at[key]
    right = at[way[-1]]
    for value in WRONG:
        at[way[-1]] = value
        yield
    del at[way[-1]]
    yield
    at.insert(way[-1], right) if isinstance(at, list) else at.update({way[-1]: right})
    if isinstance(right, dict):
        for name in ("more", "\ud800", ""):
            at[way[-1]] = right | {name: next(iter(right.values()), 1)}
            yield
        at[way[-1]] = right


def used(bundle: Bundle) -> None:
    """All that is said of a bundle without its programs."""
    describe.summary(bundle).encode()
    json.dumps(describe.as_json(bundle), ensure_ascii=False).encode()
    for signature in bundle.manifest.signatures.values():
        for compiled in (*signature.compiled, *map(signature.at_batch, signature.programs)):
            assert {tensor.name for tensor in compiled.inputs} >= signature.pad.keys()


def test_every_field_is_what_it_has_to_be_or_is_named(
    iris_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(describe, "installed", {"jaxlib": "0.12.0"}.__getitem__)  # reads files each time
    manifest = everything(iris_bundle)
    intact = json.dumps(manifest)
    used(Bundle(iris_bundle, parse_manifest(intact.encode(), "m")))
    tried, refused = 0, 0
    for way in list(places(manifest)):
        for _ in changed(manifest, way):
            data = json.dumps(manifest).encode()
            tried += 1
            try:
                used(Bundle(iris_bundle, parse_manifest(data, "m/manifest.json")))
            except BundleError as error:
                refused += 1
                line = str(error)
                assert line.startswith("m/manifest.json: ") and line.isprintable() and len(line) < 400, line
            except Exception as error:
                error.add_note(f"at {way}: {value_at(manifest, way)!r:.200}")
                raise
    assert json.dumps(manifest) == intact
    assert tried > 4000 and refused > tried / 2


def value_at(manifest: Any, way: tuple[Any, ...]) -> Any:
    for key in way:
        manifest = manifest[key] if not isinstance(manifest, dict) or key in manifest else "nothing"
    return manifest


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda m: m["signatures"]["predict"].update(program_sha256=7), "signatures.predict.program_sha256 is 7; needed: a sha256"),
        (lambda m: m["signatures"]["predict"].update(outputs=[]), "signatures.predict.outputs is []; needed: a list that is not empty"),
        (lambda m: m["signatures"]["predict"]["inputs"][0].update(name=["a"]), "signatures.predict.inputs[0].name is ['a']; needed: text"),
        (lambda m: m.update(platforms=["cpu", 5]), "platforms[1] is 5; needed: text"),
        (lambda m: m.update(model="\ud800"), r"model is '\ud800'; needed: text of whole characters"),
        (lambda m: m.update(created_at=None), "created_at is None; needed: text"),
        (lambda m: m.pop("usage"), "usage is missing"),
        (lambda m: m.update(more=1), "more is no field that this jaxport knows"),
        (lambda m: m["provenance"].update(note=["\ud800"]), r"provenance.note[0] is '\ud800'; needed: text"),
        (lambda m: m["files"].pop("programs/predict.jaxexport"), "files has no programs/predict.jaxexport"),
        (lambda m: m["signatures"]["predict"]["pad"].update(x=10**400), "signatures.predict.pad.x is 1000"),
    ],
)  # fmt: skip
def test_a_field_is_named_with_its_value_and_what_is_needed(
    change: Callable[[dict[str, Any]], object], says: str, iris_bundle: Path, tmp_path: Path
) -> None:
    path = altered(iris_bundle, tmp_path, change)
    with pytest.raises(BundleError) as refused:
        load_bundle(path)
    line = str(refused.value)
    assert line.startswith(f"{path}/manifest.json: a field is missing or malformed ({says}"), line


def altered(bundle: Path, folder: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """A copy whose manifest says something else, with the digest that belongs to it."""
    path = Path(shutil.copytree(bundle, folder / "iris" / "1"))
    rewrite_manifest(path, change)
    return path


def test_a_provenance_of_anything_is_shown(
    iris_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = {
        "source": "run",
        "metrics": {"val_loss": "oops", "bits": 10**400, "ok": 0.25},
        "data": "text",
        "step": [9],
    }
    path = altered(iris_bundle, tmp_path, lambda m: m.update(provenance=said))
    assert main(["inspect", str(path)]) == 0
    told = capsys.readouterr().out
    assert "run None (preset None), step [9], unknown data; bits 1000" in told and "val_loss oops" in told


def test_a_too_large_choice_of_sizes_is_not_gone_through(iris_bundle: Path) -> None:
    manifest = everything(iris_bundle)
    free = manifest["signatures"]["free"]
    names = [f"k{n}" for n in range(20)]
    free["inputs"][1]["shape"] += names
    free["sizes"] |= {name: list(range(1, 17)) for name in names}
    with pytest.raises(BundleError, match=r"signatures\.free\.sizes has more than 65536 combinations"):
        parse_manifest(json.dumps(manifest).encode(), "m")


@pytest.mark.parametrize("data", [b"", b"x", pack_goldens([]), b"PK\x05\x06" + bytes(18)])
def test_goldens_that_are_none_are_named_with_their_file(data: bytes) -> None:
    with pytest.raises(BundleError, match=r"^m/golden/predict\.npz: not a golden file \(.+\)$"):
        unpack_goldens(data, "m/golden/predict.npz")


@pytest.mark.parametrize("change", [{"batch": -1}, {"length": True}, {"sizes": {"k": "2"}}])
def test_a_golden_of_no_size_is_none(change: dict[str, Any], iris_bundle: Path) -> None:
    golden = dataclasses.replace(open_bundle(iris_bundle).goldens()[0], **change)
    with pytest.raises(BundleError, match=r"^m: not a golden file \(\w+ is"):
        unpack_goldens(pack_goldens([golden]), "m")


def test_goldens_of_another_signature_are_refused(iris_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = open_bundle(iris_bundle)
    golden = bundle.goldens()[0]
    for inputs in ({}, {"x": golden.inputs["x"][0]}, {"x": golden.inputs["x"].astype("int32")}):
        other = pack_goldens([Golden(1, inputs, golden.outputs)])
        monkeypatch.setattr(Bundle, "read", lambda self, name, other=other: other)
        with pytest.raises(BundleError, match=r"golden/predict\.npz: a golden has arrays that are not those"):
            bundle.goldens()


def test_a_weight_without_elements_has_a_dtype_of_numbers(iris_bundle: Path, tmp_path: Path) -> None:
    for dtype in ("object", "str", "float33"):
        path = altered(
            iris_bundle, tmp_path / dtype, lambda m, d=dtype: m["weights"][0].update(dtype=d, shape=[0])
        )
        with pytest.raises(BundleError, match=r"weights: not the weights of manifest\.json"):
            open_bundle(path).load_weights()


@pytest.mark.parametrize("facts", [{}, {"signatures": 5, "platform": "cpu"}, {"signatures": {"predict": []}}])
def test_facts_of_a_format_that_are_none_are_a_line_or_no_reason_to_skip(
    facts: dict[str, Any], iris_bundle: Path
) -> None:
    manifest = json.loads((iris_bundle / "manifest.json").read_text())
    for name in ("stablehlo", "savedmodel", "onnx"):
        parsed = parse_manifest(json.dumps(manifest | {"formats": {name: facts}}).encode(), "m")
        assert not all_written(parsed.formats, {name: {}}) or (name, bool(facts)) == ("onnx", True)
        if name != "onnx":
            with pytest.raises(
                BundleError, match=r"^m/manifest\.json: formats does not say how each was written"
            ):
                refresh_options(parsed, Path("m"))


def test_a_format_without_tolerances_is_a_line(iris_bundle: Path) -> None:
    for tolerances in ({}, {"cpu": {}}):
        manifest = dataclasses.replace(open_bundle(iris_bundle).manifest, tolerances=tolerances)
        with pytest.raises(
            BundleError, match=r"^m/manifest\.json: has no tolerance for an output of 'predict'"
        ):
            format_tolerances(manifest, manifest.signatures["predict"], Path("m"))

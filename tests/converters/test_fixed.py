"""A function that needs its batch as a number: a program for each of a few batches, rows between them padded."""

import hashlib
import json
import shutil
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from orbax.checkpoint import v1 as ocp

from converters import SequenceSpec, TensorSpec, export_bundle, load_bundle, open_bundle
from converters.bundle import MANIFEST, MANIFEST_DIGEST, digest_line
from converters.describe import program_text, summary
from converters.errors import BadSpec, BundleError, BundleNotFound, ExportRefused, GoldenMismatch
from converters.formats.lowering import any_batch
from converters.from_run import RunExport, _alike
from converters.manifest_json import parse_manifest
from converters.run import program_runner
from converters.verify import verify
from jaxport.cli import main
from tests.converters.conftest import export_iris
from tests.serve_grpc.bundles import export_row_by_row, row_by_row, row_by_row_params, row_by_row_rows

BATCHES = (1, 2, 4, 8)


def export(path: Path, fn: Callable[..., Any] = row_by_row, **changes: Any) -> Path:
    arguments: dict[str, Any] = {
        "inputs": {"x": TensorSpec("float32", "b, 4")},
        "outputs": ("y",),
        "example": row_by_row_rows(3),
        "platforms": ("cpu",),
        "fixed_batches": BATCHES,
    }
    return export_bundle(path, fn, row_by_row_params(), **(arguments | changes))


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """models/rows/1 of BATCHES, to be read only."""
    return export_row_by_row(tmp_path_factory.mktemp("models"), batches=BATCHES)


def compares(params: Any, x: jax.Array) -> dict[str, jax.Array]:
    return {"y": x @ params["w"] if x.shape[0] > 2 else (params["w"].T @ x.T).T}


@pytest.mark.parametrize(
    ("fn", "code", "place"),
    [(row_by_row, "JP105", r"bundles\.py:\d+"), (compares, "JP104", r"test_fixed\.py:\d+")],
)
def test_a_batch_that_cannot_be_a_symbol_is_named_by_its_line_and_can_be_fixed(
    fn: Callable[..., Any], code: str, place: str, tmp_path: Path
) -> None:
    with pytest.raises(ExportRefused, match=f"^{code}: .* at {place}: .*--fixed-batch 1,2,4,8"):
        export(tmp_path / "m" / "1", fn, fixed_batches=None)
    path = export(tmp_path / "m" / "1", fn, fixed_batches=[4, 1, 4])
    assert open_bundle(path).signature().batches == (1, 4)


def test_there_is_a_program_for_each_and_any_number_of_rows_runs(bundle: Path) -> None:
    opened = open_bundle(bundle)
    signature, weights = opened.signature(), opened.load_weights()
    assert dict(signature.programs) == {n: f"programs/predict.b{n}.jaxexport" for n in BATCHES}
    assert {p.name for p in (bundle / "programs").iterdir()} == {f"predict.b{n}.jaxexport" for n in BATCHES}
    assert [t.shape for t in (*signature.inputs, *signature.outputs)] == [("b", 4), ("b", 3)]
    assert opened.exported(batch=4).in_avals[-1].shape == (4, 4)
    assert [g.batch for g in opened.goldens()] == [1, 3]
    run = program_runner(opened.programs(), weights, signature.pad)
    given = {}
    for rows in (*range(1, 10), 19):
        given = row_by_row_rows(rows)
        np.testing.assert_allclose(run(given)["y"], given["x"] @ weights["w"], rtol=1e-5, atol=1e-5)
    loaded = load_bundle(bundle)
    np.testing.assert_allclose(loaded.predict(**given)["y"], given["x"] @ weights["w"], rtol=1e-5, atol=1e-5)
    traced = jax.jit(lambda w, x: loaded.predict.apply(w, x=x)["y"])(weights, given["x"])
    np.testing.assert_allclose(traced, given["x"] @ weights["w"], rtol=1e-5, atol=1e-5)
    assert verify(bundle).goldens == 2
    assert "rows, run as 1, 2, 4, 8: padded to the next, and split" in summary(opened)
    assert "tensor<8x4xf32>" in program_text(opened, "predict")[0]
    with pytest.raises(BundleNotFound, match="no program of 'predict' for any batch; it has 1, 2, 4, 8"):
        opened.exported()
    with pytest.raises(BundleNotFound, match="for batch 3; it has 1, 2, 4, 8"):
        opened.exported(batch=3)


def test_a_bundle_of_any_batch_says_nothing_of_it(iris_bundle: Path) -> None:
    assert '"batches"' not in (iris_bundle / MANIFEST).read_text()
    with pytest.raises(BundleNotFound, match="for batch 4; it has any batch in one program"):
        open_bundle(iris_bundle).exported(batch=4)


def test_weights_alone_leave_the_swap_key_and_batches_do_not(bundle: Path, tmp_path: Path) -> None:
    assert open_bundle(export_row_by_row(tmp_path, 2, seed=5, batches=BATCHES)).swap_key == (
        key := open_bundle(bundle).swap_key
    )
    assert open_bundle(export_row_by_row(tmp_path, 3, batches=(1,))).swap_key != key


def test_verify_runs_the_program_of_every_batch(bundle: Path, tmp_path: Path) -> None:
    """One is another function's, with digests that are right; no golden of 1 or 3 rows would go there in a server."""
    batch = 2
    other = export(
        tmp_path / "other" / "1", lambda params, x: row_by_row(params, x + 1), fixed_batches=(batch,)
    )
    wrong = Path(shutil.copytree(bundle, tmp_path / "rows" / "1"))
    name = f"programs/predict.b{batch}.jaxexport"
    data = (other / name).read_bytes()
    (wrong / name).write_bytes(data)
    manifest = json.loads((wrong / MANIFEST).read_text())
    manifest["files"][name] = {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
    text = json.dumps(manifest).encode()
    (wrong / MANIFEST).write_bytes(text)
    (wrong / MANIFEST_DIGEST).write_text(digest_line(text))
    with pytest.raises(GoldenMismatch, match="output 'y' is off by"):
        verify(wrong)


def test_a_program_of_another_batch_than_the_manifest_says_is_refused(bundle: Path, tmp_path: Path) -> None:
    wrong = Path(shutil.copytree(bundle, tmp_path / "rows" / "1"))
    manifest = json.loads((wrong / MANIFEST).read_text())
    small, large = (f"programs/predict.b{n}.jaxexport" for n in (2, 4))
    (wrong / small).write_bytes((wrong / large).read_bytes())
    manifest["files"][small] = manifest["files"][large]
    text = json.dumps(manifest).encode()
    (wrong / MANIFEST).write_bytes(text)
    (wrong / MANIFEST_DIGEST).write_text(digest_line(text))
    with pytest.raises(
        BundleError, match=r"input 'x' of 'predict' is float32\[2, 4\], the program has .*4, 4"
    ):
        open_bundle(wrong).programs()


def apart(params: Any, x: jax.Array) -> jax.Array:
    return x * (2.0 if x.shape[0] == 1 else 3.0)


def only_whole_batches(params: Any, x: jax.Array) -> jax.Array:
    assert x.shape[0] in BATCHES
    return x * 2


@pytest.mark.parametrize(
    ("fn", "batches", "said"),
    [
        (apart, None, "^JP106: "),
        (apart, (1, 2, 4), "^JP107: in the program for batch 1: .* row 0 alone"),
        (apart, (2, 4), "^JP106: .* at batch 1: "),
        (lambda p, x: x + (x.shape[0] == 3), (1, 2, 4), r"^JP10[67]: "),
        (lambda p, x: x + (x.shape[0] > 4), (1, 2, 4), "^JP106: .* at batch 5: "),
        (lambda p, x: x + (x.shape[0] == 6), (1, 2, 4, 8), "^JP106: .* at batch 6: "),
        (lambda p, x: x - x.mean(0), (2, 4), "^JP107: in the program for batch 2"),
        (lambda p, x: x + x[-1:] if x.shape[0] == 8 else x, (1, 8), "^JP10[78]: in the program for batch 8"),
        (lambda p, x: jnp.concatenate([x[:1], x[:-1]]), (1, 2, 8), "^JP10"),
        (lambda p, x: x + (jnp.arange(x.shape[0])[:, None] == 6), (1, 8), "^JP10[78]: in the program for batch 8"),
        (lambda p, x: x @ x.T, (4, 8), r"^JP109: output 'y' has shape \[8, 8\] in a batch of 8"),
        (lambda p, x: x.sum(), (4,), r"^JP109: output 'y' has shape \[\] in a batch of 4"),
        (lambda p, x: jax.random.split(jax.random.key(0), x.shape[0]), (1, 4), "^JP111: output 'y' is of key"),
        (only_whole_batches, BATCHES, r"test_fixed\.py:\d+: AssertionError.*called with 3 rows it has to answer too"),
    ],
)  # fmt: skip
def test_rows_that_depend_on_the_batch_are_refused(
    fn: Callable[..., Any], batches: tuple[int, ...] | None, said: str, tmp_path: Path
) -> None:
    with pytest.raises(ExportRefused, match=said):
        export(tmp_path / "m" / "1", fn, fixed_batches=batches)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"fixed_batches": ()}, r"fixed_batches: \[\]; some numbers of rows from 1"),
        ({"fixed_batches": (0, 1)}, r"fixed_batches: \[0, 1\]; some"),
        ({"fixed_batches": (True,)}, "some numbers of rows"),
        ({"fixed_batches": (1, 10**9)}, "1000000000 rows; at most 65536 are needed"),
        ({"fixed_batches": range(1, 18)}, "17 of them, each a program to compile; at most 16"),
        ({"inputs": {"x": TensorSpec("float32", "b, t")}, "sequence": SequenceSpec("t", 4)}, "beside sequence="),
        ({"inputs": {"x": TensorSpec("float32", "b, k")}, "sizes": {"k": (4,)}}, "beside the symbol 'k'"),
        ({"vjp_order": 1}, "beside vjp_order=, which needs one program for any batch"),
    ],
)  # fmt: skip
def test_a_declaration_that_does_not_fit_is_one_line(
    changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(BadSpec, match=said) as refused:
        export(tmp_path / "m" / "1", **changes)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "batches", [[0], [-1], [2, 1], [1, 1], ["1"], [True], 4, [2**63], list(range(1, 18)), None]
)
def test_batches_that_are_none_are_no_manifest(batches: Any, bundle: Path) -> None:
    manifest = json.loads((bundle / MANIFEST).read_text())
    parse_manifest(json.dumps(manifest).encode(), "m")
    manifest["signatures"]["predict"]["batches"] = batches
    with pytest.raises(BundleError, match="a field is missing or malformed"):
        parse_manifest(json.dumps(manifest).encode(), "m")


def test_formats_have_a_program_for_each_batch_or_refuse(tmp_path: Path) -> None:
    path = export(tmp_path / "m" / "1", fixed_batches=(1, 4), formats=("stablehlo",))
    files = open_bundle(path).manifest.formats["stablehlo"]["signatures"]["predict"]["files"]
    assert files == {str(n): f"stablehlo/predict.b{n}.mlirbc" for n in (1, 4)}

    class Proven:
        signature, exported = open_bundle(path).signature(), dict.fromkeys((1, 4))

    with pytest.raises(
        ExportRefused, match=r"savedmodel: 'predict' takes batches of 1, 4 only, .* leave it out"
    ):
        any_batch("savedmodel", Proven())  # pyright: ignore[reportArgumentType]


def test_fewer_bits_and_fixed_batches_go_together(tmp_path: Path) -> None:
    path = export_iris(tmp_path / "m" / "1", fixed_batches=(2,), weights_dtype="int8", platforms=("cpu",))
    manifest = open_bundle(path).manifest
    assert manifest.stored_weights is not None and manifest.stored_weights.errors


@pytest.mark.parametrize(("batches", "found"), [((8, 4, 2, 1), True), ((1, 2), False), (None, False)])
def test_an_export_of_other_batches_is_no_reason_to_skip(
    batches: tuple[int, ...] | None, found: bool, bundle: Path
) -> None:
    settings = RunExport(bundle.parent, "run", fixed_batches=batches)
    assert (_alike(settings, bundle.parent, {}, None) is not None) is found


MODULE = """
    import jax.numpy as jnp, numpy as np
    from converters import SignatureSpec, TensorSpec

    def fn(params, x):
        return jnp.stack([x[row] @ params["w"] for row in range(x.shape[0])])

    rows = {"x": np.random.default_rng(1).normal(size=(4, 4)).astype(np.float32)}
    declared = SignatureSpec(fn, {"x": TensorSpec("float32", "b, 4")}, ("y",), rows)
    fixed = SignatureSpec(fn, {"x": TensorSpec("float32", "b, 4")}, ("y",), rows, fixed_batches=(2,))
"""


def test_the_command_has_a_flag_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "fixed_model.py").write_text(textwrap.dedent(MODULE))
    ocp.save(str(tmp_path / "params"), row_by_row_params())

    def asked(name: str, *flags: str) -> int:
        where = ("--fn", f"fixed_model:{name}", "--params", "params", "--name", "m", "--platforms", "cpu")
        return main(["export", *where, *flags])

    def batches(version: int) -> tuple[int, ...]:
        return open_bundle(tmp_path / "work" / "models" / "m" / str(version)).signature().batches

    assert asked("declared") == 3
    assert "fixed_model.py:6: " in (said := capsys.readouterr().err) and "--fixed-batch 1,2,4,8" in said
    assert asked("declared", "--fixed-batch", "1, 3") == 0 and batches(1) == (1, 3)
    assert asked("fixed") == 0 and batches(2) == (2,)
    for wrong in ("", "1,x", "0", "-1", "1,,2"):
        assert asked("declared", f"--fixed-batch={wrong}") == 2
        assert "rows" in capsys.readouterr().err.splitlines()[-1]

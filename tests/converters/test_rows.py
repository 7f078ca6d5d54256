"""Rows that mix are found, however little of it shows; rows that do not are told from those that nearly do not."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from converters import SequenceSpec, TensorSpec, export_bundle, open_bundle, row_proof
from converters.describe import summary
from converters.errors import BundleError, ExportRefused
from converters.golden import Golden
from converters.manifest import Tolerance
from converters.manifest_json import parse_manifest, to_json
from converters.proof import TF32_SHARE
from converters.row_proof import BITWISE, LARGE_BATCH, LARGER_BATCHES, TOLERANCE, check_rows, large_batches
from converters.run import compiled_runner
from tests.converters.conftest import export_iris, iris_rows

Rows = dict[str, np.ndarray]
X = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
IDS = np.array([3, 1, 2], np.int32)
TOLERANCES = {"y": Tolerance(3e-5, 1e-5, 1.0)}


def proof(
    fn: Callable[..., jax.Array],
    *,
    large: Sequence[int] = (LARGE_BATCH, *LARGER_BATCHES),
    **inputs: np.ndarray,
) -> str:
    """Of a function as of a program."""
    compiled = jax.jit(fn)

    def run(inputs: Rows) -> Rows:
        return {"y": np.asarray(compiled(**inputs))}

    inputs = inputs or {"x": X}
    return check_rows(run, Golden(3, inputs, run(inputs)), TOLERANCES, large=large)


def size(x: jax.Array) -> jax.Array:
    return jnp.asarray(x.shape[0])


MIXED = {
    "softmax over the batch": lambda x: jax.nn.softmax(x, axis=0),
    "cumulative sum": lambda x: jnp.cumsum(x, axis=0),
    "cumulative sum from the end": lambda x: jnp.cumsum(x[::-1], axis=0)[::-1],
    "sorted": lambda x: jnp.sort(x, axis=0),
    "argmax": lambda x: x + (jnp.argmax(x, axis=0) == 0),
    "largest of all": lambda x: x + 1e-4 * x.max(),
    "smallest of all": lambda x: x + 1e-4 * x.min(),
    "mean with a small weight": lambda x: x - 1e-4 * x.mean(0),
    "mean with a tiny weight": lambda x: x - 1e-7 * x.mean(0),
    "mean that swallows NaN": lambda x: x - 1e-4 * jnp.nanmean(x, 0),
    "mean without NaN": lambda x: x - 1e-5 * jnp.nan_to_num(x, nan=0.0).mean(0),
    "NaN anywhere": lambda x: x + jnp.isnan(x).any(),
    "only beyond a range": lambda x: x + (jnp.abs(x) > 1000).any(),
    "only far beyond a range": lambda x: x + (x > 1e12).any(),
    "only far below a range": lambda x: x + (x < -1e12).any(),
    "only where the batch is one of padding": lambda x: x + (jnp.abs(x).sum(1) == 0).any(),
    "only among equal rows": lambda x: x + ((x[:, None] == x[None]).all(-1).sum() > x.shape[0]),
    "only above batch 6": lambda x: x + jnp.where(size(x) > 6, 1e-3, 0),
    "only above batch 32": lambda x: x + jnp.where(size(x) > 32, x.mean(0), 0),
    "only above batch 200": lambda x: x + jnp.where(size(x) > 200, x.mean(0), 0),
    "only above batch 1000": lambda x: x + jnp.where(jnp.ones(x.shape[0]).sum() > 1000, x.mean(0), 0),
    "batch 1 apart": lambda x: jnp.where(size(x) == 1, x, x + 1),
    "a scale that does not quite cancel": lambda x: (x * 3 ** jnp.isnan(x).sum()) / 3,
    "batch norm in training": lambda x: (x - x.mean(0)) / jnp.sqrt(x.var(0) + 1e-5),
    "neighbours": lambda x: jnp.concatenate([x[:1], x[:-1]]),
    "the first row": lambda x: x - x[:1],
}  # fmt: skip
PLACED = {
    "its number": lambda x: x + jnp.arange(x.shape[0])[:, None],
    "its number from 20 on": lambda x: x + (jnp.arange(x.shape[0])[:, None] == 20),
    "its number from the end": lambda x: x + (jnp.arange(x.shape[0])[::-1, None] == 40),
    "noise": lambda x: x + jax.random.normal(jax.random.key(0), x.shape),
}


@pytest.mark.parametrize("how", MIXED)
def test_rows_that_mix_are_refused(how: str) -> None:
    with pytest.raises(ExportRefused, match=r"^JP10[78]: the rows of a batch depend on each other"):
        proof(MIXED[how])


@pytest.mark.parametrize("how", PLACED)
def test_a_place_that_counts_is_refused(how: str) -> None:
    with pytest.raises(ExportRefused, match=r"^JP10[78]: "):
        proof(PLACED[how])


def test_the_code_tells_a_place_from_a_neighbour() -> None:
    for fn, code in (
        (PLACED["its number"], "JP108"),
        (MIXED["sorted"], "JP107"),
        (MIXED["neighbours"], "JP107"),
    ):
        with pytest.raises(ExportRefused) as refused:
            proof(fn)
        assert refused.value.code == code


INTEGERS = {
    "gathered across rows": lambda ids, x: x[ids],
    "the largest id": lambda ids, x: x + (ids.max() > 50),
    "any id of padding": lambda ids, x: x + (ids == 0).any(),
    "any negative id": lambda ids, x: x + (ids < 0).any(),
    "counted": lambda ids, x: x + jnp.bincount(ids, length=8)[ids][:, None],
}


@pytest.mark.parametrize("how", INTEGERS)
def test_integers_that_mix_rows_are_refused(how: str) -> None:
    with pytest.raises(ExportRefused, match=r"^JP10[78]: "):
        proof(INTEGERS[how], ids=IDS, x=X)


def test_a_flag_of_any_row_is_refused() -> None:
    with pytest.raises(ExportRefused, match=r"^JP10[78]: "):
        proof(lambda keep: keep & ~keep.all(), keep=np.array([True, False, True]))


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: jnp.tanh(x @ jnp.ones((4, 4))),
        lambda x: jax.nn.softmax(x, axis=1),
        lambda x: jnp.sort(x, axis=1),
        lambda x: jnp.nan_to_num(x) + x[:, :1],
    ],
)
def test_rows_that_stand_for_themselves_are_bitwise(fn: Callable[..., Any]) -> None:
    assert proof(fn) == BITWISE


def test_a_difference_within_the_tolerance_is_said_to_be_one() -> None:
    assert proof(lambda x: x + 1e-6 * jnp.tanh(jnp.nan_to_num(x).mean(0))) == TOLERANCE


def test_the_manifest_says_how_alike_rows_are(iris_bundle: Path) -> None:
    found = open_bundle(iris_bundle)
    assert found.signature().rows == BITWISE
    assert "any number of rows; others beside a row leave it as it is bit for bit" in summary(found)
    manifest = json.loads((iris_bundle / "manifest.json").read_text())
    del manifest["signatures"]["predict"]["rows"]  # as it was before that was recorded
    before = parse_manifest(json.dumps(manifest).encode(), "m")
    assert "rows" not in json.loads(to_json(before))["signatures"]["predict"]
    manifest["signatures"]["predict"]["rows"] = "nearly"
    with pytest.raises(BundleError, match="the rows 'nearly'"):
        parse_manifest(json.dumps(manifest).encode(), "m")


def test_a_program_that_reads_the_size_of_its_batch_is_tried_at_larger_ones(tmp_path: Path) -> None:
    """The export knows by itself which programs need it."""

    def fn(params: Any, x: jax.Array) -> jax.Array:
        return x + jnp.where(size(x) > 200, jnp.nan_to_num(x).mean(0), 0)

    with pytest.raises(ExportRefused, match=r"^JP107: .*257 "):
        export_iris(tmp_path / "m" / "1", fn)


@pytest.mark.parametrize(("most", "batch"), [(None, 64), (-(1 << 40), 9)])
def test_rows_that_take_much_memory_are_tried_at_a_smaller_batch(
    most: int | None, batch: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fn(params: Any, x: jax.Array) -> jax.Array:
        return x + jnp.where(size(x) > 8, jnp.nan_to_num(x).mean(0), 0)

    if most is not None:
        monkeypatch.setattr(row_proof, "MOST_BYTES", most)
    with pytest.raises(ExportRefused, match=rf"^JP107: .*: {batch} copies of them"):
        export_iris(tmp_path / "m" / "1", fn)


def test_the_batch_is_the_largest_that_memory_allows(iris_bundle: Path) -> None:
    def chosen(row_bytes: int, *, along_batch: bool) -> tuple[int, ...]:
        return large_batches(lambda rows: row_bytes * rows, along_batch=along_batch)

    mebibytes = {9: 33, 30: 9, 100: 9}  # of a row: the batch
    for along in (False, True):
        assert {m: chosen(m << 20, along_batch=along) for m in mebibytes} == {
            m: (b,) for m, b in mebibytes.items()
        }
    kibibytes = {4096: (64,), 1024: (64, 257), 256: (64, 257, 1025)}
    assert {k: chosen(k << 10, along_batch=True) for k in kibibytes} == kibibytes
    assert chosen(1, along_batch=False) == (64,)
    alone = large_batches(lambda rows: 1 << 40, along_batch=False)
    assert alone == (64,), "what a single row takes is no matter of the batch"
    bundle = open_bundle(iris_bundle)
    run = compiled_runner(bundle.exported(), bundle.load_weights())
    # Of each row at the least its hidden layer or its answer.
    assert run.working_bytes(iris_rows(64)) - run.working_bytes(iris_rows(1)) >= 63 * 3 * 4
    for how in ("only above batch 32", "sorted"):
        with pytest.raises(ExportRefused):
            proof(MIXED[how], large=(33,))
    assert proof(lambda x: x + jnp.where(size(x) > 32, x.mean(0), 0), large=(17,))


LATE = {
    "the length as a number": lambda t: jnp.where(t == 2, 1.0, 0.0),
    "all but the longest": lambda t: jnp.where(t >= 12, 0.0, 1.0),
}


@pytest.mark.parametrize("how", LATE)
def test_a_length_that_is_treated_apart_is_refused(how: str, tmp_path: Path) -> None:
    with pytest.raises(ExportRefused, match=r"^JP112: "):
        export_bundle(
            tmp_path / "m" / "1",
            lambda params, x: x + LATE[how](jnp.asarray(x.shape[1])),
            {},
            inputs={"x": TensorSpec("float32", "b, t")},
            outputs=("y",),
            example={"x": np.arange(48, dtype=np.float32).reshape(4, 12)},
            sequence=SequenceSpec("t", 12),
        )


def saturated(params: Any, x: jax.Array) -> jax.Array:
    return jax.nn.softmax(100 * x)


def test_answers_that_differ_by_less_than_rounding_are_taken_for_one(tmp_path: Path) -> None:
    """A softmax of one class in two rows: their difference is no measure of what a device may be off by."""
    x = np.array([[4, 1, 0, 0], [5, 1, 0, 0], [0, 1, 5, 0]], np.float32)
    path = export_iris(tmp_path / "m" / "1", saturated, example={"x": x})
    tolerances = open_bundle(path).manifest.tolerances
    assert tolerances["cpu"]["predict/logits"] == Tolerance(1e-5, 1e-5, 0.0)
    assert tolerances["cuda"]["predict/logits"] == Tolerance(TF32_SHARE, TF32_SHARE, 0.0)


def test_an_example_that_shows_nothing_is_proven_with_noise(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    zeros = {"x": np.zeros((3, 4), np.float32)}
    with pytest.raises(ExportRefused, match=r"^JP108: "):
        export_iris(
            tmp_path / "m" / "1", lambda p, x: x * (1 + jnp.arange(x.shape[0])[:, None]), example=zeros
        )
    export_iris(tmp_path / "m" / "1", lambda p, x: 2 * x, example=zeros)
    assert not caplog.records
    export_iris(tmp_path / "m" / "2", lambda p, x: 0 * x + 1, example=zeros)
    assert "output 'logits': every row that was tried has one answer" in caplog.text


def test_the_batch_of_the_example_itself_is_compared(tmp_path: Path) -> None:
    with pytest.raises(ExportRefused, match=r"^JP106: .* at batch 5: "):
        export_iris(
            tmp_path / "m" / "1",
            lambda p, x: x * 3 if x.shape[0] == 5 else x,
            example={"x": np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)},
        )


def test_huge_rows_among_strangers_have_both_signs(tmp_path: Path) -> None:
    with pytest.raises(ExportRefused, match=r"^JP107: "):
        export_iris(tmp_path / "m" / "1", lambda p, x: x + (jnp.sum(x[:, 0] > 1e6) > 3))

"""Weights in fewer bits: what is stored, what the program makes of it, and what the manifest says was lost."""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from converters import TensorSpec, export_bundle
from converters.bundle import Bundle, open_bundle
from converters.compare.source import find_source
from converters.describe import summary
from converters.errors import BadSpec
from converters.fewer_bits import fewer_bits, restored
from converters.manifest_json import to_json
from converters.run import compiled_runner
from converters.verify import verify
from converters.weights import flatten_params

ROWS, WIDTH, OUT = 32, 16, 24


def lookup(params: Any, tokens: jax.Array) -> dict[str, jax.Array]:
    hidden = params["embed"]["table"][tokens] * params["norm"]
    return {"logits": hidden @ params["head"] + params["bias"]}


def lookup_params(seed: int = 0) -> dict[str, Any]:
    """A table whose rows and a matrix whose columns have very different sizes, and what stays as it is."""
    rng = np.random.default_rng(seed)
    rows, columns = np.geomspace(1e-3, 1e3, ROWS)[:, None], np.geomspace(1e-3, 1e3, OUT)
    return {
        "embed": {"table": (rng.normal(size=(ROWS, WIDTH)) * rows).astype(np.float32)},
        "head": (rng.normal(size=(WIDTH, OUT)) * columns).astype(np.float32),
        "small": rng.normal(size=(3, 3)).astype(np.float32),
        "norm": np.ones(WIDTH, np.float32),
        "bias": np.zeros(OUT, np.float32),
    }


def export_lookup(path: Path, dtype: str | None, seed: int = 0) -> Bundle:
    return open_bundle(
        export_bundle(
            path,
            lookup,
            lookup_params(seed),
            inputs={"tokens": TensorSpec("int32", "b")},
            outputs=("logits",),
            example={"tokens": np.arange(8, dtype=np.int32)},
            platforms=("cpu",),
            weights_dtype=dtype,
        )
    )


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Bundle]:
    root = tmp_path_factory.mktemp("models")
    return {dtype: export_lookup(root / dtype / "1", dtype) for dtype in ("bf16", "int8")}


def test_int8_has_a_scale_for_each_row_of_a_table_and_each_column_of_a_matrix(
    bundles: dict[str, Bundle],
) -> None:
    weights, given = bundles["int8"].load_weights(), lookup_params()
    assert {name: (w.dtype.name, w.shape) for name, w in weights.items()} == {
        "bias": ("float32", (OUT,)),
        "embed.table": ("int8", (ROWS, WIDTH)),
        "embed.table.scale": ("float32", (ROWS, 1)),
        "head": ("int8", (WIDTH, OUT)),
        "head.scale": ("float32", (1, OUT)),
        "norm": ("float32", (WIDTH,)),
        "small": ("float32", (3, 3)),
    }
    for name, whole in (("embed.table", given["embed"]["table"]), ("head", given["head"])):
        scale = weights[f"{name}.scale"]
        # Half a step of its own channel, whatever the others are.
        assert (np.abs(weights[name] * scale - whole) <= scale * 0.5001).all()
        assert np.abs(weights[name]).max() == 127


def test_bf16_halves_the_matrices_alone(bundles: dict[str, Bundle]) -> None:
    dtypes = {w.name: w.dtype for w in bundles["bf16"].manifest.weights}
    assert {name for name, dtype in dtypes.items() if dtype == "bfloat16"} == {"embed.table", "head"}


@pytest.mark.parametrize("dtype", ["bf16", "int8"])
def test_the_goldens_are_those_of_the_stored_weights_and_the_loss_stands_beside(
    dtype: str, bundles: dict[str, Bundle]
) -> None:
    bundle = bundles[dtype]
    stored = bundle.manifest.stored_weights
    assert stored is not None
    assert stored.dtype == dtype and stored.bytes_after < stored.bytes_before
    assert stored.computes_in == {"embed.table": "float32", "head": "float32"}
    error = stored.errors["predict/logits"]
    golden = bundle.goldens()[-1]
    original = np.asarray(jax.jit(lookup)(lookup_params(), golden.inputs["tokens"])["logits"])
    assert error.largest == pytest.approx(np.abs(golden.outputs["logits"] - original).max())
    assert 0 < error.relative < 0.05
    # As sharp as for any other bundle: a share of what the output is, not of what was lost.
    allowed = bundle.manifest.tolerances["cpu"]["predict/logits"].atol
    assert allowed < error.largest
    program = compiled_runner(bundle.exported(), bundle.load_weights())
    assert bundle.check_golden("predict", golden, program(golden.inputs), "cpu") <= 1
    assert "2 arrays in " + dtype in summary(bundle)


def test_a_process_without_the_source_reproduces_them(bundles: dict[str, Bundle]) -> None:
    assert verify(bundles["int8"].path).goldens == 2


def test_other_weights_swap_in_and_another_dtype_does_not(bundles: dict[str, Bundle], tmp_path: Path) -> None:
    other = export_lookup(tmp_path / "int8" / "2", "int8", seed=5)
    assert other.swap_key == bundles["int8"].swap_key != bundles["bf16"].swap_key


def test_a_comparison_finds_the_source_on_the_stored_weights(bundles: dict[str, Bundle]) -> None:
    bundle = bundles["int8"]
    _, named = find_source(bundle, "predict", jax.device_put(bundle.load_weights()), "cpu")
    assert named.endswith(":lookup")


def test_a_bundle_of_whole_weights_says_nothing_of_it(tmp_path: Path) -> None:
    bundle = export_lookup(tmp_path / "whole" / "1", None)
    assert bundle.manifest.stored_weights is None
    assert "stored_weights" not in json.loads(to_json(bundle.manifest))


def test_a_channel_of_zeros_stays_one() -> None:
    weights = flatten_params({"w": np.zeros((16, 16), np.float32)})
    kept, facts = fewer_bits(weights, "int8")
    assert (restored(kept.arrays, facts)["w"] == 0).all()


@pytest.mark.parametrize(
    ("params", "dtype", "message"),
    [
        ({"w": np.full((16, 16), np.nan, np.float32)}, "int8", "'w' holds NaN or infinity"),
        (
            {"w": np.ones((16, 16), np.float32), "w.scale": np.ones(1, np.float32)},
            "int8",
            "'w.scale' is the name",
        ),
    ],
)
def test_what_int8_cannot_hold_is_refused(params: dict[str, Any], dtype: str, message: str) -> None:
    with pytest.raises(BadSpec, match=message):
        fewer_bits(flatten_params(params), dtype)


def test_a_dtype_that_there_is_not_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadSpec, match="'fp4': bf16 or int8 is needed"):
        export_lookup(tmp_path / "m" / "1", "fp4")
    assert not (tmp_path / "m").exists()

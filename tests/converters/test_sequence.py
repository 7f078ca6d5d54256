"""A sequence of any length: declared, proven to bear its padding, and in a manifest that is not taken at its word."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from converters import SequenceSpec, TensorSpec, export_bundle, open_bundle
from converters.describe import summary
from converters.errors import BadSpec, BundleError, ExportRefused
from converters.manifest_json import parse_manifest
from converters.verify import verify

MOST = 6  # one length to pad to: nothing that a proof looks at needs more
TABLE = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
INPUTS = {"tokens": TensorSpec("int32", "b, t"), "scale": TensorSpec("float32", "b")}
EXAMPLE = {
    "tokens": np.random.default_rng(1).integers(0, 8, (4, 5)).astype(np.int32),
    "scale": np.arange(1, 5, dtype=np.float32),
}


def sums_what_came(params: Any, tokens: jax.Array, scale: jax.Array) -> jax.Array:
    return jnp.cumsum(params["table"][tokens], axis=1) * scale[:, None, None]


def counts_what_is_there(params: Any, tokens: jax.Array, scale: jax.Array) -> jax.Array:
    """Only right where the padding is -1."""
    return (tokens >= 0).sum(axis=1) + scale


def export(path: Path, fn: Callable[..., Any] = sums_what_came, **changes: Any) -> Path:
    arguments: dict[str, Any] = {
        "inputs": INPUTS,
        "outputs": ("y",),
        "example": EXAMPLE,
        "platforms": ("cpu", "cuda"),
        "sequence": SequenceSpec("t", MOST),
    }
    return export_bundle(path, fn, {"table": TABLE}, **(arguments | changes))


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export(tmp_path_factory.mktemp("models") / "sums" / "1")


def test_the_manifest_says_what_may_vary(bundle: Path) -> None:
    found = open_bundle(bundle)
    signature = found.signature()
    assert signature.sequence == SequenceSpec("t", MOST)
    assert [t.shape for t in signature.inputs] == [("b", "t"), ("b",)]
    assert signature.outputs[0].shape == ("b", "t", 4)
    assert signature.constraints == (f"t <= {MOST}",)
    assert "length     t: 1 to 6" in summary(found)
    assert [t.shape for t in signature.at_length(3).outputs] == [("b", 3, 4)]
    assert signature.at_length(3).sequence is None


def test_goldens_are_of_several_lengths_and_verified(bundle: Path) -> None:
    found = open_bundle(bundle)
    assert [(golden.batch, golden.length) for golden in found.goldens()] == [(1, 3), (3, MOST)]
    verdict = verify(bundle)
    assert (verdict.goldens, verdict.worst_share <= 1) == (2, True)
    golden = found.goldens()[0]
    wrong = {"y": golden.outputs["y"] + 1}
    with pytest.raises(Exception, match="batch 1 length 3 on cpu: output 'y' is off by 1"):
        found.check_golden("predict", golden, wrong, "cpu")


def test_a_version_that_allows_other_lengths_is_another_program(bundle: Path) -> None:
    manifest = open_bundle(bundle).manifest
    signature = manifest.signatures["predict"]
    longer = replace(signature, sequence=SequenceSpec("t", MOST + 1))
    assert replace(manifest, signatures={"predict": longer}).swap_key != manifest.swap_key


def test_a_bundle_without_one_is_written_as_before(iris_bundle: Path) -> None:
    written = json.loads((iris_bundle / "manifest.json").read_text())
    assert "sequence" not in written["signatures"]["predict"]


def takes_the_last(params: Any, tokens: jax.Array, scale: jax.Array) -> jax.Array:
    return params["table"][tokens][:, -1] * scale[:, None]


def takes_the_mean(params: Any, tokens: jax.Array, scale: jax.Array) -> jax.Array:
    return params["table"][tokens].mean(axis=1) * scale[:, None]


def looks_ahead(params: Any, tokens: jax.Array, scale: jax.Array) -> jax.Array:
    x = params["table"][tokens] * scale[:, None, None]
    return jax.nn.softmax(x @ x.swapaxes(1, 2)) @ x


def turns_round(params: Any, tokens: jax.Array, scale: jax.Array) -> jax.Array:
    return params["table"][tokens][:, ::-1] * scale[:, None, None]


@pytest.mark.parametrize("fn", [takes_the_last, takes_the_mean, looks_ahead, turns_round])
def test_a_function_that_sees_the_padding_is_refused(fn: Callable[..., Any], tmp_path: Path) -> None:
    with pytest.raises(
        ExportRefused,
        match=r"^JP112: .*padded from length 1 to 6: output 'y' is off by .* mask what stands there",
    ) as refused:
        export(tmp_path / "m" / "1", fn)
    assert "\n" not in str(refused.value)
    assert not list((tmp_path / "m").glob("*"))


def test_the_pad_that_is_declared_is_the_one_that_is_proven(tmp_path: Path) -> None:
    path = export(tmp_path / "m" / "1", counts_what_is_there, pad={"tokens": -1})
    assert open_bundle(path).signature().pad == {"tokens": -1, "scale": 0}
    with pytest.raises(ExportRefused, match="the answer changes with padding"):
        export(tmp_path / "m" / "2", counts_what_is_there)


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (lambda params, tokens, scale: tokens[:, 1:], r"^JP110: .*shape \[b, t - 1\], and sizes after the batch must be"),
        (lambda params, tokens, scale: tokens[:, :, None] == tokens[:, None], r"^JP110: .*shape \[b, t, t\]"),
        (lambda params, tokens, scale: tokens if tokens.shape[1] > 3 else tokens + 1, "^JP104: .*a number for 't', and no"),
        (lambda params, tokens, scale: tokens * (1 if tokens.shape[1] == 1 else 2), "^JP106: .*length 1: "),
    ],
)  # fmt: skip
def test_a_length_that_cannot_be_a_symbol_is_refused(fn: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ExportRefused, match=message):
        export(tmp_path / "m" / "1", fn)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sequence": SequenceSpec("s", 4)}, "no input has 's' as its second dimension, as in 'b, s'"),
        (
            {"inputs": {**INPUTS, "tokens": TensorSpec("int32", "b, 2*t")}},
            r"dimension '2\*t' .* and that only",
        ),
        ({"sequence": SequenceSpec("t", 0)}, "most is 0"),
        ({"sequence": SequenceSpec("t", True)}, "most is True"),
        ({"sequence": SequenceSpec("2t", 4)}, "symbol '2t'"),
        ({"sequence": SequenceSpec("t", 4)}, r"example: 't' is \[5\]; one length is needed, from 1 to 4"),
        ({"inputs": {**INPUTS, "scale": TensorSpec("float32", "b, 3, t")}}, "dimension 't' in 'b, 3, t'"),
        ({"inputs": {n: TensorSpec(s.dtype, "b") for n, s in INPUTS.items()}}, "no input has 't'"),
        ({"pad": {"other": 1}}, "'other' is no input"),
        ({"pad": {"tokens": 0.5}}, "0.5 for tokens int32"),
        ({"pad": {"scale": float("nan")}}, "nan for scale"),
    ],
)
def test_a_declaration_that_does_not_fit_is_refused(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(BadSpec, match=message):
        export(tmp_path / "m" / "1", **changes)


def shapes(signature: Any, *shape: Any) -> None:
    signature["inputs"][0]["shape"] = list(shape)


@pytest.mark.parametrize(
    "change",
    [
        lambda s: s["sequence"].update(most=0),
        lambda s: s["sequence"].update(most="6"),
        lambda s: s["sequence"].update(most=True),
        lambda s: s["sequence"].update(most=2**63),
        lambda s: s["sequence"].update(symbol="b"),
        lambda s: s["sequence"].update(symbol=1),
        lambda s: s["sequence"].update(symbol="u"),
        lambda s: s["sequence"].update(step=1),
        lambda s: s["sequence"].pop("most"),
        lambda s: s.update(sequence=[]),
        lambda s: shapes(s, "b", 4),
        lambda s: shapes(s, "b", 4, "t"),
        lambda s: shapes(s, "b", "t", "t"),
        lambda s: shapes(s, "b", "t", 0),
        lambda s: shapes(s, "t", "b"),
        lambda s: s["pad"].update(tokens="0"),
        lambda s: s["pad"].update(tokens=float("inf")),
    ],
)
def test_a_sequence_that_the_shapes_do_not_bear_out_is_no_manifest(bundle: Path, change: Any) -> None:
    manifest = json.loads((bundle / "manifest.json").read_text())
    parse_manifest(json.dumps(manifest).encode(), "m")
    change(manifest["signatures"]["predict"])
    with pytest.raises(BundleError, match="a field is missing or malformed"):
        parse_manifest(json.dumps(manifest).encode(), "m")


def test_a_program_that_has_other_shapes_than_the_manifest_is_refused(bundle: Path) -> None:
    found = open_bundle(bundle)
    object.__setattr__(found.manifest.signatures["predict"].inputs[1], "shape", ("b", "t"))
    with pytest.raises(BundleError, match=r"input 'scale' of 'predict' is float32\[b, t\], the program has"):
        found.exported()

"""Small models as real bundles, one per thing that a server can get wrong."""

from itertools import pairwise
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from converters import SequenceSpec, SignatureSpec, TensorSpec, export_bundle

SIZES = (4, 64, 64, 3)


def mlp_params(seed: int = 0) -> dict[str, np.ndarray]:
    """Weights of the 4-64-64-3 MLP."""
    rng = np.random.default_rng(seed)
    params = {}
    for i, (n, m) in enumerate(pairwise(SIZES)):
        params[f"w{i}"] = rng.normal(scale=n**-0.5, size=(n, m)).astype(np.float32)
        params[f"b{i}"] = rng.normal(size=m).astype(np.float32)
    return params


def mlp(params, x):
    for i in range(3):
        x = x @ params[f"w{i}"] + params[f"b{i}"]
        x = jax.nn.relu(x) if i < 2 else x
    return {"logits": x}


def export_mlp(models: Path, version: int = 1, seed: int = 0, name: str = "mlp", fn=mlp) -> Path:
    rows = np.random.default_rng(7).normal(size=(5, 4)).astype(np.float32)
    return export_bundle(
        models / name / str(version),
        fn,
        mlp_params(seed),
        inputs={"x": TensorSpec("float32", "b, 4")},
        outputs=("logits",),
        example={"x": rows},
        platforms=("cpu", "cuda"),
    )


def export_tokens(models: Path, name: str = "tokens") -> Path:
    """int32 [b, 8] -> float32 [b, 8, 16]."""
    table = np.random.default_rng(1).normal(size=(16, 16)).astype(np.float32)
    return export_bundle(
        models / name / "1",
        lambda params, tokens: {"logits": params["table"][tokens]},
        {"table": table},
        inputs={"tokens": TensorSpec("int32", "b, 8")},
        outputs=("logits",),
        example={"tokens": np.arange(24, dtype=np.int32).reshape(3, 8) % 16},
        platforms=("cpu", "cuda"),
        usage={"task": "next_token"},
    )


def export_mixed(models: Path, name: str = "mixed") -> Path:
    """bfloat16 [b, 3] and bool [b] -> bfloat16 [b, 3] and int32 [b]; passes NaN through."""
    return export_bundle(
        models / name / "1",
        lambda params, h, keep: {
            "same": h,
            "kept": jnp.where(keep, params["yes"], params["no"]),
        },
        {"yes": np.int32(11), "no": np.int32(-11)},
        inputs={"h": TensorSpec("bfloat16", "b, 3"), "keep": TensorSpec("bool", "b")},
        outputs=("same", "kept"),
        example={
            "h": np.arange(9, dtype=np.float32).reshape(3, 3).astype(jnp.bfloat16),
            "keep": np.array([True, False, True]),
        },
        platforms=("cpu", "cuda"),
    )


def export_echo(models: Path, name: str = "echo") -> Path:
    """float32 [b, 2] -> the same bits."""
    return export_bundle(
        models / name / "1",
        lambda params, x: {"y": x},
        {"unused": np.zeros(1, np.float32)},
        inputs={"x": TensorSpec("float32", "b, 2")},
        outputs=("y",),
        example={"x": np.ones((3, 2), np.float32)},
        platforms=("cpu", "cuda"),
    )


def embed(params, x):
    return {"embedding": x @ params["w0"] + params["b0"]}


def export_two(models: Path, name: str = "two") -> Path:
    """mlp as predict, its first layer as embed: float32 [n, 4] -> [n, 64], and loss, which is one number."""
    rows = {"x": np.random.default_rng(7).normal(size=(5, 4)).astype(np.float32)}
    return export_bundle(
        models / name / "1",
        params=mlp_params(),
        signatures={
            "predict": SignatureSpec(mlp, {"x": TensorSpec("float32", "b, 4")}, ("logits",), rows),
            "embed": SignatureSpec(embed, {"x": TensorSpec("float32", "n, 4")}, ("embedding",), rows),
            "loss": SignatureSpec(
                lambda params, x: {"loss": mlp(params, x)["logits"].mean()},
                {"x": TensorSpec("float32", "b, 4")},
                ("loss",),
                rows,
                loss=True,
            ),
        },
    )


def pairs(params, x, y):
    """What x [b, k] and the halves of y [b, 2*k] make together: [b, k] and [b, 2*k]."""
    half = y.reshape(y.shape[0], -1, 2).sum(-1)
    return {"sum": x * params["w"] + half, "both": y * params["w"]}


def pairs_inputs(rows: int, k: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng([rows, k])
    return {name: rng.normal(size=(rows, n)).astype(np.float32) for name, n in (("x", k), ("y", 2 * k))}


def pairs_spec(**declared) -> SignatureSpec:
    inputs = {"x": TensorSpec("float32", "b, k"), "y": TensorSpec("float32", "b, 2*k")}
    return SignatureSpec(
        pairs, inputs, ("sum", "both"), pairs_inputs(4, 3), constraints=("k >= 2",), **declared
    )


def export_pairs(models: Path, name: str = "pairs") -> Path:
    """As predict of the sizes 2 and 5; as any without sizes; and as one of a single size."""
    one = SignatureSpec(
        lambda params, x: {"y": x * params["w"]}, {"x": TensorSpec("float32", "b, 2")}, ("y",),
        {"x": np.arange(6, dtype=np.float32).reshape(3, 2)},
    )  # fmt: skip
    return export_bundle(
        models / name / "1",
        params={"w": np.float32(3)},
        signatures={"predict": pairs_spec(sizes={"k": (5, 2)}), "any": pairs_spec(), "one": one},
    )


def row_by_row_params(seed: int = 0) -> dict[str, np.ndarray]:
    """Weights of `row_by_row`."""
    return {"w": np.random.default_rng(seed).normal(size=(4, 3)).astype(np.float32)}


def row_by_row_rows(rows: int) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(rows).normal(size=(rows, 4)).astype(np.float32)}


def row_by_row(params, x):
    """x @ w, in a loop of Python over the rows, which no symbol bears."""
    return {"y": jnp.stack([x[row] @ params["w"] for row in range(x.shape[0])])}


def export_row_by_row(models: Path, version: int = 1, seed: int = 0, name: str = "rows", batches=()) -> Path:
    """float32 [b, 4] -> [b, 3], with a program for each of `batches`."""
    with jax.enable_x64(False):  # whatever else this process has loaded: equal programs are compared
        return export_bundle(
            models / name / str(version),
            row_by_row,
            row_by_row_params(seed),
            inputs={"x": TensorSpec("float32", "b, 4")},
            outputs=("y",),
            example=row_by_row_rows(3),
            platforms=("cpu", "cuda"),
            fixed_batches=batches,
        )


EVERY_DTYPE = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float16", "bfloat16", "float32", "float64",
)  # fmt: skip


def export_every_dtype(models: Path, name: str = "every_dtype") -> Path:
    """One input [b, 3] of each dtype, by its name -> the same bits as same_<dtype>."""
    example = {dtype: np.arange(6).reshape(2, 3).astype(jnp.dtype(dtype)) for dtype in EVERY_DTYPE}
    with jax.enable_x64(True):
        return export_bundle(
            models / name / "1",
            lambda params, **inputs: {f"same_{key}": value for key, value in inputs.items()},
            {"unused": np.zeros(1, np.float32)},
            inputs={dtype: TensorSpec(dtype, "b, 3") for dtype in EVERY_DTYPE},
            outputs=tuple(f"same_{dtype}" for dtype in EVERY_DTYPE),
            example=example,
            platforms=("cpu", "cuda"),
        )


def export_slow(models: Path, name: str = "slow") -> Path:
    """float32 [b, 1] -> [b, 1], a tenth of a second whatever the batch: long enough for a queue to form."""

    def fn(params, x):
        return {"y": jax.lax.fori_loop(0, 25_000_000, lambda _, h: h * params["w"] + params["w"], x)}

    return export_bundle(
        models / name / "1",
        fn,
        {"w": np.float32(0.1)},
        inputs={"x": TensorSpec("float32", "b, 1")},
        outputs=("y",),
        example={"x": np.ones((3, 1), np.float32)},
        platforms=("cpu", "cuda"),
    )


LONGEST = 24


def sequence_params(seed: int = 0) -> dict[str, np.ndarray]:
    """Weights of `sequence`."""
    rng = np.random.default_rng(seed)
    layer = rng.normal(scale=1 / 16, size=(256, 256)).astype(np.float32)
    return {"table": rng.normal(size=(16, 256)).astype(np.float32), "layer": layer}


def sequence(params, tokens, keep, xp=jnp):
    """What each position adds to those before it, and the mean of those that are kept."""
    x = xp.tanh((params["table"][tokens] * keep[..., None]) @ params["layer"])
    count = xp.maximum(keep.sum(1), 1)[:, None]
    return {"running": xp.cumsum(x[..., :3], axis=1), "mean": (x.sum(1) / count).astype(np.float32)}


def export_sequence(models: Path, version: int = 1, seed: int = 0, name: str = "sequence") -> Path:
    """int32 and bool [b, t], t up to 24 -> float32 [b, t, 3] and [b, 256]."""
    rng = np.random.default_rng(7)
    with jax.enable_x64(False):  # whatever else this process has loaded: equal programs are compared
        return export_bundle(
            models / name / str(version),
            sequence,
            sequence_params(seed),
            inputs={"tokens": TensorSpec("int32", "b, t"), "keep": TensorSpec("bool", "b, t")},
            outputs=("running", "mean"),
            example={
                "tokens": rng.integers(0, 16, (5, 11)).astype(np.int32),
                "keep": rng.random((5, 11)) < 0.8,
            },
            platforms=("cpu", "cuda"),
            sequence=SequenceSpec("t", most=LONGEST),
        )

"""What the archive holds: python tests/archive/models.py FOLDER writes it with the JAX of this interpreter.

A small MLP and a causal attention block, for cpu and cuda, by jaxport's own exporter. Both are for all time: their
weights come from a seed, and what is not said here is the default of its day.
"""

import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from converters import TensorSpec, export_bundle

WIDTH, LENGTH = 16, 8


def mlp(params: Any, x: jax.Array) -> jax.Array:
    return jax.nn.gelu(x @ params["w1"] + params["b1"]) @ params["w2"]


def attention(params: Any, x: jax.Array) -> jax.Array:
    query, key, value = (x @ params[name] for name in ("query", "key", "value"))
    scores = jnp.einsum("btd,bsd->bts", query, key) / WIDTH**0.5
    causal = jnp.tril(jnp.ones((LENGTH, LENGTH), bool))
    return x + jax.nn.softmax(jnp.where(causal, scores, -1e9)) @ value @ params["out"]


def main(folder: Path) -> None:
    generator = np.random.default_rng(0)

    def normal(*shape: int) -> np.ndarray:
        return (generator.normal(size=shape) / 4).astype(np.float32)

    export_bundle(
        folder / "mlp" / "1",
        mlp,
        {"w1": normal(4, WIDTH), "b1": normal(WIDTH), "w2": normal(WIDTH, 3)},
        inputs={"x": TensorSpec("float32", "b, 4")},
        outputs=("logits",),
        example={"x": normal(8, 4)},
    )
    export_bundle(
        folder / "attention" / "1",
        attention,
        {name: normal(WIDTH, WIDTH) for name in ("query", "key", "value", "out")},
        inputs={"x": TensorSpec("float32", f"b, {LENGTH}, {WIDTH}")},
        outputs=("hidden",),
        example={"x": normal(8, LENGTH, WIDTH)},
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))

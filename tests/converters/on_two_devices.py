"""What a process with two devices finds out about bundles: how weights lie, and what programs answer.

python -m tests.converters.on_two_devices FOLDER SHARDED writes FOLDER/facts.json, of what tests/sharded.py made and more.
"""

import json
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from converters import SequenceSpec, TensorSpec, export_bundle, load_bundle, open_bundle
from converters.placement import simulate
from tests.sharded import MESH, export_wide, rows, shapes_of_parts, wide, wide_params


def along(params: Any, x: Any, y: Any) -> dict[str, Any]:
    """x [b, t] and y [b, k]: what each position adds to those before it, and y scaled."""
    return {"running": jnp.cumsum(x * params["w"].sum(), axis=1), "scaled": y * params["w"].max()}


def export_along(path: Path) -> Path:
    """A sequence, a size and gradients in one."""
    shapes = {"x": "b, t", "y": "b, k"}
    rng = np.random.default_rng(3)
    return export_bundle(
        path,
        along,
        {"w": np.arange(1, 5, dtype=np.float32)},
        inputs={name: TensorSpec("float32", shape) for name, shape in shapes.items()},
        outputs=("running", "scaled"),
        example={name: rng.normal(size=(3, 2)).astype(np.float32) for name in shapes},
        sequence=SequenceSpec("t", most=2),
        sizes={"k": (2,)},
        vjp_order=1,
        mesh=MESH,
        shardings={"*": ("tensor",)},
    )


def off(got: Any, given: np.ndarray) -> float:
    """How far an answer is from numpy's."""
    return float(np.abs(np.asarray(got) - wide(wide_params(), given, np)["y"]).max())


def gradient(bundle: Path) -> dict[str, Any]:
    """Of 2 rows with sums over 1 and 2 ones each: 6 by every weight."""
    loaded, ones = load_bundle(bundle), np.ones((2, 2), np.float32)
    step = jax.jit(jax.grad(lambda w: loaded.predict.apply(w, x=ones, y=ones)["running"].sum()))
    found = step(loaded.on_device)
    return {"values": np.asarray(found["w"]).tolist(), "parts": shapes_of_parts(found)["w"]}


def spread_batch(bundle: Path) -> dict[str, Any]:
    """A program of one device, given rows of which each device has a half."""
    mesh = Mesh(np.array(jax.devices()), ("data",), axis_types=(AxisType.Auto,))
    opened, x = open_bundle(bundle), rows(6)["x"]
    spread = jax.device_put(x, NamedSharding(mesh, PartitionSpec("data")))
    got = jax.jit(opened.exported().call)(opened.load_weights(), {"x": spread})
    return {"off": off(got["y"], x), "parts": shapes_of_parts(got)["y"]}


def main(folder: Path, sharded: Path) -> None:
    simulate(2)
    loaded, given = load_bundle(sharded / "models" / "wide" / "1"), rows(5)
    # `down` is cut along its rows, and a scale for each of its columns is whole.
    few = export_wide(folder / "few" / "1", weights_dtype="int8", fixed_batches=(1, 2), platforms=("cpu",))
    facts = {
        "off": off(loaded.predict(**given)["y"], given["x"]),
        "parts": shapes_of_parts(loaded.on_device),
        "few": shapes_of_parts(load_bundle(few).on_device),
        "gradient": gradient(export_along(folder / "along" / "1")),
        "spread": spread_batch(sharded / "models" / "one" / "1"),
    }
    (folder / "facts.json").write_text(json.dumps(facts))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))

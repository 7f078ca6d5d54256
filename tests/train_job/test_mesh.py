"""One run on any mesh: the same numbers, the same rows, and of the weights on each device what the rules promise."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

from tests.once import OncePerRun
from tests.train_job.on_eight_devices import LOOKS, MOVES
from train_job import training
from train_job.checkpoints import load_params
from train_job.errors import UsageError
from train_job.job import train
from train_job.mesh import Layout, lay_out
from train_job.optimizer import optimizer
from train_job.partition import PartitionRules
from train_job.presets import BUILT_IN, get_preset
from train_job.processes import ALONE, Processes
from train_job.rows import read_metrics
from train_job.settings import AXES, TrainSettings
from train_job.state import abstract_state
from train_job.steps import jit_step
from train_job.weights import skeleton

ROOT = Path(__file__).resolve().parents[2]
# What is found after 9 steps at a rate of 1e-2 differs by 7e-7 at most; another row, or a mean over part of them, by 1e-3.
LOSS, WEIGHT = 1e-5, 5e-6
# The loss does not depend on it, as a softmax does not on what is added to all of a row: its gradient is rounding alone,
# and Adam makes steps of that.
FREE = "blocks.0.attn.key.bias"


@pytest.fixture(scope="module")
def found(once: OncePerRun) -> Path:
    """The folder of `on_eight_devices`."""

    def make(folder: Path) -> None:
        place = {
            "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
            "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
        }
        command = [sys.executable, "-m", "tests.train_job.on_eight_devices", str(folder)]
        subprocess.run(command, check=True, cwd=ROOT, env={**os.environ, **place}, timeout=300)

    return once.folder("eight-devices", make)


@pytest.fixture(scope="module")
def facts(found: Path) -> Mapping[str, Any]:
    return json.loads((found / "facts.json").read_text())


@pytest.fixture(scope="module")
def weights(found: Path) -> Mapping[str, np.ndarray]:
    with np.load(found / "weights.npz") as stored:
        return dict(stored)


def require_near(found: Mapping[str, Any], one: Mapping[str, Any]) -> None:
    assert found.keys() == one.keys()
    for name in one.keys() - {FREE}:
        np.testing.assert_allclose(found[name], one[name], rtol=0, atol=WEIGHT, err_msg=name)


def under(weights: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    return {name.removeprefix(prefix): w for name, w in weights.items() if name.startswith(prefix)}


def test_a_run_goes_on_on_another_mesh_with_the_same_rows_as_one_device(
    found: Path, facts: Mapping[str, Any], weights: Mapping[str, np.ndarray]
) -> None:
    """With Orbax between the meshes: what one has written the other reads, and one device. The losses of every step, the
    weights at each stop."""
    first, second = (facts[mesh] for mesh in MOVES)
    assert (first["code"], second["code"]) == (75, 75)
    assert "new, 12 steps" in first["said"]
    assert "resumes at step 5 of 12" in second["said"]
    assert list(first["batches"]) == ["0", "1", "2", "3", "4"]
    assert list(second["batches"]) == ["5", "6", "7", "8"]
    assert {**first["batches"], **second["batches"]}.items() <= facts["one"]["batches"].items()
    trained = {**first["losses"], **second["losses"]}
    assert list(trained) == [str(step) for step in range(1, 10)] == list(facts["one"]["losses"])
    np.testing.assert_allclose(list(trained.values()), list(facts["one"]["losses"].values()), rtol=LOSS)
    rows = read_metrics(found / "runs" / "moved")
    assert [row["step"] for row in rows] == list(LOOKS)
    one = [facts["one"]["looks"][str(step)] for step in LOOKS]
    np.testing.assert_allclose([row["val_loss"] for row in rows], one, rtol=LOSS)
    for step in MOVES.values():
        require_near(load_params(found / "runs" / "moved", step), under(weights, f"one/{step}/"))


# Of the wide toy: 1 block of width 32 with 64 hidden units, 16 positions, 256 bytes. 21 weights, 25,504 elements.
MATRICES = {
    "token_embed.embedding": (256, 32),
    "position_embed.embedding": (16, 32),  # too small to be cut over fsdp
    **{f"blocks.0.attn.{name}.kernel": (32, 32) for name in ("query", "key", "value", "out")},
    "blocks.0.mlp.up.kernel": (32, 64),
    "blocks.0.mlp.down.kernel": (64, 32),
    "head.kernel": (32, 256),
}
PARTS = {
    "fsdp=8": {
        "token_embed.embedding": (32, 32),
        **{f"blocks.0.attn.{name}.kernel": (4, 32) for name in ("query", "key", "value", "out")},
        "blocks.0.mlp.up.kernel": (32, 8),
        "blocks.0.mlp.down.kernel": (8, 32),
        "head.kernel": (32, 32),
    },
    "data=2,fsdp=2,tensor=2": {
        "token_embed.embedding": (128, 32),
        **{f"blocks.0.attn.{name}.kernel": (16, 16) for name in ("query", "key", "value", "out")},
        "blocks.0.mlp.up.kernel": (16, 32),
        "blocks.0.mlp.down.kernel": (32, 16),
        "head.kernel": (16, 128),
    },
}  # fmt: skip
# Elements of 12 vectors: of three norms two each, of attention four, of the MLP one of 64 and one.
VECTORS = dict.fromkeys(PARTS, 6 * 32 + 4 * 32 + 64 + 32)
VECTORS |= {mesh: 6 * 32 + 3 * 16 + 32 + 32 + 32 for mesh in PARTS if "tensor" in mesh}


@pytest.mark.parametrize("mesh", PARTS)
def test_each_device_holds_what_the_rules_promise_and_of_the_moments_as_much(
    mesh: str, facts: Mapping[str, Any]
) -> None:
    shapes = {**MATRICES, **PARTS[mesh]}
    parts = facts[mesh]["parts"]
    for name, shape in shapes.items():
        assert tuple(parts[f"params {name}"]) == shape, name
        moments = [part for leaf, part in parts.items() if leaf.startswith("optimizer") and name in leaf]
        assert [tuple(part) for part in moments] == [shape, shape], name
    count = VECTORS[mesh] + sum(rows * columns for rows, columns in shapes.values())
    held = facts[mesh]["bytes"]
    assert [held[f"params {number}"] for number in range(8)] == [4 * count] * 8
    counters = 2 * 4  # Adam's and the schedule's
    assert [held[f"optimizer {number}"] for number in range(8)] == [8 * count + counters] * 8


def test_the_banner_says_the_mesh_and_what_it_saves(facts: Mapping[str, Any]) -> None:
    for mesh, rows in zip(MOVES, (4, 2), strict=True):
        said, held = facts[mesh]["said"], facts[mesh]["bytes"]
        one, other = (held[f"{item} 0"] / 1e6 for item in ("params", "optimizer"))
        assert f"; {mesh}: all of this process, {rows} rows of a step on each" in said
        assert f"{one + other:.3f} MB on each device: weights {one:.3f}, optimizer {other:.3f}" in said
    assert "(8 of 21 weights are cut" in facts["fsdp=8"]["said"]


SHAPES = {"up": jax.ShapeDtypeStruct((64, 96), np.float32), "bias": jax.ShapeDtypeStruct((96,), np.float32)}


def axes(**sizes: int) -> dict[str, int]:
    return {"data": 1, "fsdp": 1, "tensor": 1, **sizes}


@pytest.mark.parametrize(
    ("sizes", "tensor", "cut"),
    [
        ({"data": 4}, {}, {"up": P(), "bias": P()}),
        ({"fsdp": 4}, {}, {"up": P(None, "fsdp"), "bias": P()}),  # the largest dimension
        ({"fsdp": 64}, {}, {"up": P("fsdp", None), "bias": P()}),  # of those that divide
        ({"fsdp": 5}, {}, {"up": P(), "bias": P()}),
        ({"tensor": 2}, {"*": (None,)}, {"up": P(), "bias": P()}),
        ({"tensor": 2}, {"up": ("tensor",)}, {"up": P("tensor", None), "bias": P()}),
        ({"fsdp": 2, "tensor": 2}, {"up": (None, "tensor")}, {"up": P("fsdp", "tensor"), "bias": P()}),
        ({"fsdp": 64, "tensor": 2}, {"up": ("tensor",)}, {"up": P("tensor", None), "bias": P()}),
        ({"fsdp": 2}, {"up": (None, "tensor")}, {"up": P(None, "fsdp"), "bias": P()}),
    ],
)
def test_tensor_is_the_models_and_fsdp_takes_the_largest_dimension_that_is_left(
    sizes: dict[str, int], tensor: dict[str, Any], cut: dict[str, P]
) -> None:
    assert PartitionRules(tensor).weights(SHAPES, {"up", "bias"}, axes(**sizes)) == cut


def test_what_is_not_learned_or_is_small_stays_whole() -> None:
    assert PartitionRules().weights(SHAPES, {"bias"}, axes(fsdp=2)) == {"up": P(), "bias": P()}
    rules = PartitionRules(whole_below=64 * 96 + 1)
    assert rules.weights(SHAPES, {"up", "bias"}, axes(fsdp=2)) == {"up": P(), "bias": P()}


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        ({}, r"--mesh tensor=5: the model does not say how its weights are cut; leave the axis out"),
        ({"u*": (None, "tensor")}, r"rule 'u\*' of the model for 'up': 96 elements do not go into 5 equal"),
        ({"bias": (None, "tensor")}, r"'bias': has 2 entries, the shape is \[96\]"),
        ({"up": ("fsdp",)}, r"'up': is \['fsdp'\]; None and, once, 'tensor'"),
        ({"up": ("tensor", "tensor")}, r"'up': is \['tensor', 'tensor'\]; None and, once, 'tensor'"),
        ({"down": (None,)}, r"tensor_parallel of the model: no weight is called like 'down'; the names are"),
    ],
)
def test_rules_that_do_not_fit_are_refused_with_the_cure(tensor: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        PartitionRules(tensor).weights(SHAPES, {"up"}, axes(tensor=5))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("asked", [{"data": 3}, {"fsdp": 2}, {"fsdp": 4, "tensor": 2}])
def test_a_mesh_that_is_not_of_the_devices_is_refused_with_both(asked: dict[str, int]) -> None:
    said = ",".join(f"{axis}={size}" for axis, size in asked.items())
    with pytest.raises(
        UsageError, match=rf"--mesh: found {said}, needs 1 in all, as many devices as JAX finds"
    ):
        lay_out(asked, 32, ALONE)


def test_a_model_that_does_not_fit_is_refused_before_anything_is_written(
    toy_settings: Callable[..., TrainSettings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def on_five(asked: Mapping[str, int], rows: int, processes: Processes, rules: PartitionRules) -> Layout:
        return Layout(abstract_mesh(axes(tensor=5)), processes, rows, rules)

    monkeypatch.setattr(training, "lay_out", on_five)
    with pytest.raises(UsageError, match=r"'blocks\.0\.attn\.key\.bias': 16 elements do not go into 5 equal"):
        train(toy_settings(tmp_path))
    assert not (tmp_path / "runs").exists()


def test_processes_must_be_started_with_one_mesh(
    toy_settings: Callable[..., TrainSettings], tmp_path: Path
) -> None:
    settings = toy_settings(tmp_path)
    info = settings.preset.task.load(settings.data).info
    layouts = [
        Layout(abstract_mesh(sizes), Processes(2, 0, "train-0.train:8476"), 4)
        for sizes in (axes(fsdp=2), axes(tensor=2))
    ]
    first, second = (training._start(settings, info, layout) for layout in layouts)
    assert (first.pop("--mesh"), second.pop("--mesh")) == ("fsdp=2", "tensor=2")
    assert first == second


def abstract_mesh(sizes: Mapping[str, int]) -> Any:
    """Of devices that are not here."""
    return AbstractMesh(tuple(sizes.values()), AXES, axis_types=(AxisType.Auto,) * len(AXES))


def lowered(name: str, mesh: Mapping[str, int], processes: Processes = ALONE) -> str:
    """A preset's training step as StableHLO for cuda, for devices that are not here where there is a mesh."""
    preset = get_preset(name)
    rules, transform = PartitionRules.of(preset.model), optimizer(preset.hyper)
    layout = lay_out({}, preset.hyper.batch_size, ALONE, rules)
    if mesh:
        layout = Layout(abstract_mesh(axes(**mesh)), processes, preset.hyper.batch_size, rules)
    state = abstract_state(preset.model, transform, layout)
    data = preset.task.load(None if name == "digits" else __file__)
    batch = data.batch(0, 0, preset.hyper.batch_size)
    ballots = () if processes.alone else (jax.ShapeDtypeStruct((layout.mesh.size,), np.int32),)
    traced = jit_step(preset, preset.hyper, layout, state).trace(state, batch, *ballots)
    return traced.lower(lowering_platforms=("cuda",)).as_text()


@pytest.mark.parametrize("name", BUILT_IN)
def test_the_step_of_every_preset_lowers_for_cuda(name: str) -> None:
    program = lowered(name, {})
    assert "mhlo.num_partitions = 1" in program
    # The whole state is given to the step and comes back in its place.
    assert program.count("tf.aliasing_output") == len(skeleton(get_preset(name).model).slots) * 3 + 4


@pytest.mark.parametrize(
    ("name", "mesh", "first", "moment"),
    [
        ("nano", {"data": 2, "fsdp": 2, "tensor": 2}, '"data", "fsdp"', '[{"fsdp"}, {"tensor"}]'),
        ("digits", {"data": 2, "fsdp": 4}, '"data", "fsdp"', '[{"fsdp"}, {}]'),
    ],
)
def test_it_lowers_for_cuda_on_a_mesh_too(name: str, mesh: dict[str, int], first: str, moment: str) -> None:
    program = lowered(name, mesh, Processes(2, 0, "train-0.train:8476"))
    assert "mhlo.num_partitions = 8" in program
    assert f"#sdy.sharding<@mesh, [{{{first}}}, {{}}]>" in program  # the batch
    assert program.count(f"#sdy.sharding<@mesh, {moment}>") >= 6  # a weight and its moments, in and out
    assert '#sdy.sharding<@mesh, [{"data", "fsdp", "tensor"}]>' in program  # the ballots

"""A checkpoint is whole or absent, says what it is, and is only ever read as what it is."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from train_job import retention
from train_job.checkpoints import Checkpoints, choose_step, list_steps, load_params, read_run
from train_job.errors import CheckFailed, StorageFailed, UnknownStep, UsageError, describe_cause
from train_job.job import train
from train_job.settings import TrainSettings, Upkeep

ITEMS = {"params": {"w": jnp.arange(4.0)}, "position": {"step": jnp.int32(0)}}


def save_all(run_dir: Path, losses: dict[int, float | None], **upkeep: int) -> None:
    """Saves a checkpoint per step; None stands for a save without an evaluation."""
    with Checkpoints(run_dir, Upkeep(**upkeep)) as checkpoints:
        for step, loss in losses.items():
            checkpoints.save(step, ITEMS, {} if loss is None else {"val_loss": loss})


def steps_of(run_dir: Path) -> list[int]:
    return [info.step for info in list_steps(run_dir)]


def test_a_run_says_what_it_is(finished: Path) -> None:
    record = read_run(finished)
    assert (record.run, record.preset, record.finished) == ("toy", "toy_model:toy", True)
    assert record.data["bytes"] == 40_000
    assert record.settings["batch_size"] == record.fingerprint["batch_size"] == 4
    assert record.baselines["val_bits_per_byte"] > 0
    assert {"jax", "flax", "orbax-checkpoint", "python"} <= record.versions.keys()


def test_every_checkpoint_carries_its_metrics(finished: Path) -> None:
    steps = list_steps(finished)
    assert [info.step for info in steps] == [4, 8, 12]
    assert all({"val_loss", "val_bits_per_byte", "train_loss"} <= info.metrics.keys() for info in steps)


def test_a_step_is_chosen_by_name_or_number(finished: Path) -> None:
    best = min(list_steps(finished), key=lambda info: info.metrics["val_loss"])
    assert choose_step(finished, "latest").step == 12
    assert choose_step(finished, "best") == best
    assert choose_step(finished, 8).step == choose_step(finished, "8").step == 8


def test_a_step_that_is_not_there_is_answered_with_those_that_are(finished: Path) -> None:
    with pytest.raises(UnknownStep, match=r"found 7, needs latest, best or a step of run 'toy': 4, 8, 12"):
        choose_step(finished, 7)


def test_a_run_that_is_not_there_is_answered_with_those_that_are(finished: Path) -> None:
    with pytest.raises(UsageError, match=r"no run 'nano' in .*; present: toy"):
        read_run(finished.parent / "nano")


def test_weights_load_flat_and_typed(finished: Path) -> None:
    weights = load_params(finished, 12)
    assert weights["blocks.0.attn.query.kernel"].shape == (16, 16)
    assert {leaf.dtype for leaf in weights.values()} == {np.dtype("float32")}


def test_weights_of_another_model_are_refused_by_name(finished: Path, tmp_path: Path) -> None:
    """Orbax alone would cast a dtype in silence and misname a shape."""
    record = json.loads((finished / "run.json").read_text())
    (tmp_path / "run.json").write_text(json.dumps({**record, "preset": "toy_model:mlp"}))
    (tmp_path / "checkpoints").symlink_to(finished / "checkpoints")
    with pytest.raises(
        CheckFailed, match=r"'blocks\.0\.attn\.key\.bias' is float32\[16\], the model needs absent"
    ):
        load_params(tmp_path, 12)


def cut_short(step_dir: Path, item: str) -> None:
    """Halves the largest data file of an item, as a disk that lost its tail would."""
    data = (step_dir / item / "ocdbt.process_0" / "d").iterdir()
    largest = max(data, key=lambda path: path.stat().st_size)
    os.truncate(largest, largest.stat().st_size // 2)


@pytest.fixture
def copied(finished: Path, tmp_path: Path) -> Path:
    return shutil.copytree(finished, tmp_path / "runs" / "toy")


def test_damaged_weights_are_named_with_the_checkpoints_left(copied: Path) -> None:
    cut_short(copied / "checkpoints" / "12", "params")
    with pytest.raises(CheckFailed) as caught:
        load_params(copied, 12)
    said = str(caught.value)
    assert caught.value.exit_code == 3
    assert said.startswith(f"{copied}/checkpoints/12: the checkpoint is damaged (")
    assert said.endswith("4, 8; export one of them (--step 8), or remove this folder to resume from step 8")
    assert len(said.splitlines()) == 1
    assert load_params(copied, 8)


def test_a_damaged_checkpoint_is_not_resumed_nor_passed_over(
    copied: Path, toy_settings: Callable[..., TrainSettings]
) -> None:
    record = json.loads((copied / "run.json").read_text())
    (copied / "run.json").write_text(json.dumps({**record, "finished": False}))
    cut_short(copied / "checkpoints" / "12", "optimizer")
    with pytest.raises(CheckFailed, match=r"/12: the checkpoint is damaged .* resume from step 8$"):
        train(toy_settings(copied.parents[1]))
    assert steps_of(copied) == [4, 8, 12]


def test_metadata_that_cannot_be_read_is_damage_too(copied: Path) -> None:
    for step in (4, 8):
        shutil.rmtree(copied / "checkpoints" / str(step))
    os.truncate(copied / "checkpoints" / "12" / "params" / "_METADATA", 100)
    with pytest.raises(
        CheckFailed, match=r"12: the checkpoint is damaged .*; no other checkpoint is present"
    ):
        load_params(copied, 12)


def test_a_step_that_retention_removes_meanwhile_is_not_called_damaged(copied: Path) -> None:
    step_dir = copied / "checkpoints" / "12"
    cut_short(step_dir, "params")  # what a reader finds in the middle of the deletion

    def remove_slowly() -> None:
        for path in sorted(step_dir.rglob("*"), reverse=True):
            time.sleep(0.05)
            path.rmdir() if path.is_dir() else path.unlink()

    started = time.monotonic()
    deletion = threading.Timer(0.3, remove_slowly)
    deletion.start()
    with pytest.raises(UnknownStep):
        load_params(copied, 12)
    assert time.monotonic() - started < 60, "it hangs"
    deletion.join()


def test_the_latest_and_the_best_stay(tmp_path: Path) -> None:
    save_all(tmp_path, {1: 5.0, 2: 1.0, 3: 4.0, 4: 3.0, 5: 2.0}, keep_latest=2, keep_best=1)
    assert steps_of(tmp_path) == [2, 4, 5]
    assert choose_step(tmp_path, "best").step == 2


def test_every_nth_stays_for_good(tmp_path: Path) -> None:
    save_all(tmp_path, {2: 5.0, 3: 4.0, 4: 3.0, 5: 2.0, 6: 1.0}, keep_latest=1, keep_best=0, keep_every=2)
    assert steps_of(tmp_path) == [2, 4, 6]


def test_a_save_forced_by_a_signal_is_latest_but_never_best(tmp_path: Path) -> None:
    save_all(tmp_path, {1: 5.0, 2: None, 3: None}, keep_latest=2, keep_best=1)
    assert steps_of(tmp_path) == [1, 2, 3]
    assert choose_step(tmp_path, "best").step == 1
    assert choose_step(tmp_path, "latest").metrics == {}


def test_retention_goes_on_after_a_restart(tmp_path: Path) -> None:
    save_all(tmp_path, {1: 1.0, 2: 5.0}, keep_latest=1, keep_best=1)
    save_all(tmp_path, {3: 4.0, 4: 3.0}, keep_latest=1, keep_best=1)
    assert steps_of(tmp_path) == [1, 4]


def test_a_checkpoint_that_goes_has_lost_its_number_before_its_first_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that is killed while it deletes leaves no half of a step: what it leaves is swept away at a start."""
    seen: list[tuple[str, list[int]]] = []
    monkeypatch.setattr(
        retention.shutil, "rmtree", lambda path, **_: seen.append((path.name, steps_of(tmp_path)))
    )
    save_all(tmp_path, {1: 1.0, 2: 2.0}, keep_latest=1, keep_best=0)
    assert seen == [("1.orbax-checkpoint-tmp", [2])]
    monkeypatch.undo()
    assert (tmp_path / "checkpoints" / "1.orbax-checkpoint-tmp" / "params").is_dir()
    save_all(tmp_path, {3: 3.0}, keep_latest=2, keep_best=0)
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["2", "3"]


@pytest.mark.parametrize("damage", ["{", ""])
def test_a_step_whose_metrics_cannot_be_read_is_neither_passed_over_nor_removed(
    damage: str, tmp_path: Path
) -> None:
    save_all(tmp_path, {1: 1.0, 2: 2.0, 3: 3.0})
    metadata = tmp_path / "checkpoints" / "1" / "_CHECKPOINT_METADATA"
    whole = metadata.read_text()
    metadata.write_text(damage)
    assert steps_of(tmp_path) == [1, 2, 3]
    with pytest.raises(
        CheckFailed, match=r"checkpoints/1: the checkpoint is damaged .*present besides: 2, 3"
    ):
        choose_step(tmp_path, "best")
    assert choose_step(tmp_path, "latest").step == 3
    save_all(tmp_path, {4: 4.0}, keep_latest=1, keep_best=1)
    metadata.write_text(whole)
    assert steps_of(tmp_path) == [1, 2, 4], "2 is the best of those that could be read"
    assert choose_step(tmp_path, "best").step == 1


@pytest.mark.parametrize("damage", ["[]", '{"metrics": 7}', '{"init_timestamp_nsecs": "soon"}'])
def test_metadata_that_is_json_and_no_metadata_is_damage_too(damage: str, tmp_path: Path) -> None:
    save_all(tmp_path, {1: 1.0, 2: 2.0})
    (tmp_path / "checkpoints" / "2" / "_CHECKPOINT_METADATA").write_text(damage)
    with pytest.raises(CheckFailed, match=r"_CHECKPOINT_METADATA of one of the steps 1, 2 is damaged \("):
        Checkpoints(tmp_path, Upkeep())


def test_a_latest_step_whose_metrics_the_volume_does_not_give_is_the_latest(tmp_path: Path) -> None:
    save_all(tmp_path, {1: 1.0, 2: 2.0})
    metadata = tmp_path / "checkpoints" / "2" / "_CHECKPOINT_METADATA"
    metadata.unlink()
    metadata.mkdir()  # read as root, too, it is refused
    assert choose_step(tmp_path, "latest").step == 2


def test_what_is_saved_is_what_was_when_save_was_called(tmp_path: Path) -> None:
    """The next step consumes its input's buffers while the save is still being written."""
    step = jax.jit(lambda tree: jax.tree.map(lambda leaf: leaf * 1.5 + 1, tree), donate_argnums=0)
    state = step({"w": jnp.arange(2_000_000.0)})
    expected = np.array(state["w"])
    with Checkpoints(tmp_path, Upkeep()) as checkpoints:
        checkpoints.save(1, {"params": state}, {})
        for _ in range(5):
            state = step(state)
        jax.block_until_ready(state)
    restored = _load_w(tmp_path, expected)
    np.testing.assert_array_equal(restored, expected)


def _load_w(run_dir: Path, like: np.ndarray) -> np.ndarray:
    with Checkpoints(run_dir, Upkeep()) as checkpoints:
        items = checkpoints.restore(1, {"params": {"w": jax.ShapeDtypeStruct(like.shape, like.dtype)}})
    return np.asarray(items["params"]["w"])


def test_what_a_killed_save_left_is_swept_away(tmp_path: Path) -> None:
    save_all(tmp_path, {1: 1.0})
    torn = tmp_path / "checkpoints" / "2.orbax-checkpoint-tmp"
    torn.mkdir()
    (torn / "half").write_bytes(b"half")
    assert steps_of(tmp_path) == [1]
    with Checkpoints(tmp_path, Upkeep()) as checkpoints:
        assert checkpoints.latest == 1
        checkpoints.save(2, ITEMS, {})  # the sweep runs beside the start, and is over before the next save
    assert not torn.exists()
    assert steps_of(tmp_path) == [1, 2]


def test_a_save_that_fails_in_the_background_fails_the_run(tmp_path: Path) -> None:
    save_all(tmp_path, {1: 1.0})
    checkpoints = Checkpoints(tmp_path, Upkeep())
    folder = tmp_path / "checkpoints"
    aside = folder.rename(tmp_path / "aside")
    folder.write_bytes(b"a file where the folder was")
    with pytest.raises(StorageFailed, match=r"cannot write .*checkpoints/2: not a directory"), checkpoints:
        checkpoints.save(2, ITEMS, {})
    folder.unlink()
    aside.rename(folder)
    assert steps_of(tmp_path) == [1]


def test_causes_are_named_however_deep_they_lie() -> None:
    wrapped = RuntimeError("save failed")
    wrapped.__cause__ = OSError(28, "No space left on device")
    assert describe_cause(wrapped) == "no space left on device"
    tensorstore = ValueError("RESOURCE_EXHAUSTED: Failed writing: Failed to write [os_error_code='30']")
    assert describe_cause(tensorstore) == "read-only file system"

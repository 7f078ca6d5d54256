"""A run: resumes bit for bit, refuses what it is not, ends once, and shows what it did."""

from __future__ import annotations

import dataclasses
import fcntl
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx
from jax.errors import JaxRuntimeError
from PIL import Image

from train_job import plot, runs, training
from train_job.checkpoints import Checkpoints, list_steps, load_params, read_run
from train_job.device_memory import DeviceMemoryFull
from train_job.errors import CheckFailed, EnvironmentUnfit, FingerprintMismatch, RunBusy
from train_job.job import train
from train_job.loop import Loop
from train_job.mesh import lay_out
from train_job.optimizer import optimizer
from train_job.plot import _beside, draw_plot
from train_job.processes import ALONE
from train_job.rows import read_metrics
from train_job.runs import write_run, writing
from train_job.settings import TrainSettings
from train_job.state import abstract_state, fresh_state

STEPS = 12  # of the toy preset

type Settings = Callable[..., TrainSettings]


def contents(folder: Path) -> dict[str, bytes]:
    """All but the lock, which names the process that held it last."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def assert_same_weights(run_dir: Path, other: Path, step: int = STEPS) -> None:
    first, second = load_params(run_dir, step), load_params(other, step)
    assert first.keys() == second.keys()
    for key in first:
        assert np.asarray(first[key]).tobytes() == np.asarray(second[key]).tobytes(), key


def test_a_run_preempted_in_each_of_its_doings_goes_on_to_the_very_same_weights(
    tmp_path: Path, toy_settings: Settings, finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In its first steps, in an evaluation, in a save and in the last save; however often it looks and saves, and
    whichever signal it was."""
    settings = toy_settings(tmp_path)
    with monkeypatch.context() as patch:
        patch.setenv("INTERRUPT_AT", "1")
        assert train(settings) == 75
    assert list_steps(settings.run_dir)[-1].step == 2
    other_upkeep = toy_settings(tmp_path, overrides={"eval_every": "5", "checkpoint_every": "3"})
    with monkeypatch.context() as patch:
        told(patch, Loop, "_look", at=3)  # of step 3, before it is saved as planned
        assert train(other_upkeep) == 75
    assert list_steps(settings.run_dir)[-1].step == 3
    with monkeypatch.context() as patch:
        told(patch, Checkpoints, "save", at=6, after=True)  # which is written in the background then
        assert train(other_upkeep) == 75
    assert list_steps(settings.run_dir)[-1].step == 6
    with monkeypatch.context() as patch:
        told(patch, Checkpoints, "save", at=STEPS, after=True)
        assert train(other_upkeep) == 0, "there is nothing left to do but to say that it is finished"
    assert read_run(settings.run_dir).finished
    assert_same_weights(settings.run_dir, finished)


def told(patch: pytest.MonkeyPatch, kind: type, name: str, at: int, after: bool = False) -> None:
    """SIGTERM comes when a method is called with a step, or when it has returned."""
    real = getattr(kind, name)

    def method(self: Any, *arguments: Any) -> Any:
        result = real(self, *arguments) if after else None
        if at in arguments:
            os.kill(os.getpid(), signal.SIGTERM)
        return result if after else real(self, *arguments)

    patch.setattr(kind, name, method)


def test_a_resumed_run_ends_with_the_weights_and_metrics_of_one_never_stopped(
    tmp_path: Path, toy_settings: Settings, finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = toy_settings(tmp_path)
    with monkeypatch.context() as patch:
        patch.setenv("STOP_AT", "6")
        assert train(settings) == 75
    assert list_steps(settings.run_dir)[-1].step == 7
    with (settings.run_dir / "metrics.jsonl").open(
        "a"
    ) as log:  # as a kill after the last save would leave it
        log.write('{"step": 9, "train_loss": 1.0}\n{"step": 10, "tra')
    assert train(settings) == 0

    def losses(run_dir: Path) -> list[tuple[int, float, float]]:
        return [(row["step"], row["train_loss"], row["val_loss"]) for row in read_metrics(run_dir)]

    assert losses(settings.run_dir) == losses(finished)
    assert_same_weights(settings.run_dir, finished)


def test_a_finished_run_ends_at_once_and_changes_nothing(finished: Path, toy_settings: Settings) -> None:
    before = contents(finished)
    assert train(toy_settings(finished.parent.parent)) == 0
    assert contents(finished) == before


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"steps": 24}, r"steps was 12 .* asked for now is 24; pass --steps 12"),
        ({"overrides": {"seed": "1"}}, r"seed was 0 .* is 1; pass --set seed=0"),
        ({"overrides": {"batch_size": "8"}}, r"batch_size was 4"),
        ({"overrides": {"learning_rate": "0.1"}}, r"learning_rate was 0\.01"),
        ({"data": str(Path(__file__))}, r"data\.sha256 was '.* pass the --data the run began with"),
        ({"model": "toy_model:mlp", "data": None, "run": "toy"}, r"model\.|batch_size|data\.sha256"),
    ],
)
def test_other_settings_than_the_run_began_with_are_refused(
    change: dict[str, Any], field: str, finished: Path, toy_settings: Settings
) -> None:
    before = contents(finished)
    with pytest.raises(FingerprintMismatch, match=field) as caught:
        train(toy_settings(finished.parent.parent, **change))
    assert caught.value.exit_code == 2
    assert contents(finished) == before


def test_starting_over_moves_the_old_run_aside_and_keeps_every_one(
    tmp_path: Path, toy_settings: Settings, finished: Path
) -> None:
    """One that began in the same second is there already."""
    runs = tmp_path / "runs"
    shutil.copytree(finished, runs / "toy")
    stamp = "".join(part for part in read_run(finished).created_at if part.isalnum())
    taken = shutil.copytree(finished, runs / f"toy.before-{stamp}")
    (taken / "mine").touch()
    before = contents(runs / "toy")
    over = toy_settings(tmp_path, resume=False, overrides={"seed": "1"})
    assert train(over) == 0
    assert read_run(over.run_dir).settings["seed"] == 1
    (aside,) = (path for path in runs.iterdir() if path not in (over.run_dir, taken))
    assert contents(aside) == before and (taken / "mine").exists()


def test_a_second_writer_is_refused_and_told_who_holds_the_run(
    tmp_path: Path, toy_settings: Settings
) -> None:
    settings = toy_settings(tmp_path)
    settings.run_dir.mkdir(parents=True)
    with (settings.run_dir / ".lock").open("w") as holder:
        holder.write("process 4711 on elsewhere\n")
        holder.flush()
        fcntl.flock(holder, fcntl.LOCK_EX)
        with pytest.raises(
            RunBusy, match=r"run 'toy' .* is being written by process 4711 on elsewhere"
        ) as caught:
            train(settings)
    assert caught.value.exit_code == 4
    with writing(settings.run_dir):
        pass


@pytest.mark.parametrize("begun", [True, False], ids=["begun anew", "not there yet"])
def test_who_waited_while_the_run_was_moved_aside_writes_neither_that_nor_the_new_one(
    begun: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir, aside = tmp_path / "toy", tmp_path / "toy.before-then"
    run_dir.mkdir()
    (run_dir / ".lock").touch()

    def moving(_: float) -> None:
        run_dir.rename(aside)
        if begun:
            run_dir.mkdir()
            (run_dir / ".lock").touch()
        holder.close()

    monkeypatch.setattr(runs, "time", SimpleNamespace(sleep=moving))
    with (run_dir / ".lock").open() as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        with pytest.raises(RunBusy, match=r"run 'toy' .* is begun anew"), writing(run_dir):
            pass
    assert set(contents(tmp_path)) == set()
    assert {lock.read_bytes() for lock in tmp_path.glob("*/.lock")} == {b""}


def test_a_root_that_cannot_be_written_names_path_and_cause(tmp_path: Path, toy_settings: Settings) -> None:
    blocked = tmp_path / "a-file"
    blocked.write_bytes(b"")
    with pytest.raises(EnvironmentUnfit, match=r"cannot write .*a-file/runs/toy: not a directory") as caught:
        train(toy_settings(blocked))
    assert caught.value.exit_code == 4


def test_a_loss_that_is_no_number_stops_the_run_and_is_not_saved(
    tmp_path: Path, toy_settings: Settings
) -> None:
    settings = toy_settings(tmp_path, overrides={"learning_rate": "1e30", "clip_norm": "0"})
    with pytest.raises(
        CheckFailed, match=r"loss is (nan|inf) at step 3 .*smaller --set learning_rate"
    ) as caught:
        train(settings)
    assert caught.value.exit_code == 3
    assert list_steps(settings.run_dir) == []


def test_a_record_that_is_not_one_is_named(tmp_path: Path, toy_settings: Settings) -> None:
    settings = toy_settings(tmp_path)
    settings.run_dir.mkdir(parents=True)
    (settings.run_dir / "run.json").write_text("{")
    with pytest.raises(Exception, match=r"run\.json: no run record") as caught:
        train(settings)
    assert getattr(caught.value, "exit_code", None) == 2


def test_a_record_that_the_volume_does_not_give_is_a_fault_of_the_volume(
    tmp_path: Path, toy_settings: Settings
) -> None:
    settings = toy_settings(tmp_path)
    (settings.run_dir / "run.json").mkdir(parents=True)  # read as root, too, it is refused
    with pytest.raises(Exception, match=r"run\.json: cannot be read") as caught:
        train(settings)
    assert getattr(caught.value, "exit_code", None) == 4


def test_one_row_per_interval_with_what_was_measured(finished: Path) -> None:
    rows = read_metrics(finished)
    assert [row["step"] for row in rows] == [4, 8, 12]
    wanted = {"time", "train_loss", "val_loss", "val_bits_per_byte", "tokens_per_s", "lr"}
    wanted |= {"batch_loss", "grad_norm", "step_seconds", "skipped_steps", "goodput"}
    assert all(wanted <= row.keys() for row in rows)
    assert {"checkpoint_seconds", "checkpoint_wait_seconds"} <= rows[-1].keys()
    assert all(row["tokens_per_s"] * row["step_seconds"] == pytest.approx(64) for row in rows)
    assert all(0 < row["goodput"] <= 1 and row["skipped_steps"] == 0 < row["grad_norm"] for row in rows)
    assert rows[-1]["lr"] < rows[0]["lr"]
    assert rows[0]["batch_loss"] == pytest.approx(rows[0]["train_loss"], rel=0.3), (
        "another mean of the same thing"
    )
    assert rows[-1]["val_loss"] < rows[0]["val_loss"]


def test_tensorboard_reads_the_same_figures(finished: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(finished / "tensorboard"))
    events.Reload()
    read = [(event.step, event.value) for event in events.Scalars("val_loss")]
    logged = [(row["step"], row["val_loss"]) for row in read_metrics(finished)]
    assert read == [(step, pytest.approx(value)) for step, value in logged]


def test_the_plot_is_a_picture(finished: Path) -> None:
    with Image.open(finished / "loss.png") as image:
        image.load()
        assert image.format == "PNG"
        assert image.width > 800
        assert image.height > image.width * 0.9, "throughput and gradient norm below"


def test_below_the_metrics_are_throughput_what_it_makes_of_the_devices_and_the_gradient() -> None:
    rows = [{"step": 1, "grad_norm": 1.0, "tokens_per_s": 9.0, "val_loss": 2.0}]
    assert _beside(rows) == ["tokens_per_s", "grad_norm"], "a device whose peak is not known"
    assert _beside([{**rows[0], "mfu": 0.4}]) == ["tokens_per_s", "mfu", "grad_norm"]


def test_choices_are_said_with_their_reason_before_the_first_step(finished: Path) -> None:
    said = (finished.parents[1] / "said").read_text()
    banner, _, lines = said.partition("step  4/12")
    for part in ("device", "weights, float32", "36,000 bytes to train on", "byte bigram", "64 tokens a step"):
        assert part in banner
    assert lines.count("\nstep ") == 2  # one plain line per interval, no bar, outside a terminal
    assert "done: val_bits_per_byte" in lines
    assert "metrics:" not in said, "without --metrics-port nothing listens"


def test_weights_without_gradients_are_trained_and_resumed_too(
    tmp_path: Path, toy_settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = toy_settings(tmp_path, model="toy_model:normalised", data=None)
    assert train(settings) == 0
    weights = load_params(settings.run_dir, STEPS)
    assert np.abs(np.asarray(weights["norm.mean"])).max() > 0
    resumed = as_if_killed_after(settings.run_dir, tmp_path / "again", 6)
    assert train(dataclasses.replace(settings, root=tmp_path / "again")) == 0
    assert "resumes at step 6 of 12" in capsys.readouterr().out
    assert_same_weights(settings.run_dir, resumed)


def as_if_killed_after(run_dir: Path, root: Path, step: int) -> Path:
    """A copy of a finished run under another root, without what came after a step."""
    copy = shutil.copytree(run_dir, root / "runs" / run_dir.name)
    for info in list_steps(copy):
        if info.step > step:
            shutil.rmtree(copy / "checkpoints" / str(info.step))
    write_run(copy, dataclasses.replace(read_run(copy), finished=False))
    return copy


DIES = """
import dataclasses, pathlib, resource, signal, sys
from train_job.runs import read_run, write_run

run_dir = pathlib.Path(sys.argv[1])
record = dataclasses.replace(read_run(run_dir), starts=2)
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
write_run(run_dir, record)
"""


def test_the_record_survives_a_writer_that_dies(finished: Path, tmp_path: Path) -> None:
    """The kernel kills it at the 101st byte: the record before is there, and the next writer has its way."""
    before = Path(shutil.copy(finished / "run.json", tmp_path)).read_bytes()
    dead = subprocess.run([sys.executable, "-c", DIES, str(tmp_path)], check=False, timeout=60)
    assert dead.returncode == -signal.SIGXFSZ
    assert (tmp_path / "run.json").read_bytes() == before
    write_run(tmp_path, dataclasses.replace(read_run(tmp_path), starts=3))
    assert read_run(tmp_path).starts == 3
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_a_device_that_is_full_is_one_line_with_what_takes_less(
    tmp_path: Path, toy_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compile_programs(*_: object) -> None:
        raise JaxRuntimeError(
            "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 9 bytes.\n  a table"
        )

    monkeypatch.setattr(training, "compile_programs", compile_programs)
    with pytest.raises(
        DeviceMemoryFull, match=r"\(RESOURCE_EXHAUSTED: .* 9 bytes\.\); take less .*batch_size"
    ) as full:
        train(toy_settings(tmp_path))
    assert full.value.exit_code == 4 and "table" not in str(full.value)


def test_a_name_that_is_mathematics_to_the_plot_is_a_name(finished: Path, tmp_path: Path) -> None:
    rows = read_metrics(finished)
    assert draw_plot(tmp_path, "toy: data/$raw_$/x.txt", rows, {}).is_file()


def test_a_plot_that_cannot_be_drawn_leaves_no_trained_run_unfinished(
    finished: Path,
    tmp_path: Path,
    toy_settings: Settings,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def draw(*_: object) -> Path:
        raise ValueError("no font")

    run_dir = shutil.copytree(finished, tmp_path / "runs" / "toy")
    write_run(run_dir, dataclasses.replace(read_run(run_dir), finished=False))
    monkeypatch.setattr(plot, "draw_plot", draw)
    assert train(toy_settings(tmp_path)) == 0
    assert read_run(run_dir).finished
    assert "plot: could not be drawn: ValueError: no font" in capsys.readouterr().out


def test_steps_draw_other_keys_than_the_weights_were_made_with(
    toy_settings: Settings, tmp_path: Path
) -> None:
    settings = toy_settings(tmp_path)
    model, transform, seed = settings.preset.model, optimizer(settings.hyper), settings.hyper.seed
    abstract = abstract_state(model, transform, lay_out({}, settings.hyper.batch_size, ALONE))
    state = fresh_state(model, transform, seed, abstract)
    steps = {
        tuple(jax.random.key_data(jax.random.fold_in(jax.random.wrap_key_data(state.rng), n)).tolist())
        for n in range(20)
    }
    draws = nnx.Rngs(seed)
    weights = {tuple(jax.random.key_data(draws()).tolist()) for _ in range(20)}
    assert len(steps) == len(weights) == 20 and not steps & weights


def test_who_stopped_a_run_begun_anew_is_told_not_to_begin_it_once_more(
    tmp_path: Path,
    toy_settings: Settings,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("STOP_AT", "2")
    assert train(toy_settings(tmp_path, resume=False)) == 75
    assert (
        "preempted: saved step 3 of 12; start again without --no-resume to go on" in capsys.readouterr().out
    )

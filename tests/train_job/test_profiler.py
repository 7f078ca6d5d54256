"""A window of steps that is traced: where it lies, when there is none, and that it is no part of the run."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import jax
import pytest

from train_job.__main__ import main
from train_job.errors import UsageError
from train_job.job import train
from train_job.profiler import Profiler
from train_job.runs import read_run, saved_steps
from train_job.settings import TrainSettings

type Settings = Callable[..., TrainSettings]


def traced_steps(run_dir: Path) -> list[set[int]]:
    """Of each trace, in the form that Perfetto opens, the numbers of the steps in it."""
    files = sorted((run_dir / "profile").glob("plugins/profile/*/*.trace.json.gz"))
    events = [json.loads(gzip.decompress(path.read_bytes()))["traceEvents"] for path in files]
    return [
        {int(event["args"]["step_num"]) for event in of if event.get("name") == "train" and event.get("args")}
        for of in events
    ]


def test_the_steps_of_the_window_are_traced_as_far_as_the_run_comes(
    tmp_path: Path, toy_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal ends the run within the window."""
    monkeypatch.setenv("STOP_AT", "6")
    assert train(toy_settings(tmp_path, profile="3:12")) == 75
    run_dir = tmp_path / "runs" / "toy"
    done = max(saved_steps(run_dir))
    assert traced_steps(run_dir) == [set(range(4, done + 1))] and 5 < done < 12
    assert "profile" not in json.dumps(read_run(run_dir).fingerprint)


def test_a_run_that_goes_on_after_the_window_says_so_and_traces_nothing(
    tmp_path: Path, toy_settings: Settings
) -> None:
    said: list[str] = []
    with (
        Profiler(toy_settings(tmp_path, profile="2:4"), 4, said.append, said.clear) as profile,
        profile.step(4),
    ):
        profile.after(5)
    assert said == ["profile: nothing to trace: steps 3 to 4 are done, the run goes on at 5"]
    assert not list(tmp_path.iterdir())


def test_a_trace_that_cannot_be_made_ends_no_run(
    tmp_path: Path, toy_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(folder: Path) -> None:
        raise RuntimeError("Only one profile may be run at a time.")

    monkeypatch.setattr(jax.profiler, "start_trace", refuse)
    said: list[str] = []
    with Profiler(toy_settings(tmp_path, profile="2:4"), 0, said.append, lambda: None) as profile:
        for done in range(6):
            with profile.step(done):
                profile.after(done + 1)
    assert said == ["profile: not written: Only one profile may be run at a time.; the run goes on"]


@pytest.mark.parametrize("window", ["20", "25:20", "20:20", "-1:5", "a:b", "", "1:2:3"])
def test_what_is_no_window_is_refused(window: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--preset", "no-such-preset-is-looked-up", f"--profile={window}"]) == 2
    assert f"--profile: found {window!r}, needs A:B with A below B" in capsys.readouterr().err


def test_a_window_beyond_the_planned_steps_is_refused() -> None:
    with pytest.raises(UsageError, match=r"--profile: found 20:301, needs steps up to 300, the planned ones"):
        TrainSettings.from_flags(preset="nano", profile="20:301")

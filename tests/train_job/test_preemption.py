"""SIGTERM, SIGINT and SIGHUP: save and 75 while training, 75 at once while there is nothing to save."""

from __future__ import annotations

import dataclasses
import os
import pty
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from train_job import job, training
from train_job.checkpoints import list_steps, read_run
from train_job.preemption import EXIT_PREEMPTED, Preemption
from train_job.runs import write_run
from train_job.settings import TrainSettings

HERE = Path(__file__).parent


def wait_until(condition: Callable[[], bool], what: str, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        time.sleep(0.02)


@pytest.fixture
def start(text: Path, tmp_path: Path) -> Callable[..., subprocess.Popen[str]]:
    """Starts `python -m train_job` on a long run of `--model`; output goes to a file."""

    def run(model: str, *more: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "train_job", "--model", model, "--run", "r", "--root", str(tmp_path)]
        with (tmp_path / "log").open("w") as log:
            return subprocess.Popen(
                [*command, "--data", str(text), *more], cwd=HERE, stdout=log, stderr=log, text=True
            )

    return run


def test_a_signal_while_training_saves_the_step_it_found(
    start: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    process = start("toy_model:toy", "--steps", "1000000", "--set", "checkpoint_every=1000000")
    log = tmp_path / "log"
    wait_until(lambda: "step " in log.read_text(), "the first interval")
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == EXIT_PREEMPTED
    (saved,) = list_steps(tmp_path / "runs" / "r")
    assert f"preempted: saved step {saved.step} of 1000000" in log.read_text()
    assert "Traceback" not in log.read_text()


def test_a_signal_while_compiling_ends_at_once(
    start: Callable[..., subprocess.Popen[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wait is inside the compiler, where no Python handler can run: 24 s and more on two cores that do nothing else."""
    for name in ("JAX_COMPILATION_CACHE_DIR", "JAX_DISABLE_MOST_OPTIMIZATIONS"):
        monkeypatch.delenv(name)  # it is to take its time
    process = start("toy_model:slow_to_compile")
    log = tmp_path / "log"
    wait_until((tmp_path / "runs" / "r" / "run.json").exists, "the run's record")
    time.sleep(1)  # compilation follows
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=15) == EXIT_PREEMPTED
    assert "preempted while starting; nothing to save yet" in log.read_text()


@pytest.mark.parametrize("doing", ["load_data", "joined", "_starting_state", "compile_programs"])
def test_a_signal_before_the_first_step_ends_at_once_whatever_the_run_is_doing(
    doing: str,
    finished: Path,
    tmp_path: Path,
    toy_settings: Callable[..., TrainSettings],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each where no line of Python may run for minutes: a read, a wait for peers, a restore, the compiler."""
    run_dir = shutil.copytree(finished, tmp_path / "runs" / "toy")
    write_run(run_dir, dataclasses.replace(read_run(run_dir), finished=False))
    shutil.rmtree(run_dir / "checkpoints" / "12")
    left: list[int] = []

    class Over(Exception):
        """What `os._exit` would be here."""

    def struck(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        wait_until(lambda: left == [EXIT_PREEMPTED], "the end")
        raise Over

    monkeypatch.setattr(job, "Preemption", lambda where: Preemption(where, leave=left.append))
    monkeypatch.setattr(training, doing, struck)
    with pytest.raises(Over):
        job.train(toy_settings(tmp_path))
    assert "preempted while starting; the last checkpoint is intact\n" in capsys.readouterr().out
    assert [info.step for info in list_steps(run_dir)] == [4, 8]


def test_a_signal_between_the_compiler_and_the_first_step_speaks_of_no_step_that_was_saved(
    tmp_path: Path,
    toy_settings: Callable[..., TrainSettings],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(training, "_train_to_the_end", lambda *_: 0)
    assert job.train(toy_settings(tmp_path)) == EXIT_PREEMPTED
    assert "preempted: before the first step of 12; start again to go on\n" in capsys.readouterr().out


# Told as the first of the run's modules is imported.
TOLD_EARLY = """
import os, signal, sys
class Told:
    def find_spec(name, *rest):
        if name == "train_job.flags": os.kill(os.getpid(), signal.SIGTERM)
sys.meta_path.insert(0, Told)
from train_job.__main__ import main
sys.exit(main(["--preset", "nano"]))
"""
TOLD_LATE = """
import atexit, os, signal
from jaxport.stopping import end
atexit.register(lambda: os.kill(os.getpid(), signal.SIGTERM))
end(75)
"""


@pytest.mark.parametrize("program", [TOLD_EARLY, TOLD_LATE])
def test_a_signal_before_the_run_has_begun_or_after_it_has_ended_is_75_too(program: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", program], timeout=60, check=False, capture_output=True, cwd=HERE.parents[1]
    )
    assert (done.returncode, done.stderr) == (EXIT_PREEMPTED, b"")


def test_a_closed_terminal_ends_the_run_after_a_save(text: Path, tmp_path: Path) -> None:
    """The progress bar writes to the terminal, whose every write fails from then on."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "train_job", "--model", "toy_model:toy", "--run", "r"]
    more = ["--root", str(tmp_path), "--data", str(text), "--steps", "1000000"]
    more += ["--set", "checkpoint_every=1000000"]
    process = subprocess.Popen(
        ["setsid", "--ctty", "--wait", *command, *more], cwd=HERE, stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    shown = b""
    while b"step " not in shown:
        shown += os.read(ours, 4096)
    os.close(ours)
    assert process.wait(timeout=30) == EXIT_PREEMPTED
    (saved,) = list_steps(tmp_path / "runs" / "r")
    assert saved.step >= 4


def test_a_run_under_nohup_outlives_its_terminal() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Preemption() as preemption:
            os.kill(os.getpid(), signal.SIGHUP)
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
            assert not preemption.requested
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize(
    ("saved", "words"),
    [("5.orbax-checkpoint-tmp", "nothing to save yet"), ("5", "the last checkpoint is intact")],
)
def test_the_last_words_speak_of_a_checkpoint_only_where_there_is_one(
    saved: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "checkpoints" / saved).mkdir(parents=True)
    left: list[int] = []
    with Preemption(tmp_path, leave=left.append) as preemption, preemption.nothing_to_save():
        os.kill(os.getpid(), signal.SIGTERM)
        wait_until(lambda: left == [EXIT_PREEMPTED], "the end")
    assert capsys.readouterr().out == f"preempted while starting; {words}\n"


def test_a_second_signal_does_not_wait_for_the_first() -> None:
    left: list[int] = []
    with Preemption(leave=left.append) as preemption:
        os.kill(os.getpid(), signal.SIGTERM)
        wait_until(lambda: preemption.requested, "the first signal")
        assert left == []
        os.kill(os.getpid(), signal.SIGTERM)
        wait_until(lambda: left == [EXIT_PREEMPTED], "the second signal")


def test_handlers_are_put_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with Preemption():
        assert signal.getsignal(signal.SIGTERM) != before
    assert signal.getsignal(signal.SIGTERM) == before

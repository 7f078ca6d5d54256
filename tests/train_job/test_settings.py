"""What a person types is checked before anything expensive happens, and refused with the cure."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path

import pytest

from jaxport import cli
from train_job import job
from train_job.__main__ import main
from train_job.errors import UsageError
from train_job.presets import get_preset
from train_job.settings import TrainSettings, accepted_keys


def test_flags_complete_the_presets_defaults() -> None:
    settings = TrainSettings.from_flags(
        preset="nano", steps=60, overrides={"batch_size": "8", "keep_every": "20"}
    )
    assert settings.run_dir == Path("work/runs/nano")
    assert (settings.hyper.steps, settings.hyper.batch_size, settings.upkeep.keep_every) == (60, 8, 20)
    assert settings.hyper.learning_rate == get_preset("nano").hyper.learning_rate


def test_tiny_starts_from_the_settings_of_the_course() -> None:
    hyper = get_preset("tiny").hyper
    assert (hyper.learning_rate, hyper.weight_decay) == (3e-4, 1e-4)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"preset": "huge"}, r"--preset: found 'huge', needs one of tiny, nano, digits"),
        ({}, r"found neither of --preset and --model; needs exactly one"),
        ({"preset": "nano", "model": "a:b"}, r"found both of --preset and --model"),
        ({"model": "toy"}, r"--model: found 'toy', needs package\.module:factory"),
        ({"model": ":two"}, r"--model: found ':two', needs package\.module:factory"),
        ({"model": "..own:two"}, r"--model: found '\.\.own:two', needs package\.module:factory"),
        (
            {"model": "no_such_module:toy"},
            r"--model no_such_module:toy: cannot import 'no_such_module' from ",
        ),
        ({"model": "toy_model:no_such"}, r"'toy_model' holds no function 'no_such'"),
        ({"model": "toy_model:not_a_preset"}, r"toy_model:not_a_preset gave a str, needs a .*Preset"),
        ({"preset": "nano", "run": "../elsewhere"}, r"--run: found '\.\./elsewhere', needs a folder name"),
        (
            {"preset": "nano", "data": ""},
            r"--data: found '', needs a path, a glob, a folder of token shards, tinyshakespeare or stdlib",
        ),
        (
            {"preset": "nano", "mesh": "data"},
            r"--mesh: found 'data', needs how many devices for each axis of data, fsdp, tensor, such as --mesh data=2,",
        ),
        ({"preset": "nano", "mesh": "data=0"}, r"--mesh: found 'data=0', needs how many"),
        ({"preset": "nano", "mesh": "data=2,data=2"}, r"--mesh: found 'data=2,data=2', needs how many"),
        ({"preset": "nano", "mesh": "fsdp=2,model=2"}, r"--mesh: found 'fsdp=2,model=2', needs how many"),
        ({"preset": "nano", "mesh": f"fsdp={'9' * 5000}"}, r"--mesh: found 'fsdp=9+', needs how many"),
        ({"preset": "nano", "steps": "0"}, r"--steps: found '0', needs a whole number of at least 1"),
        (
            {"preset": "nano", "overrides": {"warmup_steps": "9" * 20}},
            r"--set warmup_steps: found '9+', needs a whole number of at least 0 and below 2\*\*31",
        ),
        ({"preset": "nano", "steps": "1_0"}, r"--steps: found '1_0', needs a whole number"),
        ({"preset": "nano", "overrides": {"beta1": "0.9_9"}}, r"--set beta1: found '0.9_9', needs"),
        ({"preset": "nano", "steps": "many"}, r"--steps: found 'many', needs a whole number"),
        (
            {"preset": "nano", "overrides": {"batch_size": "1.5"}},
            r"--set batch_size: found '1\.5', needs a whole",
        ),
        (
            {"preset": "nano", "overrides": {"learning_rate": "nan"}},
            r"--set learning_rate: found 'nan', needs",
        ),
        (
            {"preset": "nano", "overrides": {"learning_rate": "0"}},
            r"--set learning_rate: found '0', needs a number",
        ),
        ({"preset": "nano", "overrides": {"seed": "-1"}}, r"--set seed: found '-1', needs"),
    ],
)
def test_a_mistake_names_the_flag_the_value_and_the_need(flags: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        TrainSettings.from_flags(**flags)  # type: ignore[arg-type]
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)


def test_an_unknown_setting_is_answered_with_all_there_are() -> None:
    with pytest.raises(UsageError) as caught:
        TrainSettings.from_flags(preset="nano", overrides={"batchsize": "8"})
    assert all(key in str(caught.value) for key in accepted_keys())


def test_a_mesh_is_devices_per_axis() -> None:
    assert TrainSettings.from_flags(preset="digits", mesh="data=2, fsdp=4").mesh == {"data": 2, "fsdp": 4}


def test_help_and_mistakes_do_not_wait_for_jax() -> None:
    program = (
        "import sys; from train_job.__main__ import main; "
        "code = main(['--preset', 'nano', '--set', 'batchsize=8']); print(code, 'jax' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["2", "False"]


def test_the_command_prints_one_line_and_with_debug_where_an_error_came_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mistaken = ["--preset", "digits", "--root", str(tmp_path), "--data", "elsewhere"]
    assert main(mistaken) == 2
    assert (
        capsys.readouterr().err
        == "error: --data: found 'elsewhere'; the digits preset brings its own data: leave --data out\n"
    )
    with pytest.raises(UsageError):
        main([*mistaken, "--debug"])


def test_both_commands_say_what_the_file_system_says(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing(_: TrainSettings) -> int:
        raise OSError(errno.EIO, "Input/output error", "work/runs/r")

    monkeypatch.setattr(job, "train", failing)
    flags = ["--preset", "digits", "--run", "r"]
    doors = main, lambda flags: cli.main(["train", *flags])
    said = [(door(flags), capsys.readouterr().err) for door in doors]
    assert said == [(4, "error: work/runs/r: Input/output error; make it fit or name another place\n")] * 2


def test_help_and_mistakes_name_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    for flags, code in (["--help"], 0), (["--preset"], 2):
        with pytest.raises(SystemExit) as ended:
            main(flags)
        assert ended.value.code == code
    told = capsys.readouterr()
    assert told.out.startswith("usage: jaxport train ")
    assert told.err.startswith("jaxport train: error: argument --preset: expected one argument")
    assert told.err.count("\n") == 1

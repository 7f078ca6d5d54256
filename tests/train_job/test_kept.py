"""A run carries its data: an image with another Python goes on with the bytes that the run began with."""

from __future__ import annotations

import argparse
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.once import OncePerRun
from tests.train_job import pairs
from tests.train_job.test_job import assert_same_weights, contents
from train_job import banner
from train_job.checkpoints import read_run
from train_job.data import sources
from train_job.data.sources import Corpus
from train_job.errors import CheckFailed, EnvironmentUnfit, FingerprintMismatch
from train_job.job import train
from train_job.kept import keep, kept_data, load_data
from train_job.settings import TrainSettings

TEXT = Path(argparse.__file__).read_bytes()
NAME = "standard library of Python {}"

type Settings = Callable[..., TrainSettings]
type Images = Callable[[str, bytes | None], None]


@pytest.fixture(scope="module")
def image() -> Iterator[Images]:
    """Makes this the image of a Python whose standard library is the given bytes; of None it may not be read."""
    with pytest.MonkeyPatch.context() as patch:

        def become(version: str, content: bytes | None) -> None:
            def read() -> Corpus:
                assert content is not None, "the source was read"
                return Corpus(NAME.format(version), content, "stdlib")

            patch.setattr(sources, "read_stdlib", read)
            patch.setattr(banner, "name_of", lambda source: NAME.format(version))

        yield become


@pytest.fixture(scope="module")
def stopped_once(
    quick_to_compile: None,
    toy_settings: Settings,
    tmp_path_factory: pytest.TempPathFactory,
    image: Images,
) -> Path:
    image("1.0", TEXT)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STOP_AT", "6")
        settings = toy_settings(tmp_path_factory.mktemp("stopped"), data=None)
        assert train(settings) == 75
    return settings.run_dir


@pytest.fixture
def stopped(stopped_once: Path, tmp_path: Path) -> Path:
    """The folder of a run on the standard library of Python 1.0, stopped after 7 of 12 steps."""
    return shutil.copytree(stopped_once, tmp_path / "copy" / "runs" / "toy")


def change_record(run_dir: Path, change: Callable[[dict[str, Any]], object]) -> None:
    record = json.loads((run_dir / "run.json").read_text())
    change(record)
    (run_dir / "run.json").write_text(json.dumps(record))


def again(toy_settings: Settings, run_dir: Path, **flags: Any) -> int:
    return train(toy_settings(run_dir.parents[1], **{"data": None, **flags}))


def test_a_rebuilt_image_goes_on_with_the_data_of_the_run_and_with_that_of_its_own_only_from_the_start(
    stopped: Path, toy_settings: Settings, tmp_path: Path, image: Images, capsys: pytest.CaptureFixture[str]
) -> None:
    assert read_run(stopped).data["source"] == "stdlib"
    assert (stopped / "data.bin").read_bytes() == TEXT
    over = shutil.copytree(stopped, tmp_path / "over" / "runs" / "toy")
    image("1.1", None)
    assert again(toy_settings, stopped) == 0
    said = capsys.readouterr().out
    assert f"{NAME.format('1.0')} (kept with the run; this image has the {NAME.format('1.1')})" in said
    assert read_run(stopped).data["name"] == NAME.format("1.0")

    image("1.2", TEXT)
    assert again(toy_settings, over, data="stdlib", resume=False) == 0  # the default, in a word
    assert "kept with the run" not in capsys.readouterr().out
    assert_same_weights(stopped, over)
    (aside,) = over.parent.glob("toy.before-*")
    assert [read_run(run).data["name"] for run in (aside, over)] == [NAME.format("1.0"), NAME.format("1.2")]
    assert (aside / "data.bin").read_bytes() == (over / "data.bin").read_bytes() == TEXT


def test_a_finished_run_is_finished_in_every_image_and_without_its_data(
    stopped: Path, toy_settings: Settings, image: Images
) -> None:
    change_record(stopped, lambda record: record.update(finished=True))
    (stopped / "data.bin").unlink()
    before = contents(stopped)
    image("1.1", None)
    assert again(toy_settings, stopped) == 0
    assert contents(stopped) == before


def test_other_data_than_the_run_began_with_is_still_refused(
    stopped: Path, toy_settings: Settings, image: Images
) -> None:
    image("1.1", None)
    before = contents(stopped)
    for change in ({"data": __file__}, {"overrides": {"seed": "1"}}):
        with pytest.raises(FingerprintMismatch):
            again(toy_settings, stopped, **change)
    assert contents(stopped) == before


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: os.truncate(path, 99)])
def test_damaged_data_is_replaced_by_the_same_bytes_and_by_no_others(
    damage: Callable[[Path], None], stopped: Path, toy_settings: Settings, image: Images
) -> None:
    damage(stopped / "data.bin")
    before = contents(stopped)
    image("1.1", TEXT + b"\n")
    with pytest.raises(
        CheckFailed,
        match=r"data\.bin: .* missing or damaged .*1\.1\); restore it, use an image with .*1\.0, or",
    ) as caught:
        again(toy_settings, stopped)
    assert caught.value.exit_code == 3
    assert contents(stopped) == before
    image("1.0", TEXT)
    settings = toy_settings(stopped.parents[1], data=None)
    data = load_data(settings, kept_data(settings, read_run(stopped)))
    keep(stopped, data.info)
    assert (stopped / "data.bin").read_bytes() == TEXT


def test_data_that_cannot_be_read_just_now_is_not_called_damaged(
    stopped: Path, toy_settings: Settings, image: Images
) -> None:
    image("1.0", None)
    (stopped / "data.bin").unlink()
    (stopped / "data.bin").mkdir()
    with pytest.raises(EnvironmentUnfit, match=r"cannot read .*data\.bin"):
        again(toy_settings, stopped)


def test_a_run_of_before_is_refused_with_other_data_and_keeps_its_own_from_now_on(
    stopped: Path, toy_settings: Settings, image: Images
) -> None:
    change_record(stopped, lambda record: record["data"].pop("source"))
    (stopped / "data.bin").unlink()
    image("1.1", TEXT + b"\n")
    with pytest.raises(FingerprintMismatch, match=r"data\.sha256 was .* pass the --data the run began with"):
        again(toy_settings, stopped)
    image("1.0", TEXT)
    assert again(toy_settings, stopped) == 0
    assert read_run(stopped).data["source"] == "stdlib"
    assert (stopped / "data.bin").read_bytes() == TEXT


def test_processes_of_different_images_train_on_the_data_of_process_0(once: OncePerRun) -> None:
    """test_processes.py holds their weights to those of one process on that data."""
    pair = pairs.undisturbed(once)
    first, _ = json.loads((pair / "said.json").read_text())
    assert f"data       {NAME.format(pairs.IMAGES[0])}" in first
    assert (pair / "runs" / "toy" / "data.bin").read_bytes() == TEXT


def test_files_that_a_person_named_are_not_copied(finished: Path) -> None:
    assert "source" not in read_run(finished).data
    assert not (finished / "data.bin").exists()

"""Token shards that are not as they were written: found before a step is made, or at the batch that would have had it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxport.cli import main
from tests.train_job.conftest import VOCABULARY
from tests.train_job.shards import CONTEXT, changed, made
from train_job.data import windows
from train_job.data.shards import (
    check_digests,
    read_index,
)
from train_job.data.windows import open_shards
from train_job.errors import CheckFailed, EnvironmentUnfit, UsageError
from train_job.settings import TrainSettings

type Settings = Callable[..., TrainSettings]


def longer(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"x")


def shorter(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize(
    ("damage", "file", "message"),
    [
        (Path.unlink, "train-00002.bin", r"train-00002\.bin: is missing; copy it again"),
        (longer, "train-00002.bin", r"found 7,001 bytes, needs 7,000"),
        (shorter, "validation-00000.bin", r"validation-00000\.bin: found 3,999 bytes, needs 4,000"),
        (changed, "train-00003.bin", r"train-00003\.bin: found sha256 \w{12}, needs"),
        (changed, "shards.json", r"is missing; copy it again"),
        (shorter, "shards.json", r"shards\.json: not as it was written"),
    ],
)
def test_damage_is_found_before_a_step_is_made(
    damage: Callable[[Path], None], file: str, message: str, copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(copied / file)
    with pytest.raises(CheckFailed, match=message):
        open_shards(copied, CONTEXT)
    assert main(["data", "verify", str(copied)]) == 3
    assert capsys.readouterr().err.count("\n") == 1


def test_of_large_shards_only_sizes_are_looked_at_but_verify_reads_them(
    copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(windows, "VERIFIED_BYTES", 39_999)
    changed(copied / "train-00003.bin")
    open_shards(copied, CONTEXT)
    with pytest.raises(CheckFailed, match=r"train-00003\.bin: found sha256"):
        check_digests(copied, read_index(copied))


@pytest.mark.parametrize(
    "change",
    [
        {"schema_version": 2},
        {"tokens": {"dtype": "uint8", "vocabulary": 257, "tokenizer": "bytes", "tokenizer_sha256": ""}},
        {"tokens": {"dtype": "uint8", "vocabulary": 256, "tokenizer": "words", "tokenizer_sha256": ""}},
        {"train": {"bytes": 1, "shards": []}},
        {"train": {"bytes": 1, "shards": [{"file": "../other.bin", "tokens": 1, "sha256": "0" * 64}]}},
        {"train": {"bytes": 1, "shards": [{"file": "a.bin", "tokens": -1, "sha256": "0" * 64}]}},
        {"train": 7},
        {"separator": 256},
        {"separator": True},
        {"text": {"files": 1, "bytes": "many", "sha256": ""}},
    ],
)
def test_an_index_that_cannot_be_is_refused(change: dict[str, Any], copied: Path) -> None:
    path = copied / "shards.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change, indent=1) + "\n")
    with pytest.raises((CheckFailed, UsageError), match=r"shards\.json: (no index|schema_version is 2)"):
        read_index(copied)


@pytest.mark.parametrize(
    ("vocabulary", "said"),
    [
        (99_999_999_999, "vocabulary: found 99999999999, needs 1 to 4294967296"),
        ("256", "vocabulary: found '256', needs a whole number"),
        (257, "dtype: found 'uint8', a vocabulary of 257 needs 'uint16'"),
    ],
)
def test_a_vocabulary_that_cannot_be_is_named(vocabulary: Any, said: str, copied: Path) -> None:
    path = copied / "shards.json"
    index = json.loads(path.read_text())
    path.write_text(json.dumps(index | {"tokens": index["tokens"] | {"vocabulary": vocabulary}}))
    with pytest.raises(CheckFailed, match=f"no index of token shards .*{said}"):
        read_index(copied)


@pytest.mark.parametrize("depth", [990, 100_000])
def test_an_index_that_is_nested_too_deep_is_refused(depth: int, copied: Path) -> None:
    path = copied / "shards.json"
    deep = "[" * depth + "]" * depth
    path.write_text(re.sub(r'(?<="shard_tokens": )\d+', deep, path.read_text()))
    with pytest.raises(CheckFailed, match=r"shards\.json: no index"):
        read_index(copied)


def test_a_file_that_is_damaged_later_ends_the_run_where_it_is_read(copied: Path) -> None:
    data = open_shards(copied, CONTEXT)
    (copied / "train-00001.bin").write_bytes(b"")
    data.train.windows([0], 7000)
    with pytest.raises(CheckFailed, match=r"train-00001\.bin: ends at 0 bytes, needs more; copy it again"):
        data.train.windows([6990], 17)
    (copied / "train-00004.bin").unlink()
    with pytest.raises(EnvironmentUnfit, match=r"train-00004\.bin: cannot be read"):
        data.train.windows([28_000], 17)


def test_an_id_that_is_past_the_vocabulary_is_not_trained_on(
    tokenizer: Path, text: Path, tmp_path: Path
) -> None:
    made(tmp_path / "out", text, tokenizer=str(tokenizer))
    data = open_shards(tmp_path / "out", CONTEXT, VOCABULARY)
    with (tmp_path / "out" / "train-00000.bin").open("r+b") as stream:
        stream.write(np.asarray(VOCABULARY, "<u2").tobytes())
    with pytest.raises(CheckFailed, match=r"a token 400 was read, needs one below 400; jaxport data verify"):
        data.train.windows([5, 0], 17)


def test_a_part_that_is_shorter_than_a_window_is_refused_with_both_numbers(shards: Path) -> None:
    with pytest.raises(UsageError, match=r"found 4,000 tokens in the validation part, needs more than 4000"):
        open_shards(shards, 4000)

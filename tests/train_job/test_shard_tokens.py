"""Tokens that are not bytes, and the way from text to a run by the commands."""

from __future__ import annotations

import dataclasses
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxport.cli import main
from tests.train_job.conftest import VOCABULARY
from tests.train_job.shards import CONTEXT, changed
from train_job.data.shards import (
    read_index,
    read_tokenizer,
    shards_at,
    tokenization_at,
)
from train_job.data.windows import ShardData, open_shards
from train_job.errors import CheckFailed, UsageError
from train_job.job import train
from train_job.kept import keep
from train_job.presets import Tokenization, preset_of_run
from train_job.settings import TrainSettings
from train_job.tasks.next_token import NextToken

type Settings = Callable[..., TrainSettings]


def test_the_model_has_as_many_tokens_as_the_text(
    of_tokens: Path, toy_settings: Settings, tmp_path: Path
) -> None:
    bytes_ = toy_settings(tmp_path)
    settings = toy_settings(tmp_path, data=str(of_tokens / "shards.json"))
    tokens = tokenization_at(str(of_tokens))
    assert tokens is not None and tokens.vocabulary == VOCABULARY
    assert (bytes_.preset.model_description()["vocab"], settings.preset.model_description()["vocab"]) == (
        256,
        400,
    )
    assert settings.preset == bytes_.preset.on(tokens) and bytes_.preset.on(None) is bytes_.preset
    data = settings.preset.task.load(settings.data)
    assert data.info.tokens == tokens and data.info.tokenizer == (of_tokens / "tokenizer.json").read_bytes()
    assert data.batch(0, 0, 4)["tokens"].dtype == np.uint16
    assert data.baselines() == {}
    usage = settings.preset.predict_signature.usage
    assert (usage["tokenizer"], usage["tokenizer_sha256"]) == ("huggingface", tokens.sha256)
    assert settings.preset.example_inputs(64, 0)["tokens"].max() > 256
    again = preset_of_run("toy_model:toy", {"tokens": dataclasses.asdict(tokens)})
    assert again == settings.preset
    with pytest.raises(UsageError, match="a vocabulary of 400, and the task has one of 256"):
        bytes_.preset.task.load(str(of_tokens))


def test_bits_are_of_a_byte_of_text_whatever_a_token_is() -> None:
    """2 nats a token of 4 bytes are as good as half a nat a byte."""
    tokens = Tokenization(400, "", train_bytes_per_token=4.0, val_bytes_per_token=2.0)
    found = NextToken(CONTEXT, tokens).report({"train_loss": 2.0, "val_loss": 2.0})
    assert found["train_bits_per_byte"] == pytest.approx(0.5 / math.log(2))
    assert found["val_bits_per_byte"] == pytest.approx(1 / math.log(2))


@pytest.mark.parametrize(
    ("model", "lacks"), [("toy_model:mlp", "MlpConfig of preset toy-digits has no field vocab")]
)
def test_a_model_without_a_vocabulary_is_refused(
    model: str, lacks: str, of_tokens: Path, toy_settings: Settings, tmp_path: Path
) -> None:
    with pytest.raises(
        UsageError, match=f"--data: its tokens are those of a tokenizer, 400 of them, and {lacks}"
    ):
        toy_settings(tmp_path, model=model, data=str(of_tokens))


def test_a_tokenizer_that_is_another_is_refused(of_tokens: Path, tmp_path: Path) -> None:
    copied = shutil.copytree(of_tokens, tmp_path / "copied")
    changed(copied / "tokenizer.json")
    with pytest.raises(CheckFailed, match=r"tokenizer\.json: found sha256 \w{12}, needs"):
        open_shards(copied, CONTEXT, VOCABULARY)
    with pytest.raises(CheckFailed, match=r"tokenizer\.json: is not the one with sha256"):
        read_tokenizer(copied, read_index(copied).tokens.tokenizer_sha256)


def test_a_run_keeps_its_tokenizer(of_tokens: Path, tmp_path: Path) -> None:
    info = open_shards(of_tokens, CONTEXT, VOCABULARY).info
    assert info.tokens is not None
    for damaged in (None, b"{}"):
        if damaged is not None:
            (tmp_path / "tokenizer.json").write_bytes(damaged)
        keep(tmp_path, info)
        assert read_tokenizer(tmp_path, info.tokens.sha256) == (of_tokens / "tokenizer.json").read_bytes()


def test_text_to_shards_to_a_run_that_is_stopped_and_goes_on(
    text: Path,
    toy_settings: Settings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ["data", "prepare", "--text", str(text), "--out", "work/shards"]
    assert main(command) == 0
    said = capsys.readouterr().out
    assert (
        "work/shards: 36,000 tokens to train on, 4,000 to validate, of 40,000 bytes in 1 file; vocabulary 256"
        in said
    )
    assert "train on it: jaxport train --preset nano --data work/shards" in said
    assert main(command) == 0
    assert "work/shards: is there, of the same text" in capsys.readouterr().out
    assert main(["data", "verify", "work/shards/shards.json"]) == 0
    taken: list[list[int]] = []
    windows_ = ShardData.windows

    def noted(self: ShardData, *asked: Any) -> list[int]:
        taken.append(windows_(self, *asked))
        return taken[-1]

    monkeypatch.setattr(ShardData, "windows", noted)
    settings = toy_settings(tmp_path, data="work/shards")
    with monkeypatch.context() as patch:
        patch.setenv("STOP_AT", "4")
        assert train(settings) == 75
    data, made_ahead = open_shards(tmp_path / "work/shards", CONTEXT), 3
    before = 3  # two of the rehearsal, and the one that was compiled for
    wanted = [windows_(data, 0, step, 4) for step in range(12)]
    first = taken[before:]
    assert first == wanted[: len(first)] and 5 <= len(first) <= 5 + made_ahead
    taken.clear()
    assert train(toy_settings(tmp_path, data=str(tmp_path / "work/shards/shards.json"))) == 0
    assert taken[before:] == wanted[5:]
    assert shards_at("work") is None

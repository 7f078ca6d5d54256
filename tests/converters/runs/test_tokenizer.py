"""A run on the tokens of a tokenizer, as a bundle: the tokenizer goes with it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import jax
import pytest

from converters.bundle import open_bundle
from converters.compare.source import find_source
from converters.from_run import RunExport, export_run
from converters.options import ExportOptions
from train_job.data.prepare import Preparation, find_text, prepare
from train_job.errors import CheckFailed
from train_job.job import train
from train_job.settings import TrainSettings


def test_a_bundle_has_the_tokenizer_of_its_run(
    text: Path, tokenizer: Path, toy_settings: Callable[..., TrainSettings], tmp_path: Path
) -> None:
    request = Preparation([str(text)], tmp_path / "shards", str(tokenizer))
    index, _ = prepare(request, find_text(request.text))
    settings = toy_settings(tmp_path, data=str(request.out), steps=4)
    assert train(settings) == 0
    asked = RunExport(tmp_path, "toy", options=ExportOptions(("cpu",)), skip_existing=True)
    path, written = export_run(asked, lambda _: None)
    bundle = open_bundle(path)
    bundle.check_files()
    digest = hashlib.sha256(tokenizer.read_bytes()).hexdigest()
    assert bundle.manifest.files["tokenizer.json"].sha256 == digest
    assert (path / "tokenizer.json").read_bytes() == tokenizer.read_bytes()
    assert bundle.manifest.usage["tokenizer"] == "huggingface"
    assert bundle.manifest.usage["tokenizer_sha256"] == digest
    (logits,) = bundle.manifest.signatures["predict"].outputs
    assert logits.shape[-1] == index.tokens.vocabulary == 400
    _, named = find_source(bundle, "predict", jax.device_put(bundle.load_weights()), "cpu")
    assert named == "preset toy_model:toy"
    assert export_run(asked, lambda _: None) == (path, False) != (path, written)
    (settings.run_dir / "tokenizer.json").write_bytes(b"{}")
    with pytest.raises(CheckFailed, match=r"runs/toy/tokenizer\.json: is not the one with sha256"):
        export_run(RunExport(tmp_path, "toy", options=asked.options), lambda _: None)

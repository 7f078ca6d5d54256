"""A text, a preset of 3,000 weights and one finished run, shared by the training tests."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from train_job.job import train
from train_job.settings import TrainSettings

HERE = Path(__file__).parent


@pytest.fixture(scope="session", autouse=True)
def toy_models_importable() -> Iterator[None]:
    """As if pytest had been started beside toy_model.py."""
    sys.path.insert(0, str(HERE))
    yield
    sys.path.remove(str(HERE))


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of 40,000 bytes of real text."""
    path = tmp_path_factory.mktemp("text") / "corpus.txt"
    path.write_bytes(Path(argparse.__file__).read_bytes()[:40_000])
    return path


@pytest.fixture(scope="session")
def toy_settings(text: Path) -> Callable[..., TrainSettings]:
    """TrainSettings of the toy preset on `text`; keywords as `TrainSettings.from_flags` takes them."""

    def settings(root: Path, **flags: Any) -> TrainSettings:
        flags = {"model": "toy_model:toy", "data": str(text), **flags}
        return TrainSettings.from_flags(root=root, **flags)

    return settings


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory, toy_settings: Callable[..., TrainSettings]) -> Path:
    """The folder of a toy run trained to its end without disturbance. Read only."""
    settings = toy_settings(tmp_path_factory.mktemp("root"))
    assert train(settings) == 0
    return settings.run_dir

"""Runs to be exported, trained in this process and once for every test here."""

import shutil
from pathlib import Path

import pytest

from converters.from_run import RunExport, export_run
from tests.e2e.conftest import Made
from tests.once import OncePerRun
from tests.train_job.conftest import (  # noqa: F401  (fixtures)
    finished,
    quick_to_compile,
    text,
    tokenizer,
    toy_models_importable,
    toy_settings,
)
from train_job.job import train
from train_job.settings import TrainSettings


@pytest.fixture(scope="session")
def made(once: OncePerRun, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """digits after 80 and 100 steps, and the bundle of the last. A copy."""

    def make(root: Path) -> None:
        few = {"eval_every": "20", "checkpoint_every": "20", "warmup_steps": "5"}
        settings = TrainSettings.from_flags(root=root, preset="digits", steps=100, overrides=few)
        assert train(settings) == 0
        export_run(RunExport(root, "digits"))

    return Made(shutil.copytree(once.folder("digits", make), tmp_path_factory.mktemp("another") / "work"))

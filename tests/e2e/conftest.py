"""A run and its bundle made by the command, once for every test that follows."""

import contextlib
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from jaxport.cli import main
from tests.once import OncePerRun
from tests.server_process import ROOT
from tests.servers import jaxport

TEXT = "the quick brown fox jumps over the lazy dog. " * 400


@dataclass(frozen=True)
class Made:
    root: Path

    @property
    def models(self) -> Path:
        return self.root / "models"


@pytest.fixture(scope="session")
def made(once: OncePerRun, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """nano for a few steps on a small text, digits, and the example of a model of one's own, all exported.

    In ./work, as by default. A copy.
    """
    folder = once.folder("made", make) / "a folder"
    return Made(shutil.copytree(folder / "work", tmp_path_factory.mktemp("another folder") / "work"))


def make(root: Path) -> None:
    folder = root / "a folder"
    folder.mkdir()
    (folder / "text.txt").write_text(TEXT)
    short = ("--set", "eval_every=10", "--set", "checkpoint_every=10", "--set", "warmup_steps=5")
    for command in (
        ("train", "--preset", "nano", "--steps", "20", "--data", "text.txt", *short, "--set", "batch_size=8"),
        ("export", "--run", "nano"),
        ("train", "--preset", "digits", "--steps", "20", *short),
        ("export", "--run", "digits"),
    ):
        done = jaxport(*command, cwd=folder)
        assert done.returncode == 0, done.stderr
        assert "WARNING" not in done.stderr
    bring_your_own(folder, short)


def bring_your_own(folder: Path, short: tuple[str, ...]) -> None:
    """As its page says, from a copy of the example in the user's folder; in this process, which spares the imports."""
    shutil.copy(ROOT / "examples" / "convnet" / "convnet.py", folder)
    with contextlib.chdir(folder):
        assert main(["train", "--model", "convnet:digits", "--steps", "20", *short]) == 0
        assert main(["export", "--run", "convnet"]) == 0

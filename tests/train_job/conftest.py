"""A text, a preset of 3,000 weights and one finished run, shared by the training tests."""

from __future__ import annotations

import argparse
import contextlib
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache

from tests.once import OncePerRun
from tests.train_job.shards import CONTEXT, made
from train_job.data.windows import ShardData, open_shards
from train_job.job import train
from train_job.settings import TrainSettings

HERE = Path(__file__).parent
VOCABULARY = 400  # of `tokenizer`


@pytest.fixture(scope="session", autouse=True)
def toy_models_importable() -> Iterator[None]:
    """As if pytest had been started beside toy_model.py."""
    sys.path.insert(0, str(HERE))
    yield
    sys.path.remove(str(HERE))


@pytest.fixture(scope="module", autouse=True)
def quick_to_compile(jax_cache: Path) -> Iterator[None]:
    """Toys train for milliseconds after seconds in the compiler, most of them for what makes a program fast.

    JAX does not write an entry of its cache whole: who reads a half warns, which pyproject.toml allows, and compiles.
    """
    settings = {
        "jax_compilation_cache_dir": str(jax_cache),
        "jax_persistent_cache_min_compile_time_secs": 0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    before = {name: getattr(jax.config, name) for name in settings}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
        for name, value in {**settings, "jax_disable_most_optimizations": True}.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()
        yield
        for name, value in {**before, "jax_disable_most_optimizations": False}.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of 40,000 bytes of real text."""
    path = tmp_path_factory.mktemp("text") / "corpus.txt"
    path.write_bytes(Path(argparse.__file__).read_bytes()[:40_000])
    return path


@pytest.fixture(scope="session")
def tokenizer(once: OncePerRun, text: Path) -> Path:
    """A tokenizer.json of VOCABULARY tokens that was trained on `text`."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    def make(folder: Path) -> None:
        bpe = Tokenizer(models.BPE())
        bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        bpe.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        bpe.train(
            [str(text)],
            trainers.BpeTrainer(vocab_size=VOCABULARY, initial_alphabet=alphabet, show_progress=False),
        )
        bpe.enable_truncation(10)  # as files of models have it
        bpe.enable_padding(length=10)
        bpe.save(str(folder / "tokenizer.json"))

    return once.folder("tokenizer", make) / "tokenizer.json"


@pytest.fixture(scope="session")
def toy_settings(text: Path) -> Callable[..., TrainSettings]:
    """TrainSettings of the toy preset on `text`; keywords as `TrainSettings.from_flags` takes them."""

    def settings(root: Path, **flags: Any) -> TrainSettings:
        flags = {"model": "toy_model:toy", "data": str(text), **flags}
        return TrainSettings.from_flags(root=root, **flags)

    return settings


@pytest.fixture(scope="module")
def finished(
    quick_to_compile: None,
    once: OncePerRun,
    toy_settings: Callable[..., TrainSettings],
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """The folder of a toy run trained to its end without disturbance. Read only, but for its lock: a copy.

    What it printed is ../../said.
    """

    def make(root: Path) -> None:
        with (root / "said").open("w") as said, contextlib.redirect_stdout(said):
            assert train(toy_settings(root)) == 0

    trained = once.folder("finished", make)
    return shutil.copytree(trained, tmp_path_factory.mktemp("root") / "copy") / "runs" / "toy"


@pytest.fixture(scope="session")
def shards(once: OncePerRun, text: Path) -> Path:
    """40,000 bytes in files of 7,000. Read only: `copied` is not."""
    return once.folder("shards", lambda folder: made(folder / "of", text, shard_tokens=7000)) / "of"


@pytest.fixture
def copied(shards: Path, tmp_path: Path) -> Path:
    return shutil.copytree(shards, tmp_path / "shards")


@pytest.fixture
def data(shards: Path) -> ShardData:
    return open_shards(shards, CONTEXT)


@pytest.fixture(scope="session")
def of_tokens(once: OncePerRun, text: Path, tokenizer: Path) -> Path:
    """Shards of the same text in the tokens of `tokenizer`."""
    return once.folder("of-tokens", lambda folder: made(folder / "of", text, tokenizer=str(tokenizer))) / "of"

"""What docs/bring-your-own-model.md shows is what happens: every block is run, and its bundle answers."""

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from converters import open_bundle
from converters.bundle import list_models
from jaxport.cli import main

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "bring-your-own-model.md").read_text()
BLOCKS = re.findall(r"```(\w+)(?: (\S+))?\n(.*?)```", PAGE, re.DOTALL)
LIBRARIES = {"nnx": 4, "linen": 8, "equinox": 4, "haiku": 4, "plain": 2}


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    sys.modules.pop("my_model", None)


def run(code: str) -> None:
    exec(compile(code, "block", "exec"), {"__name__": "block"})  # noqa: S102


def answers(models: Path, model: str) -> dict[str, np.ndarray]:
    bundle = open_bundle(models / model / "1")
    x = np.ones((2, 4), np.float32)
    outputs = bundle.exported().call(bundle.load_weights(), {"x": x})
    return {name: np.asarray(value) for name, value in outputs.items()}


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_model_of_each_library_is_a_bundle_that_answers(library: str, empty: Path) -> None:
    (code,) = (text for kind, _, text in BLOCKS if kind == "python" and f"models/{library}/" in text)
    run(code)
    models = empty / "work" / "models"
    assert list_models(models) == [library]
    assert answers(models, library)["logits"].shape == (2, 3)
    assert len(open_bundle(models / library / "1").manifest.weights) >= LIBRARIES[library]
    if library == "plain":
        assert list(open_bundle(models / library / "1").manifest.signatures) == ["predict", "embed"]


def test_a_checkpoint_is_exported_by_the_command_that_is_shown(empty: Path) -> None:
    (model,) = (text for _, name, text in BLOCKS if name == "my_model.py")
    (saving,) = (text for _, _, text in BLOCKS if "StandardCheckpointer" in text)
    (command,) = (text for kind, _, text in BLOCKS if kind == "sh")
    (empty / "my_model.py").write_text(model)
    sys.path.append(str(empty))
    run(saving)
    assert main(shlex.split(command)[1:]) == 0
    from flax import nnx
    from my_model import Net  # pyright: ignore[reportMissingImports]

    want = Net(nnx.Rngs(7))(np.ones((2, 4), np.float32))
    np.testing.assert_allclose(
        answers(empty / "work" / "models", "net")["logits"], want, rtol=1e-5, atol=1e-5
    )


def test_every_block_is_one_of_those() -> None:
    assert len(BLOCKS) == len(LIBRARIES) + 3

"""The whole way with the oldest JAX that pyproject.toml allows, and bundles that cross from one JAX or Python to another.

`make test-versions` makes the venvs. The locked versions go the whole way in tests/e2e.
"""

import json
import os
import subprocess
import sys
from importlib.metadata import version as installed
from pathlib import Path

import pytest

from tests.server_process import ROOT, ServerProcess

OLDEST = str(ROOT / ".venv-oldest" / "bin" / "python")
PYTHONS = {name: ROOT / f".venv-python{name}" / "bin" / "python" for name in ("3.13", "3.14")}
TEXT = "the quick brown fox jumps over the lazy dog. " * 200
SHORT = (
    "--set",
    "eval_every=3",
    "--set",
    "checkpoint_every=3",
    "--set",
    "warmup_steps=1",
    "--set",
    "batch_size=2",
)


def jaxport(python: str, *arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    command = [python, "-m", "jaxport", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd, env=environment)


def done(python: str, *arguments: str, cwd: Path | None = None) -> str:
    ran = jaxport(python, *arguments, cwd=cwd)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def trained(python: str, folder: Path) -> Path:
    """nano for three steps, and its bundle at work/models/nano/1."""
    (folder / "text.txt").write_text(TEXT)
    done(python, "train", "--preset", "nano", "--steps", "3", "--data", "text.txt", *SHORT, cwd=folder)
    done(python, "export", "--run", "nano", cwd=folder)
    return folder / "work"


@pytest.fixture(scope="session")
def oldest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(OLDEST, tmp_path_factory.mktemp("oldest"))


@pytest.fixture(scope="session")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(sys.executable, tmp_path_factory.mktemp("locked"))


def facts(python: str, bundle: Path) -> dict[str, object]:
    return json.loads(done(python, "inspect", str(bundle), "--json"))["manifest"]


def test_the_oldest_jax_goes_the_whole_way(oldest: Path) -> None:
    bundle = oldest / "models" / "nano" / "1"
    assert "goldens reproduced on cpu" in done(OLDEST, "verify", str(bundle))
    assert facts(OLDEST, bundle)["jax_version"] == "0.11.2"
    with ServerProcess(
        oldest / "models", "--max-batch", "2", "--transport", "grpcio", python=OLDEST
    ) as server:
        server.ready()
        said = done(OLDEST, "predict", "nano", "--text", "the quick", "--address", server.grpc)
        assert "the quick│" in said
        server.signal()
        assert server.wait() == 0


def test_what_the_oldest_jax_wrote_is_read_by_the_locked_one(oldest: Path) -> None:
    assert "goldens reproduced on cpu" in done(
        sys.executable, "verify", str(oldest / "models" / "nano" / "1")
    )


def test_what_the_locked_jax_wrote_is_read_by_the_oldest_one_or_refused_in_one_line(locked: Path) -> None:
    bundle = locked / "models" / "nano" / "1"
    ran = jaxport(OLDEST, "verify", str(bundle))
    if ran.returncode != 0:
        assert ran.returncode == 3
        assert f"error: {bundle}: jax 0.11.2, released on 2026-09-17, is too old for" in ran.stderr
        assert f"read it with jax {installed('jaxlib')}" in ran.stderr


def test_a_bundle_is_refreshed_by_the_next_jax(oldest: Path) -> None:
    """The upgrade as operations.md has it: the run and its checkpoint are of the old versions too."""
    told = done(sys.executable, "refresh", str(oldest / "models" / "nano" / "1"))
    assert "(jax 0.11.2) answered" in told
    new = facts(sys.executable, oldest / "models" / "nano" / "2")
    assert new["jaxlib_version"] == installed("jaxlib")
    assert new["provenance"]["refreshes"]["jax_version"] == "0.11.2"  # type: ignore[index]


@pytest.mark.parametrize("name", PYTHONS)
def test_a_bundle_loads_on_another_python(locked: Path, name: str) -> None:
    python = PYTHONS[name]
    if not python.exists():
        pytest.skip(f"no Python {name} on this machine: not in PATH, nor among those of pyenv and uv")
    assert (
        f"Python {name}." in subprocess.run([python, "-V"], capture_output=True, text=True, check=True).stdout
    )
    assert "goldens reproduced on cpu" in done(str(python), "verify", str(locked / "models" / "nano" / "1"))

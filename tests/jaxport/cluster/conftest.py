"""A cluster that is not one, and the command as a person runs it against that."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from jaxport.cli import main
from tests.deploy.objects import plain
from tests.jaxport.cluster.fake_api import FakeCluster


@dataclass(frozen=True)
class Done:
    """What the command ended with, and said."""

    code: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """Its one line; there is no other of its kind, and no traceback."""
        assert "Traceback" not in self.err, self.err
        (line,) = [line for line in self.err.splitlines() if line.startswith("error: ")]
        return line.removeprefix("error: ")


Run = Callable[..., Done]


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    made = FakeCluster()
    yield made
    made.close()
    assert made.failures == []


@pytest.fixture
def with_all(cluster: FakeCluster) -> FakeCluster:
    """What Jobs need is there."""
    cluster.create("/api/v1/namespaces", next(each for each in plain() if each["kind"] == "Namespace"))
    return cluster


def write_kubeconfig(path: Path, url: str, **of_cluster: object) -> Path:
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "fake",
        "clusters": [{"name": "fake", "cluster": {"server": url, **of_cluster}}],
        "users": [{"name": "tester", "user": {"token": "letmein"}}],
        "contexts": [
            {"name": "fake", "context": {"cluster": "fake", "user": "tester"}},
            {"name": "nobody", "context": {"cluster": "fake"}},
        ],
    }
    path.write_text(yaml.safe_dump(content))
    return path


@pytest.fixture
def kubeconfig(cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """KUBECONFIG leads to the fake."""
    for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    path = write_kubeconfig(tmp_path / "kubeconfig", cluster.url)
    monkeypatch.setenv("KUBECONFIG", str(path))
    monkeypatch.setenv("COLUMNS", "200")
    return path


@pytest.fixture
def run(kubeconfig: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """`run("submit", "train", ...)`, in this process: importing the client anew would take a second each time."""

    def call(*arguments: str) -> Done:
        capsys.readouterr()
        try:
            code = main(arguments)
        except SystemExit as left:
            code = left.code if isinstance(left.code, int) else 1
        said = capsys.readouterr()
        return Done(code, said.out, said.err)

    return call


def as_json(text: str) -> list[dict]:
    return json.loads(text)

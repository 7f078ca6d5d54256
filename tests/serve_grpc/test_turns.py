"""What is said of models and versions whose turn to be loaded is still to come. Nothing is loaded: each turn is refused."""

import shutil
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from converters.bundle import MANIFEST
from jaxport.wire import open_inference_pb2 as pb
from serve_grpc.access import Caller
from serve_grpc.admission import Admission
from serve_grpc.catalog import Catalog
from serve_grpc.errors import LoadRefused, NotFound, NotLoaded, PermissionDenied, RequestError
from serve_grpc.metrics import Metrics
from serve_grpc.protocol.open_inference_models import model_ready
from serve_grpc.repository import Repository
from serve_grpc.scheduler import Scheduler
from serve_grpc.serving import Serving


class Turns:
    """A repository on a folder, and what `said` tells at each turn to be loaded."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.catalog = root, Catalog(surveyed=False)
        self.serving = Serving(self.catalog)
        self.at: dict[str, Any] = {}
        self.said: Callable[[], Any] = lambda: None
        anything: Any = SimpleNamespace(loading=nullcontext)
        self.repository = Repository(
            root, anything, self.catalog, self.serving, Scheduler(), Metrics(), anything,
            lambda *_: None, lambda _: None, anything,
        )  # fmt: skip
        monkeypatch.setattr(Admission, "load", self._load)

    def _load(self, model: str, path: Path, _: object) -> None:
        self.at[f"{model}/{path.name}"] = self.said()
        raise LoadRefused("it was only to have its turn")

    def states(self) -> dict[str, str]:
        return {
            f"{model}/{info.version}": f"{info.state} {info.reason}".strip()
            for model, infos in self.catalog.models().items()
            for info in infos
        }

    def answer(self, model: str, version: int = 0, label: str = "") -> RequestError:
        with pytest.raises(RequestError) as refused:
            self.serving.find(model, version, "", label)
        return refused.value


@pytest.fixture
def turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Turns:
    for name in ("a/1", "b/1", "b/2"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / MANIFEST).touch()
    (tmp_path / "b" / "policy").write_text("latest 2\n")
    return Turns(tmp_path, monkeypatch)


def test_a_model_that_waits_for_its_turn_is_loading_and_not_unknown(turns: Turns) -> None:
    turns.said = lambda: (turns.answer("b"), turns.answer("b", 1), turns.answer("c"), turns.states())
    turns.repository.poll()
    newest, older, unknown, states = turns.at["a/1"]
    waits = "LOADING it waits for those that are loaded before it"
    assert states == {"a/1": "LOADING", "b/1": waits, "b/2": waits}
    for error in (newest, older):
        assert isinstance(error, NotLoaded) and "is LOADING: it waits for those" in str(error)
    assert isinstance(unknown, NotFound) and "the models are: a, b" in str(unknown)
    assert turns.at["b/2"][-1] == {
        "a/1": "FAILED it was only to have its turn",
        "b/1": waits,
        "b/2": "LOADING",
    }
    assert {state.split()[0] for state in turns.states().values()} == {"FAILED"}


def test_before_the_folder_was_read_nobody_is_told_that_a_model_is_not_there(turns: Turns) -> None:
    error = turns.answer("a")
    assert isinstance(error, NotLoaded) and "model 'a': the models folder is still to be read" in str(error)
    ready = model_ready(pb.ModelRequest(name="a", version="1").SerializeToString(), turns.catalog)
    assert not pb.ModelReadyResponse.FromString(ready).ready
    one = Caller(frozenset({"a"}))
    with pytest.raises(NotLoaded):
        one.sees(turns.catalog).version("a", 0)
    with pytest.raises(PermissionDenied):
        one.sees(turns.catalog).version("b", 0)
    turns.root.rename(turns.root.with_name("elsewhere"))
    turns.root.touch()
    turns.repository.poll()
    assert isinstance(turns.answer("a"), NotLoaded), "it could not be read"
    turns.root.unlink()
    turns.root.mkdir()
    turns.repository.poll()
    assert isinstance(turns.answer("a"), NotFound), "there is none yet"


def test_what_goes_before_its_turn_is_forgotten(turns: Turns) -> None:
    def said() -> None:
        shutil.rmtree(turns.root / "b" / "1", ignore_errors=True)

    turns.said = said
    turns.repository.poll()
    assert turns.states().keys() == {"a/1", "b/2"} == turns.at.keys()

    (turns.root / "c" / "1").mkdir(parents=True)
    (turns.root / "c" / "1" / MANIFEST).touch()
    (turns.root / "b" / "3").mkdir()
    (turns.root / "b" / "3" / MANIFEST).touch()
    turns.said = lambda: shutil.rmtree(turns.root / "c", ignore_errors=True)
    turns.repository.poll()
    assert turns.at.keys() == {"a/1", "b/2", "b/3"}
    assert turns.states().keys() == {"a/1", "b/2", "b/3"}, "a model that has gone has no version"


def test_a_label_of_a_model_that_waits_is_one_that_is_to_come(turns: Turns) -> None:
    (turns.root / "b" / "labels").mkdir()
    (turns.root / "b" / "labels" / "stable").write_text("1\n")
    turns.said = lambda: (turns.answer("b", label="stable"), turns.answer("b", label="other"))
    turns.repository.poll()
    stable, other = turns.at["a/1"]
    assert isinstance(stable, NotLoaded) and "version 1 is LOADING" in str(stable)
    assert isinstance(other, NotFound) and "no label 'other'" in str(other)

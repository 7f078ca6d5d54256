"""A run that is under way, as a Prometheus reads it."""

import re
import shutil
import socket
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.server_process import ROOT
from train_job.errors import EnvironmentUnfit, UsageError
from train_job.exporter import Exporter, listening
from train_job.job import train
from train_job.loop import Loop
from train_job.runs import read_run
from train_job.settings import TrainSettings

type Settings = Callable[..., TrainSettings]
type Seen = dict[tuple[str, str], float]


def read(said: str) -> Seen:
    """(name, label name) -> value, of the address that a run has printed last."""
    address = re.findall(r"metrics: (http://127.0.0.1:\S+)", said)[-1]
    with urllib.request.urlopen(address, timeout=10) as reply:  # noqa: S310 (the line above says what it is)
        families = list(text_string_to_metric_families(reply.read().decode()))
    assert all(sample.labels["run"] == "toy" for family in families for sample in family.samples)
    return {(s.name, s.labels.get("name", "")): s.value for family in families for s in family.samples}


def test_a_run_says_how_far_it_is_and_what_it_measured(
    tmp_path: Path,
    toy_settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    seen: list[Seen] = []
    look = Loop._look

    def looking(self: Loop, *arguments: object) -> object:
        found = look(self, *arguments)  # type: ignore[arg-type]
        said.append(capsys.readouterr().out)
        seen.append(read("".join(said)))
        return found

    said: list[str] = []
    monkeypatch.setattr(Loop, "_look", looking)
    monkeypatch.setenv("STOP_AT", "6")
    settings = toy_settings(tmp_path, metrics_port="0")
    assert train(settings) == 75
    assert seen[0]["jaxport_train_starts", ""] == 1
    first = len(seen)

    monkeypatch.delenv("STOP_AT")
    assert train(settings) == 0
    second = seen[first:]
    last = second[-1]
    assert last["jaxport_train_step", ""] == last["jaxport_train_steps_planned", ""] == settings.hyper.steps
    assert last["jaxport_train_starts", ""] == 2 == read_run(settings.run_dir).starts
    assert 0 < last["jaxport_train_checkpoint_step", ""] <= settings.hyper.steps
    assert last["jaxport_train_volume_size_bytes", ""] == shutil.disk_usage(tmp_path).total
    assert 0 < last["jaxport_train_volume_free_bytes", ""] <= last["jaxport_train_volume_size_bytes", ""]
    assert last["jaxport_train_measured", "val_loss"] > 0
    assert ("jaxport_train_measured", "step") not in last and ("jaxport_train_measured", "time") not in last


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with (
            pytest.raises(
                EnvironmentUnfit, match=rf"--metrics-port {port}: cannot listen at 127.0.0.1 .*in use"
            ),
            listening(Exporter("toy", tmp_path, 1, 2), "127.0.0.1", port),
        ):
            pass


@pytest.mark.parametrize("port", ["-1", "65536", "http", ""])
def test_what_is_no_port_is_refused(tmp_path: Path, toy_settings: Settings, port: str) -> None:
    with pytest.raises(UsageError, match=r"--metrics-port: found .*needs a whole number"):
        toy_settings(tmp_path, metrics_port=port)


def test_the_documented_series_are_those_there_are(tmp_path: Path) -> None:
    rows = re.findall(
        r"^\| `(jaxport_train_\w+)` \|([\w, ]*)\|", (ROOT / "docs/training.md").read_text(), re.MULTILINE
    )
    exporter = Exporter("toy", tmp_path, 1, 2)
    exporter.measured({"step": 1, "time": 2.0, "lr": 0.1})
    families = {family.name: family for family in exporter.registry.collect()}
    assert {name for name, _ in rows} == families.keys()
    for name, labels in rows:
        [sample] = families[name].samples
        assert set(re.findall(r"\w+", labels)) == sample.labels.keys()

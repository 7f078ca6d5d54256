"""A real Prometheus reads a real server: the rules load, the right alerts fire, and the panels show something."""

import contextlib
import copy
import json
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from tests.monitoring.prometheus.promtool import found
from tests.monitoring.source import FOLDER, Query, alerts, groups, queries
from tests.serve_grpc import bundles
from tests.serve_grpc.test_updates import reseal
from tests.server_process import ServerProcess, eventually
from train_job.exporter import Exporter, listening

# Before that server there is no Envoy.
OF_PROXY = {
    "Connections",
    "Memory of the proxy",
    "Refused and not reached",
    "Days that a certificate has left",
}
# On a CPU there is no account of device memory, and nothing has a label.
EMPTY = {"Device memory", *OF_PROXY, "Labels"}


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


class Prometheus:
    """A Prometheus that reads its targets (pod -> address) every half second. Leaving it ends it.

    patience: what every alert waits for, in place of its own `for`.
    """

    def __init__(self, folder: Path, targets: Mapping[str, str], patience: str | None = None) -> None:
        rules = copy.deepcopy(groups())
        for group in rules:
            group["interval"] = "500ms"
            for rule in group["rules"]:
                if patience is not None and "for" in rule:
                    rule["for"] = patience
        (folder / "rules.yaml").write_text(yaml.safe_dump({"groups": rules}))
        static = [
            {"targets": [address], "labels": {"namespace": "jaxport", "pod": pod}}
            for pod, address in targets.items()
        ]
        scrape = {"job_name": "jaxport-metrics", "scrape_interval": "500ms", "static_configs": static}
        (folder / "prometheus.yaml").write_text(
            yaml.safe_dump(
                {"rule_files": ["rules.yaml"], "scrape_configs": [{**scrape, "scrape_timeout": "500ms"}]}
            )
        )
        self._address = f"127.0.0.1:{free_port()}"
        self._log = (folder / "log").open("w")
        self._process = subprocess.Popen(
            [
                found("prometheus"), f"--config.file={folder / 'prometheus.yaml'}", f"--web.listen-address={self._address}",
                f"--storage.tsdb.path={folder / 'data'}", "--log.level=warn",
            ],
            stdout=self._log, stderr=self._log,
        )  # fmt: skip

    def __enter__(self) -> "Prometheus":
        eventually(self._answers, "Prometheus answers", 60)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(30)
        self._log.close()

    def get(self, path: str, **parameters: str) -> Any:
        query = urllib.parse.urlencode(parameters)
        with urllib.request.urlopen(f"http://{self._address}/api/v1/{path}?{query}", timeout=10) as reply:
            return json.load(reply)["data"]

    def values(self, expression: str) -> list[dict[str, Any]]:
        return self.get("query", query=expression)["result"]

    def rules(self) -> dict[str, dict[str, Any]]:
        """Alert -> its rule as the API shows it: state, health, lastError."""
        return {rule["name"]: rule for group in self.get("rules")["groups"] for rule in group["rules"]}

    def _answers(self) -> bool:
        assert self._process.poll() is None, "it has ended"
        with contextlib.suppress(OSError):
            return self.get("status/runtimeinfo")["reloadConfigSuccess"]
        return False


@pytest.fixture(scope="module")
def world(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[ServerProcess, Prometheus]]:
    """A server that was warm for nobody, has answered, and was given a version with wrong goldens."""
    folder = tmp_path_factory.mktemp("live")
    bundles.export_mlp(folder / "models")
    other = bundles.export_mlp(folder / "others", 2, seed=2)
    flags = ("--max-batch", "2", "--cache-dir", str(folder / "cache"), "--transport", "grpcio")
    run, port = Exporter("tiny", folder, starts=1, planned=100), free_port()
    (folder / "checkpoints" / "5").mkdir(parents=True)
    run.measured({"train_loss": 2.5, "accuracy": 0.5, "lr": 1e-3, "tokens_per_s": 1e4})
    run.measured({"grad_norm": 1.5, "mfu": 0.4, "step_seconds": 0.1, "peak_memory_bytes": 1e9})
    with ServerProcess(folder / "models", *flags) as server, listening(run, "127.0.0.1", port):
        targets = {"serve-1": server.ready().http, "train-0": f"127.0.0.1:{port}"}
        with Prometheus(folder, targets) as prometheus:
            eventually(lambda: prometheus.values("jaxport_compiles_total") != [], "the server is read", 60)
            reseal(folder / "models/mlp/1", folder / "models/mlp/.2", golden=other / "golden/predict.npz")
            (folder / "models/mlp/.2").rename(folder / "models/mlp/2")
            server.line("refused model=mlp version=2")
            for step in range(8):
                run.step(step)
                server.predict("mlp", {"x": np.ones((1, 4), np.float32)})
                time.sleep(0.2)
            yield server, prometheus
        server.signal()
        assert server.wait() == 0


def test_the_right_alerts_fire(world: tuple[ServerProcess, Prometheus]) -> None:
    _, prometheus = world
    wanted = {
        "JaxportColdStart": "firing",
        "JaxportGoldensFailed": "firing",
        "JaxportVersionFailed": "pending",
        "JaxportWatchdog": "firing",
    }

    def states() -> dict[str, str]:
        # How full the disk of this machine is, is no matter of the world's.
        return {
            name: rule["state"]
            for name, rule in prometheus.rules().items()
            if rule["state"] != "inactive" and name != "JaxportVolumeNearlyFull"
        }

    eventually(lambda: states() == wanted, f"{wanted}, not {states()}", 60)
    rules = prometheus.rules()
    assert rules.keys() == {alert.name for alert in alerts()}
    assert {name: rule["lastError"] for name, rule in rules.items() if rule["health"] != "ok"} == {}
    [golden] = rules["JaxportGoldensFailed"]["alerts"]
    assert golden["labels"] == {
        "alertname": "JaxportGoldensFailed", "namespace": "jaxport", "pod": "serve-1", "model": "mlp", "severity": "critical",
    }  # fmt: skip
    assert "gave wrong answers on the device of serve-1" in golden["annotations"]["summary"]


def test_servers_that_one_model_keeps_from_being_ready_are_an_outage(tmp_path: Path) -> None:
    """As deploy/ runs them: what was replaced does not come back, although the other model is loaded and serves."""
    models, port = tmp_path / "models", free_port()
    bundles.export_mlp(models)
    flags = (
        "--ready",
        "all",
        "--max-batch",
        "2",
        "--cache-dir",
        str(tmp_path / "cache"),
        "--transport",
        "grpcio",
    )

    def firing() -> set[str]:
        found = prometheus.rules()
        assert all(rule["health"] != "err" for rule in found.values())
        return {name for name, rule in found.items() if rule["state"] == "firing"} & about

    about = {"JaxportNoServer", "JaxportServerNotReady"}
    with Prometheus(tmp_path, {"serve-1": f"127.0.0.1:{port}"}, patience="1s") as prometheus:
        with ServerProcess(models, *flags, "--http-port", str(port)) as server:
            server.ready()
            eventually(lambda: prometheus.values("jaxport_ready == 1") != [], "it is read", 60)
            eventually(lambda: firing() == set(), "who is ready is no alarm", 60)  # it was, while it started
            never = bundles.export_mlp(models, name="never")
            (never / "programs/predict.jaxexport").write_bytes(b"")
            server.line("refused model=never version=1")
            time.sleep(2)
            assert firing() == set(), "who is ready stays so"
        with ServerProcess(models, *flags, "--http-port", str(port)) as replaced:
            replaced.listening()
            replaced.line("not ready, by --ready all: no version serves of model=never")
            assert replaced.state("mlp") == {1: "SERVING"} and replaced.get("/readyz")[0] == 503
            serves = 'jaxport_version_state{model="mlp", state="SERVING"} and on () jaxport_ready == 0'
            eventually(lambda: prometheus.values(serves) != [], "it is seen that mlp serves", 60)
            time.sleep(3)  # what was told while nothing was loaded is over
            eventually(lambda: firing() == about, "both tell", 60)
            [outage] = prometheus.rules()["JaxportNoServer"]["alerts"]
            assert outage["labels"] == {
                "alertname": "JaxportNoServer", "namespace": "jaxport", "severity": "critical",
            }  # fmt: skip
            never.parent.rename(models / ".never")
            replaced.ready()
            eventually(lambda: firing() == set(), "the model away, all is well", 60)


@pytest.mark.parametrize("name", ["serving", "bundles", "training"])
def test_the_panels_show_something(world: tuple[ServerProcess, Prometheus], name: str) -> None:
    _, prometheus = world
    shown: dict[str, bool] = {}
    for query in queries(FOLDER / "dashboards" / f"{name}.json"):
        shown[query.panel] = shown.get(query.panel, False) or prometheus.values(asked_with(query)) != []
    assert {panel for panel, something in shown.items() if not something} == EMPTY & shown.keys()


def asked_with(query: Query) -> str:
    """With what a viewer would have chosen."""
    return query.concrete.replace("$namespace", "jaxport").replace("$model", ".*").replace("$run", ".*")

"""Starting, being ready, being asked to stop, and the HTTP port."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from importlib.metadata import version
from pathlib import Path

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.server_process import ROOT, ServerProcess, connect, eventually, predict_call, publish, request


@pytest.fixture(scope="module")
def echo(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """echo alone."""
    folder = tmp_path_factory.mktemp("echo")
    (folder / "echo").symlink_to(models / "echo")
    return folder


def test_http_says_how_it_is(server: ServerProcess) -> None:
    assert server.get("/healthz") == (200, "alive\n")
    assert server.get("/readyz") == (200, "ready\n")
    status, page = server.get("/")
    assert status == 200
    for part in ("mlp", "tokens", "SERVING", "int32[b, 8]", "rows/s", "golden"):
        assert part in page
    assert server.get("/nope")[0] == 404


def test_metrics_count_what_was_done(server: ServerProcess) -> None:
    before = server.metric("jaxport_request_seconds_count", model="mlp", status="OK")
    padded = server.metric("jaxport_padding_rows_total", model="echo")
    for _ in range(5):
        server.predict("mlp", {"x": np.ones((1, 4), np.float32)})
    server.predict("echo", {"x": np.ones((17, 2), np.float32)})
    eventually(
        lambda: server.metric("jaxport_request_seconds_count", model="mlp", status="OK") == before + 5,
        "counted",
    )
    assert server.metric("jaxport_padding_rows_total", model="echo") >= padded
    names = ["queue_seconds", "assemble_seconds", "device_seconds", "batch_rows"]
    assert all(server.metric(f"jaxport_{name}_count", model="mlp") > 0 for name in names)
    assert server.metric("jaxport_bundle_window_seconds", model="mlp") > 0
    assert server.metric("jaxport_bundle_info", model="mlp", jaxlib=version("jaxlib")) == 1
    assert server.metric("jaxport_queue_depth", model="mlp") == 0
    assert server.metric("process_cpu_seconds_total") > 0
    text = server.get("/metrics")[1]
    for name in (
        "compiles_after_ready_total",
        "compile_cache_misses_total",
        "swap_seconds_count",
        "shed_total",
    ):
        assert f"jaxport_{name}" in text


def test_health_and_reflection_are_the_standard_ones(server: ServerProcess) -> None:
    assert server.health() == server.health("mlp") == server.health("tokens") == "SERVING"
    with pytest.raises(grpc.RpcError) as refused:
        server.health("nope")
    assert refused.value.code() is grpc.StatusCode.NOT_FOUND
    from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

    stub = reflection_pb2_grpc.ServerReflectionStub(server.channel)
    asked = iter([reflection_pb2.ServerReflectionRequest(list_services="")])
    services = [
        s.name for reply in stub.ServerReflectionInfo(asked) for s in reply.list_services_response.service
    ]
    assert {"jaxport.v1.PredictionService", "grpc.health.v1.Health"} <= set(services)


def test_an_empty_folder_is_alive_and_needs_no_restart(models: Path, tmp_path: Path, cache: Path) -> None:
    with ServerProcess(tmp_path / "later", "--max-batch", "2", "--cache-dir", str(cache)) as server:
        server.listening()
        assert server.get("/healthz")[0] == 200
        assert server.get("/readyz")[0] == 503
        assert server.health() == "NOT_SERVING"
        (tmp_path / "later" / "echo").mkdir(parents=True)
        publish(models / "echo" / "1", tmp_path / "later" / "echo" / "1")
        server.ready()
        assert server.health() == server.health("echo") == "SERVING"
        assert server.get("/readyz")[0] == 200


def test_a_broken_model_does_not_keep_the_others_from_being_ready(
    models: Path, tmp_path: Path, cache: Path
) -> None:
    for name in ("echo", "mlp"):
        shutil.copytree(models / name, tmp_path / name)
    broken(tmp_path / "echo/1")
    with ServerProcess(tmp_path, "--max-batch", "2", "--cache-dir", str(cache)) as server:
        server.ready()
        assert server.health("echo") == "NOT_SERVING"
        assert server.health("mlp") == "SERVING"
        with pytest.raises(grpc.RpcError) as refused:
            server.predict("echo", {"x": np.ones((1, 2), np.float32)})
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        assert "manifest.json" in (refused.value.details() or "")
        server.signal(signal.SIGINT)
        assert server.wait() == 0


def broken(version: Path) -> None:
    with (version / "manifest.json").open("a") as manifest:
        manifest.write(" ")


def test_with_ready_all_each_model_found_at_start_has_to_serve_once(
    models: Path, tmp_path: Path, cache: Path
) -> None:
    """Its newest version need not; and what breaks or comes later takes nothing away."""
    root, bad = tmp_path / "models", tmp_path / "bad"
    shutil.copytree(models / "echo" / "1", bad)
    broken(bad)
    for model in ("echo", "going"):
        shutil.copytree(bad, root / model / "1")
    shutil.copytree(models / "mlp" / "1", root / "mlp" / "1")
    shutil.copytree(bad, root / "mlp" / "2")

    def waiting(server: ServerProcess) -> list[str]:
        return json.loads(server.get("/status.json")[1])["server"]["waiting_for"]

    with ServerProcess(root, "--ready", "all", "--max-batch", "2", "--cache-dir", str(cache)) as server:
        server.listening()
        server.line("not ready, by --ready all: no version serves of model=echo,going$")
        assert waiting(server) == ["echo", "going"]
        assert "Not ready yet: no version serves of echo, going" in server.get("/")[1]
        assert server.get("/readyz")[0] == 503 and server.health() == "NOT_SERVING"
        assert server.metric("jaxport_ready") == 0
        assert 'jaxport_load_failures_total{model="echo",reason="goldens"} 0.0' in server.get("/metrics")[1]
        assert server.health("mlp") == "SERVING" and server.state("mlp") == {1: "SERVING", 2: "FAILED"}
        shutil.rmtree(root / "going")
        server.line("not ready, by --ready all: no version serves of model=echo$")
        publish(bad, root / "later" / "1")
        eventually(lambda: server.state("later") == {1: "FAILED"}, "a model that came later is tried")
        assert waiting(server) == ["echo"]

        publish(models / "echo" / "1", root / "echo" / "2")
        server.ready()
        assert server.get("/readyz")[0] == 200 and server.health() == "SERVING"
        assert server.metric("jaxport_ready") == 1
        publish(bad, root / "echo" / "3")
        eventually(lambda: server.state("echo").get(3) == "FAILED", "a version that does not load")
        shutil.rmtree(root / "mlp")
        eventually(lambda: not server.state("mlp"), "a model has gone")
        assert waiting(server) == [] and server.get("/readyz")[0] == 200
        assert sum("not ready" in line for line in server.lines) == 2, "each is said once"


def test_sigterm_under_load_answers_everything_that_was_accepted(
    echo: Path, cache: Path, transport: str
) -> None:
    flags = ("--transport", transport, "--cache-dir", str(cache), "--max-batch", "8", "--grace-seconds", "60")
    with ServerProcess(echo, *flags) as server:
        server.ready()
        outcomes: Counter[str] = Counter()
        wrong: list[int] = []
        stop = threading.Event()

        def ask(seed: int) -> None:
            x = np.full((3, 2), seed, np.float32)
            with connect(server.grpc) as channel:
                call = predict_call(channel)
                while not stop.is_set():
                    try:
                        answer = call(request("echo", {"x": x}), timeout=15)
                    except grpc.RpcError as error:
                        outcomes[error.code().name] += 1
                        time.sleep(0.05)
                    else:
                        outcomes["OK"] += 1
                        if answer.outputs[0].data != x.tobytes():
                            wrong.append(seed)

        threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(32)]
        for thread in threads:
            thread.start()
        eventually(lambda: outcomes["OK"] > 200, "the load runs")
        server.signal()
        assert server.wait(50) == 0, "before its grace is over"
        stop.set()
        for thread in threads:
            thread.join()
        assert wrong == []
        assert set(outcomes) <= {"OK", "UNAVAILABLE"}, "refused before it was sent, or answered"
        accepted, unanswered = server.line(r"stopped accepted=(\d+) unanswered=(\d+)").groups()
        assert (int(accepted), int(unanswered)) == (outcomes["OK"], 0)


def test_it_says_not_serving_and_answers_on_until_a_second_signal_shortens_the_wait(
    echo: Path, cache: Path
) -> None:
    """Nor does a health watch hold up the exit."""
    flags = ("--cache-dir", str(cache), "--max-batch", "2", "--drain-delay", "60", "--grace-seconds", "90")
    with ServerProcess(echo, *flags) as server:
        server.ready()
        stub = health_pb2_grpc.HealthStub(server.channel)
        watch = stub.Watch(health_pb2.HealthCheckRequest(service="echo"))
        states = health_pb2.HealthCheckResponse
        assert next(watch).status == states.SERVING
        server.signal()
        assert next(watch).status == states.NOT_SERVING
        eventually(lambda: server.health() == "NOT_SERVING", "NOT_SERVING")
        assert server.health("echo") == "NOT_SERVING"
        assert server.get("/readyz")[0] == 503
        assert server.get("/healthz")[0] == 200
        x = np.ones((1, 2), np.float32)
        assert server.predict("echo", {"x": x})["y"].tobytes() == x.tobytes()
        server.line("stopping")
        server.signal()
        assert server.wait(50) == 0, "before the delay is over"
        assert list(watch) == []


def test_a_unix_socket(echo: Path, tmp_path: Path, cache: Path) -> None:
    path = tmp_path / "grpc.sock"
    flags = ("--grpc-socket", str(path), "--max-batch", "2", "--cache-dir", str(cache))
    with ServerProcess(echo, *flags) as server:
        server.ready()
        assert server.grpc == f"unix:{path}"
        with ServerProcess(echo, *flags) as second:
            assert second.wait() == 4
            second.line("--grpc-socket .* another server listens there")
        x = np.ones((1, 2), np.float32)
        assert server.predict("echo", {"x": x})["y"].tobytes() == x.tobytes()


def run(*flags: str, **environment: str) -> tuple[int, str]:
    """The exit code and the last line. A later flag is the one that counts."""
    command = [sys.executable, "-m", "serve_grpc", "--grpc-port", "0", "--http-port", "0", *flags]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, timeout=120, env={**os.environ, **environment}
    )
    return done.returncode, done.stderr.strip().splitlines()[-1]


def test_a_taken_port_is_exit_4_and_names_the_flag(one_model: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for flag in ("--grpc-port", "--http-port"):
            code, said = run("--models", str(one_model), flag, port, TMPDIR=str(tmp_path))
            assert code == 4
            assert said.startswith("error: ") and port in said and flag in said
            assert list(tmp_path.glob("jaxport-*")) == []


def test_a_folder_that_cannot_be_one_is_exit_2(tmp_path: Path) -> None:
    code, said = run("--models", str(tmp_path / "no" / "where"))
    assert (code, "--models" in said) == (2, True)

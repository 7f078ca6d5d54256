"""The access log: one whole JSON line for every request, and nothing that it can do to serving."""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest

from serve_grpc.access_log import AccessLog
from serve_grpc.backlog import Backlog
from serve_grpc.ended import Ended, Request, Run
from serve_grpc.errors import Code, ConfigError, EnvironmentUnfit
from serve_grpc.trace_context import Trace
from tests.server_process import ServerProcess, eventually, predict_call, request

X = {"x": np.ones((3, 4), np.float32)}
TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"
FIELDS = [
    "time", "protocol", "method", "model", "version", "signature", "rows", "status", "total_ms", "queue_ms",
    "device_ms", "batch_rows", "bucket", "peer", "trace_id",
]  # fmt: skip


def ended(model: str = "mlp", requests: int = 1, code: Code = Code.OK) -> Ended:
    now = time.monotonic()
    run = Run("predict", 3, 4, now - 0.003, now - 0.0025, now - 0.0005, now)
    each = Request("/s/Predict", "test", "", Trace(), now - 0.004, now - 0.003, 3)
    return Ended(model, 1, "predict", code, "", now, run, [each] * requests)


def lines_of(path: Path) -> list[dict]:
    text = path.read_text()
    assert not text or text.endswith("\n")
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture(scope="module")
def logged(
    one_model: Path, cache: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[ServerProcess, Path]]:
    path = tmp_path_factory.mktemp("log") / "access.log"
    flags = ("--max-batch", "4", "--cache-dir", str(cache), "--access-log", str(path))
    with ServerProcess(one_model, *flags) as server:
        yield server.ready(), path


def test_every_request_has_its_line(logged: tuple[ServerProcess, Path]) -> None:
    server, path = logged
    before = len(lines_of(path))
    call = predict_call(server.channel)
    call(request("mlp", X), metadata=[("traceparent", PARENT), ("authorization", "Bearer hunter2")])
    for wrong in (request("mlp", {"x": X["x"][:, :2]}), request("no\nbody" * 100, X)):
        with pytest.raises(grpc.RpcError):
            call(wrong, timeout=10)
    server.model("mlp")
    eventually(lambda: len(lines_of(path)) >= before + 4, "four lines")
    good, wrong, unknown, looked_up = lines_of(path)[before:]
    assert list(good) == FIELDS
    assert (good["model"], good["version"], good["signature"], good["status"]) == ("mlp", 1, "predict", "OK")
    assert (good["rows"], good["batch_rows"], good["trace_id"]) == (3, 3, TRACE)
    assert good["method"] == "/jaxport.v1.PredictionService/Predict"
    assert good["bucket"] >= 3
    assert 0 <= good["queue_ms"] <= good["total_ms"]
    assert 0 < good["device_ms"] <= good["total_ms"] < 10_000
    assert "127.0.0.1" in good["peer"]
    assert abs(time.time() - _seconds(good["time"])) < 60
    assert (wrong["model"], wrong["status"], wrong["bucket"]) == ("mlp", "INVALID_ARGUMENT", None)
    assert (unknown["status"], unknown["version"], len(unknown["model"])) == ("NOT_FOUND", None, 200)
    assert (looked_up["status"], looked_up["model"]) == ("OK", "")
    assert looked_up["method"].endswith("/GetModel")
    assert "hunter2" not in path.read_text()
    assert server.metric("jaxport_access_log_lost_total") == 0


def test_a_rotated_file_is_left_and_a_new_one_begun(logged: tuple[ServerProcess, Path]) -> None:
    server, path = logged
    before = len(lines_of(path))
    server.predict("mlp", X)
    old = path.with_suffix(".1")
    eventually(lambda: len(lines_of(path)) == before + 1, "the line in the old file")
    path.rename(old)
    eventually(path.exists, "a new file", 5)
    server.predict("mlp", X)
    eventually(lambda: len(lines_of(path)) == 1, "the line in the new file")
    assert len(lines_of(old)) == before + 1


def test_a_full_disk_loses_lines_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    lost: list[int] = []
    writer = AccessLog("/dev/full", lost.append)
    writer.start()
    for _ in range(3):
        writer.ended(ended(requests=2))
        time.sleep(0.15)
    writer.stop(5)
    assert sum(lost) == 6
    assert [record.message for record in caplog.records] == [
        "access log /dev/full cannot be written: No space left on device; lines are lost until it can"
    ]


def test_a_log_that_cannot_be_opened_is_known_at_once(tmp_path: Path) -> None:
    for wrong in (tmp_path / "no" / "access.log", tmp_path):
        with pytest.raises(ConfigError, match="--access-log"):
            AccessLog(str(wrong), lambda _: None)
    if os.geteuid():
        tmp_path.chmod(0o500)
        with pytest.raises(EnvironmentUnfit, match="--access-log"):
            AccessLog(str(tmp_path / "access.log"), lambda _: None)


def test_no_half_line_stays_when_the_disk_was_full_in_the_middle_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, lost = tmp_path / "access.log", []
    path.write_text('{"a killed": "proc')
    writer = AccessLog(str(path), lost.append)
    write, room = os.write, 700

    def full_disk(file: int, data: bytes) -> int:
        nonlocal room
        if not room:
            raise OSError(28, "No space left on device")
        taken = write(file, data[:room])
        room -= taken
        return taken

    monkeypatch.setattr(os, "write", full_disk)
    writer.ended(ended(requests=4))
    writer._write_waiting()
    writer.ended(ended("lost", requests=2))
    writer._write_waiting()
    room = 1 << 20
    writer.ended(ended("after"))
    writer._write_waiting()
    killed, *whole = path.read_text().splitlines()
    assert killed == '{"a killed": "proc'
    models = [json.loads(line)["model"] for line in whole]
    assert set(models) == {"mlp", "after"}
    assert models[-1] == "after"
    assert len(models) + sum(lost) == 7


def test_what_does_not_fit_the_backlog_is_counted() -> None:
    lost: list[int] = []
    backlog = Backlog(5, lost.append)
    for count in (3, 3, 2, 1):
        backlog.put(ended(requests=count))
    assert [len(each.requests) for each in backlog.take()] == [3, 2]
    assert sum(lost) == 4
    backlog.put(ended(requests=5))
    assert len(backlog.take()) == 1


def _seconds(text: str) -> float:
    from datetime import datetime

    return datetime.fromisoformat(text).timestamp()

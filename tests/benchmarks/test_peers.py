"""The comparison with other servers: how it counts. No server is installed or loaded here."""

import re
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.peers import chart, report
from benchmarks.peers.candidates import CANDIDATES, SERVERS
from benchmarks.peers.load import BadLoad, Summary, check_bytes, connections, figures, parse_summary
from benchmarks.peers.processes import NotStarted, Server, cpu_seconds, read_stat, tree
from benchmarks.peers.programs import Served
from benchmarks.peers.servers.serve_envoy import configuration
from benchmarks.peers.sweep import Trial, best
from benchmarks.peers.wires import JAXPORT_GRPC, OPEN_GRPC, RAW_GRPC, RAW_HTTP, WrongReply
from jaxport.tensors import array_to_tensor
from jaxport.wire import open_inference_pb2, prediction_pb2

PRINTED = """\
finished in 3.00s, 490.50 req/s, 69.46KB/s
requests: 981 total, 981 started, 981 done, 979 succeeded, 1 failed, 1 errored, 0 timeout
status codes: 979 2xx, 0 3xx, 0 4xx, 1 5xx
traffic: 138.91KB (142245) total, 186.05KB (190512) headers (space savings 0.00%), 22.77KB (23316) data
                     min         max         mean         sd        +/- sd
time for request:     1.03ms     42.84ms     16.36ms      7.35ms    63.20%
"""


def log_of(*ends_ms: float, took_ms: float = 10.0) -> np.ndarray:
    """h2load's columns for requests that ended at these times after an epoch."""
    rows = [(int(1e15 + (end - took_ms) * 1000), 200, int(took_ms * 1000)) for end in ends_ms]
    return np.array(rows, np.int64)


def test_the_summary_of_h2load_is_read() -> None:
    assert parse_summary(PRINTED) == Summary(done=981, succeeded=979, failed=2, data=23316)
    with pytest.raises(BadLoad, match="no summary"):
        parse_summary("usage: h2load")


def test_an_error_in_the_trailers_of_a_200_is_found_by_its_missing_bytes() -> None:
    check_bytes(Summary(10, 10, 0, 10 * 44), 44)
    with pytest.raises(BadLoad, match="10 replies of 44 bytes would be 440 bytes; there were 396"):
        check_bytes(Summary(10, 10, 0, 9 * 44), 44)
    with pytest.raises(BadLoad, match="1 of 10 requests failed"):
        check_bytes(Summary(10, 9, 1, 9 * 44), 44)
    with pytest.raises(BadLoad, match="no reply"):
        check_bytes(Summary(0, 0, 0, 0), 44)


def test_batches_do_not_change_the_rate_by_where_the_window_cuts_them() -> None:
    """Four at a time every 100 ms is 40 a second, also when the first batch of a second is still the ramp."""
    ends = [100.0 * batch for batch in range(1, 10) for _ in range(4)]
    found = figures(log_of(*ends), concurrency=4, seconds=1.0)
    assert found.requests == 36
    assert found.requests_per_s == pytest.approx(40)
    assert (found.p50_ms, found.p99_ms) == (10, 10)


def test_a_server_that_stops_answering_in_a_window_has_no_rate() -> None:
    with pytest.raises(BadLoad, match="stopped half way"):
        figures(log_of(*range(1, 400)), concurrency=8, seconds=1.0)


def test_a_failed_status_in_the_log_is_no_figure() -> None:
    log = log_of(1, 2, 3)
    log[1, 1] = 503
    with pytest.raises(BadLoad, match="503"):
        figures(log, 1, 1.0)


def test_requests_in_flight_are_connections_times_streams() -> None:
    for concurrency in (1, 8, 64, 256):
        assert connections(False, concurrency) == (concurrency, 1)
        clients, streams = connections(True, concurrency)
        assert clients * streams == concurrency


BURN = textwrap.dedent("""
    import os, subprocess, sys, time
    def burn():
        while time.process_time() < 0.4: pass
    if sys.argv[1:] == ["child"]:
        burn(); print("READY", flush=True); time.sleep(60)
    burn()
    # One child in a session of its own, as daemons are.
    subprocess.Popen([sys.executable, __file__, "child"], start_new_session=True).wait()
""")


def test_the_cpu_of_a_tree_is_counted_and_the_tree_is_ended(tmp_path: Path) -> None:
    script = tmp_path / "burn.py"
    script.write_text(BURN)
    server = Server([sys.executable, str(script)], tmp_path / "log", folder=tmp_path, env={})
    try:
        server.wait(30)
        pids = {stat.pid for stat in tree(server.root)}
        assert len(pids) == 2
        assert 0.7 < cpu_seconds(server.root) < 3
        server.pause()
        end = time.monotonic() + 10  # a signal is sent, and acted on when its process has its turn
        while {stat.state for stat in tree(server.root)} != {"T"}:
            assert time.monotonic() < end, [stat.state for stat in tree(server.root)]
            time.sleep(0.01)
        server.resume()
        assert "T" not in {stat.state for stat in tree(server.root)}
    finally:
        server.stop()
    assert all((stat := read_stat(pid)) is None or stat.state == "Z" for pid in pids)


def test_a_server_that_ends_says_why(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "raise SystemExit('no such model')"]
    server = Server(command, tmp_path / "log", folder=tmp_path, env={})
    with pytest.raises(NotStarted, match="ended with 1: no such model"):
        server.wait(30)
    server.stop()


def served() -> Served:
    row = np.array([[1, 2, 3, 4]], np.float32)
    expected = np.array([[5, 6, 7]], np.float32)
    return Served("mlp", Path("p"), Path("m"), "x", "y", row, expected)


def test_every_wire_carries_the_row_and_reads_the_reply() -> None:
    model = served()
    assert RAW_HTTP.body(model) == model.row.tobytes()
    assert RAW_GRPC.body(model) == b"\0\0\0\0\x10" + model.row.tobytes()
    assert (RAW_GRPC.reply(model, model.expected.tobytes()) == model.expected).all()

    asked = prediction_pb2.PredictRequest.FromString(JAXPORT_GRPC.request(model))
    assert (asked.model, asked.inputs[0].name, asked.inputs[0].data) == ("mlp", "x", model.row.tobytes())
    answer = prediction_pb2.PredictResponse(outputs=[array_to_tensor("y", model.expected)])
    assert (JAXPORT_GRPC.reply(model, answer.SerializeToString()) == model.expected).all()


def test_the_open_protocol_is_raw_both_ways() -> None:
    model = served()
    asked = open_inference_pb2.ModelInferRequest.FromString(OPEN_GRPC.request(model))
    assert (asked.inputs[0].datatype, list(asked.inputs[0].shape)) == ("FP32", [1, 4])
    assert asked.raw_input_contents[0] == model.row.tobytes()
    answer = open_inference_pb2.ModelInferResponse()
    answer.outputs.add(name="y", datatype="FP32", shape=[1, 3])
    with pytest.raises(WrongReply, match="no raw contents"):
        OPEN_GRPC.reply(model, answer.SerializeToString())
    answer.raw_output_contents.append(model.expected.tobytes())
    assert (OPEN_GRPC.reply(model, answer.SerializeToString()) == model.expected).all()


def window(rate: float, cpu: float) -> dict[str, Any]:
    return {
        "requests": 10,
        "requests_per_s": rate,
        "p50_ms": 1.0,
        "p99_ms": 2.0,
        "cpu_us": cpu,
        "others": {},
    }


def entry(*windows: dict[str, Any], failed: str | None = None) -> dict[str, Any]:
    return {"setting": {"max_batch": 64}, "sweep": [], "wire": "", "windows": list(windows), "failed": failed}


def result() -> dict[str, Any]:
    alone = {"rows_per_s": 1000.0, "bucket": 8, "cpu_us_per_row": 2.0}
    servers = {
        "jaxport native": entry(window(600, 30), window(800, 50)),
        "mosec": entry(window(400, 60), window(400, 50)),
        "litserve": entry(window(1, 1), failed="BadLoad: 3 of 9 requests failed"),
    }
    cell = {"seconds": 3.0, "ceiling": [alone, alone], "servers": servers}
    return {
        "command": "python -m benchmarks.peers", "date": "2026-01-02", "machine": "2 cores of a machine",
        "versions": {"mosec": {"mosec": "0.9.8"}}, "not_installable": {"kserve": "no wheel"},
        "models": {"mlp": {"64": cell}},
    }  # fmt: skip


def test_the_table_has_medians_ranges_and_who_failed() -> None:
    text = report.markdown(result(), "mlp")
    assert "| jaxport native | max_batch=64 | 700 (600 to 800) | 0.700 (0.600 to 0.800) |" in text
    assert text.index("| jaxport native |") < text.index("| mosec |")
    assert "| litserve | BadLoad: 3 of 9 requests failed |" in text
    assert "jaxport native as a multiple of mosec: requests/s 1.75 (1.5 to 2)" in text
    assert "CPU a request 0.750 (0.500 to 1)" in text
    assert "kserve: not installable, because no wheel" in text
    assert "2 cores of a machine" in text and "mosec 0.9.8" in text


def test_a_section_is_replaced_between_its_marks_and_nothing_else() -> None:
    page = "# Benchmarks\n\nBefore.\n"
    once = report.between(page, "peers mlp", "old \\1")
    assert once.startswith(page.rstrip()) and "old \\1" in once
    after = report.between(once + "After.\n", "peers mlp", "new")
    assert "old" not in after and "new" in after and after.endswith("After.\n")


def test_the_chart_is_drawn_without_a_date(tmp_path: Path) -> None:
    chart.draw(result()["models"]["mlp"], "mlp", tmp_path / "a.svg")
    text = (tmp_path / "a.svg").read_text()
    assert text.startswith("<?xml") and "dc:date" not in text


def test_a_sweep_takes_the_fastest() -> None:
    assert best([Trial({"wait_ms": 1}, 5.0), Trial({"wait_ms": 2}, 7.0), Trial({"wait_ms": 5}, 0.0)]) == {
        "wait_ms": 2
    }


def test_every_candidate_has_its_server_and_envoy_the_configuration_of_deploy(tmp_path: Path) -> None:
    for candidate in CANDIDATES:
        assert not candidate.script or (SERVERS / candidate.script).exists()
        assert candidate.settings
    text = configuration(tmp_path, grpc_port=1, front_port=2).read_text()
    assert "port_value: 1}" in text and f"path: {tmp_path}/grpc.sock" in text
    assert not re.search("0\\.0\\.0\\.0|/run/|/etc/", text)

"""The command: what it prints, and what it exits with."""

import errno
import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from jaxport.cli import COMMANDS, main
from jaxport.errors import NotFit
from jaxport.scrape import http_address
from jaxport.text import open_text_model
from jaxport.wire import prediction_pb2 as wire
from tests.conftest import Told
from tests.server_process import ServerProcess
from tests.servers import jaxport

TOO_LONG = "n" * 256  # for any file system


def test_every_command_has_help(told: Told) -> None:
    for name in COMMANDS:
        code, out, _ = told(name, "--help")
        assert code == 0 and out.startswith(f"usage: jaxport {name}")


@pytest.mark.parametrize(
    "arguments",
    [
        ("nothing",),
        (),
        ("predict", "iris", "--no-such-flag"),
        ("train", "--preset", "none"),
        ("train", "--preset", "nano", "--set", "learning_rat=1"),
        ("export", "--run", "none"),
        ("export", "--run", "none", "--step", "newest"),
        ("verify", "none"),
        ("inspect", "none"),
        ("compare", "none"),
        ("compare", ".", "--batches", "1,x"),
        ("compare", ".", "--batches", "1,1"),
        ("compare", ".", "--seconds", "nan"),
        ("compare", ".", "--rounds", "0"),
        ("compare", ".", "--signature", ""),
        ("serve", "--models", ".", "--max-message-bytes", "many"),
        ("predict", "iris"),
        ("predict", "iris", "--input", "x"),
        ("predict", "iris", "--input", "x=@none.npy"),
        ("predict", "iris", "--input", "x=[1,"),
        ("predict", "iris", "--input", "x=" + "[" * 100_000),
        ("predict", "iris", "--input", "x=[[1e999]]"),
        ("predict", "iris", "--input", "x=[[1]]", "--input", "x=[[2]]"),
        ("bench", "iris", "--concurrency", "0"),
        ("bench", "iris", "--seconds", "nan"),
        ("bench", "iris", "--rate", "inf"),
        ("bench", "iris", "--plot", "no/such/folder.png"),
        ("predict", "iris", "--input", "x=1", "--address", ""),
        ("export", "--run", "../runs/nano"),
        ("export", "--run", "nano", "--name", "../../evil"),
        ("export", "--run", "nano", "--name", ""),
        ("export", "--run", "nano", "--version", "0"),
        ("export", "--run", "nano", "--weights-dtype", "fp4"),
        ("verify", ""),
        ("runs", "--root", TOO_LONG),
        ("train", "--preset", "nano", "--run", "r" * 129),
        ("data", "verify", TOO_LONG),
        ("data", "prepare", "--text", TOO_LONG, "--out", "d"),
        ("data", "prepare", "--text", __file__, "--out", TOO_LONG),
        ("data", "prepare", "--text", __file__, "--out", "d", "--tokenizer", TOO_LONG),
    ],
)
def test_bad_usage_is_one_line_and_exit_code_2(
    arguments: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: Told
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, said = told(*arguments)
    assert code == 2, said
    [line] = said.splitlines()
    assert "error: " in line


def test_a_mistake_ends_the_process_with_its_code_and_no_traceback(tmp_path: Path) -> None:
    done = jaxport("predict", "iris", "--input", "x", cwd=tmp_path)
    assert done.returncode == 2
    assert "error: " in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_debug_shows_where_an_error_comes_from(tmp_path: Path) -> None:
    done = jaxport("predict", "iris", "--input", "x", "--debug", cwd=tmp_path)
    assert "Traceback" in done.stderr and done.returncode == 1


def test_no_server_is_exit_code_4() -> None:
    done = jaxport("predict", "iris", "--input", "x=[[1,2,3,4]]", "--address", "127.0.0.1:1")
    assert done.returncode == 4
    assert "no server at 127.0.0.1:1" in done.stderr


def test_predict_from_json_and_from_a_file(server: ServerProcess, tmp_path: Path, told: Told) -> None:
    np.save(tmp_path / "x.npy", np.array([[5.1, 3.5, 1.4, 0.2]], np.float32))
    at = ("--address", server.grpc, "--json")
    from_json = jaxport("predict", "iris", "--input", "x=[[5.1,3.5,1.4,0.2]]", *at)
    _, from_file, _ = told("predict", "iris", "--input", f"x=@{tmp_path / 'x.npy'}", *at)
    assert json.loads(from_json.stdout) == json.loads(from_file)
    assert len(json.loads(from_json.stdout)["logits"][0]) == 3


def test_predict_asks_a_label(server: ServerProcess, told: Told) -> None:
    asked = ("predict", "iris", "--input", "x=[[5, 3, 1, 0]]", "--json", "--address", server.grpc)
    assert told(*asked, "--label", "stable")[0] == 0
    code, _, err = told(*asked, "--label", "canary")
    assert code == 2 and "has no label 'canary'" in err


@pytest.mark.parametrize(
    ("address", "metrics"),
    [
        ("host:8500", "host:8501"),
        ("host", "localhost:8501"),
        ("[::1]:8500", "[::1]:8501"),
        ("unix:/run/jaxport.sock", "localhost:8501"),
    ],
)
def test_bench_looks_for_the_metrics_on_the_host_of_the_server(address: str, metrics: str) -> None:
    assert http_address(address) == metrics


def test_predict_writes_the_outputs_to_a_file(server: ServerProcess, tmp_path: Path, told: Told) -> None:
    out = tmp_path / "y.npz"
    code, _, err = told(
        "predict", "iris", "--input", "x=[[1,2,3,4]]", "--address", server.grpc, "--out", str(out)
    )
    assert code == 0, err
    with np.load(out) as outputs:
        assert outputs["logits"].shape == (1, 3)


@pytest.mark.parametrize("model", ["letters", "phrases"])
@pytest.mark.parametrize("prompt", ["hij", "0123456789abcdefghij"])
def test_predict_continues_text_byte_by_byte(
    server: ServerProcess, model: str, prompt: str, told: Told
) -> None:
    """The longer prompt is longer than the models' context, which slides along."""
    _, out, _ = told("predict", model, "--text", prompt, "--bytes", "5", "--address", server.grpc, "--json")
    answer = json.loads(out)
    assert answer["continuation"] == "klmno"
    assert answer["next"][0]["byte"] == ord("k") and answer["next"][0]["probability"] > 0.9


def test_text_for_a_model_that_takes_none_is_refused(server: ServerProcess, told: Told) -> None:
    code, _, err = told("predict", "iris", "--text", "hello", "--address", server.grpc)
    assert code == 2
    assert "iris version 1 is no language model" in err


def test_text_for_a_version_that_was_refused_says_why() -> None:
    failed = wire.ModelVersion(version=3, state="FAILED", reason="the program wants 2 devices")
    client: Any = SimpleNamespace(model=lambda *_: failed)
    with pytest.raises(NotFit, match="nano version 3 is FAILED: the program wants 2 devices"):
        open_text_model(client, "nano")


def test_text_for_a_version_that_is_loading_is_told_to_try_again() -> None:
    loading = wire.ModelVersion(version=1, state="LOADING")
    client: Any = SimpleNamespace(model=lambda *_: loading)
    with pytest.raises(NotFit, match=r"nano version 1 is LOADING: .* try again"):
        open_text_model(client, "nano")


def test_a_served_refusal_is_one_line(server: ServerProcess) -> None:
    done = jaxport("predict", "none", "--input", "x=1", "--address", server.grpc)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "NOT_FOUND" in done.stderr and "iris" in done.stderr


def test_bench_counts_what_the_server_did(server: ServerProcess, tmp_path: Path) -> None:
    plot = tmp_path / "bench.png"
    flags = (
        "--concurrency",
        "1,16",
        "--seconds",
        "1",
        "--http-address",
        server.http,
        "--json",
        "--plot",
        str(plot),
    )
    done = jaxport("bench", "iris", "--address", server.grpc, *flags)
    assert done.returncode == 0, done.stderr
    one, many = json.loads(done.stdout)
    for result in (one, many):
        assert result["errors"] == 0 and result["requests"] > 0
        assert 0 < result["p50_ms"] <= result["p99_ms"]
        assert result["rows_per_s"] == pytest.approx(result["requests"] / result["seconds"], rel=0.01)
        assert result["server_cpu_us_per_request"] > 0
        assert result["compiles_after_ready"] == 0
    assert one["mean_batch_rows"] == 1
    assert many["mean_batch_rows"] > 1
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_bench_sends_what_lengths_a_model_takes(server: ServerProcess, told: Told) -> None:
    flags = ("--concurrency", "4", "--seconds", "0.5", "--http-address", server.http, "--json")
    (result,) = json.loads(told("bench", "phrases", "--address", server.grpc, *flags)[1])
    assert result["errors"] == 0 and result["requests"] > 0


def test_bench_at_a_rate_starts_requests_by_the_clock(server: ServerProcess, told: Told) -> None:
    flags = ("--concurrency", "32", "--rate", "50", "--seconds", "1", "--http-address", server.http, "--json")
    (result,) = json.loads(told("bench", "iris", "--address", server.grpc, *flags)[1])
    assert result["requests"] == 50
    assert result["seconds"] >= 0.9


def test_bench_without_metrics_says_so_and_goes_on(server: ServerProcess, told: Told) -> None:
    flags = ("--concurrency", "1", "--seconds", "0.5", "--http-address", "127.0.0.1:1", "--json")
    _, out, err = told("bench", "iris", "--address", server.grpc, *flags)
    (result,) = json.loads(out)
    assert result["server_cpu_us_per_request"] is None and result["errors"] == 0
    assert "no metrics at 127.0.0.1:1" in err


def test_inspect_says_how_to_call(server: ServerProcess, capsys: pytest.CaptureFixture[str]) -> None:
    models = server.models
    assert main(["inspect", str(models / "iris" / "1")]) == 0
    text = capsys.readouterr().out
    for said in (
        "x float32[b, 4]",
        "logits float32[b, 3]",
        "515 weights in 4 arrays",
        "jaxport predict iris",
    ):
        assert said in text
    assert main(["inspect", str(models / "letters" / "1"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["manifest"]["usage"]["task"] == "next_token"
    assert main(["inspect", str(models / "iris" / "1"), "--stablehlo"]) == 0
    text = capsys.readouterr().out
    assert "stablehlo.dot_general" in text and "dot_general 4" in text.splitlines()[-1]


def test_verify_of_an_altered_bundle_is_exit_code_3(
    server: ServerProcess, tmp_path: Path, told: Told
) -> None:
    copy = Path(shutil.copytree(server.models / "iris" / "1", tmp_path / "1"))
    assert told("verify", str(copy))[0] == 0
    program = copy / "programs" / "predict.jaxexport"
    program.write_bytes(program.read_bytes()[:-1])
    code, _, err = told("verify", str(copy))
    assert code == 3 and "predict.jaxexport" in err


@pytest.mark.parametrize("cause", [errno.EACCES, errno.ELOOP], ids=os.strerror)
def test_what_a_volume_refuses_is_one_line_and_exit_code_4(
    cause: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(options: object) -> int:
        raise OSError(cause, os.strerror(cause), str(tmp_path / "run.json"))

    monkeypatch.setattr("jaxport.commands.verify.run", refused)
    assert main(["verify", str(tmp_path)]) == 4
    assert capsys.readouterr().err == (
        f"error: {tmp_path}/run.json: {os.strerror(cause)}; make it fit or name another place\n"
    )
    with pytest.raises(OSError, match=r"run\.json"):
        main(["verify", str(tmp_path), "--debug"])


def test_a_file_that_our_own_code_misses_is_a_fault_that_shows_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jaxport.commands.verify.run", lambda options: (tmp_path / "none").read_text())
    with pytest.raises(FileNotFoundError):
        main(["verify", str(tmp_path)])

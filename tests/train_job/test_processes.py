"""One run by several processes: who each is, which rows it makes, and that they end up where one process would."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import jax
import numpy as np
import pytest
from jax.errors import JaxRuntimeError

from tests.once import OncePerRun
from tests.train_job import pairs
from train_job import mesh, training
from train_job.checkpoints import list_steps
from train_job.data.digits import read_digits
from train_job.errors import EnvironmentUnfit, StorageFailed, UsageError
from train_job.job import train
from train_job.mesh import Layout
from train_job.peers import joined, not_joined, of_a_peer, peers
from train_job.processes import ALONE, Processes
from train_job.rows import read_metrics
from train_job.settings import TrainSettings

STEPS = 12  # of the toy preset
PLACE = {
    "JAX_COORDINATOR_ADDRESS": "train-0.train:8476",
    "JAX_NUM_PROCESSES": "2",
    "JAX_PROCESS_ID": "1",
}

type Settings = Callable[..., TrainSettings]


def test_without_a_count_of_processes_there_is_one() -> None:
    assert Processes.from_environment({}) == ALONE
    assert Processes.from_environment({"JAX_NUM_PROCESSES": "1", "JAX_PROCESS_ID": "0"}) == ALONE
    assert ALONE.alone
    assert ALONE.first


def test_a_process_learns_its_place_from_the_environment() -> None:
    place = Processes.from_environment(PLACE, wait_s="30", silence_s="20")
    assert place == Processes(2, 1, "train-0.train:8476", 30, 20)
    assert not place.first


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"JAX_NUM_PROCESSES": "two"}, r"JAX_NUM_PROCESSES: found 'two', needs a whole number from 1"),
        ({"JAX_NUM_PROCESSES": ""}, r"JAX_NUM_PROCESSES: found '', needs"),
        ({"JAX_NUM_PROCESSES": "0"}, r"JAX_NUM_PROCESSES: found '0', needs"),
        ({"JAX_PROCESS_ID": "2"}, r"JAX_PROCESS_ID: found '2', needs .* 0 to 1 \(JAX_NUM_PROCESSES is 2\)"),
        ({"JAX_PROCESS_ID": None}, r"JAX_PROCESS_ID: not set, but JAX_NUM_PROCESSES is 2"),
        ({"JAX_COORDINATOR_ADDRESS": None}, r"JAX_COORDINATOR_ADDRESS: not set, but JAX_NUM_PROCESSES is 2"),
        ({"JAX_COORDINATOR_ADDRESS": "train-0"}, r"found 'train-0', needs host:port of process 0"),
        ({"JAX_COORDINATOR_ADDRESS": ":8476"}, r"found ':8476', needs host:port"),
        ({"JAX_COORDINATOR_ADDRESS": "train-0:0"}, r"found 'train-0:0', needs host:port"),
    ],
)
def test_a_place_that_cannot_be_is_refused(change: Mapping[str, str | None], message: str) -> None:
    place = {name: text for name, text in {**PLACE, **change}.items() if text is not None}
    with pytest.raises(UsageError, match=message) as caught:
        Processes.from_environment(place)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("flag", ["--wait-for-peers", "--peer-timeout"])
def test_the_command_refuses_before_it_imports_jax(flag: str) -> None:
    program = (
        "import sys; from train_job.__main__ import main; "
        f"code = main(['--preset', 'nano', '{flag}', 'long']); print(code, 'jax' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["2", "False"]
    assert f"error: {flag}: found 'long', needs a whole number from 1" in done.stderr


def test_a_port_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        place = Processes(2, 0, f"127.0.0.1:{server.getsockname()[1]}")
        with (
            pytest.raises(EnvironmentUnfit, match=r"process 0 cannot listen on .*Address already in use"),
            joined(place),
        ):
            pass


@pytest.mark.parametrize("own", [slice(0, 4), slice(4, 8), slice(2, 3)])
def test_a_part_of_a_batch_is_those_rows_of_the_whole(
    own: slice, toy_settings: Settings, tmp_path: Path
) -> None:
    text = toy_settings(tmp_path).preset.task.load(__file__)
    for data in (text, read_digits()):
        whole, part = data.batch(3, 5, 8), data.batch(3, 5, 8, own)
        assert whole.keys() == part.keys()
        for name in whole:
            np.testing.assert_array_equal(whole[name][own], part[name])


def test_only_errors_of_peers_are_taken_for_a_lost_one(tmp_path: Path) -> None:
    gone = JaxRuntimeError("UNKNOWN: Gloo all-reduce failed: Connection reset by peer")
    saving = StorageFailed("cannot write")
    saving.__cause__ = gone
    assert of_a_peer(gone)
    assert of_a_peer(ValueError("UNKNOWN: Gloo all-reduce failed: Connection reset by peer"))
    assert not of_a_peer(ValueError("not a readable barrier"))
    assert of_a_peer(saving)
    assert not of_a_peer(JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 8589934592 bytes."))
    assert not of_a_peer(StorageFailed.at(tmp_path, OSError("gloo")))
    full = 'RESOURCE_EXHAUSTED: Error writing "/work/runs/gloo-7/checkpoints/4/params/d/0": No space left on device'
    for error in (JaxRuntimeError(full), ValueError(full), ValueError('NOT_FOUND: Reading "/runs/nccl/1"')):
        assert not of_a_peer(error), "whatever a run is called"


def test_a_process_alone_has_lost_no_peer_and_says_what_its_devices_said() -> None:
    with pytest.raises(JaxRuntimeError, match="unhandled system error"), peers(ALONE):
        raise JaxRuntimeError("INTERNAL: NCCL operation ncclCommInitRank failed: unhandled system error")


@pytest.fixture(scope="module")
def pair(once: OncePerRun) -> Path:
    return pairs.undisturbed(once)


def test_process_0_speaks_and_records_for_both(pair: Path) -> None:
    first, second = json.loads((pair / "said.json").read_text())
    assert "data=2: all of 2 processes, 2 rows of a step on each" in first
    assert first.count("\nstep ") == 3
    assert "done: val_bits_per_byte" in first
    assert not [line for line in second.splitlines() if "Gloo" not in line]  # its collectives say hello
    run_dir = pair / "runs" / "toy"
    assert [row["step"] for row in read_metrics(run_dir)] == [4, 8, 12]
    assert len(list((run_dir / "tensorboard").iterdir())) == 1
    assert json.loads((run_dir / "run.json").read_text())["finished"]


def test_two_processes_come_near_one(pair: Path, tmp_path: Path, toy_settings: Settings) -> None:
    """The order of additions differs, and Adam's first steps magnify it; the same rows give the same curve."""
    settings = toy_settings(tmp_path, data=pairs.DATA)
    assert train(settings) == 0
    together, alone = read_metrics(pair / "runs" / "toy"), read_metrics(settings.run_dir)
    for name in ("train_loss", "val_loss"):
        np.testing.assert_allclose(
            [row[name] for row in together], [row[name] for row in alone], rtol=1e-3, err_msg=name
        )


def test_two_devices_of_one_process_are_two_processes_bit_for_bit(pair: Path, tmp_path: Path) -> None:
    place = {"JAX_NUM_PROCESSES": "1", "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    ended = pairs.end(pairs.start(0, pairs.free_port(), tmp_path, ["--mesh", "data=2"], place))
    assert ended.code == 0, ended.said
    assert "data=2: all of this process, 2 rows of a step on each" in ended.said
    assert pairs.weights(tmp_path) == pairs.weights(pair)


def test_rows_that_the_devices_cannot_share_evenly_are_refused_with_both_numbers(
    tmp_path: Path, toy_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    three = jax.devices() * 3
    monkeypatch.setattr(mesh.jax, "devices", lambda: three)
    with pytest.raises(
        UsageError,
        match=r"--set batch_size: found 4, needs a multiple of 3: rows are spread over the devices \(--mesh data=3\)",
    ):
        train(toy_settings(tmp_path))
    assert not (tmp_path / "runs").exists()


def test_a_finished_run_ends_at_once_without_its_peers(
    finished: Path,
    toy_settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As a pod does that was lost after the last save, when the others are done and gone."""
    settings = toy_settings(finished.parents[1], processes=Processes(2, 1, f"127.0.0.1:{pairs.free_port()}"))
    monkeypatch.setattr(training, "joined", None)  # nobody is asked for
    assert train(settings) == 0
    assert "finished, 12 of 12 steps" in capsys.readouterr().out


def test_what_one_process_saved_two_go_on_from_and_what_two_saved_one(
    pair: Path, tmp_path: Path, toy_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The two on a mesh that cuts weights over them. One is killed, the coordinator: tests/faults/full loses either."""
    settings = toy_settings(tmp_path, data=pairs.DATA)
    with monkeypatch.context() as patch:
        patch.setenv("STOP_AT", "2")
        assert train(settings) == 75
    flags = ("--set", "checkpoint_every=3", "--mesh", "fsdp=2")
    first, second = pairs.run_pair(tmp_path, *flags, first={"KILL_AT": "8"})
    assert (first.code, second.code) == (137, 75), first.said + second.said
    assert "resumes at step 3 of 12" in first.said
    assert "fsdp=2: all of 2 processes, 2 rows of a step on each" in first.said
    assert "error: a peer process was lost" in second.said
    # That of step 6 is written in the background, and may not have been whole two steps later.
    assert list_steps(settings.run_dir)[-1].step in (3, 6)
    assert train(settings) == 0
    assert list_steps(settings.run_dir)[-1].step == STEPS
    last, undisturbed = (read_metrics(root / "runs" / "toy")[-1] for root in (tmp_path, pair))
    np.testing.assert_allclose(last["val_loss"], undisturbed["val_loss"], rtol=1e-3)


def test_processes_of_another_run_do_not_train_together_and_leave_no_trace(tmp_path: Path) -> None:
    port = pairs.free_port()
    began = [pairs.start(0, port, tmp_path), pairs.start(1, port, tmp_path, ["--run", "other"])]
    first, second = map(pairs.end, began)
    assert (first.code, second.code) == (2, 2), first.said + second.said
    runs = tmp_path.resolve() / "runs"
    assert (
        f"error: --root and --run: found '{runs / 'other'}' in process 1, needs '{runs / 'toy'}' as in process 0; start"
        in second.said
    )
    assert "error: process 1 was started with other flags than process 0: its log says which" in first.said
    assert not runs.exists()


@pytest.mark.parametrize(
    ("own", "first", "message"),
    [
        ({"--set seed": 1}, {"--set seed": 0}, r"--set seed: found 1 in process 1, needs 0 as in process 0"),
        ({"a": 1}, {"a": 1, "b": (2,)}, r"b: found None in process 1, needs \[2\]"),
        ({"a": 1, "b": 2}, {"a": 1}, r"b: found 2 in process 1, needs None"),
    ],
)
def test_what_differs_from_process_0_is_named(
    own: Mapping[str, Any], first: Mapping[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = Layout(cast("Any", None), Processes(2, 1, "train-0.train:8476"), 4)
    monkeypatch.setattr(Layout, "sent_by_first", lambda self, content: json.dumps(first).encode())
    monkeypatch.setattr(Layout, "said_by_all", lambda self, value: np.asarray([False, value]))
    layout.require_same(first)
    with pytest.raises(UsageError, match=message):
        layout.require_same(own)


@pytest.mark.parametrize(
    ("index", "address", "code", "words"),
    [
        (1, "127.0.0.1", 75, "not all of 2 processes were at 127.0.0.1:"),
        (0, "192.0.2.1", 4, "found 192.0.2.1:"),  # of RFC 5737: nobody's
    ],
)
def test_a_peer_that_does_not_come_is_not_waited_for_forever(
    index: int, address: str, code: int, words: str, tmp_path: Path
) -> None:
    port = pairs.free_port()
    place = {"JAX_COORDINATOR_ADDRESS": f"{address}:{port}"}
    began = time.monotonic()
    ended = pairs.end(pairs.start(index, port, tmp_path, ["--wait-for-peers", "1"], place))
    assert ended.code == code
    assert ended.said.startswith(f"error: JAX_COORDINATOR_ADDRESS: {words}{port}")
    assert "within 1 s" in ended.said
    assert time.monotonic() - began < 60


@pytest.mark.parametrize(
    ("host", "here"), [("127.0.0.1", True), ("192.0.2.1", False), ("no.such.invalid", False)]
)
def test_process_0_knows_an_address_that_is_not_its_own(host: str, here: bool) -> None:
    first, second = (not_joined(Processes(2, index, f"{host}:8476")) for index in (0, 1))
    assert second.exit_code == 75
    assert first.exit_code == (75 if here else 4)

"""Programs for several devices in a server: on the first so many, beside others, with everything that holds for one."""

import json
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from converters.bundle import read_manifest
from converters.manifest import Manifest
from serve_grpc.device import Device
from serve_grpc.executables import callable_on, entry_name
from serve_grpc.memory import Memory
from serve_grpc.spread import SpreadExecutable
from tests import sharded as made
from tests.server_process import ServerProcess, eventually, publish

FLAGS = ("--max-batch", str(made.BATCH.max_batch))
TWO = "--xla_force_host_platform_device_count=2"
HELD = 4 * (4 * 64 + 64 + 64 * 8) // 2


@pytest.fixture(scope="module", autouse=True)
def quick() -> Iterator[None]:
    """As what is served was compiled."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in made.QUICK.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="module")
def facts(sharded: Path) -> Mapping[str, Any]:
    """What a process with two devices found of a version that was loaded as a server does."""
    return json.loads((sharded / "facts.json").read_text())


@pytest.fixture(scope="module")
def manifest(sharded: Path) -> Manifest:
    return read_manifest(sharded / "models" / "wide" / "1")


def check(server: ServerProcess, model: str, rows: int, seed: int = 0) -> None:
    given = made.rows(rows, seed=rows)
    want = made.wide(made.wide_params(seed), given["x"], np)["y"]
    np.testing.assert_allclose(server.predict(model, given)["y"], want, rtol=1e-4, atol=1e-4)


def test_it_serves_beside_a_model_of_one_device_from_a_warm_cache_and_takes_other_weights(
    sharded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XLA_FLAGS", TWO)
    models = tmp_path / "models"
    for name in ("wide", "one"):
        (models / name).mkdir(parents=True)
        (models / name / "1").symlink_to(sharded / "models" / name / "1")
    with ServerProcess(models, *FLAGS, "--cache-dir", str(sharded / "cache")) as server:
        server.ready()
        assert server.line("ready .* cache_misses=0$")
        asked = [(model, rows) for rows in range(1, 12) for model in ("wide", "one")] * 3
        with ThreadPoolExecutor(6) as clients:
            list(clients.map(lambda each: check(server, *each), asked))
        publish(sharded / "coming" / "wide" / "2", models / "wide" / "2")
        eventually(lambda: server.state("wide").get(2) == "SERVING", "version 2 serves")
        assert server.line(r"loaded model=wide version=2 .*compiled=False from=like")
        check(server, "wide", 5, seed=2)
        check(server, "one", 5)
        assert server.metric("jaxport_compiles_total") == 0
        assert json.loads(server.get("/status.json")[1])["server"]["device"]["count"] == 2
        assert not any("WARNING" in line for line in server.lines), server.lines


def test_a_server_with_one_device_names_the_number_and_serves_what_it_can(
    sharded: Path,
) -> None:
    with ServerProcess(sharded / "models", *FLAGS) as server:
        server.ready()
        check(server, "one", 3)
        assert server.state("wide") == {1: "FAILED"}
        assert server.line(
            r"refused model=wide version=1: the program wants 2 devices \(tensor=2\), here is 1; set XLA_FLAGS="
            + TWO
        )


def test_each_device_holds_its_part_and_a_run_has_ended_when_its_turn_has(facts: Mapping[str, Any]) -> None:
    """On a CPU, where it would go on behind the caller's back."""
    assert facts["parts"] == {"up": [[4, 32]] * 2, "bias": [[32]] * 2, "down": [[32, 8]] * 2}
    assert (facts["weight_bytes"], facts["devices"]) == (HELD, 2)
    assert facts["run_bytes"] < 2 * HELD
    assert facts["ended"] == [True] * 80


def test_launches_of_programs_for_several_devices_take_turns() -> None:
    inside, most = 0, 0

    def compiled(_weights: Any, _inputs: Any) -> dict[str, Any]:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        time.sleep(0.002)
        inside -= 1
        return {}

    executables = [SpreadExecutable(compiled, waits=waits) for waits in (True, False)]
    threads = [threading.Thread(target=each, args=({}, {})) for each in executables * 5]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1
    assert callable_on(compiled, 1, devices(0)) is compiled, "one device: nothing stands around it"


def test_the_cache_names_it_by_its_devices_too(manifest: Manifest) -> None:
    (signature,) = next(iter(manifest.signatures.values())).compiled
    names = {
        entry_name(each, signature, 4)
        for each in (
            manifest,
            replace(manifest, mesh={}, shardings={}, nr_devices=1),
            replace(manifest, mesh={"tensor": 4}, nr_devices=4),
            replace(manifest, shardings={"up": (None, "tensor")}),
        )
    }
    assert len(names) == 4


def devices(*free: int) -> Device:
    handles = [
        SimpleNamespace(memory_stats=lambda free=each: {"bytes_limit": free} if free else None)
        for each in free
    ]
    return Device(tuple(handles), "cuda" if any(free) else "cpu", overlap=False)


def test_the_device_with_the_least_room_decides_of_those_that_are_used(manifest: Manifest) -> None:
    need = Memory(devices(0, 0), 4).need(manifest)
    assert (need.weights, need.reading, need.devices) == (HELD, 2 * HELD, 2)
    assert "on each of 2 devices" in str(need)
    room = need.weights + need.run
    assert Memory(devices(room, room, 1), 4, host_free=lambda: None).shortage(need, []) is None
    short = Memory(devices(room, room - 1, room), 4, host_free=lambda: None).shortage(need, [])
    assert short == ("device memory", room, room - 1)


def test_simulated_devices_share_the_memory_of_the_host(manifest: Manifest) -> None:
    need = Memory(devices(0, 0), 4).need(manifest)
    everything = 2 * (need.weights + need.run) + need.buffers + need.reading
    assert Memory(devices(0, 0), 4, host_free=lambda: everything).shortage(need, []) is None
    short = Memory(devices(0, 0), 4, host_free=lambda: everything - 1).shortage(need, [])
    assert short == ("host memory", everything, everything - 1)


def version(devices: int, held: int) -> Any:
    """As much of a loaded version as memory looks at."""
    array = SimpleNamespace(
        shape=(devices * held,),
        dtype=np.dtype("int8"),
        sharding=SimpleNamespace(device_set=range(devices), shard_shape=lambda _: (held,)),
    )
    return SimpleNamespace(swap_key="", programs={"predict": SimpleNamespace(weights={"w": array})})


def test_what_leaves_frees_the_devices_that_it_was_on(manifest: Manifest) -> None:
    """As a version that fits only in place of another does, with --swap unload-first."""
    need = Memory(devices(0, 0), 4).need(manifest)
    room = need.weights + need.run
    memory = Memory(devices(room, room - 10), 4, host_free=lambda: None)
    for gone, left in ((version(2, 10), None), (version(2, 9), room - 1), (version(1, 100), room - 10)):
        short = memory.shortage(need, [gone], [gone])
        assert short is left or (short is not None and short.free == left)
    limited = Memory(devices(0, 0), 4, limit=room + 50, host_free=lambda: None)
    assert limited.shortage(need, [version(2, 50)]) is None
    short = limited.shortage(need, [version(2, 50), version(1, 1)])
    assert short == ("--memory-limit", room, room - 1)

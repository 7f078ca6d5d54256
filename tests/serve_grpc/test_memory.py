"""Whether a version fits is known before it is loaded, and said with numbers."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from converters.bundle import read_manifest
from converters.manifest import Manifest
from serve_grpc.device import Device, open_device
from serve_grpc.host_memory import free_bytes, limit_bytes
from serve_grpc.loader import Loader
from serve_grpc.memory import Memory, Need, run_bytes, size, weight_bytes
from serve_grpc.metrics import Metrics
from serve_grpc.settings import BatchSettings
from serve_grpc.version import LoadedVersion

WEIGHTS = 4 * (4 * 64 + 64 + 64 * 64 + 64 + 64 * 3 + 3)


@pytest.fixture(scope="module")
def bundle(versions: Path) -> Path:
    return versions / "1"


@pytest.fixture(scope="module")
def manifest(bundle: Path) -> Manifest:
    return read_manifest(bundle)


@pytest.fixture(scope="module")
def loaded(bundle: Path) -> LoadedVersion:
    return Loader(open_device(), BatchSettings(max_batch=4), Metrics()).load("mlp", bundle, None)


def device(**stats: int) -> Device:
    handle: Any = SimpleNamespace(memory_stats=lambda: stats or None)
    return Device((handle,), "cuda" if stats else "cpu", overlap=False)


def test_a_need_is_weights_and_a_run_estimated_until_the_compiler_has_said(
    manifest: Manifest, loaded: LoadedVersion
) -> None:
    memory = Memory(device(), max_batch=4)
    need = memory.need(manifest)
    assert (need.weights, need.reading, need.known) == (WEIGHTS, WEIGHTS, False)
    assert need.run >= 4 * 4 * (4 + 3) and need.buffers >= 2 * 4 * 4 * 4
    assert "estimated" in str(need)
    memory.learn(loaded)
    known = memory.need(manifest)
    assert known.known and known.run == run_bytes(loaded.programs) and "estimated" not in str(known)
    # At least the rows of the largest bucket in and out, twice, and not the weights again.
    assert 2 * max(loaded.programs["predict"].executables) * 4 * (4 + 3) <= known.run < WEIGHTS
    assert weight_bytes(loaded) == WEIGHTS


def test_a_device_with_figures_of_its_own_is_asked(manifest: Manifest) -> None:
    need = Memory(device(bytes_limit=1), max_batch=4).need(manifest)
    room = WEIGHTS + need.run
    fits = Memory(device(bytes_limit=room + 500, bytes_in_use=500), 4, host_free=lambda: 10**9)
    assert fits.shortage(need, []) is None
    tight = Memory(device(bytes_limit=room + 499, bytes_in_use=500), 4, host_free=lambda: 10**9)
    assert tight.shortage(need, []) == ("device memory", room, room - 1)
    host = Memory(device(bytes_limit=10**9), 4, host_free=lambda: WEIGHTS)
    assert host.shortage(need, []) == ("host memory", WEIGHTS + need.buffers, WEIGHTS)
    assert Memory(device(bytes_limit=10**9), 4, host_free=lambda: None).shortage(need, []) is None


def test_on_a_cpu_the_weights_are_on_the_host_twice_while_they_are_read(manifest: Manifest) -> None:
    need = Memory(device(), 4).need(manifest)
    everything = 2 * WEIGHTS + need.run + need.buffers
    assert Memory(device(), 4, host_free=lambda: everything).shortage(need, []) is None
    short = Memory(device(), 4, host_free=lambda: everything - 1).shortage(need, [])
    assert short == ("host memory", everything, everything - 1)


def test_what_leaves_makes_room(manifest: Manifest, loaded: LoadedVersion) -> None:
    memory = Memory(device(), 4, limit=WEIGHTS + 3000, host_free=lambda: None)
    memory.learn(loaded)
    need = memory.need(manifest)
    short = memory.shortage(need, [loaded])
    assert short is not None
    assert str(short) == f"needs {size(WEIGHTS + need.run)} of --memory-limit and 3 kB is free"
    assert memory.shortage(need, [loaded], [loaded]) is None
    assert memory.shortage(replace(need, weights=10**9), [loaded], [loaded]) is not None
    greedy = replace(loaded, swap_key="another")
    memory._runs["another"] = 5000
    assert memory.shortage(need, [greedy, loaded], [loaded]) is not None, "the largest run counts"


def test_a_backend_without_figures_leaves_the_estimate(manifest: Manifest, loaded: LoadedVersion) -> None:
    def refuse() -> None:
        raise NotImplementedError

    for analysis in (refuse, lambda: None):
        program = SimpleNamespace(weights={}, executables={1: SimpleNamespace(memory_analysis=analysis)})
        assert run_bytes({"predict": program}) is None  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 bytes"), (999, "999 bytes"), (18_700, "18.7 kB"), (3_400_000_000, "3.4 GB")]
)
def test_sizes_are_for_people(count: int, text: str) -> None:
    assert size(count) == text
    assert size(count) in str(Need(count, 0, 0, 0, True))


def write(folder: Path, **files: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in files.items():
        (folder / name.replace("__", ".")).write_text(f"{value}\n")


def test_free_memory_is_the_machines_or_what_a_group_leaves(tmp_path: Path) -> None:
    proc, groups = tmp_path / "proc", tmp_path / "cgroup"
    assert free_bytes(proc, groups) is None
    write(proc, meminfo="MemTotal: 9000 kB\nMemAvailable:    8000 kB")
    assert free_bytes(proc, groups) == 8000 * 1024
    write(proc / "self", cgroup="0::/pod/container")
    assert free_bytes(proc, groups) == 8000 * 1024, "the path may be another name space's"
    write(groups / "pod" / "container", memory__max="max", memory__current=5)
    assert free_bytes(proc, groups) == 8000 * 1024
    write(groups / "pod", memory__max=5_000_000, memory__current=1_000_000)
    assert free_bytes(proc, groups) == 4_000_000, "a group above counts too"
    write(groups / "pod", memory__stat="anon 7\ninactive_file 500000\nfile 9")
    assert free_bytes(proc, groups) == 4_500_000, "the file cache can be given up"
    write(groups / "pod" / "container", memory__max=100, memory__current=200)
    assert free_bytes(proc, groups) == 0


def test_the_older_control_groups_are_read_too(tmp_path: Path) -> None:
    proc, groups = tmp_path / "proc", tmp_path / "cgroup"
    write(proc / "self", cgroup="4:cpu,memory:/a\n1:cpu:/b\n0::/")
    write(groups / "memory", memory__limit_in_bytes=2**63 - 4096, memory__usage_in_bytes=1)
    assert free_bytes(proc, groups) is None, "that number is their word for no limit"
    write(groups / "memory" / "a", memory__limit_in_bytes=900, memory__usage_in_bytes=300)
    assert free_bytes(proc, groups) == 600 and limit_bytes(proc, groups) == 900


def test_the_limit_is_the_least_of_the_groups(tmp_path: Path) -> None:
    proc, groups = tmp_path / "proc", tmp_path / "cgroup"
    write(proc, meminfo="MemAvailable:    8000 kB")
    assert limit_bytes(proc, groups) is None, "what the machine has is no limit of ours"
    write(proc / "self", cgroup="0::/pod/container")
    write(groups / "pod" / "container", memory__max="max")
    assert limit_bytes(proc, groups) is None
    write(groups / "pod", memory__max=500)
    assert limit_bytes(proc, groups) == 500
    write(groups / "pod" / "container", memory__max=400)
    assert limit_bytes(proc, groups) == 400, "without the file of what is in use, too"


def test_this_machine_says_something() -> None:
    free = free_bytes()
    assert free is not None and free > 10**6

"""The compile cache: filled by warm Jobs, read by servers that then compile nothing, and never trusted blindly."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from serve_grpc.cache import SUFFIX, WRITING, CacheKey, CompileCache, Entry
from serve_grpc.errors import CacheDamaged, EnvironmentUnfit
from serve_grpc.rehearsal import milliseconds
from tests.serve_grpc import bundles
from tests.server_process import ROOT, ServerProcess, eventually, publish

MODELS = ("mlp", "tokens")
FLAGS = ("--max-batch", "2")
X = np.ones((1, 4), np.float32)
JAX_CACHE = "jax"
EVERYTHING = {
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}
NO_OVERRIDE = ("setpriv", "--bounding-set", "-dac_override", "--")


def mlp_changed(params, x):
    return {"logits": bundles.mlp(params, x)["logits"] * 2}


def warm_job(root: Path, *flags: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "jaxport", "serve", "--warm-only", "--models", str(root / "models")]
    environment = {**os.environ, "JAX_COMPILATION_CACHE_DIR": str(root / JAX_CACHE), **EVERYTHING}
    return subprocess.Popen(
        [*command, *FLAGS, *flags], stderr=subprocess.PIPE, text=True, cwd=ROOT, env=environment
    )


def finished(job: subprocess.Popen[str]) -> tuple[int, str]:
    said = job.communicate(timeout=90)[1]
    return job.returncode, said


def contents(root: Path) -> dict[str, tuple[int, int, bytes]]:
    """Every file below, with its time, inode and bytes: equal when nothing was written."""
    files = (path for path in sorted(root.rglob("*")) if path.is_file())
    return {str(p.relative_to(root)): (p.stat().st_mtime_ns, p.stat().st_ino, p.read_bytes()) for p in files}


def entries(root: Path) -> list[Path]:
    return sorted((root / "cache").glob(f"*/*{SUFFIX}"))


def read(root: Path) -> list[Entry]:
    """Every entry. Raises CacheDamaged."""
    found = []
    for path in entries(root):
        entry = CompileCache(path.parent.parent, named(path.parent.name)).get(path.stem)
        assert entry is not None
        found.append(entry)
    return found


def copied(root: Path, target: Path) -> Path:
    shutil.copytree(root, target)
    return target


@pytest.fixture(scope="module", autouse=True)
def no_jax_cache() -> Iterator[None]:
    """What is compiled here is compiled."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
        patch.setenv("JAX_PLATFORMS", "cpu")
        yield


@pytest.fixture(scope="module")
def warmed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root with models mlp and tokens, whose cache two warm Jobs filled at the same time.

    The later of two may find what the earlier one has published already: either compiles it or takes it.
    """
    root = tmp_path_factory.mktemp("root")
    bundles.export_mlp(root / "models")
    bundles.export_tokens(root / "models")
    jobs = [finished(job) for job in [warm_job(root), warm_job(root)]]
    for code, said in jobs:
        assert code == 0, said
        assert re.search(r"warmed models=2 compiled=[024] published=[012]", said), said
    assert any(re.search(r"compiled=[24] published=[12]", said) for _, said in jobs)
    return root


@pytest.fixture
def read_only(warmed: Path) -> Iterator[tuple[str, ...]]:
    """The cache as on a read-only mount; yields what a server is started with so that root is refused too."""
    folder = entries(warmed)[0].parent
    prefix = NO_OVERRIDE if os.geteuid() == 0 else ()
    folder.chmod(0o555)
    try:
        attempt = subprocess.run(
            [*prefix, "touch", str(folder / "written")], capture_output=True, check=False
        )
        assert attempt.returncode == 1, "the folder could be written"
        yield prefix
    finally:
        folder.chmod(0o755)


def test_a_warm_job_with_nothing_to_warm_for_is_exit_code_2(tmp_path: Path) -> None:
    (tmp_path / "models" / "one_level_too_high" / "mlp" / "1").mkdir(parents=True)
    code, said = finished(warm_job(tmp_path))
    assert code == 2 and "nothing in it to warm for; needed: folders <model>/<version>/" in said, said


def test_a_warm_job_that_is_to_wait_takes_the_first_model_that_comes(tmp_path: Path, warmed: Path) -> None:
    job = warm_job(tmp_path, "--wait", "--poll-seconds", "0.1")
    try:
        assert job.stderr is not None
        assert any("waiting for a first model" in line for line in job.stderr)
        shutil.copytree(warmed / "models" / "mlp", tmp_path / "coming")
        (tmp_path / "models").mkdir(exist_ok=True)
        (tmp_path / "coming").rename(tmp_path / "models" / "mlp")
        code, said = finished(job)
        assert code == 0 and "warmed models=1" in said, said
    finally:
        job.kill()
        job.communicate()


def altered(version: Path) -> None:
    with (version / "manifest.json").open("a") as manifest:
        manifest.write(" ")


def test_what_was_half_there_is_looked_at_again_before_a_warm_job_gives_up(
    tmp_path: Path, warmed: Path
) -> None:
    """Once as it is being deleted, and once as it is being copied."""
    version = tmp_path / "models" / "mlp" / "1"
    shutil.copytree(warmed / "models" / "mlp" / "1", version)
    altered(version)
    job = warm_job(tmp_path, "--wait", "--poll-seconds", "1")
    try:
        assert job.stderr is not None
        assert any("looking again in 1s" in line for line in job.stderr)
        shutil.rmtree(version)
        assert any("waiting for a first model" in line for line in job.stderr)
        shutil.copytree(warmed / "models" / "mlp" / "1", tmp_path / "coming")
        altered(tmp_path / "coming")
        (tmp_path / "coming").rename(version)
        assert any("looking again in 1s" in line for line in job.stderr)
        shutil.copyfile(warmed / "models" / "mlp" / "1" / "manifest.json", version / "manifest.json")
        code, said = finished(job)
        assert code == 0 and "warmed models=1" in said, said
    finally:
        job.kill()
        job.communicate()


def test_a_warm_job_does_not_wait_on_for_a_model_that_is_broken(tmp_path: Path, warmed: Path) -> None:
    shutil.copytree(warmed / "models" / "mlp" / "1", tmp_path / "models" / "mlp" / "1")
    altered(tmp_path / "models" / "mlp" / "1")
    code, said = finished(warm_job(tmp_path, "--wait", "--poll-seconds", "0.1"))
    assert code == 3, said
    assert said.splitlines()[-1].endswith(
        "not loaded, for reasons that the log has: mlp/1; mend or remove it"
    )
    assert re.search(r"refused model=mlp version=1: .*manifest.json", said)
    assert "ready" not in said, "it is no server"


def test_a_warm_job_takes_nothing_from_a_cache_of_jax(warmed: Path) -> None:
    """What JAX reads back from there does not load again when it is stored once more."""
    assert not (warmed / JAX_CACHE).exists() or not any((warmed / JAX_CACHE).iterdir())


def test_two_warm_jobs_at_once_leave_whole_entries_and_nothing_else(warmed: Path) -> None:
    folder = entries(warmed)[0].parent
    assert len(entries(warmed)) == 2
    assert {path.name for path in folder.iterdir()} == {"key.json", *(path.name for path in entries(warmed))}
    assert re.fullmatch(r"jaxlib-[\d.]+-cpu-[0-9a-f]{12}", folder.name)
    for entry in read(warmed):
        assert 1 in entry.executables
        assert set(entry.executables) <= set(entry.measured) == {1, 2}


def test_a_warm_server_compiles_nothing_and_leaves_a_read_only_cache_alone(
    warmed: Path, read_only: tuple[str, ...], tmp_path: Path
) -> None:
    before = contents(warmed / "cache")
    root = tmp_path / "root"
    shutil.copytree(warmed / "models", root / "models")
    flags = (*FLAGS, "--cache-dir", str(warmed / "cache"))
    with ServerProcess(root / "models", *flags, prefix=read_only) as server:
        server.ready()
        assert server.line("ready .* cache_misses=0$")
        assert server.metric("jaxport_compiles_total") == 0
        said = {server.line(f"loaded model={name} .*buckets_ms=([^ ]+) .*from=cache")[1] for name in MODELS}
        assert said == {milliseconds(entry.seconds) for entry in read(warmed)}
        first = server.predict("mlp", {"x": X})["logits"]
        # New weights: neither compiled nor looked up.
        publish(bundles.export_mlp(tmp_path / "new", seed=1), root / "models" / "mlp" / "2")
        assert server.line(r"loaded model=mlp version=2 .*compiled=False from=like")
        eventually(lambda: server.state("mlp").get(2) == "SERVING", "version 2")
        assert not np.array_equal(server.predict("mlp", {"x": X})["logits"], first)
        assert server.metric("jaxport_compiles_total") == 0
        assert not any("WARNING" in line or "cache entry" in line for line in server.lines), server.lines
    assert contents(warmed / "cache") == before


def test_a_cold_server_says_what_it_compiled_and_how_to_warm_it(
    warmed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another flag of the compiler is another cache, and a server fills none."""
    before = contents(warmed / "cache")
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=false")
    with ServerProcess(warmed / "models", *FLAGS) as server:
        server.ready()
        assert server.line("ready .* cache_misses=4$")
        assert server.metric("jaxport_compile_cache_misses_total") == 4
        assert server.metric("jaxport_compiles_total") >= 8  # traces too
        warning = server.line("compiled at start.*")[0]
    assert "mlp (2), tokens (2)" in warning
    assert warning.endswith(f"jaxport serve --warm-only --models {warmed / 'models'} --max-batch 2")
    assert contents(warmed / "cache") == before


def test_a_damaged_entry_is_named_not_used_and_mended_by_the_next_warm_job(
    warmed: Path, tmp_path: Path
) -> None:
    root = copied(warmed, tmp_path / "root")
    damaged, whole = entries(root)
    data = bytearray(damaged.read_bytes())
    data[-100] ^= 1
    damaged.write_bytes(data)
    before = whole.stat()
    with ServerProcess(root / "models", *FLAGS) as server:
        server.ready()
        assert server.line("ready .* cache_misses=2$")
        assert server.line(f"cache entry not used: {re.escape(str(damaged))}: altered or damaged")
        assert server.predict("mlp", {"x": X})["logits"].shape == (1, 3)
        assert damaged.read_bytes() == data
    code, said = finished(warm_job(root))
    assert code == 0
    assert "compiled=2 published=1" in said
    assert len(read(root)) == 2
    assert (whole.stat().st_ino, whole.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_a_program_that_was_warmed_first_is_swapped_in_without_a_compile(
    warmed: Path, tmp_path: Path
) -> None:
    root = copied(warmed, tmp_path / "root")
    kept = contents(root / "cache")
    with ServerProcess(root / "models", *FLAGS) as server:
        server.ready()
        # Where the Job sees it first: the same cache, another folder of models.
        bundles.export_mlp(tmp_path / "staged" / "models", version=2, fn=mlp_changed)
        code, said = finished(warm_job(tmp_path / "staged", "--cache-dir", str(root / "cache")))
        assert (code, "compiled=2 published=1" in said) == (0, True), said
        publish(tmp_path / "staged" / "models" / "mlp" / "2", root / "models" / "mlp" / "2")
        assert server.line(r"loaded model=mlp version=2 .*compiled=False from=cache")
        eventually(lambda: server.state("mlp").get(2) == "SERVING", "version 2")
        assert server.metric("jaxport_compiles_total") == 0
        assert server.metric("jaxport_compiles_after_ready_total") == 0
    now = contents(root / "cache")
    entries_before = {name: what for name, what in kept.items() if name.endswith(SUFFIX)}
    assert {name: now[name] for name in entries_before} == entries_before
    assert len(entries(root)) == 3


def test_a_cache_that_cannot_be_written_ends_a_warm_job_with_4(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "cache").write_text("a file")
    code, said = finished(warm_job(tmp_path))
    assert code == 4
    assert f"compile cache {tmp_path / 'cache'}" in said.splitlines()[-1]


# --- the files alone, without a device


def named(folder: str) -> CacheKey:
    """A key whose folder has that name."""

    class Named(CacheKey):
        @property
        def folder(self) -> str:
            return folder

    return Named({})


ENTRY = Entry({1: b"one", 4: b"four"}, {1: 0.1, 2: 0.5, 4: 0.2})


@pytest.fixture
def cache(tmp_path: Path) -> CompileCache:
    cache = CompileCache(tmp_path, named("k"))
    cache.prepare()
    return cache


def test_an_entry_reads_back_as_it_was_put(cache: CompileCache) -> None:
    assert cache.get("p") is None
    cache.put("p", ENTRY)
    assert cache.get("p") == ENTRY
    assert ENTRY.seconds == {1: 0.1, 4: 0.2}
    assert (cache.folder / f"p{SUFFIX}").stat().st_mode & 0o777 == 0o644


def test_every_cut_and_every_changed_byte_is_damage(cache: CompileCache) -> None:
    cache.put("p", ENTRY)
    path = cache.folder / f"p{SUFFIX}"
    whole = path.read_bytes()
    for at in range(len(whole)):
        for wrong in (whole[:at], whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]):
            path.write_bytes(wrong)
            with pytest.raises(CacheDamaged, match=re.escape(str(path))):
                cache.get("p")
    path.unlink()
    path.mkdir()
    with pytest.raises(CacheDamaged, match="Is a directory"):
        cache.get("p")


def test_a_killed_writer_leaves_nothing_to_see_and_the_next_job_cleans_up(cache: CompileCache) -> None:
    cache.put("p", ENTRY)
    code = (
        "import os, sys, time\n"
        "from pathlib import Path\n"
        "from tests.serve_grpc.test_cold_start import *\n"
        "cache = CompileCache(Path(sys.argv[1]), named('k'))\n"
        "os.fsync = lambda _: (print('writing', flush=True), time.sleep(60))\n"
        "cache.put('p', Entry({1: b'x' * 100_000}, {1: 1.0}))\n"
    )
    command = [sys.executable, "-c", code, str(cache.folder.parent)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "writing\n"
        cache.prepare()  # another Job starts: it leaves a living writer's file alone
        assert len(list(cache.folder.glob(f"{WRITING}*"))) == 1
        writer.kill()
    assert cache.get("p") == ENTRY
    cache.prepare()
    assert sorted(path.name for path in cache.folder.iterdir()) == ["key.json", f"p{SUFFIX}"]


def test_a_failed_write_keeps_what_was_there(cache: CompileCache, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.put("p", ENTRY)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(EnvironmentUnfit, match="No space left"):
        patch.setattr(os, "fsync", full)
        cache.put("p", Entry({1: b"new"}, {1: 1.0}))
    assert cache.get("p") == ENTRY
    assert not list(cache.folder.glob(f"{WRITING}*"))


FACTS = {"jaxlib": "0.12.0", "device_kind": "NVIDIA L4", "XLA_FLAGS": "", "cores": "2"}


def test_the_key_is_another_for_every_fact() -> None:
    folder = CacheKey(FACTS).folder
    assert re.fullmatch("jaxlib-0.12.0-nvidia-l4-[0-9a-f]{12}", folder)
    assert CacheKey(dict(reversed(FACTS.items()))).folder == folder
    for changed in (
        {"jaxlib": "0.12.1"},
        {"device_kind": "NVIDIA H100"},
        {"XLA_FLAGS": "--x"},
        {"cores": "4"},
    ):
        assert CacheKey({**FACTS, **changed}).folder != folder


def test_flags_that_only_report_are_no_part_of_the_key(tmp_path: Path) -> None:
    from serve_grpc.cache_key import cache_key
    from serve_grpc.device import open_device

    device = open_device()
    plain = cache_key(device, {})
    dump = {"XLA_FLAGS": "--xla_dump_to=/somewhere --xla_cpu_a=1 --xla_cpu_b=2"}
    fast = {"XLA_FLAGS": " --xla_cpu_b=2  --xla_cpu_a=1"}
    assert cache_key(device, dump) == cache_key(device, fast) != plain
    (tmp_path / "flags").write_text("--xla_cpu_a=1\n--xla_cpu_b=2\n")
    assert cache_key(device, {"XLA_FLAGS": str(tmp_path / "flags")}) == cache_key(device, fast)
    assert {"jax", "jaxlib", "platform_version", "cpu"} <= plain.facts.keys()
    assert plain.facts["device_kind"] == device.handle.device_kind


def test_a_version_that_is_tried_again_finds_what_a_job_published_since(
    cache: CompileCache, models: Path
) -> None:
    from converters.bundle import read_manifest
    from serve_grpc.device import open_device
    from serve_grpc.executables import Stored, StoredExecutables, entry_name

    manifest = read_manifest(models / "mlp" / "1")
    signature = manifest.signatures["predict"]
    stored = StoredExecutables(open_device(), cache, 2)
    stored.expect(manifest)
    stored.drop(manifest)
    cache.put(entry_name(manifest, signature, 2), Entry({}, {}))
    assert stored.take(manifest, signature) == Stored({}, {})
    cache.put(entry_name(manifest, signature, 2), Entry({1: b"no executable"}, {1: 1.0}))
    assert stored.take(manifest, signature) is None

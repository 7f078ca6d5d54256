"""Bundles that no exporter writes: each is named in the log, a metric and the status page, and nobody else notices.

What an update can get wrong in honest ways is in tests/serve_grpc/test_updates.py.
"""

import html
import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from converters.bundle import digest_line
from tests.serve_grpc import bundles
from tests.server_process import ServerProcess, eventually, publish

X = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
MANIFEST, DIGEST = "manifest.json", "manifest.json.sha256"
PROGRAM, GOLDEN = "programs/predict.jaxexport", "golden/predict.npz"
TERABYTE = 2**40
# Longest that a request may take meanwhile: none waits for a bundle's hashing and compiling. Far above what a busy
# machine adds.
SECONDS = 30.0


class Client:
    """Asks again and again, and remembers what went wrong."""

    def __init__(self, server: ServerProcess) -> None:
        self.wrong: list[str] = []
        self.asked = 0
        self.slowest = 0.0
        self._server = server
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        wanted = np.asarray(bundles.mlp(bundles.mlp_params(1), X)["logits"])
        while not self._stop.is_set():
            started = time.monotonic()
            try:
                right = np.allclose(self._server.predict("mlp", {"x": X})["logits"], wanted, atol=1e-5)
                if not right:
                    self.wrong.append("other logits")
            except Exception as error:  # whatever it is, the test is to say it
                self.wrong.append(repr(error))
            self.slowest = max(self.slowest, time.monotonic() - started)
            self.asked += 1
            self._stop.wait(0.01)


@pytest.fixture(scope="module")
def folder(versions: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundles")
    publish(versions / "1", folder / "mlp" / "1")
    return folder


@pytest.fixture(scope="module")
def server(folder: Path, cache: Path) -> Iterator[ServerProcess]:
    """Version 1 of mlp, under a client that never stops."""
    flags = ("--max-batch", "4", "--cache-dir", str(cache))
    with ServerProcess(folder, *flags) as process:
        client = Client(process.ready())
        yield process
        client.stop()
        assert process.alive
        assert client.wrong == []
        assert client.asked > 10
        assert client.slowest < SECONDS
        assert process.health() == process.health("mlp") == "SERVING"


def sealed(bundle: Path, text: bytes) -> None:
    """With a manifest of one's own, and the digest that belongs to it."""
    (bundle / MANIFEST).write_bytes(text)
    (bundle / DIGEST).write_text(digest_line(text))


def told(*keys: str | int, value: Any) -> Callable[[Path], None]:
    """The manifest says `value` there."""

    def change(bundle: Path) -> None:
        manifest = json.loads((bundle / MANIFEST).read_bytes())
        at = manifest
        for key in keys[:-1]:
            at = at[key]
        at[keys[-1]] = value
        sealed(bundle, json.dumps(manifest).encode())

    return change


def pipe(name: str) -> Callable[[Path], None]:
    def change(bundle: Path) -> None:
        (bundle / name).unlink(missing_ok=True)
        os.mkfifo(bundle / name)

    return change


def sparse(name: str) -> Callable[[Path], None]:
    def change(bundle: Path) -> None:
        os.truncate(bundle / name, TERABYTE)

    return change


def link(name: str, target: str) -> Callable[[Path], None]:
    def change(bundle: Path) -> None:
        (bundle / name).unlink(missing_ok=True)
        (bundle / name).symlink_to(target)

    return change


def a_weights_file(bundle: Path) -> str:
    files = [path for path in (bundle / "weights").rglob("*") if path.is_file()]
    return str(max(files, key=lambda path: path.stat().st_size).relative_to(bundle))


def to_weights(change: Callable[[str], Callable[[Path], None]]) -> Callable[[Path], None]:
    return lambda bundle: change(a_weights_file(bundle))(bundle)


def every_tolerance(value: float) -> Callable[[Path], None]:
    """And goldens of other weights, so that it counts."""

    def change(bundle: Path) -> None:
        manifest = json.loads((bundle / MANIFEST).read_bytes())
        for outputs in manifest["tolerances"].values():
            for tolerance in outputs.values():
                tolerance["atol"] = value
        shutil.copy(bundle.parent / ".other" / GOLDEN, bundle / GOLDEN)
        other = json.loads((bundle.parent / ".other" / MANIFEST).read_bytes())
        manifest["files"][GOLDEN] = other["files"][GOLDEN]
        sealed(bundle, json.dumps(manifest).encode())

    return change


def endless(most: int) -> Callable[[Path], None]:
    """Takes rows of any length up to `most`."""

    def change(bundle: Path) -> None:
        told("signatures", "predict", "sequence", value={"symbol": "t", "most": most})(bundle)
        told(*INPUT, value=["b", "t"])(bundle)

    return change


INPUT = ("signatures", "predict", "inputs", 0, "shape")
OUTPUT = ("signatures", "predict", "outputs", 0, "shape")
# what is wrong: (what makes it so, what the refusal says)
WRONG: dict[str, tuple[Callable[[Path], None], str]] = {
    "a weight of 10**30": (told("weights", 0, "shape", value=[10**30, 4]), "10000000000"),
    "a weight of 10**5000": (lambda b: sealed(b, b'{"schema_version": 1' + b"0" * 5000 + b"}"), "manifest"),
    "a weight of 10**18": (told("weights", 0, "shape", value=[10**9, 10**9]), "memory"),
    "a sequence that no input has": (
        told("signatures", "predict", "sequence", value={"symbol": "t", "most": 4}), "no input has the sequence 't'"
    ),
    "a sequence of 2**62": (endless(2**62), "memory"),
    "a sequence that no golden has": (endless(4), "its longest golden for lengths up to 4 is 0"),
    "a negative weight": (told("weights", 0, "shape", value=[-4, 64]), "-4"),
    "a weight of a million sizes": (told("weights", 0, "shape", value=[2**62] * 1_000_000), "1000000 dimensions"),
    "a size that is no number": (told("weights", 0, "shape", value=[True, None]), "True"),
    "a weight of objects": (told("weights", 0, "dtype", value="object"), "object"),
    "a dtype that is none": (told("weights", 0, "dtype", value="float7"), "float7"),
    "an input of 10**30": (told(*INPUT, value=["b", 10**30]), "10000000000"),
    "an input that is huge": (told(*INPUT, value=["b", 2**50]), "memory"),
    "a negative output": (told(*OUTPUT, value=["b", -3]), "-3"),
    "a negative tolerance": (every_tolerance(-1.0), "tolerance -1"),
    "a tolerance that is no number": (every_tolerance(float("nan")), "tolerance nan"),
    "a tolerance without end": (every_tolerance(float("inf")), "tolerance inf"),
    "a use that is no text": (told("usage", value={"task": 5}), "task"),
    "no signature": (told("signatures", value={}), "signatures"),
    "a name that is a list": (
        told("signatures", "predict", "inputs", 0, "name", value=["a"]),
        "manifest.json: a field is missing or malformed (signatures.predict.inputs[0].name is ['a']; needed: text)",
    ),
    "no inputs": (told("signatures", "predict", "inputs", value=[]), "input"),
    "a signature of surrogates": (told("signatures", "predict", "name", value="\ud800"), r"ud800"),
    "a file of surrogates": (told("files", "\ud800/x", value={"sha256": "0", "bytes": 0}), r"ud800"),
    "a file outside": (told("files", "../../x", value={"sha256": "0", "bytes": 1}), "leaves the bundle"),
    "a file of a negative size": (told("files", GOLDEN, "bytes", value=-1), "golden"),
    "thousands of devices": (told("nr_devices", value=10**6), "1000000 devices"),
    "a window that is no date": (told("window_ends", value="9" * 1000), "manifest"),
    "a schema of the future": (told("schema_version", value=99), "schema_version is 99"),
    "a reason of megabytes": (told("schema_version", value="9" * 3_000_000), "schema_version is 999"),
    "a manifest of lists": (lambda b: sealed(b, b"[" * 200_000), "not a manifest"),
    "a manifest that is a number": (lambda b: sealed(b, b"7"), "not a manifest"),
    "an empty manifest": (lambda b: sealed(b, b""), "not a manifest"),
    "a manifest of 100 MB": (lambda b: sealed(b, b'{"x": "' + b"9" * 10**8 + b'"}'), "needed: at most"),
    "a manifest of a terabyte": (sparse(MANIFEST), "needed: at most"),
    "a digest of a terabyte": (sparse(DIGEST), "needed: at most"),
    "a program of a terabyte": (sparse(PROGRAM), "predict.jaxexport"),
    "goldens of a terabyte": (sparse(GOLDEN), "predict.npz"),
    "weights of a terabyte": (to_weights(sparse), "altered"),
    "a pipe for a digest": (pipe(DIGEST), "not a regular file"),
    "a pipe for a program": (pipe(PROGRAM), "not a regular file"),
    "a pipe for weights": (to_weights(pipe), "not a regular file"),
    "a pipe beside the weights": (pipe("weights/more"), "not in the manifest"),
    "a link to itself": (link(PROGRAM, "predict.jaxexport"), "predict.jaxexport"),
    "a link to nowhere": (to_weights(lambda name: link(name, "/nowhere/at/all")), "No such file"),
    "a link to zeros without end": (link(GOLDEN, "/dev/zero"), "not a regular file"),
    "a link to a folder": (link(GOLDEN, "/proc"), "not a regular file"),
    "one file more among the weights": (lambda b: (b / "weights/extra").write_text("x"), "not in the manifest"),
}  # fmt: skip


@pytest.fixture(scope="module")
def number(folder: Path, versions: Path) -> Iterator[Callable[[], int]]:
    """Versions that were never there before."""
    shutil.copytree(versions / "3", folder / "mlp" / ".other")
    numbers = iter(range(2, 1000))
    return lambda: next(numbers)  # type: ignore[return-value]


@pytest.mark.parametrize("what", WRONG)
def test_it_is_refused_by_name(
    server: ServerProcess, folder: Path, versions: Path, number: Callable[[], int], what: str
) -> None:
    change, says = WRONG[what]
    version = number()
    failures = server.metric("jaxport_load_failures_total", model="mlp")
    hidden, place = folder / "mlp" / f".{version}", folder / "mlp" / str(version)
    shutil.copytree(versions / "2", hidden)
    change(hidden)
    hidden.rename(place)
    try:
        line = server.line(rf"refused model=mlp version={version}: (.*)", 20).group(1)
        assert says in line
        assert len(line) <= 1100
        eventually(
            lambda: server.metric("jaxport_load_failures_total", model="mlp") == failures + 1, "it is counted"
        )
        state = server.model("mlp", version)
        assert (state.state, says in state.reason) == ("FAILED", True)
        page = html.unescape(server.get("/")[1])
        assert "FAILED" in page
        assert says in page
        assert server.model("mlp").version == 1
    finally:
        place.rename(hidden)
        shutil.rmtree(hidden)
    eventually(lambda: server.state("mlp") == {1: "SERVING"}, "it is forgotten")


def test_links_are_followed_where_the_bytes_are_right(
    server: ServerProcess, folder: Path, versions: Path, number: Callable[[], int]
) -> None:
    """A version may be a link, as may be its files: digests are of what is read."""
    version = number()
    place = folder / "mlp" / str(version)
    place.symlink_to(versions / "1")
    eventually(lambda: server.state("mlp").get(version) == "SERVING", "the link serves")
    place.unlink()
    eventually(lambda: server.state("mlp") == {1: "SERVING"}, "and goes again")


def test_a_version_that_is_copied_slowly_in_place_serves_when_it_is_whole(
    server: ServerProcess, folder: Path, versions: Path, number: Callable[[], int]
) -> None:
    """The manifest first, as cp -r may do it, then file after file, one of them in halves."""
    version = number()
    source, place = versions / "1", folder / "mlp" / str(version)
    files = sorted(path.relative_to(source) for path in source.rglob("*") if path.is_file())
    files.sort(key=lambda name: not name.name.startswith(MANIFEST))
    for at, name in enumerate(files):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        whole = (source / name).read_bytes()
        (place / name).write_bytes(whole[: len(whole) // 2])
        time.sleep(0.3 if at in (2, len(files) - 1) else 0)
        (place / name).write_bytes(whole)
    eventually(lambda: server.state("mlp").get(version) == "SERVING", "it serves")
    assert server.line(rf"refused model=mlp version={version}: ")
    shutil.rmtree(place)
    eventually(lambda: server.state("mlp") == {1: "SERVING"}, "version 1 serves again")


def test_files_that_no_manifest_names_do_no_harm(
    server: ServerProcess, folder: Path, versions: Path, number: Callable[[], int]
) -> None:
    version = number()
    hidden, place = folder / "mlp" / f".{version}", folder / "mlp" / str(version)
    shutil.copytree(versions / "1", hidden)
    os.mkfifo(hidden / "notes")
    (hidden / "loop").symlink_to(".")
    (hidden / "big").touch()
    os.truncate(hidden / "big", TERABYTE)
    os.mkfifo(folder / "mlp" / "987654")
    (folder / "mlp" / "987655").mkdir()
    os.mkfifo(folder / "mlp" / "987655" / MANIFEST)
    hidden.rename(place)
    eventually(lambda: server.state("mlp").get(version) == "SERVING", "it serves")
    assert "9876" not in str(server.state("mlp"))
    shutil.rmtree(place)
    eventually(lambda: server.state("mlp") == {1: "SERVING"}, "version 1 serves again")

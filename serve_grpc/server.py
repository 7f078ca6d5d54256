"""The server: startup, main loop, shutdown, in that order."""

import faulthandler
import gc
import logging
import os
import queue
import resource
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import jax

from jaxport.stopping import numbers
from serve_grpc.cache import CompileCache
from serve_grpc.cache_key import cache_key
from serve_grpc.catalog import Catalog
from serve_grpc.compiles import CompileWatch
from serve_grpc.device import Device, open_device
from serve_grpc.errors import ConfigError
from serve_grpc.executor import Executor
from serve_grpc.gauges import CatalogGauges, DeviceMemory, ProcessGauges, VolumeSpace, device_memory
from serve_grpc.guard import Guard, open_guard
from serve_grpc.health import Health
from serve_grpc.history import History
from serve_grpc.http import HttpServer
from serve_grpc.loader import Loader
from serve_grpc.memory import Memory
from serve_grpc.metrics import Metrics
from serve_grpc.overview import Overview, ServerFacts
from serve_grpc.pages import pages
from serve_grpc.priorities import compute_after_requests, load_after_requests
from serve_grpc.protocol import WireProtocol
from serve_grpc.protocol.jaxport_v1 import JaxportV1
from serve_grpc.protocol.open_inference import OpenInference
from serve_grpc.protocol.tensorflow_serving import TensorflowServing
from serve_grpc.readiness import Readiness
from serve_grpc.records import Records
from serve_grpc.repository import Repository
from serve_grpc.rest import Rest
from serve_grpc.route import Routes
from serve_grpc.router import Router
from serve_grpc.scheduler import Scheduler
from serve_grpc.serving import Serving
from serve_grpc.settings import HttpSettings, ServeSettings
from serve_grpc.traces import check_installed
from serve_grpc.transport.choose import Choice, choose, open_transport
from serve_grpc.warm import warm, warm_command

log = logging.getLogger(__name__)

# A collector that does not answer holds up the exit for so long.
MOST_RECORD_SECONDS = 3.0
# Of descriptors, that a server asks for, and below which it warns.
OPEN_FILES, FEW_FILES = 65536, 1024
# Of --grace-seconds, kept for what follows the last answer: without it a caller who waits makes the exit late.
LEAVING_SECONDS = 2.0


def serve(settings: ServeSettings) -> int:
    """Serves until SIGTERM, SIGINT or SIGHUP; returns the exit code. Main thread only.

    Raises ConfigError for what no retry makes right, EnvironmentUnfit for a taken port or a missing device.
    """
    set_up_log()
    # Three threads share the interpreter: at the default 5 ms a run that took 0.1 ms waits 5 to be answered.
    sys.setswitchinterval(0.0005)
    check_folder(settings.repository.models)
    transport = choose(settings.listen)
    if settings.records.trace_endpoint is not None:
        check_installed(f"--trace-endpoint {settings.records.trace_endpoint}")
    guard = open_guard(settings)
    device = open_device()
    cache = CompileCache(settings.repository.cache, cache_key(device, os.environ))
    if settings.repository.warm_only:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # what it writes is put in order
        return warm(settings, device, cache)
    threading.excepthook = thread_died
    server = Server(settings, transport, guard, device, cache)
    allow_open_files()
    with stop_signals() as stops:
        try:
            server.start()
        except BaseException:  # an interrupt too: a start that fails leaves nothing behind
            server.abandon()
            raise
        first = stops.get()
        log.info("stopping signal=%s", signal.Signals(first).name)
        return server.stop(stops)


class Server:
    """Wires transport -> protocol -> batcher -> executor, and what keeps them fed."""

    def __init__(
        self, settings: ServeSettings, transport: Choice, guard: Guard, device: Device, cache: CompileCache
    ) -> None:
        listen = settings.listen
        self._settings = settings
        self._metrics = Metrics()
        protocols: list[WireProtocol] = [
            JaxportV1(),
            OpenInference(lambda: self._health.ready, self._metrics),
            TensorflowServing(listen.max_message_bytes),
        ]
        self._records = Records(settings.records, self._metrics)
        self._history = History(self._metrics)
        self._watch = CompileWatch(self._metrics)
        self._catalog = Catalog(surveyed=False)
        self._serving = Serving(self._catalog)
        self._readiness = Readiness(self._serving, settings.repository.ready)
        self._scheduler = Scheduler(settings.batch.max_latency)
        self._transport = open_transport(transport, listen, protocols, guard.certificates)
        self._why = transport.reason
        self._volume = VolumeSpace(settings.repository.models, self._metrics.registry)
        self._health = Health(self._transport.set_health)
        self._executor = Executor(self._scheduler, device.overlap)
        self._router = Router(
            protocols,
            self._catalog,
            self._serving,
            self._scheduler,
            self._executor,
            self._metrics,
            Routes(self._serving, listen.max_message_bytes, settings.batch.max_latency),
            guard.access,
        )
        self._access = guard.access
        self._loader = Loader(device, settings.batch, self._metrics, cache)
        self._cache = cache
        self._repository = Repository(
            settings.repository.models,
            self._loader,
            self._catalog,
            self._serving,
            self._scheduler,
            self._metrics,
            self._watch,
            self._health.set_model,
            self._on_polled,
            Memory(device, settings.batch.max_batch, settings.updates.memory_limit),
            settings.updates.unload_first,
        )
        http = HttpSettings(listen.http_port, listen.max_message_bytes)
        shown = pages(self._health, self._metrics, self._overview(transport, device))
        self._http = HttpServer(
            listen.host, http, shown, Rest(self._router.admit, guard.access, guard.http_closed)
        )
        self._addresses = ""

    def start(self) -> None:
        """Ports first, so that a taken one is known before minutes of compiling; models then, in the background."""
        grpc = self._transport.start()
        self._addresses = f"grpc={grpc} http={self._http.start()}"
        self._loader.look_ahead(self._settings.repository.models)
        log.info("listening %s transport=%s because=%r", self._addresses, self._transport.name, self._why)
        self._records.start()
        if self._access is not None:
            self._access.start()
        self._history.start()
        self._executor.start()
        self._router.start(self._transport.receivers)
        self._repository.start(self._settings.repository.poll_seconds)

    def abandon(self) -> None:
        """After a start that failed: leaves no files."""
        self._transport.stop()

    def stop(self, more_signals: "queue.SimpleQueue[int]") -> int:
        """NOT_SERVING, answer on for the drain delay, refuse, drain, end. A second signal shortens the waiting.

        Returns 0; the log says how many requests were accepted, and how many of them not answered in time.
        """
        drain = self._settings.drain
        end = time.monotonic() + drain.grace_seconds
        last_resort(drain.grace_seconds)
        self._health.leave()
        hurry = wait_for(more_signals, drain.delay_seconds)
        self._http.refuse()
        answered_by = end - min(LEAVING_SECONDS, drain.grace_seconds / 4)
        drained = self._transport.drain(1.0 if hurry else max(0.0, answered_by - time.monotonic()))
        by_http = self._http.drain(1.0 if hurry else max(0.0, answered_by - time.monotonic()))
        self._router.stop()
        self._scheduler.stop()
        self._executor.join(max(0.1, end - time.monotonic()))
        idle = self._repository.stop(0.0 if hurry else max(0.1, end - time.monotonic()))
        self._transport.stop()
        self._http.stop()
        self._history.stop()
        accepted, unanswered = (sum(each) for each in zip(drained, by_http, strict=True))
        self._records.stop(max(0.1, min(MOST_RECORD_SECONDS, end - time.monotonic())))
        log.info("stopped accepted=%d unanswered=%d", accepted, unanswered)
        if not idle:
            leave_at_once(0)
        return 0

    def _on_polled(self, models: Iterable[str]) -> None:
        self._volume.look()
        if self._readiness.reached(models):
            self._on_ready()

    def _on_ready(self) -> None:
        self._watch.ready = True
        # What was imported and loaded stays: a full collection that walks it holds every thread for 100 ms.
        gc.freeze()
        self._health.set_ready()
        self._loader.end_look_ahead()
        compute_after_requests()
        load_after_requests()  # this thread is the one that loads
        compiled = self._loader.compiled
        log.info("ready %s cache_misses=%d", self._addresses, compiled.total())
        if compiled:
            models = ", ".join(f"{model} ({count})" for model, count in compiled.items())
            log.warning(
                "compiled at start, because %s has no entry to use: %s; to start warm: %s",
                self._cache.folder, models, warm_command(self._settings),
            )  # fmt: skip

    def _overview(self, transport: Choice, device: Device) -> Overview:
        ProcessGauges(lambda: self._health.ready, self._metrics.registry)
        DeviceMemory(device.handle, self._metrics.registry)
        CatalogGauges(self._catalog, self._metrics.registry)
        facts = ServerFacts(
            transport.name,
            transport.reason,
            device.platform,
            device.handle.device_kind,
            len(device.handles),
            jax.__version__,
            self._cache.folder,
            time.time(),
        )
        return Overview(
            facts,
            self._catalog,
            self._metrics,
            self._history,
            lambda: self._health.ready,
            self._readiness.waiting,
            partial(device_memory, device.handle),
        )


def check_folder(models: Path) -> None:
    """A folder that is not there yet may come, as a volume fills; one whose parent is missing is a typing error."""
    if models.is_dir():
        return
    if models.exists():
        raise ConfigError(
            f"--models {models} is not a folder; needed: a folder of <model>/<version>/ bundles"
        )
    if not models.absolute().parent.is_dir():
        raise ConfigError(
            f"--models {models}: neither it nor its parent exists; name the folder of the models"
        )
    log.warning("models=%s does not exist yet; waiting for it", models)


@contextmanager
def stop_signals() -> Iterator["queue.SimpleQueue[int]"]:
    """SIGTERM, SIGINT and, unless it is ignored, SIGHUP as a queue: a put is safe in a handler, and a get is interrupted by one."""
    stops: queue.SimpleQueue[int] = queue.SimpleQueue()
    before = [(each, signal.signal(each, lambda received, _: stops.put(received))) for each in numbers()]
    try:
        yield stops
    finally:
        for number, handler in before:
            signal.signal(number, handler)


def wait_for(signals: "queue.SimpleQueue[int]", seconds: float) -> bool:
    """Whether another signal came within `seconds`."""
    try:
        signals.get(timeout=seconds)
    except queue.Empty:
        return False
    return True


def allow_open_files() -> None:
    """As many as this process may have: each connection is one, and the usual 1024 is soon used up."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    elif soft != resource.RLIM_INFINITY and soft < FEW_FILES:
        log.warning("open files are limited to %d, a connection each; raise ulimit -n", soft)


def set_up_log() -> None:
    """One line per event, key=value, on stderr."""
    if not logging.getLogger().handlers:
        logging.basicConfig(
            format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO, stream=sys.stderr
        )
    # Orbax and JAX report every weight they read at INFO.
    for name in ("absl", "jax", "orbax"):
        logging.getLogger(name).setLevel(logging.WARNING)


def last_resort(seconds: float) -> None:
    """Ends the process with 4 when it has not ended by itself, and says where every thread was."""

    def leave() -> None:
        log.error("not stopped within --grace-seconds %g; leaving", seconds)
        faulthandler.dump_traceback(all_threads=True)
        leave_at_once(4)

    timer = threading.Timer(seconds, leave)
    timer.daemon = True
    timer.start()


def thread_died(args: threading.ExceptHookArgs) -> None:
    """A server without its executor or its router looks alive and answers nobody: it must be started anew."""
    name = args.thread.name if args.thread else "?"
    log.critical("thread=%s died; leaving", name, exc_info=args.exc_value)
    leave_at_once(4)


def leave_at_once(code: int) -> None:
    """Ends a process whose threads are still inside XLA: leaving the interpreter under them would crash."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)

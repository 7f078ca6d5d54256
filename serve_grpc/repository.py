"""Keeps what serves equal to what the models folder holds, by reading the folder again and again.

No inotify: NFS does not tell. A version that cannot be served is named once per change, and never takes down the
one that serves. One thread, so one load at a time.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from converters.bundle import list_models, list_versions
from serve_grpc.batcher import Scheduler
from serve_grpc.catalog import DRAINING, FAILED, LOADING, SERVING, Catalog, VersionInfo
from serve_grpc.compiles import CompileWatch
from serve_grpc.metrics import Metrics
from serve_grpc.serving import Serving
from serve_grpc.version import LoadedVersion, Loader

log = logging.getLogger(__name__)

# A refused version is tried again when its files change, or after this long, doubling up to the most.
RETRY_SECONDS = 30.0
MOST_RETRY_SECONDS = 900.0
# Attribute caches of network volumes lag: a model is gone when it was missing this often in a row.
POLLS_UNTIL_GONE = 2

# (path, size, modification time) of every file below a folder.
Fingerprint = tuple[tuple[str, int, int], ...]


@dataclass(frozen=True)
class Refused:
    """A version that failed to load, and when it is worth another try."""

    fingerprint: Fingerprint
    reason: str
    retry_at: float
    delay: float


class Repository:
    """Polls `root`/<model>/<version>/.

    on_health: called with a model's name and whether it serves; None: it has gone.
    on_ready: called once, when every model of the first poll was tried and at least one serves.
    """

    def __init__(
        self,
        root: Path,
        loader: Loader,
        catalog: Catalog,
        serving: Serving,
        scheduler: Scheduler,
        metrics: Metrics,
        watch: CompileWatch,
        on_health: Callable[[str, bool | None], None],
        on_ready: Callable[[], None],
    ) -> None:
        self._root = root
        self._loader = loader
        self._catalog = catalog
        self._serving = serving
        self._scheduler = scheduler
        self._metrics = metrics
        self._watch = watch
        self._on_health = on_health
        self._on_ready = on_ready
        self._refused: dict[tuple[str, int], Refused] = {}
        self._missing: dict[str, int] = {}
        self._unreadable = ""
        self._ready = False
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, poll_seconds: float) -> None:
        """Polls in a thread of its own, at once and then every `poll_seconds`."""
        self._thread = threading.Thread(
            target=self._run, args=(poll_seconds,), name="repository", daemon=True
        )
        self._thread.start()

    def stop(self, timeout: float) -> bool:
        """Ends the thread; False when a load was still going on after `timeout` seconds."""
        self._stopping.set()
        if self._thread is None:
            return True
        self._thread.join(timeout)
        return not self._thread.is_alive()

    @property
    def refused(self) -> int:
        """How many versions are refused now."""
        return len(self._refused)

    def poll(self) -> None:
        """Reads the folder once and loads, replaces and unloads what changed."""
        with self._watch.loading():
            names = self._models()
            if names is None:
                return
            for name in names:
                if self._stopping.is_set():
                    return
                self._update(name)
            for name in sorted(set(self._catalog.models()) - set(names)):
                self._absent(name)
            if not self._ready and self._serving.names():
                self._ready = True
                self._on_ready()

    def _models(self) -> list[str] | None:
        """The models in the folder; None when it cannot be read: that is no reason to unload anything."""
        try:
            self._root.stat()  # list_models says [] of a folder that is not there
            names = list_models(self._root)
        except OSError as error:
            self._say_unreadable(f"{self._root}: {error.strerror}")
            return None
        self._unreadable = ""
        return names

    def _run(self, poll_seconds: float) -> None:
        while not self._stopping.is_set():
            try:
                self.poll()
            except Exception:  # the volume is not ours: whatever it does, the server keeps what it has
                log.exception("reading the models folder failed; next try in %gs", poll_seconds)
            self._stopping.wait(poll_seconds)

    def _update(self, model: str) -> None:
        """The highest version that loads is the one to serve."""
        try:
            versions = list_versions(self._root / model)
        except OSError as error:
            self._say_unreadable(f"{self._root / model}: {error.strerror}")
            return
        self._forget_failures(model, versions)
        if not versions:
            self._absent(model)
            return
        self._missing.pop(model, None)
        live = self._serving.get(model)
        for version in reversed(versions):
            if live is not None and live.info.version == version:
                return
            if not self._stopping.is_set() and self._try(model, version, live):
                return

    def _try(self, model: str, version: int, live: LoadedVersion | None) -> bool:
        path = self._root / model / str(version)
        fingerprint = _fingerprint(path)
        before = self._refused.get((model, version))
        if before is not None and before.fingerprint == fingerprint and time.monotonic() < before.retry_at:
            return False
        started = time.monotonic()
        self._catalog.put(model, VersionInfo(version, LOADING))
        try:
            loaded = self._loader.load(model, path, live)
        except Exception as error:  # a bundle comes from outside; nothing in it may end the server
            self._refuse(model, version, path, fingerprint, before, error)
            return False
        self._refused.pop((model, version), None)
        self._swap(loaded, live)
        seconds = time.monotonic() - started
        self._metrics.swap_seconds.labels(model).observe(seconds)
        log.info("serving model=%s version=%d seconds=%.2f", model, version, seconds)
        return True

    def _swap(self, new: LoadedVersion, old: LoadedVersion | None) -> None:
        if old is not None:
            self._catalog.put(new.model, replace(old.info, state=DRAINING))
        self._catalog.put(new.model, replace(new.info, state=SERVING))
        self._serving.put(new)
        self._on_health(new.model, True)
        if old is not None:
            self._drain(old)

    def _drain(self, old: LoadedVersion) -> None:
        """Answers what the old version accepted. Its weights go with the last reference."""
        for batcher in old.batchers.values():
            self._scheduler.close(batcher)
        old.metrics.forget()
        self._catalog.remove(old.model, old.info.version)
        log.info("unloaded model=%s version=%d", old.model, old.info.version)

    def _refuse(
        self,
        model: str,
        version: int,
        path: Path,
        fingerprint: Fingerprint,
        before: Refused | None,
        error: Exception,
    ) -> None:
        if not path.exists():
            log.warning("vanished model=%s version=%d while it was loaded", model, version)
            self._catalog.remove(model, version)
            return
        reason = str(error).partition("\n")[0] or type(error).__name__
        news = before is None or (before.fingerprint, before.reason) != (fingerprint, reason)
        delay = RETRY_SECONDS if before is None or news else min(before.delay * 2, MOST_RETRY_SECONDS)
        self._refused[model, version] = Refused(fingerprint, reason, time.monotonic() + delay, delay)
        self._catalog.put(model, VersionInfo(version, FAILED, reason))
        if self._serving.get(model) is None:
            self._on_health(model, False)
        if news:
            self._metrics.load_failures.labels(model).inc()
            log.error("refused model=%s version=%d: %s", model, version, reason)
            log.debug("the traceback of the refusal", exc_info=error)

    def _forget_failures(self, model: str, versions: list[int]) -> None:
        for name, version in list(self._refused):
            if name == model and version not in versions:
                del self._refused[name, version]
                self._catalog.remove(name, version)

    def _absent(self, model: str) -> None:
        self._missing[model] = self._missing.get(model, 0) + 1
        live = self._serving.get(model)
        if live is not None and self._missing[model] < POLLS_UNTIL_GONE:
            return
        self._forget_failures(model, [])
        self._missing.pop(model)
        if live is not None:
            log.info("removed model=%s: its folder has gone", model)
            self._serving.remove(model)
            self._catalog.put(model, replace(live.info, state=DRAINING))
            self._drain(live)
        self._on_health(model, None)

    def _say_unreadable(self, what: str) -> None:
        if what != self._unreadable:
            log.warning("cannot read %s; what is loaded keeps serving", what)
            self._unreadable = what


def _fingerprint(path: Path) -> Fingerprint:
    """Changes when any file below does; empty when the folder cannot be read."""
    found = []
    for folder, _, names in path.walk():
        for file in (folder / name for name in names):
            try:
                stat = file.stat()
            except OSError:
                continue
            found.append((str(file), stat.st_size, stat.st_mtime_ns))
    return tuple(sorted(found))

"""Keeps what serves equal to what the models folder holds and its rules ask for, by reading it again and again.

No inotify: NFS does not tell. A version that cannot be served, or a folder that cannot be read, is named once per
change, takes nothing down that serves, and keeps no other model waiting. One thread, so one load at a time.
"""

import logging
import stat
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from converters.bundle import list_models, list_versions
from serve_grpc.admission import Admission, PutBack
from serve_grpc.catalog import FAILED, LOADING, Catalog, VersionInfo
from serve_grpc.compiles import CompileWatch
from serve_grpc.loader import Loader
from serve_grpc.memory import Memory
from serve_grpc.metrics import Metrics
from serve_grpc.plan import Plan, make_plan
from serve_grpc.readiness import POLLS_UNTIL_GONE
from serve_grpc.refusals import LABELS, Fingerprint, Refusals, fingerprint, manifest_digest, reason_label
from serve_grpc.rules import Rules, RulesReader
from serve_grpc.scheduler import Scheduler
from serve_grpc.serving import Serving
from serve_grpc.swap import Swapper
from serve_grpc.version import LoadedVersion

log = logging.getLogger(__name__)

LONGEST_REASON = 1000
WAITS = "it waits for those that are loaded before it"


class Repository:
    """Polls `root`/<model>/<version>/, and the policy and labels beside the versions.

    on_health: called with a model's name and whether it serves; None: it has gone.
    on_polled: called with the models in the folder, when each of them was tried.
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
        on_polled: Callable[[Iterable[str]], None],
        memory: Memory,
        unload_first: bool = False,
    ) -> None:
        self._root = root
        self._catalog = catalog
        self._serving = serving
        self._swapper = Swapper(catalog, serving, scheduler, on_health)
        self._admission = Admission(loader, memory, serving, self._swapper, unload_first)
        self._metrics = metrics
        self._watch = watch
        self._on_polled = on_polled
        self.vanished = False  # a version went as it was loaded, in the last poll
        self._rules = RulesReader()
        self._refusals = Refusals()
        self._problems: dict[str, set[str]] = {}
        self._missing: dict[str, int] = {}
        self._unreadable = ""
        self._unlisted: set[str] = set()  # models whose folder cannot be read
        self._place: tuple[int, int] | None = None  # device and inode of the folder that held models
        self._digests: dict[str, dict[int, bytes]] = {}  # model -> loaded version -> its manifest's digest
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
    def refused(self) -> list[str]:
        """What is refused now: versions, and models whose folder cannot be read."""
        return self._refusals.names() + sorted(self._unlisted)

    def poll(self) -> None:
        """Reads the folder once and loads, replaces and unloads what changed."""
        with self._watch.loading():
            names = self._models()
            self.vanished = False
            if names is None:
                return
            self._announce(set(names) - set(self._catalog.models()))
            for name in names:
                if self._stopping.is_set():
                    return
                try:
                    self._update(name)
                except OSError as error:
                    self._unlist(name, f"{error.filename or self._root / name}: {error.strerror or error}")
            for name in sorted(({*self._catalog.models(), *self._problems}) - set(names)):
                self._absent(name)
            self._on_polled(names)

    def _announce(self, names: Iterable[str]) -> None:
        """Has what is new in the folder known before its turn to be loaded, which may be minutes away."""
        for name in names:
            with suppress(OSError):  # said when it has its turn
                if versions := list_versions(self._root / name):
                    self._expect(name, self._follow(name, versions, set()).load)
        self._catalog.surveyed = True

    def _expect(self, model: str, versions: Iterable[int]) -> None:
        """These are LOADING, one after the other, and no others are: nobody is told that they are not here."""
        known, coming = {info.version: info for info in self._catalog.models().get(model, ())}, set(versions)
        for number in coming - known.keys():
            self._catalog.put(model, VersionInfo(number, LOADING, WAITS))
        for number in known.keys() - coming:
            if known[number].state == LOADING:
                self._catalog.remove(model, number)

    def _models(self) -> list[str] | None:
        """The models in the folder; None when it cannot be read: that is no reason to unload anything."""
        try:
            found = self._root.stat()  # list_models says [] of a folder that is not there
            names = list_models(self._root)
        except OSError as error:
            self._say_unreadable(f"{self._root}: {error.strerror}")
            return None
        place = (found.st_dev, found.st_ino)
        if names:
            self._place = place
        elif not stat.S_ISDIR(found.st_mode):
            self._say_unreadable(f"{self._root}: not a folder")
            return None
        elif self._serving.names() and place != self._place:  # what a volume that is not mounted leaves
            self._say_unreadable(f"models in {self._root}: it is another folder than before, without any")
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
        """Loads what the rules ask for, one version after the other, and serves what is there after each.

        Raises OSError when the model's folder cannot be read.
        """
        versions = list_versions(self._root / model)
        self._unlisted.discard(model)
        self._forget_failures(model, versions)
        if not versions:
            self._absent(model)
            return
        self._missing.pop(model, None)
        self._metrics.found(model, LABELS)
        failed: set[int] = set()
        while not self._stopping.is_set():
            plan = self._follow(model, versions, failed)
            self._expect(model, plan.load)
            if plan.load:
                if not self._add(model, plan.load[0], versions, failed):
                    failed.add(plan.load[0])
            elif (version := self._replaced_in_place(model, versions, failed)) is not None:
                log.info("replaced model=%s version=%d: its folder holds another bundle now", model, version)
                self._add(model, version, versions, failed)
                failed.add(version)  # once in a poll, whatever comes next
            else:
                if plan.routes.default is None:
                    self._swapper.tell_health(model, False)
                self._say_problems(model, plan.problems)
                return

    def _unlist(self, model: str, what: str) -> None:
        """The model's folder cannot be read: it stays as it is, and the problem is the model's."""
        problem = f"{what}; what is loaded of the model keeps serving"
        self._unlisted.add(model)
        self._missing.pop(model, None)
        self._catalog.choose(model, replace(self._catalog.choice(model), problems=(problem,)))
        if self._serving.get(model) is None:
            self._swapper.tell_health(model, False)
        self._say_problems(model, (problem,))

    def _replaced_in_place(self, model: str, versions: list[int], failed: set[int]) -> int | None:
        """A loaded version whose folder holds another bundle than the one it came from, which is worth a try."""
        folder, live = self._root / model, self._serving.live(model).versions
        known = {number: digest for number, digest in self._digests.get(model, {}).items() if number in live}
        self._digests[model] = known
        for version in sorted(live.keys() & set(versions) - failed):
            digest = manifest_digest(folder / str(version))
            if digest and digest == known.get(version):
                self._refusals.remove(model, version)  # what is loaded is back
            elif digest and version not in self._refusals.blocked(folder):
                return version
        return None

    def _plan(
        self, model: str, versions: list[int], failed: set[int], loaded: Iterable[int]
    ) -> tuple[Rules, Plan]:
        """The plan for when these versions are loaded. The rules are read anew each time: a load takes a while."""
        folder = self._root / model
        rules = self._rules.read(folder)
        blocked = failed | self._refusals.blocked(folder)
        loaded = frozenset(loaded)
        plan = make_plan(rules, versions, blocked, self._serving.live(model).routes.having(loaded))
        stale = tuple(
            f"version {number}: its folder holds another bundle than the one that serves, which does not load "
            f"({reason}); publish it under a new number"
            for number, reason in sorted(self._refusals.reasons(model).items())
            if number in loaded
        )
        return rules, replace(plan, problems=plan.problems + stale)

    def _follow(self, model: str, versions: list[int], failed: set[int], *new: LoadedVersion) -> Plan:
        """Makes the plan for what is loaded, `new` with it, and serves as it says."""
        loaded = {**self._serving.live(model).versions, **{v.info.version: v for v in new}}
        rules, plan = self._plan(model, versions, failed, loaded)
        self._swapper.follow(model, rules, plan, loaded)
        return plan

    def _add(self, model: str, version: int, versions: list[int], failed: set[int]) -> bool:
        """Loads a version and serves it, also in place of what has its number; False when it was refused."""
        path = self._root / model / str(version)
        seen, digest = fingerprint(path), manifest_digest(path)
        started = time.monotonic()
        again = version in self._serving.live(model).versions
        if not again:
            self._catalog.put(model, VersionInfo(version, LOADING))
        try:
            # What was replaced in its folder cannot be loaded again: it is never unloaded before.
            replaced = {} if again else self._replaced(model, version, versions, failed)
            loaded = self._admission.load(model, path, replaced)
        except Exception as error:  # a bundle comes from outside; nothing in it may end the server
            self._refuse(model, version, path, seen, error)
            return False
        self._refusals.remove(model, version)
        self._digests.setdefault(model, {})[version] = digest
        self._follow(model, versions, failed, loaded)
        seconds = time.monotonic() - started
        self._metrics.swap_seconds.labels(model).observe(seconds)
        log.info("serving model=%s version=%d seconds=%.2f", model, version, seconds)
        return True

    def _replaced(
        self, model: str, version: int, versions: list[int], failed: set[int]
    ) -> dict[int, LoadedVersion]:
        """What is not kept once this version is loaded."""
        live = self._serving.live(model)
        _, plan = self._plan(model, versions, failed, {*live.versions, version})
        return {number: old for number, old in live.versions.items() if number not in plan.routes.loaded}

    def _refuse(self, model: str, version: int, path: Path, seen: Fingerprint, error: Exception) -> None:
        serves = version in self._serving.live(model).versions
        if _has_gone(path):
            log.warning("vanished model=%s version=%d while it was loaded", model, version)
            self.vanished = True
            if not serves:
                self._catalog.remove(model, version)
            return
        reason = _one_line(error)
        news = self._refusals.add(model, version, seen, reason, retry=not isinstance(error, PutBack))
        if not serves:
            self._catalog.put(model, VersionInfo(version, FAILED, reason))
        if self._serving.get(model) is None:
            self._swapper.tell_health(model, False)
        if news:
            self._metrics.load_failures.labels(model, reason_label(error)).inc()
            log.error("refused model=%s version=%d: %s", model, version, reason)
            log.debug("the traceback of the refusal", exc_info=error)

    def _forget_failures(self, model: str, versions: list[int]) -> None:
        live = self._serving.live(model).versions
        for version in self._refusals.forget_all_but(model, versions):
            if version not in live:
                self._catalog.remove(model, version)

    def _absent(self, model: str) -> None:
        self._missing[model] = self._missing.get(model, 0) + 1
        loaded = self._serving.live(model).versions
        if loaded and self._missing[model] < POLLS_UNTIL_GONE:
            return
        self._forget_failures(model, [])
        self._expect(model, ())
        self._missing.pop(model)
        self._rules.forget(model)
        self._problems.pop(model, None)
        self._digests.pop(model, None)
        self._unlisted.discard(model)
        if loaded:
            log.info("removed model=%s: its folder has gone", model)
        self._swapper.remove(model)

    def _say_problems(self, model: str, problems: Iterable[str]) -> None:
        """Names each problem when it comes up, and not again while it lasts."""
        before, now = self._problems.get(model, set()), set(problems)
        self._problems[model] = now
        for problem in sorted(now - before):
            self._metrics.policy_problems.labels(model).inc()
            log.error("policy model=%s: %s", model, problem)
        if before and not now:
            log.info("policy model=%s: its folder, policy and labels can be followed again", model)

    def _say_unreadable(self, what: str) -> None:
        if what != self._unreadable:
            log.warning("cannot read %s; what is loaded keeps serving", what)
            self._unreadable = what


def _has_gone(path: Path) -> bool:
    """Not so when it cannot be looked at."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False


def _one_line(error: Exception) -> str:
    """Of text that any protocol and page can carry: a manifest may have said anything, in any length."""
    text = str(error)[:LONGEST_REASON].partition("\n")[0] or type(error).__name__
    return text.encode("utf-8", "backslashreplace").decode()

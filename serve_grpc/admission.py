"""Lets a version in: what it takes is predicted first; where it must be, the version it replaces goes before."""

import contextlib
import logging
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from converters.bundle import open_bundle, read_manifest
from serve_grpc.errors import LoadRefused
from serve_grpc.loader import Loader
from serve_grpc.memory import Memory
from serve_grpc.serving import Live, Serving
from serve_grpc.swap import Swapper
from serve_grpc.version import LoadedVersion

log = logging.getLogger(__name__)

# Seconds that a load keeps the interpreter from threads that answer. Half a millisecond instead cost a thread that takes
# the lock five times in a row 2.5 ms instead of 1.7 (p90, beside loads of the 4-64-64-3 MLP on 2 cores).
TURN_SECONDS = 0.0001


class PutBack(LoadRefused):
    """The version failed after the one it was to replace had gone: every further try would be another gap."""


class Admission:
    """Loads versions that fit. One thread at a time.

    unload_first: a version that fits only in place of those it replaces is loaded after they are gone.
    """

    def __init__(
        self, loader: Loader, memory: Memory, serving: Serving, swapper: Swapper, unload_first: bool
    ) -> None:
        self._loader = loader
        self._memory = memory
        self._serving = serving
        self._swapper = swapper
        self._unload_first = unload_first

    def load(self, model: str, path: Path, replaced: Mapping[int, LoadedVersion]) -> LoadedVersion:
        """The version at `path`, proven. replaced: what is not kept once it serves.

        Raises what `Loader.load` raises, and LoadRefused with the numbers when the version does not fit.
        """
        if not self._gives_way(path, replaced):
            return self._load(model, path, self._serving.live(model).versions)
        # Whatever reading can tell is told before anything stops to answer.
        self._loader.check_platform(open_bundle(path))
        before = self._serving.live(model)
        self._swapper.unload(model, replaced)
        try:
            return self._load(model, path, before.versions)
        except Exception as error:  # a bundle comes from outside; what it raises must bring back what served
            back = self._bring_back(model, path.parent, before, replaced)
            reason = str(error).partition("\n")[0] or type(error).__name__
            raise PutBack(f"{reason}; {back}; change the files for another try") from error

    def _load(self, model: str, path: Path, like: Mapping[int, LoadedVersion]) -> LoadedVersion:
        """Without a compile where another version has the same program."""
        key = read_manifest(path).swap_key
        same = next((version for version in like.values() if version.swap_key == key), None)
        with _short_turns():
            loaded = self._loader.load(model, path, same)
        self._memory.learn(loaded)
        return loaded

    def _gives_way(self, path: Path, replaced: Mapping[int, LoadedVersion]) -> bool:
        """Whether the replaced versions must go first. Raises LoadRefused when the version may not be loaded."""
        need = self._memory.need(read_manifest(path))
        loaded = self._serving.loaded()
        short = self._memory.shortage(need, loaded)
        if short is None:
            return False
        alone = self._memory.shortage(need, loaded, replaced.values())
        if not replaced or alone is not None:
            raise LoadRefused(
                f"it {alone or short} ({need}); needed: more memory, smaller weights, a smaller --max-batch or "
                "fewer versions at once"
            )
        if not self._unload_first:
            numbers = ", ".join(map(str, replaced))
            raise LoadRefused(
                f"beside version {numbers} it {short} ({need}); --swap unload-first frees version {numbers} "
                "before, and nothing answers meanwhile"
            )
        return True

    def _bring_back(
        self, model: str, folder: Path, before: Live, replaced: Mapping[int, LoadedVersion]
    ) -> str:
        """Loads again what was unloaded, with its executables, and serves it as before; says so."""
        versions = {number: v for number, v in before.versions.items() if number not in replaced}
        failed = []
        for number in replaced:
            try:
                versions[number] = self._load(model, folder / str(number), before.versions)
            except Exception as error:  # its folder may have gone or changed since
                log.error("lost model=%s version=%d: it cannot be loaded again: %s", model, number, error)
                failed.append(number)
        self._swapper.serve(model, before.routes, versions)
        if failed:
            return f"version {', '.join(map(str, failed))} could not be loaded again"
        return f"version {', '.join(map(str, replaced))} was loaded again"


@contextlib.contextmanager
def _short_turns() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(min(before, TURN_SECONDS))
    try:
        yield
    finally:
        sys.setswitchinterval(before)

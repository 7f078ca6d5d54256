"""Versions that failed to load, and when each is worth another try."""

import math
import os
import stat
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from converters.bundle import MANIFEST_DIGEST, MOST_DIGEST_BYTES
from converters.errors import BundleError, BundleNotFound, GoldenMismatch, OutsideWindow
from serve_grpc.errors import LoadRefused

# A refused version is tried again when its files change, or after this long, doubling up to the most.
RETRY_SECONDS = 30.0
MOST_RETRY_SECONDS = 900.0

# The first that fits. Anything else is what JAX makes of a program that it cannot load or run.
REASONS: dict[type[Exception], str] = {
    GoldenMismatch: "goldens",
    BundleNotFound: "bundle",
    OutsideWindow: "window",
    BundleError: "bundle",
    LoadRefused: "refused",
}
OTHER = "program"
# What reason_label() says.
LABELS = (*dict.fromkeys(REASONS.values()), OTHER)

# (path, size, modification time) of every file below a folder.
Fingerprint = tuple[tuple[str, int, int], ...]


@dataclass(frozen=True)
class Refused:
    """One refused version; retry_at: seconds of time.monotonic()."""

    fingerprint: Fingerprint
    reason: str
    retry_at: float
    delay: float


class Refusals:
    """(model, version) -> why it was refused. One thread at a time."""

    def __init__(self) -> None:
        self._refused: dict[tuple[str, int], Refused] = {}

    def names(self) -> list[str]:
        """What is refused, as "model/version", sorted."""
        return [f"{model}/{version}" for model, version in sorted(self._refused)]

    def blocked(self, model_dir: Path) -> set[int]:
        """Versions of a model that are not to be tried now."""
        now = time.monotonic()
        return {
            version
            for (model, version), refused in self._refused.items()
            if model == model_dir.name
            and now < refused.retry_at
            and fingerprint(model_dir / str(version)) == refused.fingerprint
        }

    def add(self, model: str, version: int, seen: Fingerprint, reason: str, retry: bool = True) -> bool:
        """Remembers a failure; whether it is news. Without `retry` only a change of the files gives another try."""
        before = self._refused.get((model, version))
        news = before is None or (before.fingerprint, before.reason) != (seen, reason)
        delay = RETRY_SECONDS if before is None or news else min(before.delay * 2, MOST_RETRY_SECONDS)
        retry_at = time.monotonic() + delay if retry else math.inf
        self._refused[model, version] = Refused(seen, reason, retry_at, delay)
        return news

    def remove(self, model: str, version: int) -> None:
        """The version loads."""
        self._refused.pop((model, version), None)

    def reasons(self, model: str) -> dict[int, str]:
        """Why each refused version of a model was refused."""
        return {number: refused.reason for (name, number), refused in self._refused.items() if name == model}

    def forget_all_but(self, model: str, versions: Iterable[int]) -> list[int]:
        """Drops what is known of versions that are no longer there, and returns them."""
        there = set(versions)
        gone = [number for name, number in self._refused if name == model and number not in there]
        for number in gone:
            del self._refused[model, number]
        return gone


def reason_label(error: BaseException) -> str:
    """Why a version was refused, as a label of jaxport_load_failures_total: one of REASONS."""
    # Where the version before was put back, what the new one had failed with is the cause.
    failed = (isinstance(error, LoadRefused) and error.__cause__) or error
    return next((REASONS[kind] for kind in REASONS if isinstance(failed, kind)), OTHER)


def fingerprint(path: Path) -> Fingerprint:
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


def manifest_digest(path: Path) -> bytes:
    """What the manifest.json.sha256 of a bundle says, which is other for any other bundle; empty: it cannot be read."""
    try:
        # A pipe would be waited for without end.
        descriptor = os.open(path / MANIFEST_DIGEST, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            regular = stat.S_ISREG(os.fstat(descriptor).st_mode)
            return os.read(descriptor, MOST_DIGEST_BYTES) if regular else b""
        finally:
            os.close(descriptor)
    except OSError:
        return b""

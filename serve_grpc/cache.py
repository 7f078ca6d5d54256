"""The compile cache on the volume: one file per program, whole or absent, written by a warm Job, read by servers.

    cache/<key>/key.json            what the key was made of, for people
    cache/<key>/<name>.executables  a line with the digest of the rest; a line of JSON; the executables

A file is written under a hidden name, flushed and renamed, so that any number of warm Jobs may run at once. A file
whose digest is not right is never parsed: executables are code. The digest tells damage, not malice: whoever can write
the volume is trusted, as with bundles.
"""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from serve_grpc.errors import CacheDamaged, EnvironmentUnfit

MAGIC = "jaxport-executables"
SUFFIX = ".executables"
WRITING = ".writing-"
MOST_TRIES = 3


@dataclass(frozen=True)
class CacheKey:
    """facts: name -> value, each of which makes other code, or other costs of the same code."""

    facts: Mapping[str, str]

    @property
    def folder(self) -> str:
        """jaxlib-0.12.0-nvidia-l4-3f9a2c81d0e7: to be read by people, and different where any fact differs."""
        kind = re.sub(r"[^a-z0-9.]+", "-", self.facts["device_kind"].lower()).strip("-")
        digest = hashlib.sha256(json.dumps(dict(self.facts), sort_keys=True).encode()).hexdigest()
        return f"jaxlib-{self.facts['jaxlib']}-{kind}-{digest[:12]}"


@dataclass(frozen=True)
class Entry:
    """What a start needs of one program, to compile and time nothing.

    executables: bucket -> serialized executable, for the buckets in use. measured: bucket -> seconds of one run,
    for every bucket that was timed when they were chosen.
    """

    executables: Mapping[int, bytes]
    measured: Mapping[int, float]

    @property
    def seconds(self) -> dict[int, float]:
        """bucket -> seconds of one run, for the buckets in use."""
        return {bucket: self.measured[bucket] for bucket in self.executables}


class CompileCache:
    """The entries of one key. Reading needs no right to write, and never writes."""

    def __init__(self, root: Path, key: CacheKey) -> None:
        self.folder = root / key.folder
        self._key = key

    def get(self, name: str) -> Entry | None:
        """The entry, or None when there is none. Raises CacheDamaged."""
        path = self.folder / f"{name}{SUFFIX}"
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise CacheDamaged(f"{path}: {error.strerror or error}; make it readable or remove it") from None
        return _parse(data, str(path))

    def prepare(self) -> None:
        """Makes the folder and removes what killed writers left. Raises EnvironmentUnfit when it cannot be written."""
        with self._writable():
            self.folder.mkdir(parents=True, exist_ok=True)
            self._sweep()
            self._write(
                "key.json", json.dumps(dict(self._key.facts), indent=2, sort_keys=True).encode() + b"\n"
            )

    def put(self, name: str, entry: Entry) -> None:
        """Publishes an entry in place of what is there under its name. Raises EnvironmentUnfit."""
        with self._writable():
            self._write(f"{name}{SUFFIX}", _format(entry))

    @contextlib.contextmanager
    def _writable(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise EnvironmentUnfit(
                f"compile cache {error.filename or self.folder}: {error.strerror or error}; "
                "needed: a writable folder with room, see --cache-dir"
            ) from None

    def _write(self, name: str, data: bytes) -> None:
        for _ in range(MOST_TRIES):
            with contextlib.suppress(FileNotFoundError):  # swept between its making and its lock: again
                self._write_once(name, data)
                return
        raise FileNotFoundError(errno.ENOENT, "removed while it was written", str(self.folder / name))

    def _write_once(self, name: str, data: bytes) -> None:
        with tempfile.NamedTemporaryFile(dir=self.folder, prefix=WRITING, delete=False) as file:
            partial = Path(file.name)
            try:
                fcntl.flock(file, fcntl.LOCK_EX)  # tells a sweeping Job that this file's writer lives
                file.write(data)
                file.flush()
                os.fchmod(file.fileno(), 0o644)  # servers run as another user
                os.fsync(file.fileno())
                partial.replace(self.folder / name)
            except BaseException:  # an interrupt too: nothing half-written stays
                partial.unlink(missing_ok=True)
                raise
        _flush(self.folder)

    def _sweep(self) -> None:
        for path in self.folder.glob(f"{WRITING}*"):
            with contextlib.suppress(OSError), path.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()


class Published:
    """Entries put into a cache, for a loader that must not fail when the volume does."""

    def __init__(self, cache: CompileCache) -> None:
        self._cache = cache
        self.count = 0
        self.failure: EnvironmentUnfit | None = None

    def put(self, name: str, entry: Entry) -> None:
        """Publishes an entry; remembers the first failure."""
        try:
            self._cache.put(name, entry)
            self.count += 1
        except EnvironmentUnfit as error:
            self.failure = self.failure or error


def _format(entry: Entry) -> bytes:
    header = {
        "executables": [[bucket, len(data)] for bucket, data in entry.executables.items()],
        "measured": [[bucket, seconds] for bucket, seconds in entry.measured.items()],
    }
    rest = json.dumps(header).encode() + b"\n" + b"".join(entry.executables.values())
    return f"{MAGIC} {hashlib.sha256(rest).hexdigest()} {len(rest)}\n".encode() + rest


def _parse(data: bytes, source: str) -> Entry:
    first, _, rest = data.partition(b"\n")
    wanted = f"{MAGIC} {hashlib.sha256(rest).hexdigest()} {len(rest)}".encode()
    if first != wanted:
        raise CacheDamaged(
            f"{source}: altered or damaged ({len(data)} bytes); remove it or warm the cache again"
        )
    line, _, blobs = rest.partition(b"\n")
    header = json.loads(line)
    executables, at = {}, 0
    for bucket, size in header["executables"]:
        executables[bucket] = blobs[at : at + size]
        at += size
    return Entry(executables, dict(header["measured"]))


def _flush(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

"""Bytes to learn from: the standard library's own sources, tinyshakespeare, or any file or glob."""

from __future__ import annotations

import errno
import glob
import hashlib
import http.client
import os
import sys
import sysconfig
import tempfile
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from train_job.errors import CheckFailed, EnvironmentUnfit, UsageError, describe_cause

TINYSHAKESPEARE_URL = (
    "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
)
TINYSHAKESPEARE_SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
MAX_BYTES = 16 * 2**20  # of the standard library; the whole of 3.12's is 10 MB
_DOWNLOAD_TIMEOUT_S = 30.0
# Distributions leave these out or ship them apart; without them the bytes depend on the version alone.
_NOT_EVERYWHERE = frozenset(
    {
        "test",
        "tests",
        "idlelib",
        "tkinter",
        "turtledemo",
        "ensurepip",
        "lib2to3",
        "distutils",
        "site-packages",
    }
)


@dataclass(frozen=True)
class Corpus:
    """One text as bytes (`uint8` values), with the name people know it by.

    source: the word of `--data`, where these bytes can change or vanish by themselves; else empty.
    """

    name: str
    content: bytes
    source: str = ""

    @property
    def sha256(self) -> str:
        """Hex digest of the bytes."""
        return hashlib.sha256(self.content).hexdigest()


def read_corpus(data: str) -> Corpus:
    """Reads what `--data` names: "stdlib", "tinyshakespeare", a path or a glob.

    Raises:
        UsageError: nothing lies there. EnvironmentUnfit: unreadable, or no network. CheckFailed: wrong digest.
    """
    if data == "stdlib":
        return read_stdlib()
    if data == "tinyshakespeare":
        return Corpus(data, fetch(TINYSHAKESPEARE_URL, TINYSHAKESPEARE_SHA256, cache_dir()), source=data)
    return read_files(data)


def read_stdlib() -> Corpus:
    """The sources of the running Python's standard library, in sorted order: text every machine has."""
    root = Path(sysconfig.get_path("stdlib"))
    content = bytearray()
    for path in sorted(_sources(root), key=lambda path: path.relative_to(root).as_posix()):
        content += path.read_bytes()
        if len(content) >= MAX_BYTES:
            break
    return Corpus(name_of("stdlib"), bytes(content[:MAX_BYTES]), source="stdlib")


def name_of(source: str) -> str:
    """What `read_corpus(source).name` is, without reading, where `source` is "stdlib" or "tinyshakespeare"."""
    version = ".".join(map(str, sys.version_info[:3]))
    return f"standard library of Python {version}" if source == "stdlib" else source


def _sources(root: Path) -> Iterator[Path]:
    for folder, subfolders, files in os.walk(root):
        at_top = Path(folder) == root
        subfolders[:] = [
            name for name in subfolders if _ships_everywhere(name, at_top)
        ]  # os.walk enters these
        for name in files:
            if name.endswith(".py") and _ships_everywhere(name.removesuffix(".py"), at_top):
                yield Path(folder) / name


def _ships_everywhere(name: str, at_top: bool) -> bool:
    """At the top only what the interpreter lists as its own: a site's customisations lie beside it."""
    return name not in _NOT_EVERYWHERE and (not at_top or name in sys.stdlib_module_names)


def read_files(pattern: str) -> Corpus:
    """The bytes of a file, or of all files a glob matches, in sorted order. Raises as `read_corpus`."""
    paths = find_files(
        pattern,
        "--data",
        "a path, a glob, a folder with shards.json (of jaxport data prepare), tinyshakespeare or stdlib",
    )
    try:
        content = b"".join(path.read_bytes() for path in paths)
    except OSError as error:
        raise EnvironmentUnfit(f"--data: cannot read {error.filename}: {describe_cause(error)}") from error
    return Corpus(pattern, content)


def find_files(pattern: str, flag: str, needed: str = "a path or a glob") -> list[Path]:
    """A file, or all files a glob matches, in sorted order. Raises UsageError where there is none."""
    there = is_there(Path(pattern))  # a name that holds glob characters is still a name
    found = [pattern] if there else sorted(glob.iglob(pattern, recursive=True))  # noqa: PTH207 Path.glob takes no absolute pattern
    paths = [Path(name) for name in found if Path(name).is_file()]
    if not paths:
        why = (
            f"{pattern!r} is a folder" if there and Path(pattern).is_dir() else f"no file matches {pattern!r}"
        )
        raise UsageError(f"{flag}: {why}; needs {needed}")
    return paths


def is_there(path: Path) -> bool:
    """Whether anything lies at `path`; what is too long to be a name names nothing. Else raises OSError as `Path.exists`."""
    try:
        return path.exists()
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            return False
        raise


def cache_dir() -> Path:
    """Where downloads are kept: $XDG_CACHE_HOME/jaxport, or ~/.cache/jaxport (XDG base directories 0.8)."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if Path(base).is_absolute() else Path.home() / ".cache") / "jaxport"


def fetch(url: str, sha256: str, cache: Path) -> bytes:
    """The bytes at `url`, whose digest must be `sha256`; kept in `cache`, so the network is used once.

    Raises:
        EnvironmentUnfit: unreachable, or what is kept cannot be read. CheckFailed: other bytes than expected.
    """
    kept = cache / f"{sha256[:16]}-{url.rsplit('/', 1)[-1]}"
    try:
        content = kept.read_bytes() if kept.is_file() else b""
    except OSError as error:
        raise EnvironmentUnfit(
            f"--data: cannot read {kept}, a download that was kept: {describe_cause(error)}; delete it, or make it readable"
        ) from error
    if hashlib.sha256(content).hexdigest() == sha256:
        return content  # anything else is a torn or altered file: fetch it again
    content = _download(url)
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        raise CheckFailed(f"--data: {url} gave sha256 {found}, needs {sha256}; pass a file you trust instead")
    _keep(kept, content)
    return content


def _download(url: str) -> bytes:
    try:
        with urllib.request.urlopen(url, timeout=_DOWNLOAD_TIMEOUT_S) as answer:  # noqa: S310 the digest is checked
            return answer.read()
    except (
        OSError,
        http.client.HTTPException,
    ) as error:  # a URLError is an OSError; an answer cut short is none
        reason = getattr(error, "reason", error)
        raise EnvironmentUnfit(
            f"--data: cannot download {url}: {reason}; use --data stdlib (offline) or a file"
        ) from error


def _keep(path: Path, content: bytes) -> None:
    """Caches by rename, so that two runs never see half a file; a cache that cannot be written is no error."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as partial:
            partial.write(content)
        Path(partial.name).replace(path)
    except OSError as error:
        print(f"data: not cached ({path.parent}: {describe_cause(error)}); the next run downloads again")

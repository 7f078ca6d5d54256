"""Which versions of a model serve, as files beside them: one line each, so that a person can read and write them.

    models/<name>/policy            latest 2 | pinned 3,5 | label stable      absent: latest 1
    models/<name>/labels/<label>    3

What is not such a line is a BadPolicy that names the file; who reads decides what then counts. `converters.promote`
writes them.
"""

import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path

from converters.bundle import parse_version
from converters.errors import BadPolicy

POLICY = "policy"
LABELS = "labels"
LABEL_NAME = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,63}")
MOST_BYTES = 4096
MOST_LABELS = 100
MOST_LATEST = 100


@dataclass(frozen=True)
class Latest:
    """The `count` highest versions that load."""

    count: int = 1

    def __str__(self) -> str:
        return f"latest {self.count}"


@dataclass(frozen=True)
class Pinned:
    """These versions and no others; ascending."""

    versions: tuple[int, ...]

    def __str__(self) -> str:
        return f"pinned {','.join(map(str, self.versions))}"


@dataclass(frozen=True)
class ByLabel:
    """The version that a label points to."""

    label: str

    def __str__(self) -> str:
        return f"label {self.label}"


Policy = Latest | Pinned | ByLabel
SYNTAX = "'latest N', 'pinned N,N' or 'label NAME'"


def parse_policy(text: str, source: str) -> Policy:
    """The policy that one line says. BadPolicy names `source`."""
    kind, _, rest = text.strip().partition(" ")
    rest = rest.strip()
    if kind == "latest" and (count := parse_version(rest or "1")) is not None and count <= MOST_LATEST:
        return Latest(count)
    if kind == "pinned" and rest:
        numbers = [parse_version(part.strip()) for part in rest.split(",")]
        if None not in numbers:
            return Pinned(tuple(sorted({number for number in numbers if number is not None})))
    if kind == "label" and LABEL_NAME.fullmatch(rest):
        return ByLabel(rest)
    raise BadPolicy(f"{source}: {_shown(text)} is no policy; needed: {SYNTAX}")


def read_policy(model_dir: Path) -> Policy:
    """The policy of a model; latest 1 where it has none. BadPolicy: the file says something else."""
    path = model_dir / POLICY
    try:
        return parse_policy(_read_line(path), str(path))
    except FileNotFoundError:
        return Latest()


def label_names(model_dir: Path) -> list[str]:
    """The labels of a model, sorted; names that are none are ignored. BadPolicy: the folder cannot be read."""
    folder = model_dir / LABELS
    try:
        names = sorted(entry.name for entry in folder.iterdir())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise BadPolicy(
            f"{folder}: {error.strerror or error}; needed: a folder with a file per label"
        ) from None
    labels = [name for name in names if LABEL_NAME.fullmatch(name)]
    if len(labels) > MOST_LABELS:
        raise BadPolicy(f"{folder}: holds {len(labels)} labels; needed: at most {MOST_LABELS}")
    return labels


def read_label(model_dir: Path, label: str) -> int:
    """The version that a label points to. FileNotFoundError: no such label. BadPolicy: the file is no version."""
    path = model_dir / LABELS / label
    text = _read_line(path)
    version = parse_version(text.strip())
    if version is None:
        raise BadPolicy(f"{path}: {_shown(text)} is no version; needed: one line with a positive integer")
    return version


def _read_line(path: Path) -> str:
    """The one line of a small regular file, which is opened without waiting: a pipe would be waited for without end."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise BadPolicy(f"{path}: not a regular file; needed: a file of one line")
            data = os.read(descriptor, MOST_BYTES + 1)
        finally:
            os.close(descriptor)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise BadPolicy(f"{path}: {error.strerror or error}; needed: a file of one line") from None
    if len(data) > MOST_BYTES:
        raise BadPolicy(f"{path}: is longer than {MOST_BYTES} bytes; needed: a file of one line")
    return data.decode("ascii", "backslashreplace")


def _shown(text: str) -> str:
    line = text.strip()
    return repr(line if len(line) <= 40 else f"{line[:40]}...") if line else "an empty file"

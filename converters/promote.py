"""Writes a model's labels and policy: each appears whole, and what a label pointed to before is remembered.

    promote(Path("models/nano"), 3, "stable")       labels/stable: 2 -> 3
    rollback(Path("models/nano"), "stable")         labels/stable: 3 -> 2; once more goes to what was before 2

`labels/.history/<label>` holds the versions before, the latest last. It is written before a promotion and after a
rollback: whatever ends the process between the two files, the version before is not lost.
"""

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from converters.bundle import MANIFEST, MODEL_NAME, list_versions, open_bundle, parse_version
from converters.errors import BadPolicy, BundleNotFound
from converters.labels import LABEL_NAME, LABELS, POLICY, Policy, parse_policy, read_label, read_policy
from converters.lock import locked
from converters.publish import storage_errors

HISTORY = ".history"
LOCK = ".lock"
MOST_HISTORY = 100


def promote(model_dir: Path, version: int, label: str) -> int | None:
    """Points a label at a version whose bundle opens; returns the version before, None when there was none.

    BundleNotFound, BundleError: the version is not fit. StorageError: the volume refuses.
    """
    _check_names(model_dir, label)
    _check_version(model_dir, version)
    with _locked(model_dir):
        before = _current(model_dir, label)
        if before == version:
            return before
        if before is not None:
            history = [*_history(model_dir, label), before]
            _write(_history_file(model_dir, label), "".join(f"{n}\n" for n in history[-MOST_HISTORY:]))
        _write(model_dir / LABELS / label, f"{version}\n")
    return before


def rollback(model_dir: Path, label: str) -> tuple[int | None, int]:
    """Points a label at the version before; returns (the version now left, the version it points to).

    BadPolicy: there is none before. BundleNotFound, BundleError: that version is not fit any more.
    """
    _check_names(model_dir, label)
    if not (model_dir / LABELS).is_dir():
        raise BadPolicy(f"{model_dir}: has no label {label!r} to roll back; jaxport promote sets one")
    with _locked(model_dir):
        now = _current(model_dir, label)
        history = _history(model_dir, label)
        while history and history[-1] == now:  # left by a process that ended between the two files
            history.pop()
        if not history:
            at = "is not set" if now is None else f"points to version {now}"
            raise BadPolicy(
                f"{model_dir / LABELS / label}: {at} and nothing is known of a version before; "
                "name one: jaxport promote MODEL VERSION"
            )
        version = history.pop()
        _check_version(model_dir, version)
        _write(model_dir / LABELS / label, f"{version}\n")
        _write(_history_file(model_dir, label), "".join(f"{n}\n" for n in history))
    return now, version


def set_policy(model_dir: Path, text: str) -> tuple[Policy | None, Policy]:
    """Writes the policy that `text` says; returns (the one before, the new one).

    BadPolicy: it is none, or asks for a version that is not there. The one before is None where it was no policy.
    """
    policy = check_policy(model_dir, text)
    try:
        before = read_policy(model_dir)
    except BadPolicy:
        before = None
    _write(model_dir / POLICY, f"{policy}\n")
    return before, policy


def check_policy(model_dir: Path, text: str) -> Policy:
    """The policy that `text` says, if the model can follow it. BadPolicy, BundleNotFound, BundleError: it cannot."""
    policy = parse_policy(text, "--policy")
    _check_names(model_dir)
    for version in getattr(policy, "versions", ()):
        _check_version(model_dir, version)
    return policy


def _check_names(model_dir: Path, label: str = "any") -> None:
    if not MODEL_NAME.fullmatch(model_dir.name):
        raise BadPolicy(f"model name {model_dir.name!r}: letters, digits, '.', '_' and '-' are allowed")
    if not LABEL_NAME.fullmatch(label):
        raise BadPolicy(
            f"--label {label!r}: a letter, and then up to 63 letters, digits, '.', '_' and '-' are needed"
        )
    if not model_dir.is_dir():
        raise BundleNotFound(f"{model_dir}: no such model; change MODEL, --models or --root")


def _check_version(model_dir: Path, version: int) -> None:
    """Hashes every file: a server would refuse a version that is not whole, and the label would wait for it."""
    path = model_dir / str(version)
    if not (path / MANIFEST).is_file():
        known = ", ".join(map(str, list_versions(model_dir))) or "none"
        raise BundleNotFound(f"{path}: no such version; the versions are: {known}")
    open_bundle(path)


def _current(model_dir: Path, label: str) -> int | None:
    """What the label points to; None where it is not set, or not to a version."""
    try:
        return read_label(model_dir, label)
    except (FileNotFoundError, BadPolicy):
        return None


def _history_file(model_dir: Path, label: str) -> Path:
    return model_dir / LABELS / HISTORY / label


def _history(model_dir: Path, label: str) -> list[int]:
    """Versions before, the latest last. Lines that are none are passed over."""
    try:
        lines = _history_file(model_dir, label).read_text("ascii", "replace").splitlines()
    except OSError:
        return []
    numbers = (parse_version(line.strip()) for line in lines)
    return [number for number in numbers if number is not None]


@contextlib.contextmanager
def _locked(model_dir: Path) -> Iterator[None]:
    """One writer of a model's labels at a time, where the volume has locks."""
    folder = model_dir / LABELS
    with storage_errors(folder):
        folder.mkdir(exist_ok=True)
        with locked(folder / LOCK):
            yield


def _write(path: Path, text: str) -> None:
    """Replaces a file as a whole: a reader sees the old text or the new one, also after a power cut."""
    hidden = path.parent / f".{path.name}.{secrets.token_hex(4)}.writing"  # two pods may share a pid
    with storage_errors(path):
        path.parent.mkdir(exist_ok=True)
        try:
            with hidden.open("w", encoding="ascii") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            hidden.rename(path)
        except BaseException:  # an interrupt too: nothing half-written stays
            hidden.unlink(missing_ok=True)
            raise
        descriptor = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

"""The run folder: its record `run.json`, the lock that makes one process its writer, and names inside it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime
from pathlib import Path
from typing import Any

from train_job.errors import EnvironmentUnfit, RunBusy, StorageFailed, UsageError, describe_cause
from train_job.json_text import parse_json

SCHEMA_VERSION = 1
RECORD = "run.json"
CHECKPOINTS = "checkpoints"
KEPT_DATA = "data.bin"
METRICS = "metrics.jsonl"
TENSORBOARD = "tensorboard"
PLOT = "loss.png"
PROFILE = "profile"
_LOCK = ".lock"
_CLAIMS, _CLAIM_AGAIN_S = 3, 0.05


@dataclass(frozen=True)
class RunRecord:
    """What a run is, as `run.json` keeps it.

    preset: "nano" or "package.module:factory", as `train_job.presets.get_preset` takes it.
    settings: hyperparameters and upkeep of the latest start. fingerprint: what may not change between starts.
    data: name, sha256, bytes and, of a source whose bytes the run keeps, source (train_job.kept); of text by a
    tokenizer, tokens (train_job.presets.Tokenization). baselines: reference metrics of the data. versions: of python and the libraries.
    created_at: UTC, ISO 8601. finished: every planned step is done and its checkpoint is on disk. starts: how often
    the run was started; 0 for one of before they were counted. headline: the metric that sums it up; empty in a record
    of before it was kept.
    """

    run: str
    preset: str
    settings: dict[str, Any]
    fingerprint: dict[str, Any]
    data: dict[str, Any]
    baselines: dict[str, float]
    versions: dict[str, str]
    created_at: str
    finished: bool = False
    starts: int = 0
    headline: str = ""
    schema_version: int = field(default=SCHEMA_VERSION)


def read_run(run_dir: Path) -> RunRecord:
    """Reads `run.json`. Raises UsageError when there is no run, or one this version cannot read, and EnvironmentUnfit
    when the volume does not give it."""
    path = run_dir / RECORD
    try:
        raw = parse_json(path.read_bytes())
    except FileNotFoundError:
        known = ", ".join(list_runs(run_dir.parent)) or "none"
        raise UsageError(f"--run: no run {run_dir.name!r} in {run_dir.parent}; present: {known}") from None
    except OSError as error:
        raise EnvironmentUnfit(
            f"{path}: cannot be read: {describe_cause(error)}; make it readable or choose another --run"
        ) from error
    except ValueError as error:
        raise UsageError(f"{path}: no run record ({error}); restore it or choose another --run") from error
    if not isinstance(raw, dict) or raw.get("schema_version") != SCHEMA_VERSION:
        found = raw.get("schema_version") if isinstance(raw, dict) else type(raw).__name__
        raise UsageError(f"{path}: schema_version is {found}, this jaxport reads {SCHEMA_VERSION}")
    try:
        record = RunRecord(**{name: value for name, value in raw.items() if name in _FIELDS})
        for name, (kind, said) in _KINDS.items():
            if not isinstance(getattr(record, name), kind):
                raise TypeError(f"{name} has to be {said}")
        datetime.fromisoformat(record.created_at)
        return record
    except (TypeError, ValueError) as error:
        raise UsageError(f"{path}: {error}; restore the file or choose another --run") from error


# A later jaxport adds fields to a record and keeps the schema_version where an earlier one may do without them.
_FIELDS = frozenset(entry.name for entry in fields(RunRecord))
_KINDS = {
    **dict.fromkeys(("settings", "fingerprint", "data", "baselines", "versions"), (dict, "an object")),
    **dict.fromkeys(("run", "preset", "created_at", "headline"), (str, "a text")),
    "finished": (bool, "true or false"),
    "starts": (int, "a whole number"),
}


def list_runs(runs_dir: Path) -> list[str]:
    """The names of the runs under `<root>/runs`, sorted."""
    return sorted(found.parent.name for found in runs_dir.glob(f"*/{RECORD}"))


def has_checkpoint(run_dir: Path) -> bool:
    """Whether any save is complete."""
    return bool(saved_steps(run_dir))


def saved_steps(run_dir: Path) -> list[int]:
    """The steps whose save is complete. Reads names only: a checkpoint gets its number when it is whole."""
    return [int(path.name) for path in (run_dir / CHECKPOINTS).glob("*") if path.name.isdecimal()]


def write_run(run_dir: Path, record: RunRecord) -> None:
    """Replaces `run.json` whole. Raises StorageFailed."""
    write_atomically(run_dir / RECORD, (json.dumps(asdict(record), indent=2) + "\n").encode())


def write_atomically(path: Path, content: bytes) -> None:
    """Writes a sibling, syncs it and renames it over `path`: a reader sees the old or the new, after a crash too.

    For the run's one writer: what a kill leaves of the sibling is written over by the next.

    Raises:
        StorageFailed: naming the path and the cause.
    """
    partial = path.with_name(f".{path.name}.partial")
    try:
        with partial.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        partial.chmod(0o644)  # a run is read by other users' Jobs
        partial.replace(path)
        sync_directory(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise StorageFailed.at(path, error) from error


def sync_directory(path: Path) -> None:
    """Makes the directory's entries (a rename, a new file) survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(path: Path) -> None:
    """Syncs every file and directory below and including `path`."""
    for folder, _, files in os.walk(path, topdown=False):
        for name in files:
            descriptor = os.open(Path(folder) / name, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        sync_directory(Path(folder))


@contextlib.contextmanager
def writing(run_dir: Path) -> Iterator[None]:
    """Holds the run as its only writer. The kernel drops the lock with the process, kill -9 included.

    Raises:
        RunBusy: another process holds it, or moves it aside to begin anew. StorageFailed: the folder cannot be made.
    """
    path = run_dir / _LOCK
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        stream = path.open("a+", encoding="utf-8")
    except OSError as error:
        raise StorageFailed.at(run_dir, error) from error
    with stream:
        _claim(stream, run_dir)
        _require_in_place(stream, run_dir)
        _say_who(stream)
        yield


def is_written(run_dir: Path) -> bool:
    """Whether a process that this file system knows of holds the run. Asks without leaving a trace."""
    with contextlib.suppress(OSError), (run_dir / _LOCK).open(encoding="utf-8") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _claim(stream: Any, run_dir: Path) -> None:
    for left in reversed(range(_CLAIMS)):
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if left:  # who asks whether the run is written holds it for a moment
                time.sleep(_CLAIM_AGAIN_S)
                continue
            stream.seek(0)
            holder = stream.read().strip() or "another process"
            raise RunBusy(
                f"run {run_dir.name!r} in {run_dir.parent} is being written by {holder}; "
                "wait for it, stop it, or choose another --run"
            ) from None
        except OSError as error:
            raise StorageFailed.at(run_dir, error) from error


def _require_in_place(stream: Any, run_dir: Path) -> None:
    """Raises RunBusy where the lock is of a folder that was moved aside since the file was opened."""
    try:
        in_place = os.path.samestat(os.fstat(stream.fileno()), (run_dir / _LOCK).stat())
    except FileNotFoundError:
        in_place = False
    except OSError as error:
        raise StorageFailed.at(run_dir, error) from error
    if not in_place:
        raise RunBusy(
            f"run {run_dir.name!r} in {run_dir.parent} is begun anew by another process (--no-resume); wait for it, stop "
            "it, or choose another --run"
        )


def _say_who(stream: Any) -> None:
    # On a full disk the lock holds without its label. Past the stream's buffer: what could not be flushed would
    # be written again when the stream is closed, and fail in place of the error that ended the run.
    with contextlib.suppress(OSError):
        os.ftruncate(stream.fileno(), 0)
        os.write(stream.fileno(), f"process {os.getpid()} on {socket.gethostname()}\n".encode())

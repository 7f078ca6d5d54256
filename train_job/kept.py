"""The data that a run carries: the bytes of a source that can change or vanish by itself lie in the run's folder.

The standard library is another in an image with another Python, and a download may be gone. A run that began with
one of them is trained to its end on the bytes it began with, by whatever image starts it again. Files that a person
named are the person's own, may be huge, and are not copied.

    <root>/runs/<run>/data.bin   the bytes; their digest and `source`, the word of `--data`, are in run.json
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from train_job.data.shards import TOKENIZER
from train_job.data.sources import Corpus
from train_job.errors import CheckFailed, EnvironmentUnfit, describe_cause
from train_job.fingerprint import DATA
from train_job.mesh import Layout
from train_job.presets import DataInfo, Dataset
from train_job.runs import KEPT_DATA, RunRecord, write_atomically
from train_job.settings import DEFAULT_DATA, TrainSettings


@dataclass(frozen=True)
class KeptData:
    """What `run.json` says of the bytes beside it."""

    path: Path
    source: str
    name: str
    sha256: str

    def read(self) -> Corpus | None:
        """The bytes; None where they are not there, or not those. Raises EnvironmentUnfit."""
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise EnvironmentUnfit(
                f"cannot read {self.path}: {describe_cause(error)}; make the volume readable for this user"
            ) from error
        corpus = Corpus(self.name, content, self.source)
        return corpus if corpus.sha256 == self.sha256 else None


def kept_data(settings: TrainSettings, record: RunRecord | None) -> KeptData | None:
    """What the run on disk keeps, where it began with the source that is asked for now. Reads nothing."""
    source = record.data.get("source") if record else None
    if record is None or not source or source != (DEFAULT_DATA if settings.data is None else settings.data):
        return None
    return KeptData(
        settings.run_dir / KEPT_DATA, source, str(record.data.get("name")), str(record.fingerprint.get(DATA))
    )


def load_data(settings: TrainSettings, kept: KeptData | None) -> Dataset:
    """The data to train on: the bytes that the run keeps, or else what `--data` names.

    Kept bytes that are damaged are replaced where the source still gives the same, and by nothing else: the run
    would go on with other data than it began with.

    Raises:
        UsageError, EnvironmentUnfit: as `Task.load`. CheckFailed: kept bytes are damaged and cannot be replaced.
    """
    task = settings.preset.task
    if kept is None:
        return task.load(settings.data)
    corpus = kept.read()
    if corpus is not None:
        return task.load(settings.data, corpus)
    data = task.load(settings.data)
    # Others than process 0 get its bytes where theirs differ: see `shared`.
    if settings.processes.first and data.info.sha256 != kept.sha256:
        raise CheckFailed(
            f"{kept.path}: the run's data is missing or damaged (needs sha256 {kept.sha256[:12]}), and --data "
            f"{kept.source} gives other bytes here ({data.info.name}); restore it, use an image with {kept.name}, or "
            "start over with --no-resume"
        )
    return data


def keep(run_dir: Path, info: DataInfo) -> None:
    """Writes the bytes that the run is to keep, and its tokenizer, where they are not there yet. Raises StorageFailed."""
    path = run_dir / KEPT_DATA
    if info.content is not None and not _holds(path, info.sha256):
        write_atomically(path, info.content)
    if info.tokens is not None and not _holds(run_dir / TOKENIZER, info.tokens.sha256):
        write_atomically(run_dir / TOKENIZER, info.tokenizer)


def shared(settings: TrainSettings, data: Dataset, layout: Layout) -> Dataset:
    """Process 0's data for all, where each image has its own and they differ.

    It is sent, not read from the volume: what a process wrote there another may see a minute later.
    """
    if layout.processes.alone or not data.info.source:
        return data
    digests = layout.said_by_all(np.frombuffer(bytes.fromhex(data.info.sha256), np.uint8))
    if (digests == digests[0]).all():
        return data
    content = layout.sent_by_first(data.info.content or b"")
    name = layout.sent_by_first(data.info.name.encode()).decode()
    if layout.processes.first:
        return data
    return settings.preset.task.load(settings.data, Corpus(name, content, data.info.source))


def _holds(path: Path, sha256: str) -> bool:
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest() == sha256
    except OSError:
        return False

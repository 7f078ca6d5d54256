"""What a run measured, as lines of JSON for programs and as TensorBoard events for people."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto import event_pb2
from tensorboardX.summary import scalar

from train_job.errors import StorageFailed
from train_job.rows import read_metrics_file
from train_job.runs import METRICS, TENSORBOARD, write_atomically

_messages: Any = event_pb2  # generated at import, so a type checker cannot see what it holds
_Event, _SessionLog = _messages.Event, _messages.SessionLog


class MetricsLog:
    """Appends one row per interval. Opened at step n, it first drops the rows after n of a killed attempt.

    A file with damaged lines is kept beside the one that is written in its place. earlier: the rows up to n.

    Raises:
        StorageFailed: one of its files cannot be written. EnvironmentUnfit: the rows cannot be read.
    """

    def __init__(self, run_dir: Path, step: int) -> None:
        self._run_dir = run_dir
        found = read_metrics_file(run_dir)
        if found.damaged:
            _keep(run_dir, found.content, found.damaged)
        self.earlier = [row for row in found.rows if row["step"] <= step]
        write_atomically(run_dir / METRICS, "".join(map(_line, self.earlier)).encode())
        try:
            self._lines = (run_dir / METRICS).open("a", encoding="utf-8")
            folder = run_dir / TENSORBOARD
            folder.mkdir(exist_ok=True)
            # The synchronous writer: SummaryWriter's thread dies on a full disk and then blocks its caller.
            self._events = EventsWriter(str(folder / f"events-{step}"))
            # Tells TensorBoard to forget what an earlier attempt wrote at this step and after it.
            self._events.write_event(
                _Event(
                    wall_time=time.time(), step=step + 1, session_log=_SessionLog(status=_SessionLog.START)
                )
            )
        except OSError as error:
            raise StorageFailed.at(run_dir, error) from error

    def append(self, row: Mapping[str, Any]) -> None:
        """Writes a row, whose "step" is the number of steps done, to both files. Raises StorageFailed."""
        try:
            self._lines.write(_line(row))
            self._lines.flush()
            for name, value in row.items():
                if name not in ("step", "time"):
                    self._event(row, name, value)
            self._events.flush()
        except OSError as error:
            raise StorageFailed.at(self._run_dir / METRICS, error) from error

    def _event(self, row: Mapping[str, Any], name: str, value: float) -> None:
        summary = scalar(name, value)
        self._events.write_event(_Event(wall_time=row["time"], step=row["step"], summary=summary))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            try:
                self._lines.close()  # on a full disk what was not written yet fails once more
            finally:
                self._events.close()
        except OSError as failed:
            if error is None:
                raise StorageFailed.at(self._run_dir, failed) from failed


def _keep(run_dir: Path, content: bytes, damaged: int) -> None:
    names = (f"{METRICS}.damaged-{number}" for number in count(1))
    path = next(path for name in names if not (path := run_dir / name).exists())
    write_atomically(path, content)
    lines = "1 line is" if damaged == 1 else f"{damaged} lines are"
    print(
        f"{run_dir / METRICS}: {lines} damaged and left out; the file as it was is kept as {path.name}",
        flush=True,
    )


def _line(row: Mapping[str, Any]) -> str:
    return json.dumps(dict(row)) + "\n"

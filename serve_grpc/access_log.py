"""One JSON line for every request, written by a thread of its own.

The threads that answer only put figures into a bounded queue. When the file cannot take what comes (a disk that is
full, a pipe that nobody reads) lines are lost and counted; requests never wait for it. A file that was renamed or
removed is opened anew, so that logrotate needs no signal.
"""

import json
import logging
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import lru_cache

from serve_grpc.backlog import Backlog
from serve_grpc.ended import Ended, Request
from serve_grpc.errors import ConfigError, EnvironmentUnfit

log = logging.getLogger(__name__)

STDOUT = "-"
MOST_WAITING = 20_000  # requests
WRITE_SECONDS = 0.1
LOOK_SECONDS = 1.0
LONGEST_NAME = 200  # of a model: it may be anything that a caller sent


class AccessLog:
    """path: a file, which is appended to, or "-" for standard output. lost: told how many lines were not written.

    `ended` is the listener that takes requests. Raises ConfigError or EnvironmentUnfit when the file cannot be opened.
    """

    def __init__(self, path: str, lost: Callable[[int], None]) -> None:
        self._path = path
        self._lost = lost
        self._lines = _Lines()
        self._backlog = Backlog(MOST_WAITING, lost)
        self.ended = self._backlog.put
        self._stopping = threading.Event()
        self._failing = False
        self._rest = b""  # of a line that the disk took only in part
        self._looked = time.monotonic()
        self._file = self._open_first()
        self._thread = threading.Thread(target=self._run, name="access-log", daemon=True)

    def start(self) -> None:
        """Writes from now on."""
        self._thread.start()

    def stop(self, timeout: float) -> None:
        """Writes what waits, for at most `timeout` seconds."""
        self._stopping.set()
        self._thread.join(timeout)

    def _run(self) -> None:
        while not self._stopping.wait(WRITE_SECONDS):
            self._follow_rotation()
            self._write_waiting()
        self._write_waiting()

    def _write_waiting(self) -> None:
        batch = self._backlog.take()
        if batch or self._rest:
            lines = [line for ended in batch for line in self._lines.of(ended)]
            self._write("".join(lines).encode(), len(lines))

    def _write(self, data: bytes, lines: int) -> None:
        data = self._rest + data
        written = 0
        try:
            while written < len(data):
                written += os.write(self._file, data[written:])
        except OSError as error:
            self._failed(error, data, written, lines)
            return
        self._rest = b""
        if self._failing:
            self._failing = False
            log.info("access log %s is written again", self._path)

    def _failed(self, error: OSError, data: bytes, written: int, lines: int) -> None:
        """The rest of a line that was begun is kept, so that no half line stays; whole ones are lost."""
        unwritten = data[written:]
        begun = (written > 0 and data[written - 1 : written] != b"\n") or (not written and bool(self._rest))
        end = unwritten.index(b"\n") + 1 if begun else 0
        self._rest = unwritten[:end]
        self._lost(min(lines, unwritten[end:].count(b"\n")))
        if not self._failing:
            self._failing = True
            log.warning(
                "access log %s cannot be written: %s; lines are lost until it can", self._path, error.strerror
            )

    def _open_first(self) -> int:
        if self._path == STDOUT:
            return 1
        try:
            return self._open()
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
            raise ConfigError(
                f"--access-log {self._path}: {error.strerror}; name a file in a folder that is there"
            ) from error
        except OSError as error:
            raise EnvironmentUnfit(f"--access-log {self._path} cannot be opened: {error.strerror}") from error

    def _open(self) -> int:
        """The file at the path, ended with a whole line: a process that was killed may have left a half one."""
        # Without O_NONBLOCK a named pipe that nobody reads would hold up the start.
        file = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o640)
        found = os.fstat(file)
        if stat.S_ISREG(found.st_mode) and found.st_size and os.pread(file, 1, found.st_size - 1) != b"\n":
            self._rest = b"\n"
        return file

    def _follow_rotation(self) -> None:
        now = time.monotonic()
        if self._path == STDOUT or now - self._looked < LOOK_SECONDS:
            return
        self._looked = now
        mine = os.fstat(self._file)
        try:
            there = os.stat(self._path)  # noqa: PTH116 (once a second; a Path would be made each time)
            if (there.st_dev, there.st_ino) == (mine.st_dev, mine.st_ino):
                return
        except FileNotFoundError:
            pass
        except OSError:
            return  # a volume that is away: go on with the file that is open
        rest, self._rest = self._rest, b""
        try:
            fresh = self._open()
        except OSError as error:
            self._rest = rest
            if not self._failing:
                self._failing = True
                log.warning("access log %s cannot be opened again: %s", self._path, error.strerror)
            return
        os.close(self._file)
        self._file = fresh


class _Lines:
    """Figures to text. Strings are escaped once and kept: there are few of them, but one for each request."""

    def __init__(self) -> None:
        self._text = lru_cache(1024)(json.dumps)

    def of(self, ended: Ended) -> Iterator[str]:
        """The lines of requests that ended together."""
        text, run = self._text, ended.run
        at = time.time() - (time.monotonic() - ended.at)
        head = f'{{"time":"{datetime.fromtimestamp(at, UTC).isoformat(timespec="microseconds")[:-6]}Z"'
        version = ended.version or "null"
        what = f'"model":{text(ended.model[:LONGEST_NAME])},"version":{version},"signature":{text(ended.signature[:LONGEST_NAME])}'
        device = "null" if run is None else f"{(run.fetched - run.launched) * 1e3:.3f}"
        batch = f'"batch_rows":{run.rows if run else "null"},"bucket":{run.bucket if run else "null"}'
        for request in ended.requests:
            yield (
                f'{head},"protocol":{text(request.protocol)},"method":{text(request.method)},{what},'
                f'"rows":{request.rows or "null"},"status":"{ended.code.name}",{_times(request, ended.at)},'
                f'"device_ms":{device},{batch},"peer":{_or_null(request.peer)},'
                f'"trace_id":{_or_null(request.trace.trace_id)}}}\n'
            )


def _times(request: Request, at: float) -> str:
    queue = f"{(request.started - request.received) * 1e3:.3f}" if request.started else "null"
    return f'"total_ms":{(at - request.received) * 1e3:.3f},"queue_ms":{queue}'


def _or_null(text: str) -> str:
    return json.dumps(text) if text else "null"

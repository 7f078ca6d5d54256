"""Output whose reader may go away, as `| head -1` does and a log collector that is restarted."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO


class Lasting:
    """A stream that takes whatever is written: once nobody reads it any more, that goes nowhere.

    What writes goes on: an hour of work is not lost for the sake of its last line. All else is the stream's own.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """The number of characters, read or not."""
        try:
            return self._stream.write(text)
        except BrokenPipeError:
            self._to_nowhere()
            return len(text)

    def flush(self) -> None:
        """As of the stream."""
        try:
            self._stream.flush()
        except BrokenPipeError:
            self._to_nowhere()

    def _to_nowhere(self) -> None:
        """The descriptor itself, so that what is still held back does not fail again as the interpreter ends."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def lasting_output() -> Iterator[None]:
    """Within, standard output and standard error are Lasting."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = lasting = [Lasting(stream) for stream in before]
    try:
        yield
    finally:
        for stream in lasting:
            stream.flush()
        sys.stdout, sys.stderr = before

"""A reader that goes away: what shows something ends with it, what does something goes on."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from jaxport import cli
from jaxport.cli import COMMANDS, SHOWING, main


@contextmanager
def unread() -> Iterator[None]:
    """Within, standard output and standard error are pipes that nobody reads."""
    before, streams = (sys.stdout, sys.stderr), []
    for _ in before:
        reading, writing = os.pipe()
        os.close(reading)
        streams.append(os.fdopen(writing, "w"))
    sys.stdout, sys.stderr = streams
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
    for stream in streams:
        stream.close()  # what is held back goes nowhere, and does not fail


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_a_command_that_works_ends_as_its_work_does(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[int] = []

    def run(_: object) -> int:
        for number in range(3):
            print("x" * 100_000, flush=number == 1)
            print("and of an error", file=sys.stderr)
            done.append(number)
        return 3

    def load(*_: object) -> Any:
        return SimpleNamespace(add_flags=lambda _: None, run=run)

    monkeypatch.setattr(cli, "_load", load)
    with unread():
        code = main([command])
    if command in SHOWING:
        assert (code, done) == (0, [])
    else:
        assert (code, done) == (3, [0, 1, 2])

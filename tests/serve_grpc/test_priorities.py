"""Threads of a real server, by what they are for, in the order in which they get the cores."""

import sys
from pathlib import Path

import pytest

from serve_grpc.priorities import COMPILING, COMPUTING, COMPUTING_NICE, LOADING_NICE
from tests.server_process import ServerProcess, eventually

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a nice value for each thread")


def nice_values(pid: int) -> list[tuple[str, int]]:
    """(name, nice value) of each thread."""
    stats = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    return [
        (stat.partition("(")[2].rpartition(")")[0], int(stat.rpartition(")")[2].split()[16]))
        for stat in stats
    ]


def test_requests_go_before_runs_and_runs_before_loads(server: ServerProcess) -> None:
    main = int(Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()[16])
    loading = ("python", main + LOADING_NICE)
    eventually(lambda: loading in nice_values(server.pid), "the loading thread gave way")
    threads = nice_values(server.pid)
    assert {nice for name, nice in threads if name.startswith(COMPUTING)} == {main + COMPUTING_NICE}
    assert {nice for name, nice in threads if name.startswith(COMPILING)} == {main + LOADING_NICE}
    assert sum(nice == main for _, nice in threads) > 5, "all that receive and answer"

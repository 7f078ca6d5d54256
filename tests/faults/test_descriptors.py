"""A process that runs out of file descriptors, or has very many."""

import os
import resource
import shutil
import socket
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from serve_grpc.connections import has_gone
from tests.server_process import ServerProcess


@pytest.mark.skipif(shutil.which("prlimit") is None, reason="needs prlimit")
def test_without_a_descriptor_left_it_neither_spins_nor_keeps_a_probe_waiting(
    one_model: Path, cache: Path
) -> None:
    prefix = ("prlimit", "--nofile=200:200")
    with ServerProcess(one_model, "--cache-dir", str(cache), prefix=prefix) as server, ExitStack() as stack:
        server.ready()
        assert server.line("open files are limited to 200")
        host, _, port = server.http.rpartition(":")
        for _ in range(220):
            stack.enter_context(socket.create_connection((host, int(port)), timeout=5))
        before = cpu_seconds(server.pid)
        time.sleep(1)
        assert cpu_seconds(server.pid) - before < 0.25
        assert server.get("/healthz") == (200, "alive\n")


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_a_caller_with_a_high_descriptor_is_not_taken_for_gone() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 1200:
        pytest.skip("needs 1200 descriptors")
    if soft != resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1200), hard))
    here, there = socket.socketpair()
    with here, there, socket.socket(fileno=os.dup2(here.fileno(), 1100)) as high:
        assert not has_gone(high)
        there.close()
        assert has_gone(high)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

"""A server that cannot stop, or has lost a thread, ends itself with 4: whoever watches over it can start another."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.server_process import ROOT

# `jaxport serve` with a part of it broken, as a fault of ours would.
BREAK = """
import sys, threading, time
from jaxport.cli import main
{broken}
sys.exit(main(["serve", *sys.argv[1:]]))
"""
HANGS = """
from serve_grpc.scheduler import Scheduler
Scheduler.stop = lambda self: time.sleep(600)
"""
ACCEPTING_BREAKS = """
import asyncio
from serve_grpc.transport import aio_server
async def take(self):
    await asyncio.sleep(1)
    raise RuntimeError("a fault in the transport")
aio_server._Core._request_call = take
"""
EXECUTOR_DIES = """
from serve_grpc.scheduler import Scheduler
def take(self, wait=True):
    time.sleep(1)
    raise RuntimeError("a fault in the scheduler")
Scheduler.take = take
"""
ROUTER_DIES = """
from serve_grpc.router import Router
def handle(self, calls, heads):
    raise RuntimeError("a fault in the router")
Router._handle = handle
"""


def served(broken: str, models: Path, cache: Path, *flags: str) -> subprocess.Popen[str]:
    command = [
        sys.executable,
        "-c",
        BREAK.format(broken=broken),
        "--models",
        str(models),
        "--cache-dir",
        str(cache),
    ]
    return subprocess.Popen(
        [*command, "--grpc-port", "0", "--http-port", "0", "--drain-delay", "0", *flags],
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )


def until_line(process: subprocess.Popen[str], text: str) -> str:
    assert process.stderr is not None
    for line in process.stderr:
        if text in line:
            return line
    raise AssertionError(f"ended without {text!r}")


def test_a_server_that_does_not_stop_ends_with_4_and_says_where_it_was(one_model: Path, cache: Path) -> None:
    with served(HANGS, one_model, cache, "--grace-seconds", "2") as process:
        until_line(process, "ready ")
        process.send_signal(signal.SIGTERM)
        started = time.monotonic()
        _, said = process.communicate(timeout=20)
    assert process.returncode == 4
    assert time.monotonic() - started > 1.5
    assert "not stopped within --grace-seconds 2" in said
    assert "most recent call first" in said
    assert "in stop" in said, "the thread that hangs is among those shown"
    assert said.count("Thread 0x") > 3


@pytest.mark.parametrize(
    "broken, thread", [(EXECUTOR_DIES, "executor"), (ROUTER_DIES, "router"), (ACCEPTING_BREAKS, "grpcio")]
)
def test_a_thread_that_dies_ends_the_server_with_4(
    one_model: Path, cache: Path, broken: str, thread: str
) -> None:
    with served(broken, one_model, cache) as process:
        address = (
            until_line(process, "ready " if thread == "router" else "listening ").split("grpc=")[1].split()[0]
        )
        if thread == "router":
            ask(address)
        _, said = process.communicate(timeout=20)
    assert process.returncode == 4
    assert f"thread={thread} died" in said
    part = {"executor": "scheduler", "grpcio": "transport"}.get(thread, thread)
    assert f"RuntimeError: a fault in the {part}" in said


def ask(address: str) -> None:
    import grpc

    from tests.server_process import connect, predict_call, request

    with connect(address) as channel, pytest.raises(grpc.RpcError):
        predict_call(channel)(request("mlp", {}), timeout=10)

"""Clients at work while a test does something to others."""

import collections
import contextlib
import threading
import time
from collections.abc import Iterator

import grpc
import numpy as np

from tests.server_process import predict_call, request

ROW = request("echo", {"x": np.ones((1, 2), np.float32)})


class Worker(threading.Thread):
    """One client that asks again and again, `pause` seconds after each answer; its outcomes are counted by status."""

    def __init__(self, channel: grpc.Channel, pause: float) -> None:
        super().__init__(daemon=True)
        self.outcomes: collections.Counter[str] = collections.Counter()
        self.slowest = 0.0
        self._call = predict_call(channel)
        self._pause = pause
        self._ending = threading.Event()

    def run(self) -> None:
        while not self._ending.wait(self._pause):
            begun = time.monotonic()
            try:
                self._call(ROW, timeout=10)
                self.outcomes["OK"] += 1
            except grpc.RpcError as error:
                assert isinstance(error, grpc.Call)
                self.outcomes[f"{error.code().name}: {error.details()}"] += 1
            self.slowest = max(self.slowest, time.monotonic() - begun)

    def stop(self) -> None:
        self._ending.set()
        self.join()

    @property
    def failed(self) -> dict[str, int]:
        return {outcome: count for outcome, count in self.outcomes.items() if outcome != "OK"}


@contextlib.contextmanager
def working(*channels: grpc.Channel, pause: float = 0.002) -> Iterator[list[Worker]]:
    """A client for each channel, at work until the end of the block."""
    workers = [Worker(channel, pause) for channel in channels]
    for worker in workers:
        worker.start()
    try:
        yield workers
    finally:
        for worker in workers:
            worker.stop()

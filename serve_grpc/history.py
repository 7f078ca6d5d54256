"""How busy the server was in the last minutes: a sample each second, taken by a thread, whoever looks or not."""

import threading
import time
from collections import deque
from typing import NamedTuple

from serve_grpc.metrics import Metrics

SAMPLE_SECONDS = 1.0
KEPT = 300


class Sample(NamedTuple):
    """Of one interval. answered, refused: requests a second, with status OK and with another. waiting: rows queued."""

    answered: float
    refused: float
    waiting: int


class History:
    """Of one server's metrics."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._samples: deque[Sample] = deque(maxlen=KEPT)
        self._before = (time.monotonic(), 0, 0)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="history", daemon=True)

    def start(self) -> None:
        """Samples from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread."""
        self._stopping.set()
        self._thread.join()

    def samples(self) -> tuple[Sample, ...]:
        """The newest last; at most KEPT, SAMPLE_SECONDS apart."""
        return tuple(self._samples.copy())

    def sample(self) -> None:
        """Adds what happened since the last one."""
        now, answered, refused = time.monotonic(), 0, 0
        for labels, counts in self._metrics.request_seconds.read():
            if labels["status"] == "OK":
                answered += counts.observations
            else:
                refused += counts.observations
        then, answered_before, refused_before = self._before
        self._before = (now, answered, refused)
        seconds = max(now - then, 1e-9)
        waiting = sum(value for _, value in self._metrics.waiting())
        self._samples.append(
            Sample((answered - answered_before) / seconds, (refused - refused_before) / seconds, waiting)
        )

    def _run(self) -> None:
        while not self._stopping.wait(SAMPLE_SECONDS):
            self.sample()

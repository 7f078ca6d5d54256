"""What threads that answer leave for a thread that writes: bounded, and nobody is woken or waits."""

import threading
from collections import deque
from collections.abc import Callable

from serve_grpc.ended import Ended


class Backlog:
    """most: requests that it holds. lost: told how many did not fit."""

    def __init__(self, most: int, lost: Callable[[int], None]) -> None:
        self._most = most
        self._lost = lost
        self._waiting: deque[Ended] = deque()
        self._count = 0
        self._lock = threading.Lock()

    def put(self, ended: Ended) -> None:
        """Takes requests that ended together, or loses them. Any thread."""
        count = len(ended.requests)
        with self._lock:
            fits = self._count + count <= self._most
            if fits:
                self._waiting.append(ended)
                self._count += count
        if not fits:
            self._lost(count)

    def take(self) -> deque[Ended]:
        """Everything that waits, in order."""
        with self._lock:
            taken, self._waiting, self._count = self._waiting, deque(), 0
        return taken

"""python -m tests.images.load ADDRESS MODEL: asks for predictions until standard input ends, then says how it went.

A process of its own, so that nothing of a test delays it: {"answered": N, "failed": [...], "slowest_seconds": S}.
"""

import json
import sys
import threading
import time

import numpy as np

from jaxport import Client, ServerError

THREADS = 4
# Of each thread: 20 requests a second in all leave two cores enough to start servers.
PAUSE_SECONDS = 0.2
ROW = {"tokens": np.zeros((1, 256), np.int32)}


class Outcome:
    """Counted by every thread."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self.seconds: list[float] = []
        self.failed: list[str] = []

    def ask(self, client: Client, model: str) -> None:
        while not self.over.wait(PAUSE_SECONDS):
            begun = time.monotonic()
            try:
                client.predict(model, ROW)
                self.seconds.append(time.monotonic() - begun)
            except ServerError as error:
                self.failed.append(f"{error} after {time.monotonic() - begun:.1f} s")


def main() -> None:
    address, model = sys.argv[1:]
    outcome = Outcome()
    with Client(address) as client:
        threads = [threading.Thread(target=outcome.ask, args=(client, model)) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        sys.stdin.read()
        outcome.over.set()
        for thread in threads:
            thread.join()
    slowest = max(outcome.seconds, default=0.0)
    print(
        json.dumps({"answered": len(outcome.seconds), "failed": outcome.failed, "slowest_seconds": slowest})
    )


if __name__ == "__main__":
    main()

"""What every server here shares: the exported program behind jax.jit, padded to buckets, and the command line.

A server is run by its own venv's Python with this folder first on the path: SERVER.py PROGRAM_DIR PORT [key=value ...].
It listens on 127.0.0.1:PORT, one worker for the one device, and prints READY when it can be asked. Needs jax and numpy only.
"""

import json
import socket
import sys
import threading
import time
from pathlib import Path

import jax
import jax.export
import numpy as np

BUCKETS = (1, 2, 4, 8, 16, 32, 64)


class Program:
    """Runs rows on the device. One input, one output; the batch is padded to the next bucket with zeros."""

    def __init__(self, folder: Path, max_batch: int = BUCKETS[-1]) -> None:
        """Loads and compiles every bucket up to `max_batch` rows, so that no request waits for a compile."""
        # A tiny run is twice as fast on the calling thread: the same setting for everyone.
        jax.config.update("jax_cpu_enable_async_dispatch", False)
        spec = json.loads((folder / "program.json").read_text())
        self.input, self.output = spec["input"]["name"], spec["output"]["name"]
        self.dtype, self.row = np.dtype(spec["input"]["dtype"]), tuple(spec["input"]["row"])
        self.out_dtype, self.out_row = np.dtype(spec["output"]["dtype"]), tuple(spec["output"]["row"])
        with np.load(folder / "weights.npz") as stored:
            self._weights = jax.device_put({name: stored[name] for name in stored.files})
        self._call = jax.jit(jax.export.deserialize((folder / "program.jaxexport").read_bytes()).call)
        self.buckets = tuple(bucket for bucket in BUCKETS if bucket <= max_batch)
        for bucket in self.buckets:
            self.run(np.zeros((bucket, *self.row), self.dtype))

    def run(self, rows: np.ndarray) -> np.ndarray:
        """[n, *row] -> [n, *out_row]; n is at most the largest bucket."""
        count = len(rows)
        bucket = next(bucket for bucket in self.buckets if bucket >= count)
        if bucket != count:
            padded = np.zeros((bucket, *self.row), self.dtype)
            padded[:count] = rows
            rows = padded
        return np.asarray(self._call(self._weights, {self.input: rows})[self.output])[:count]

    def run_bytes(self, requests: list[bytes]) -> list[bytes]:
        """The same from and to raw row-major bytes, one row a request."""
        rows = np.frombuffer(b"".join(requests), self.dtype).reshape(len(requests), *self.row)
        return [row.tobytes() for row in self.run(rows)]


def arguments(**defaults: float) -> tuple[Path, int, dict[str, float]]:
    """(program folder, port, settings) of the command line; a setting that is not in `defaults` ends the process.

    What was read is taken off sys.argv: some servers parse it too.
    """
    folder, port, *pairs = sys.argv[1:]
    settings = dict(defaults)
    for pair in pairs:
        key, _, value = pair.partition("=")
        if key not in defaults:
            raise SystemExit(
                f"{key} is not a setting of {sys.argv[0]}; it has: {', '.join(defaults) or 'none'}"
            )
        settings[key] = type(defaults[key])(value)
    del sys.argv[1:]
    return Path(folder), int(port), settings


def announce(port: int) -> None:
    """Prints READY, from a thread, once something listens on the port."""
    threading.Thread(target=_announce, args=(port,), daemon=True).start()


def _announce(port: int) -> None:
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.05)
        else:
            print("READY", flush=True)
            return

"""mosec: its HTTP front in Rust, one worker process with dynamic batching; raw bytes in and out."""

import os
from pathlib import Path

from mosec import Server, Worker
from program import Program, announce, arguments

# Worker processes import this module again, without its command line.
PROGRAM, BATCH = "JAXPORT_PEERS_PROGRAM", "JAXPORT_PEERS_BATCH"


class Inference(Worker):
    def __init__(self) -> None:
        super().__init__()
        self.program = Program(Path(os.environ[PROGRAM]), int(os.environ[BATCH]))

    def deserialize(self, data: bytes) -> bytes:
        return data

    def serialize(self, data: bytes) -> bytes:
        return data

    def forward(self, data):
        if self.max_batch_size == 1:
            return self.program.run_bytes([data])[0]
        return self.program.run_bytes(data)


def main() -> None:
    folder, port, settings = arguments(max_batch=64, wait_ms=1)
    os.environ.update({PROGRAM: str(folder), BATCH: str(settings["max_batch"])})
    os.environ.update(
        MOSEC_PORT=str(port), MOSEC_ADDRESS="127.0.0.1", MOSEC_TIMEOUT="60000", MOSEC_LOG_LEVEL="warning"
    )
    announce(port)
    server = Server()
    server.append_worker(
        Inference,
        num=1,
        max_batch_size=settings["max_batch"],
        max_wait_time=settings["wait_ms"],
        route="/predict",
    )
    server.run()


if __name__ == "__main__":
    main()

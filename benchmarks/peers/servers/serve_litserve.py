"""LitServe with batching, one worker; the request's raw bytes as a body parameter, a raw response back."""

from pathlib import Path
from typing import Annotated

import litserve
from fastapi import Body, Response
from program import Program, announce, arguments

Raw = Annotated[bytes, Body(media_type="application/octet-stream")]


class Api(litserve.LitAPI):
    def __init__(self, folder: Path, **options) -> None:
        super().__init__(**options)
        self.folder = folder

    def setup(self, device) -> None:
        self.program = Program(self.folder, self.max_batch_size)

    def decode_request(self, request: Raw) -> bytes:
        return request

    def batch(self, inputs: list[bytes]) -> list[bytes]:
        return inputs

    def predict(self, batch):
        if self.max_batch_size == 1:
            return self.program.run_bytes([batch])[0]
        return self.program.run_bytes(batch)

    def unbatch(self, output: list[bytes]) -> list[bytes]:
        return output

    def encode_response(self, output: bytes) -> Response:
        return Response(output, media_type="application/octet-stream")


def main() -> None:
    folder, port, settings = arguments(max_batch=64, wait_ms=0.0, fast_queue=1)
    api = Api(folder, max_batch_size=settings["max_batch"], batch_timeout=settings["wait_ms"] / 1000)
    server = litserve.LitServer(
        api,
        accelerator="cpu",
        devices=1,
        workers_per_device=1,
        timeout=60,
        fast_queue=bool(settings["fast_queue"]),
    )
    announce(port)
    server.run(
        host="127.0.0.1",
        port=port,
        num_api_servers=1,
        log_level="warning",
        generate_client_file=False,
        access_log=False,
    )


if __name__ == "__main__":
    main()

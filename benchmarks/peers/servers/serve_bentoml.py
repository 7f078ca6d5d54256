"""BentoML with adaptive batching, one worker; raw bytes in and out by input and output specs of our own."""

import os
from pathlib import Path

import bentoml
import numpy as np
from program import Program, announce, arguments
from starlette.responses import Response

PROGRAM, BATCH, LATENCY = "JAXPORT_PEERS_PROGRAM", "JAXPORT_PEERS_BATCH", "JAXPORT_PEERS_LATENCY"


def main() -> None:
    folder, port, settings = arguments(max_batch=64, latency_ms=100)
    os.environ.update(
        {PROGRAM: str(folder), BATCH: str(settings["max_batch"]), LATENCY: str(settings["latency_ms"])}
    )
    announce(port)
    bentoml.serve(
        "serve_bentoml:Inference",
        working_dir=str(Path(__file__).parent),
        host="127.0.0.1",
        port=port,
        api_workers=1,
        blocking=True,
    )


if __name__ == "__main__":
    main()
else:
    program = Program(Path(os.environ[PROGRAM]), int(os.environ[BATCH]))

    class Rows(bentoml.IODescriptor):
        """A body of raw bytes: one row."""

        rows: np.ndarray

        @classmethod
        async def from_http_request(cls, request, serde):
            body = await request.body()
            return cls.model_construct(rows=np.frombuffer(body, program.dtype).reshape(1, *program.row))

    class Answer(bentoml.IODescriptor):
        rows: np.ndarray

        @classmethod
        async def to_http_response(cls, value, serde):
            return Response(value.tobytes(), media_type="application/octet-stream")

    @bentoml.service(
        workers=1, threads=1, metrics={"enabled": False}, traffic={"timeout": 60, "max_concurrency": 1024}
    )
    class Inference:
        @bentoml.api(
            route="/predict",
            batchable=True,
            batch_dim=0,
            max_batch_size=int(os.environ[BATCH]),
            max_latency_ms=int(os.environ[LATENCY]),
            input_spec=Rows,
            output_spec=Answer,
        )
        def predict(self, rows: np.ndarray) -> np.ndarray:
            return program.run(rows)

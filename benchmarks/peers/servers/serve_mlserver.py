"""MLServer with adaptive batching, the model in the server's own process; gRPC, raw contents."""

import asyncio

from mlserver import MLModel, MLServer, ModelSettings
from mlserver.codecs import NumpyCodec
from mlserver.settings import Settings
from mlserver.types import InferenceRequest, InferenceResponse
from program import Program, arguments


class Inference(MLModel):
    async def load(self) -> bool:
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        rows = NumpyCodec.decode_input(payload.inputs[0])
        answer = NumpyCodec.encode_output(program.output, program.run(rows))
        return InferenceResponse(model_name=self.name, outputs=[answer])


folder, port, options = arguments(max_batch=64, wait_ms=1.0, http_port=0, metrics_port=0)
program = Program(folder, max(options["max_batch"], 1))
settings = Settings(
    host="127.0.0.1",
    grpc_port=port,
    http_port=options["http_port"],
    metrics_endpoint=None,
    parallel_workers=0,
    debug=False,
    load_models_at_startup=False,
)
model = ModelSettings(
    name="bench",
    implementation=Inference,
    max_batch_size=options["max_batch"],
    max_batch_time=options["wait_ms"] / 1000,
)


async def main() -> None:
    server = MLServer(settings)
    serving = asyncio.create_task(server.start([model]))
    print("READY", flush=True)
    await serving


asyncio.run(main())

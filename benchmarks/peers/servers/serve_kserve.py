"""KServe's Python server, a plain predictor over gRPC (its batcher is an agent of the cluster, not of this package)."""

import sys

import grpc
from kserve import InferOutput, InferRequest, InferResponse, Model, ModelServer
from program import Program, announce, arguments

folder, port, options = arguments(http_port=0)

program = Program(folder, max_batch=1)
bind = grpc.aio._server.Server.add_insecure_port


class Inference(Model):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.ready = True

    async def predict(self, payload: InferRequest, headers=None, response_headers=None) -> InferResponse:
        answer = InferOutput(program.output, [1, *program.out_row], "FP32")
        answer.set_data_from_numpy(program.run(payload.inputs[0].as_numpy()), binary_data=True)
        return InferResponse(payload.id, self.name, [answer])


# It would listen on every address.
grpc.aio._server.Server.add_insecure_port = lambda self, _: bind(self, f"127.0.0.1:{port}")
announce(port)
ModelServer(http_port=options["http_port"], grpc_port=port, workers=1, enable_latency_logging=False).start(
    [Inference("bench")]
)
sys.exit(0)

"""How each candidate is asked: the bytes of one request, and the array in the bytes of its reply."""

import http.client
import struct
from abc import ABC, abstractmethod
from dataclasses import dataclass

import grpc
import numpy as np

from benchmarks.peers.programs import Served
from jaxport.tensors import array_to_tensor, tensor_to_array
from jaxport.wire import open_inference_pb2 as open_wire
from jaxport.wire import prediction_pb2 as jaxport_wire

SECONDS = 60.0
MAX_MESSAGE = 64 << 20
# The Open Inference Protocol's names of the two dtypes that the models have.
OPEN_NAMES = {"float32": "FP32", "int32": "INT32"}


class WrongReply(Exception):
    """A server answered, but not with what the program gives."""


@dataclass(frozen=True)
class Wire(ABC):
    """path: of the URL, or /service/Method. grpc: h2c with length-prefixed messages; else HTTP/1.1."""

    title: str
    path: str
    grpc: bool

    @abstractmethod
    def request(self, model: Served) -> bytes:
        """The message, or the body, that asks for `model.row`."""

    @abstractmethod
    def reply(self, model: Served, data: bytes) -> np.ndarray:
        """The array [1, ...] in a reply. Raises WrongReply, or what the bytes make their decoder raise."""

    def body(self, model: Served) -> bytes:
        """What the load generator posts."""
        message = self.request(model)
        return struct.pack(">BI", 0, len(message)) + message if self.grpc else message

    def headers(self) -> tuple[str, ...]:
        if self.grpc:
            return ("content-type: application/grpc", "te: trailers")
        return ("content-type: application/octet-stream",)

    def check(self, model: Served, port: int) -> int:
        """Asks once, compares every value, and returns the size of the reply's message or body in bytes.

        Raises WrongReply, OSError, http.client.HTTPException, grpc.RpcError.
        """
        request = self.request(model)
        data = (_ask_grpc if self.grpc else _ask_http)(self, port, request)
        got = self.reply(model, data)
        if got.shape != model.expected.shape:
            raise WrongReply(f"shape {got.shape}, expected {model.expected.shape}")
        # A bucket's executable may order its sums differently.
        if not np.allclose(got, model.expected, rtol=1e-3, atol=1e-4):
            raise WrongReply(f"values differ by up to {np.abs(got - model.expected).max():g}")
        return len(data)


class Raw(Wire):
    """Row-major bytes, nothing else."""

    def request(self, model: Served) -> bytes:
        return model.row.tobytes()

    def reply(self, model: Served, data: bytes) -> np.ndarray:
        return np.frombuffer(data, model.expected.dtype).reshape(model.expected.shape)


class Jaxport(Wire):
    """jaxport.v1 Predict."""

    def request(self, model: Served) -> bytes:
        tensor = array_to_tensor(model.input, model.row)
        return jaxport_wire.PredictRequest(model=model.name, inputs=[tensor]).SerializeToString()

    def reply(self, model: Served, data: bytes) -> np.ndarray:  # noqa: ARG002
        (tensor,) = jaxport_wire.PredictResponse.FromString(data).outputs
        return tensor_to_array(tensor)


@dataclass(frozen=True)
class OpenInference(Wire):
    """ModelInfer of the Open Inference Protocol, raw contents; input: what the server calls the model's input."""

    input: str = "rows"

    def request(self, model: Served) -> bytes:
        dtype = OPEN_NAMES[model.row.dtype.name]
        tensor = open_wire.ModelInferRequest.InputTensor(
            name=self.input, datatype=dtype, shape=model.row.shape
        )
        return open_wire.ModelInferRequest(
            model_name="bench", inputs=[tensor], raw_input_contents=[model.row.tobytes()]
        ).SerializeToString()

    def reply(self, model: Served, data: bytes) -> np.ndarray:
        reply = open_wire.ModelInferResponse.FromString(data)
        if not reply.raw_output_contents:
            raise WrongReply("the reply has no raw contents")
        values = np.frombuffer(reply.raw_output_contents[0], model.expected.dtype)
        return values.reshape(tuple(reply.outputs[0].shape))


RAW_HTTP = Raw("HTTP/1.1, raw bytes", "/predict", grpc=False)
RAW_GRPC = Raw("gRPC, raw bytes", "/bench.Raw/Predict", grpc=True)
JAXPORT_GRPC = Jaxport("gRPC, jaxport.v1", "/jaxport.v1.PredictionService/Predict", grpc=True)
OPEN_GRPC = OpenInference("gRPC, Open Inference", "/inference.GRPCInferenceService/ModelInfer", grpc=True)


def _ask_http(wire: Wire, port: int, request: bytes) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)
    try:
        headers = dict(header.split(": ", 1) for header in wire.headers())
        connection.request("POST", wire.path, request, headers)
        reply = connection.getresponse()
        data = reply.read()
    finally:
        connection.close()
    if reply.status != 200:
        raise WrongReply(f"HTTP {reply.status}: {data[:200]!r}")
    return data


def _ask_grpc(wire: Wire, port: int, request: bytes) -> bytes:
    options = [("grpc.max_receive_message_length", MAX_MESSAGE)]
    with grpc.insecure_channel(f"127.0.0.1:{port}", options) as channel:
        return channel.unary_unary(wire.path)(request, timeout=SECONDS)

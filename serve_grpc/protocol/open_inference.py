"""The Open Inference Protocol with Triton's additions: what tritonclient and perf_analyzer speak.

Messages: proto/jaxport/oip/inference.proto. What is spoken and what is refused: docs/protocols.md.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial

from google.protobuf.message import DecodeError

from converters.manifest import TensorInfo
from jaxport.wire import open_inference_pb2 as pb
from serve_grpc.catalog import Catalog
from serve_grpc.errors import InvalidRequest, NotOffered
from serve_grpc.metrics import Metrics
from serve_grpc.protocol import Frame, GivenTensor, Inference, Method, row_major_bytes
from serve_grpc.protocol.messages import delimited, parsed
from serve_grpc.protocol.open_inference_models import Models, version_of
from serve_grpc.protocol.open_inference_parameters import asked, refuse_tensor_options
from serve_grpc.protocol.open_inference_types import DATATYPES, dtype_of, typed_contents
from serve_grpc.transport import Refusal, Status

SERVICE = "inference.GRPCInferenceService"
CARRIED = frozenset(DATATYPES)
MOST_PIECES = 1024
NOT_OFFERED = {
    "RepositoryModelLoad": "the models folder decides what is loaded: publish a version there",
    "RepositoryModelUnload": "the models folder decides what is loaded: remove the version there",
    "TraceSetting": "traces are set when the server starts, by its flags",
    "LogSettings": "the log is set when the server starts, by its flags",
    **dict.fromkeys(
        (
            f"{kind}SharedMemory{what}"
            for kind in ("System", "Cuda")
            for what in ("Status", "Register", "Unregister")
        ),
        "this server reads no shared memory: send raw_input_contents",
    ),
}
# Fields of a message may stand in any order, so that these bytes can be put before the others.
FINAL = pb.ModelInferResponse(
    parameters={"triton_final_response": pb.InferParameter(bool_param=True)}
).SerializeToString()


class OpenInference:
    """ready: whether the server as a whole is. metrics: where the statistics of a version are read."""

    name = "open_inference"

    def __init__(self, ready: Callable[[], bool], metrics: Metrics) -> None:
        models = Models(ready, metrics)
        methods: dict[str, Method] = {"ModelInfer": infer}
        methods |= {name: partial(_refuse_call, name, reason) for name, reason in NOT_OFFERED.items()}
        methods |= models.methods
        self.methods: Mapping[str, Method] = {f"/{SERVICE}/{name}": call for name, call in methods.items()}
        self.streams: Mapping[str, tuple[Method, Refusal]] = {
            f"/{SERVICE}/ModelStreamInfer": (infer_in_stream, refused_in_stream)
        }


def infer(payload: bytes, _: Catalog) -> Inference:
    """ModelInfer. Raises InvalidRequest, and NotOffered for options that this server does not have."""
    request = parsed(pb.ModelInferRequest.FromString, payload, "inference.ModelInferRequest")
    return _inference(request, partial(frame, request.id))


def infer_in_stream(payload: bytes, _: Catalog) -> Inference:
    """One message of ModelStreamInfer; raises what `infer` does."""
    request = parsed(pb.ModelInferRequest.FromString, payload, "inference.ModelInferRequest")
    return _inference(request, partial(frame_in_stream, request.id))


def frame(
    id: str, model: str, version: int, outputs: Sequence[TensorInfo], shapes: Sequence[tuple[int, ...]]
) -> Sequence[bytes]:
    """A ModelInferResponse around its raw contents."""
    pieces = _pieces(model, version, tuple(outputs), tuple(shapes))
    return (_id(id) + pieces[0], *pieces[1:]) if id else pieces


def frame_in_stream(
    id: str, model: str, version: int, outputs: Sequence[TensorInfo], shapes: Sequence[tuple[int, ...]]
) -> Sequence[bytes]:
    """A ModelStreamInferResponse. Every response is the only one of its request, and says so."""
    first, *others = frame(id, model, version, outputs, shapes)
    first = FINAL + first
    size = len(first) + sum(map(len, others)) + sum(map(_size, outputs, shapes))
    return (delimited(pb.ModelStreamInferResponse.INFER_RESPONSE_FIELD_NUMBER, size) + first, *others)


def refused_in_stream(payload: bytes, status: Status) -> bytes:
    """A refusal as a message of the stream, which stays open; it carries the id of its request."""
    response = pb.ModelStreamInferResponse(error_message=status.message or status.code.name)
    try:
        response.infer_response.id = pb.ModelInferRequest.FromString(payload).id
    except DecodeError:
        response.infer_response.SetInParent()
    return response.SerializeToString()


def _inference(request: pb.ModelInferRequest, frame: Frame) -> Inference:
    version, label = version_of(request.model_version)
    options = asked(request.parameters)
    outputs = request.outputs
    for output in outputs:
        if output.parameters:
            refuse_tensor_options(f"output {output.name!r}", output.parameters)
    return Inference(
        request.model_name,
        version,
        options.signature,
        _raw(request) if request.raw_input_contents else _typed(request),
        tuple([output.name for output in outputs]),
        label=label,
        priority=options.priority,
        timeout=options.timeout,
        dtypes=CARRIED,
        frame=frame,
    )


def _raw(request: pb.ModelInferRequest) -> list[GivenTensor]:
    inputs, contents = request.inputs, request.raw_input_contents
    if len(inputs) != len(contents):
        _refuse_options(request)
        raise InvalidRequest(
            f"{len(contents)} raw_input_contents came for {len(inputs)} inputs; needed: one for each, in order"
        )
    given = []
    for tensor, data in zip(inputs, contents, strict=True):
        if tensor.parameters:
            refuse_tensor_options(f"input {tensor.name!r}", tensor.parameters)
        if tensor.HasField("contents"):
            raise InvalidRequest(
                f"input {tensor.name!r} has contents and the request has raw_input_contents; needed: one of them"
            )
        given.append(GivenTensor(tensor.name, dtype_of(tensor), tuple(tensor.shape), data))
    return given


def _typed(request: pb.ModelInferRequest) -> list[GivenTensor]:
    _refuse_options(request)
    given = []
    for tensor in request.inputs:
        dtype = dtype_of(tensor)
        if not tensor.HasField("contents"):
            raise InvalidRequest(f"input {tensor.name!r} has no data; needed: raw_input_contents or contents")
        given.append(GivenTensor(tensor.name, dtype, tuple(tensor.shape), typed_contents(tensor)))
    return given


def _refuse_options(request: pb.ModelInferRequest) -> None:
    for tensor in request.inputs:
        refuse_tensor_options(f"input {tensor.name!r}", tensor.parameters)


@lru_cache(MOST_PIECES)
def _pieces(
    model: str, version: int, outputs: tuple[TensorInfo, ...], shapes: tuple[tuple[int, ...], ...]
) -> tuple[bytes, ...]:
    """What a response has around its raw contents, but for the id: the same for many requests."""
    response = pb.ModelInferResponse(model_name=model, model_version=str(version))
    for output, shape in zip(outputs, shapes, strict=True):
        response.outputs.add(name=output.name, datatype=DATATYPES[output.dtype], shape=shape)
    raw = pb.ModelInferResponse.RAW_OUTPUT_CONTENTS_FIELD_NUMBER
    first, *others = (delimited(raw, size) for size in map(_size, outputs, shapes))
    return (response.SerializeToString() + first, *others, b"")


def _id(id: str) -> bytes:
    data = id.encode()
    return delimited(pb.ModelInferResponse.ID_FIELD_NUMBER, len(data)) + data


def _size(output: TensorInfo, shape: Sequence[int]) -> int:
    return row_major_bytes(output.dtype, shape)


def _refuse_call(name: str, reason: str, _: bytes, __: Catalog) -> bytes:
    raise NotOffered(f"{name} is not offered: {reason}")

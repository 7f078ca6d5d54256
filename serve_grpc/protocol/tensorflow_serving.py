"""TensorFlow Serving's PredictionService and ModelService, as their gRPC clients speak them.

Messages: proto/jaxport/tfs/serving.proto. What is spoken and what is refused: docs/protocols.md.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache, partial

import numpy as np

from converters.manifest import TensorInfo
from jaxport.wire import tensorflow_serving_pb2 as pb
from serve_grpc.catalog import DRAINING, FAILED, LOADING, SERVING, Catalog, SignatureInfo, VersionInfo
from serve_grpc.errors import InvalidRequest, NotFound, NotLoaded, NotOffered
from serve_grpc.protocol import GivenTensor, Inference, Method, row_major_bytes
from serve_grpc.protocol.messages import delimited, parsed
from serve_grpc.protocol.tensor_proto import CARRIED, frame_tensor, given, type_of, write
from serve_grpc.serving import DEFAULT_SIGNATURE
from serve_grpc.transport import Refusal

PREDICTION, MODEL = "tensorflow.serving.PredictionService", "tensorflow.serving.ModelService"
# What TensorFlow calls the signature of requests that name none.
SERVING_DEFAULT = "serving_default"
PREDICT_METHOD = "tensorflow/serving/predict"
# Clients look for this very name; the bytes in it are those of our own message of the same fields.
SIGNATURE_DEF_MAP = "type.googleapis.com/tensorflow.serving.SignatureDefMap"
FAILED_PRECONDITION = 9
MOST_PIECES = 1024
STATES = {
    LOADING: pb.ModelVersionStatus.LOADING,
    SERVING: pb.ModelVersionStatus.AVAILABLE,
    DRAINING: pb.ModelVersionStatus.UNLOADING,
    FAILED: pb.ModelVersionStatus.END,
}
OF_EXAMPLES = "it takes tf.Example, which a JAX program does not; use Predict"
NOT_OFFERED = {
    f"/{PREDICTION}/Classify": OF_EXAMPLES,
    f"/{PREDICTION}/Regress": OF_EXAMPLES,
    f"/{PREDICTION}/MultiInference": OF_EXAMPLES,
    f"/{MODEL}/HandleReloadConfigRequest": "the models folder, with its policy and label files, decides what is loaded",
}


class TensorflowServing:
    """max_message_bytes: how large an input may grow when one value fills it."""

    name = "tensorflow_serving"

    def __init__(self, max_message_bytes: int) -> None:
        methods: dict[str, Method] = {
            f"/{PREDICTION}/Predict": partial(predict, max_message_bytes),
            f"/{PREDICTION}/GetModelMetadata": get_model_metadata,
            f"/{MODEL}/GetModelStatus": get_model_status,
        }
        methods |= {path: partial(_refuse_call, path, reason) for path, reason in NOT_OFFERED.items()}
        self.methods: Mapping[str, Method] = methods
        self.streams: Mapping[str, tuple[Method, Refusal]] = {}


def predict(max_message_bytes: int, payload: bytes, _: Catalog) -> Inference:
    """Raises InvalidRequest, and NotFound for a version that none can have."""
    request = parsed(pb.PredictRequest.FromString, payload, "tensorflow.serving.PredictRequest")
    spec = request.model_spec
    version, label = _version(spec)
    signature = spec.signature_name
    return Inference(
        spec.name,
        version,
        "" if signature == SERVING_DEFAULT else signature,
        _inputs(request, max_message_bytes),
        tuple(request.output_filter),
        partial(encode, signature or SERVING_DEFAULT),
        label,
        dtypes=CARRIED,
        frame=partial(frame, signature or SERVING_DEFAULT),
    )


def _inputs(request: pb.PredictRequest, max_bytes: int) -> list[GivenTensor]:
    """max_bytes: of all inputs together, else a few values that are repeated could fill the memory."""
    inputs = []
    for name, tensor in request.inputs.items():
        inputs.append(given(name, tensor, max_bytes))
        max_bytes -= len(inputs[-1].data)
    return inputs


def encode(
    signature: str, model: str, version: int, outputs: Sequence[TensorInfo], arrays: Sequence[np.ndarray]
) -> bytes:
    """PredictResponse bytes."""
    response = pb.PredictResponse()
    _fill(response.model_spec, model, version, signature)
    for output, array in zip(outputs, arrays, strict=True):
        write(response.outputs[output.name], output.dtype, array)
    return response.SerializeToString()


def frame(
    signature: str,
    model: str,
    version: int,
    outputs: Sequence[TensorInfo],
    shapes: Sequence[tuple[int, ...]],
) -> Sequence[bytes] | None:
    """A PredictResponse around its tensors' bytes; None for integers, which are not on the wire as in memory."""
    return _pieces(signature, model, version, tuple(outputs), tuple(shapes))


@lru_cache(MOST_PIECES)
def _pieces(
    signature: str,
    model: str,
    version: int,
    outputs: tuple[TensorInfo, ...],
    shapes: tuple[tuple[int, ...], ...],
) -> tuple[bytes, ...] | None:
    response = pb.PredictResponse()
    _fill(response.model_spec, model, version, signature)
    pieces = [response.SerializeToString()]
    for output, shape in zip(outputs, shapes, strict=True):
        head = frame_tensor(output.dtype, shape)
        if head is None:
            return None
        name, size = output.name.encode(), row_major_bytes(output.dtype, shape)
        # The key and the value of an entry of the map.
        entry = delimited(1, len(name)) + name + delimited(2, len(head) + size) + head
        pieces[-1] += delimited(pb.PredictResponse.OUTPUTS_FIELD_NUMBER, len(entry) + size) + entry
        pieces.append(b"")
    return tuple(pieces)


def get_model_metadata(payload: bytes, catalog: Catalog) -> bytes:
    """The signatures of a version. Raises NotFound, NotLoaded, InvalidRequest for another field than signature_def."""
    request = parsed(
        pb.GetModelMetadataRequest.FromString, payload, "tensorflow.serving.GetModelMetadataRequest"
    )
    wrong = next((field for field in request.metadata_field if field != "signature_def"), None)
    if wrong is not None or not request.metadata_field:
        came = "no metadata_field" if wrong is None else f"metadata_field {wrong!r}"
        raise InvalidRequest(f"{came} was asked for; needed: 'signature_def'")
    spec = request.model_spec
    info = catalog.version(spec.name, *_version(spec))
    if not info.signatures:
        reason = f": {info.reason}" if info.reason else ""
        raise NotLoaded(f"model {spec.name!r} version {info.version} is {info.state}{reason}")
    signatures = pb.SignatureDefMap()
    for each in info.signatures:
        _describe(signatures.signature_def[_name(each)], each)
    response = pb.GetModelMetadataResponse()
    _fill(response.model_spec, spec.name, info.version, "")
    packed = response.metadata["signature_def"]
    packed.type_url, packed.value = SIGNATURE_DEF_MAP, signatures.SerializeToString()
    return response.SerializeToString()


def get_model_status(payload: bytes, catalog: Catalog) -> bytes:
    """The state of one version, or of all of a model's when none is named. Raises NotFound."""
    request = parsed(pb.GetModelStatusRequest.FromString, payload, "tensorflow.serving.GetModelStatusRequest")
    spec = request.model_spec
    version, label = _version(spec)
    found = [catalog.version(spec.name, version, label)]
    if not version and not label:
        found = catalog.models().get(spec.name, found)
    response = pb.GetModelStatusResponse(model_version_status=map(_status, reversed(found)))
    return response.SerializeToString()


def _version(spec: pb.ModelSpec) -> tuple[int, str]:
    """(version, label). Raises InvalidRequest without a model, NotFound for a version below 1."""
    if not spec.name:
        raise InvalidRequest("model_spec has no name; needed: the model's")
    choice = spec.WhichOneof("version_choice")
    if choice is None:
        return 0, ""
    if choice == "version_label":
        return 0, spec.version_label
    number = spec.version.value
    if number < 1:
        raise NotFound(f"model {spec.name!r} has no version {number}; versions begin at 1")
    return number, ""


def _fill(spec: pb.ModelSpec, model: str, version: int, signature: str) -> None:
    spec.name = model
    spec.version.value = version
    spec.signature_name = signature


def _name(signature: SignatureInfo) -> str:
    return SERVING_DEFAULT if signature.name == DEFAULT_SIGNATURE else signature.name


def _describe(described: pb.SignatureDef, signature: SignatureInfo) -> None:
    described.method_name = PREDICT_METHOD
    for entries, tensors in ((described.inputs, signature.inputs), (described.outputs, signature.outputs)):
        for tensor in tensors:
            entry = entries[tensor.name]
            entry.name = f"{tensor.name}:0"
            entry.dtype = type_of(tensor.dtype)
            for size in tensor.shape:
                entry.tensor_shape.dim.add(size=size if isinstance(size, int) else -1)


def _status(info: VersionInfo) -> pb.ModelVersionStatus:
    status = pb.Status(
        error_code=FAILED_PRECONDITION if info.state == FAILED else 0, error_message=info.reason
    )
    return pb.ModelVersionStatus(version=info.version, state=STATES[info.state], status=status)


def _refuse_call(path: str, reason: str, _: bytes, __: Catalog) -> bytes:
    raise NotOffered(f"{path.rpartition('/')[2]} is not offered: {reason}")

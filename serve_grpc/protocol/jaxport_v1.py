"""jaxport.v1.PredictionService: Predict, GetModel, ListModels (proto/jaxport/v1/prediction.proto)."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from google.protobuf.message import DecodeError, Message

from converters.manifest import TensorInfo
from jaxport.wire import prediction_pb2 as pb
from serve_grpc.catalog import Catalog, SignatureInfo, VersionInfo
from serve_grpc.errors import InvalidRequest
from serve_grpc.protocol import GivenTensor, Inference, Method
from serve_grpc.transport import Refusal

SERVICE = "jaxport.v1.PredictionService"


class JaxportV1:
    """Our own protocol."""

    name = "jaxport.v1"

    def __init__(self) -> None:
        self.methods: Mapping[str, Method] = {
            f"/{SERVICE}/Predict": predict,
            f"/{SERVICE}/GetModel": get_model,
            f"/{SERVICE}/ListModels": list_models,
        }
        self.streams: Mapping[str, tuple[Method, Refusal]] = {}


def predict(payload: bytes, _: Catalog) -> Inference:
    """Raises InvalidRequest when the bytes are not a PredictRequest."""
    request = _parse(pb.PredictRequest.FromString, payload, "PredictRequest")
    inputs = [GivenTensor(t.name, t.dtype, tuple(t.shape), t.data) for t in request.inputs]
    return Inference(
        request.model, request.version, request.signature, inputs, tuple(request.outputs), encode_predict
    )


def encode_predict(
    model: str, version: int, outputs: Sequence[TensorInfo], arrays: Sequence[np.ndarray]
) -> bytes:
    """PredictResponse bytes; each array is copied once."""
    response = pb.PredictResponse(model=model, version=version)
    for output, array in zip(outputs, arrays, strict=True):
        # The signature's dtype name: numpy's own costs 10 us to spell.
        response.outputs.add(name=output.name, dtype=output.dtype, shape=array.shape, data=array.tobytes())
    return response.SerializeToString()


def get_model(payload: bytes, catalog: Catalog) -> bytes:
    """One version of a model. Raises NotFound."""
    request = _parse(pb.GetModelRequest.FromString, payload, "GetModelRequest")
    version = catalog.version(request.model, request.version)
    return pb.GetModelResponse(model=request.model, version=_version(version)).SerializeToString()


def list_models(payload: bytes, catalog: Catalog) -> bytes:
    """Every model that was seen, with its state."""
    _parse(pb.ListModelsRequest.FromString, payload, "ListModelsRequest")
    models = [
        pb.Model(name=name, versions=[_version(version) for version in versions])
        for name, versions in catalog.models().items()
    ]
    return pb.ListModelsResponse(models=models).SerializeToString()


def _parse[M: Message](parse: Callable[[bytes], M], payload: bytes, name: str) -> M:
    try:
        return parse(payload)
    except DecodeError as error:
        raise InvalidRequest(f"the message has {len(payload)} bytes that are no jaxport.v1.{name}") from error


def _version(info: VersionInfo) -> pb.ModelVersion:
    return pb.ModelVersion(
        version=info.version,
        state=info.state,
        reason=info.reason,
        signatures=[_signature(signature) for signature in info.signatures],
        window_ends=info.window_ends,
        usage=dict(info.usage),
    )


def _signature(info: SignatureInfo) -> pb.Signature:
    def specs(tensors: Sequence[TensorInfo]) -> list[pb.TensorSpec]:
        return [
            pb.TensorSpec(name=t.name, dtype=t.dtype, shape=[str(size) for size in t.shape]) for t in tensors
        ]

    return pb.Signature(
        name=info.name, inputs=specs(info.inputs), outputs=specs(info.outputs), buckets=info.buckets
    )

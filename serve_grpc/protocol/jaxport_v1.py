"""jaxport.v1.PredictionService: Predict, GetModel, ListModels (proto/jaxport/v1/prediction.proto)."""

from collections.abc import Mapping, Sequence

from converters.manifest import TensorInfo
from jaxport.wire import prediction_pb2 as pb
from serve_grpc.catalog import Catalog, SignatureInfo, VersionInfo
from serve_grpc.errors import InvalidRequest
from serve_grpc.protocol import GivenTensor, Inference, Method, row_major_bytes
from serve_grpc.protocol.messages import parsed
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
    """Raises InvalidRequest when the bytes are not a PredictRequest, or its fields contradict each other."""
    request = parsed(pb.PredictRequest.FromString, payload, "jaxport.v1.PredictRequest")
    _refuse_both(request.version, request.label)
    if not 0 <= request.priority <= 1:
        raise InvalidRequest(f"priority is {request.priority}; needed: 0, or 1 to go first")
    if not request.queue_timeout_ms >= 0:  # NaN neither
        raise InvalidRequest(
            f"queue_timeout_ms is {request.queue_timeout_ms:g}; needed: more than 0, or 0 for none"
        )
    return Inference(
        request.model,
        request.version,
        request.signature,
        [GivenTensor(t.name, t.dtype, tuple(t.shape), t.data) for t in request.inputs],
        tuple(request.outputs),
        label=request.label,
        priority=request.priority,
        timeout=request.queue_timeout_ms / 1e3 or None,
        frame=frame_predict,
    )


def frame_predict(
    model: str, version: int, outputs: Sequence[TensorInfo], shapes: Sequence[Sequence[int]]
) -> list[bytes]:
    """A PredictResponse around its data, which stands last in a Tensor, as a Tensor does in the response."""
    pieces = [pb.PredictResponse(model=model, version=version).SerializeToString()]
    for output, shape in zip(outputs, shapes, strict=True):
        size = row_major_bytes(output.dtype, shape)
        tensor = pb.Tensor(name=output.name, dtype=output.dtype, shape=shape, data=bytes(size))
        whole = pb.PredictResponse(outputs=[tensor]).SerializeToString()
        pieces[-1] += whole[: len(whole) - size]
        pieces.append(b"")
    return pieces


def get_model(payload: bytes, catalog: Catalog) -> bytes:
    """One version of a model. Raises NotFound, and InvalidRequest for a version beside a label."""
    request = parsed(pb.GetModelRequest.FromString, payload, "jaxport.v1.GetModelRequest")
    _refuse_both(request.version, request.label)
    version = catalog.version(request.model, request.version, request.label)
    return pb.GetModelResponse(model=request.model, version=_version(version)).SerializeToString()


def list_models(payload: bytes, catalog: Catalog) -> bytes:
    """Every model that was seen, with its state."""
    parsed(pb.ListModelsRequest.FromString, payload, "jaxport.v1.ListModelsRequest")
    models = [
        pb.Model(name=name, versions=[_version(version) for version in versions])
        for name, versions in catalog.models().items()
    ]
    return pb.ListModelsResponse(models=models).SerializeToString()


def _refuse_both(version: int, label: str) -> None:
    if label and version:
        raise InvalidRequest(f"version {version} and label {label!r} came; needed: one of them, or none")


def _version(info: VersionInfo) -> pb.ModelVersion:
    return pb.ModelVersion(
        version=info.version,
        state=info.state,
        reason=info.reason,
        signatures=[_signature(signature) for signature in info.signatures],
        window_ends=info.window_ends,
        usage=dict(info.usage),
        labels=info.labels,
    )


def _signature(info: SignatureInfo) -> pb.Signature:
    def specs(tensors: Sequence[TensorInfo]) -> list[pb.TensorSpec]:
        return [
            pb.TensorSpec(name=t.name, dtype=t.dtype, shape=[str(size) for size in t.shape]) for t in tensors
        ]

    return pb.Signature(
        name=info.name,
        inputs=specs(info.inputs),
        outputs=specs(info.outputs),
        buckets=info.buckets,
        lengths=info.lengths,
        sizes=[pb.Sizes(by_symbol=dict(each)) for each in info.sizes],
    )

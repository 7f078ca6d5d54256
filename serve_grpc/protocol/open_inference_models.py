"""What an Open Inference client can ask about the server and its models."""

from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version

from converters.manifest import TensorInfo
from jaxport.wire import open_inference_pb2 as pb
from serve_grpc.catalog import DRAINING, FAILED, LOADING, SERVING, Catalog, SignatureInfo, VersionInfo
from serve_grpc.errors import NotFound, NotLoaded
from serve_grpc.metrics import Metrics
from serve_grpc.protocol import Method
from serve_grpc.protocol.messages import parsed
from serve_grpc.protocol.open_inference_statistics import statistics
from serve_grpc.protocol.open_inference_types import DATATYPES
from serve_grpc.serving import DEFAULT_SIGNATURE

PLATFORM = "jax_export"
# Digits of the largest version there can be; Python reads no integer of thousands.
LONGEST_VERSION = 19
EXTENSIONS = ("binary_tensor_data", "model_configuration", "parameters", "schedule_policy", "statistics")
STATES = {SERVING: "READY", LOADING: "LOADING", DRAINING: "UNLOADING", FAILED: "UNAVAILABLE"}


class Models:
    """methods: name of the call -> what answers it."""

    def __init__(self, ready: Callable[[], bool], metrics: Metrics) -> None:
        self._ready = ready
        self._metrics = metrics
        self.methods: Mapping[str, Method] = {
            "ServerLive": server_live,
            "ServerReady": self.server_ready,
            "ServerMetadata": server_metadata,
            "ModelReady": model_ready,
            "ModelMetadata": model_metadata,
            "ModelConfig": model_config,
            "ModelStatistics": self.model_statistics,
            "RepositoryIndex": repository_index,
        }

    def server_ready(self, _: bytes, __: Catalog) -> bytes:
        """The overall state, as grpc.health.v1 and /readyz say it."""
        return pb.ServerReadyResponse(ready=self._ready()).SerializeToString()

    def model_statistics(self, payload: bytes, catalog: Catalog) -> bytes:
        """Of one model or of all. Raises NotFound."""
        name, text = _asked(payload)
        if name:
            versions = [_found(catalog, name, text)] if text else catalog.models().get(name, [])
            if not versions:
                _found(catalog, name, "")
            found = {name: versions}
        else:
            found = catalog.models()
        entries = [
            statistics(self._metrics, model, info.version)
            for model, infos in found.items()
            for info in infos
            if info.signatures
        ]
        return pb.ModelStatisticsResponse(model_stats=entries).SerializeToString()


def version_of(text: str) -> tuple[int, str]:
    """(version, label) of a request's version: digits are a version, anything else but "" is a label.

    Raises NotFound for 0, which no version has and which would stand for the one that is serving.
    """
    if not text:
        return 0, ""
    if not text.isdecimal():
        return 0, text
    if len(text) > LONGEST_VERSION:
        raise NotFound(
            f"model version {text[:LONGEST_VERSION]!r}... has {len(text)} digits; none has so many"
        )
    number = int(text)
    if not number:
        raise NotFound(
            f'model version {text!r} is none; versions begin at 1, and "" is the one that is serving'
        )
    return number, ""


def server_live(_: bytes, __: Catalog) -> bytes:
    """The process answers, so it lives."""
    return pb.ServerLiveResponse(live=True).SerializeToString()


def server_metadata(_: bytes, __: Catalog) -> bytes:
    """Name, version, and what of Triton's extensions is spoken."""
    return pb.ServerMetadataResponse(
        name="jaxport", version=_release(), extensions=EXTENSIONS
    ).SerializeToString()


def model_ready(payload: bytes, catalog: Catalog) -> bytes:
    """Whether it answers; a model that is not here does not."""
    name, text = _asked(payload)
    try:
        info = _found(catalog, name, text) if text else catalog.serving(name)
    except (NotFound, NotLoaded):
        info = None
    ready = info is not None and info.state == SERVING
    return pb.ModelReadyResponse(ready=ready).SerializeToString()


def model_metadata(payload: bytes, catalog: Catalog) -> bytes:
    """What the predict signature takes and gives. Raises NotFound, NotLoaded."""
    name, text = _asked(payload)
    signature = _signature(name, _found(catalog, name, text))

    def tensors(specs: Sequence[TensorInfo]) -> list[pb.ModelMetadataResponse.Tensor]:
        return [
            pb.ModelMetadataResponse.Tensor(
                name=t.name, datatype=_datatype(t), shape=[d if isinstance(d, int) else -1 for d in t.shape]
            )
            for t in specs
        ]

    return pb.ModelMetadataResponse(
        name=name,
        versions=[str(number) for number in _serving(catalog, name)],
        platform=PLATFORM,
        inputs=tensors(signature.inputs),
        outputs=tensors(signature.outputs),
    ).SerializeToString()


def model_config(payload: bytes, catalog: Catalog) -> bytes:
    """The same as Triton's configuration says it: dims without the batch. Raises NotFound, NotLoaded.

    parameters: `signatures`, the names of all of them, `lengths` that a sequence is padded to, `sizes` that further symbols
    may have together, as "k=2,m=3;k=4,m=3", and what the exporter recorded for clients.
    """
    name, text = _asked(payload)
    info = _found(catalog, name, text)
    signature = _signature(name, info)
    notes = {**info.usage, "signatures": ",".join(each.name for each in info.signatures)}
    if signature.lengths:
        notes["lengths"] = ",".join(map(str, signature.lengths))
    if signature.sizes:
        notes["sizes"] = ";".join(",".join(f"{k}={n}" for k, n in each.items()) for each in signature.sizes)
    config = pb.ModelConfig(
        name=name,
        platform=PLATFORM,
        backend="jaxport",
        version_policy=pb.ModelVersionPolicy(
            specific=pb.ModelVersionPolicy.Specific(versions=_serving(catalog, name))
        ),
        max_batch_size=max(signature.buckets),
        input=[pb.ModelInput(name=t.name, data_type=_type(t), dims=_dims(t)) for t in signature.inputs],
        output=[pb.ModelOutput(name=t.name, data_type=_type(t), dims=_dims(t)) for t in signature.outputs],
        dynamic_batching=pb.ModelDynamicBatching(
            preferred_batch_size=signature.buckets, priority_levels=2, default_priority_level=2
        ),
        parameters={key: pb.ModelParameter(string_value=value) for key, value in notes.items()},
    )
    return pb.ModelConfigResponse(config=config).SerializeToString()


def repository_index(payload: bytes, catalog: Catalog) -> bytes:
    """Every version that was seen, or those that answer."""
    request = parsed(pb.RepositoryIndexRequest.FromString, payload, "inference.RepositoryIndexRequest")
    entries = [
        pb.RepositoryIndexResponse.Entry(
            name=name, version=str(info.version), state=STATES[info.state], reason=info.reason
        )
        for name, infos in catalog.models().items()
        for info in infos
        if info.state == SERVING or not request.ready
    ]
    return pb.RepositoryIndexResponse(models=entries).SerializeToString()


def _asked(payload: bytes) -> tuple[str, str]:
    request = parsed(pb.ModelRequest.FromString, payload, "request with a model's name and version")
    return request.name, request.version


def _found(catalog: Catalog, name: str, text: str) -> VersionInfo:
    return catalog.version(name, *version_of(text))


def _serving(catalog: Catalog, name: str) -> list[int]:
    return [info.version for info in catalog.models().get(name, ()) if info.state == SERVING]


def _signature(name: str, info: VersionInfo) -> SignatureInfo:
    """The one that requests without a signature go to, or the first where there is no such."""
    if not info.signatures:
        reason = f": {info.reason}" if info.reason else ""
        raise NotLoaded(f"model {name!r} version {info.version} is {info.state}{reason}")
    by_name = {signature.name: signature for signature in info.signatures}
    return by_name.get(DEFAULT_SIGNATURE, info.signatures[0])


def _datatype(tensor: TensorInfo) -> str:
    """A dtype that the protocol has no word for goes by its own name: such a model is refused when it is called."""
    return DATATYPES.get(tensor.dtype, tensor.dtype.upper())


def _type(tensor: TensorInfo) -> str:
    datatype = DATATYPES.get(tensor.dtype)
    return f"TYPE_{datatype}" if datatype else "TYPE_INVALID"


def _dims(tensor: TensorInfo) -> list[int]:
    return [size if isinstance(size, int) else -1 for size in tensor.shape[1:]]


def _release() -> str:
    try:
        return version("jaxport")
    except PackageNotFoundError:  # run from a checkout that is not installed
        return "0"

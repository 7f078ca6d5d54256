"""TensorFlow Serving's REST form: JSON bodies <-> named tensors. `instances` come in rows, `inputs` in columns."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from converters.manifest import TensorInfo
from serve_grpc.catalog import DRAINING, FAILED, LOADING, SERVING, Catalog, SignatureInfo, VersionInfo
from serve_grpc.errors import InvalidRequest, NotFound, NotLoaded
from serve_grpc.protocol import GivenTensor, Inference, Read
from serve_grpc.protocol.json_numbers import ELEMENTS_AT_ONCE, has_json_form, parsed, tensor, values

NAME = "rest"
DEFAULT_SIGNATURE = "predict"
# What TensorFlow Serving's clients call it; a model that has one of that name means that one.
THEIR_DEFAULT = "serving_default"

STATES = {LOADING: "LOADING", SERVING: "AVAILABLE", DRAINING: "UNLOADING", FAILED: "END"}
UPPER = ["bool", "bfloat16", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
UPPER += ["complex64", "complex128", "float8_e5m2", "float8_e4m3fn"]
DTYPES = {name: f"DT_{name.upper()}" for name in UPPER}
DTYPES |= {"float16": "DT_HALF", "float32": "DT_FLOAT", "float64": "DT_DOUBLE"}


class Prediction:
    """One request's way through: what it asks for, and its outputs until they are written as JSON.

    `read` runs where the request is admitted and `keep` on the executor's thread, so `keep` only copies; `body` is
    the slow part and runs on the connection's own thread.
    """

    def __init__(self, model: str, version: int, label: str, body: bytes) -> None:
        self._model, self._version, self._label, self._body = model, version, label, body
        self._rows = False
        self._read: Inference | None = None
        self._outputs: list[tuple[str, np.ndarray]] = []

    def read(self, catalog: Catalog) -> Inference:
        """Raises InvalidRequest naming the input, the value and its position.

        Asked again for a request that is refused or sent on, it answers the same without parsing anew.
        """
        if self._read is None:
            self._read = self._parsed(catalog)
            self._body = b""
        return self._read

    def _parsed(self, catalog: Catalog) -> Inference:
        request = _request(self._body)
        self._rows = "instances" in request
        name = request.get("signature_name", "")
        signature = self._signature(catalog, name)
        inputs = [] if signature is None else self._inputs(signature, request)
        asked = name if signature is None else signature.name
        return Inference(self._model, self._version, asked, inputs, (), self.keep, self._label)

    def keep(self, _: str, __: int, outputs: Sequence[TensorInfo], arrays: Sequence[np.ndarray]) -> bytes:
        """Copies the outputs: they may lie in a buffer that the next batch is written to."""
        self._outputs = [(info.name, np.array(a)) for info, a in zip(outputs, arrays, strict=True)]
        return b""

    def body(self) -> bytes:
        """The response: `predictions` for `instances`, `outputs` for `inputs`."""
        if len(self._outputs) == 1:
            written = _array(self._outputs[0][1])
        elif self._rows:
            columns = [values(array) for _, array in self._outputs]
            names = [name for name, _ in self._outputs]
            written = _list(
                json.dumps(dict(zip(names, row, strict=True))) for row in zip(*columns, strict=True)
            )
        else:
            written = ", ".join(f"{json.dumps(name)}: {_array(array)}" for name, array in self._outputs)
            written = f"{{{written}}}"
        return f'{{"{"predictions" if self._rows else "outputs"}": {written}}}\n'.encode()

    def _signature(self, catalog: Catalog, name: str) -> SignatureInfo | None:
        """None where there is none to serve with: the look-up that every request goes through says why."""
        try:
            info = catalog.version(self._model, self._version, self._label)
        except (NotFound, NotLoaded):
            return None
        by_name = {signature.name: signature for signature in info.signatures}
        if name in by_name:
            return by_name[name]
        return by_name.get(DEFAULT_SIGNATURE) if name in ("", THEIR_DEFAULT) else None

    def _inputs(self, signature: SignatureInfo, request: Mapping[str, Any]) -> list[GivenTensor]:
        for output in signature.outputs:
            if not has_json_form(jnp.dtype(output.dtype)):
                raise InvalidRequest(
                    f"output {output.name!r} is {output.dtype}, which JSON cannot say; use gRPC"
                )
        columns = _columns(signature, request)
        takes = {info.name: info for info in signature.inputs}
        # A name that the signature has not is refused where those of every protocol are; its values are not looked at.
        return [
            tensor(takes[name], value) if name in takes else GivenTensor(name, "", (), b"")
            for name, value in columns.items()
        ]


def status(model: str, version: int, label: str) -> Read:
    """Reads one version's state, or every version's where none is named, as GetModelStatusResponse. Raises NotFound."""

    def read(catalog: Catalog) -> bytes:
        info = catalog.version(model, version, label)
        infos = [info] if version or label else catalog.models().get(model, [info])
        return _document({"model_version_status": [_state(each) for each in reversed(infos)]})

    return read


def metadata(model: str, version: int, label: str) -> Read:
    """Reads what a version takes and gives as GetModelMetadataResponse. Raises NotFound."""

    def read(catalog: Catalog) -> bytes:
        info = catalog.version(model, version, label)
        signatures = {
            signature.name: {
                "inputs": {each.name: _tensor_info(each) for each in signature.inputs},
                "outputs": {each.name: _tensor_info(each) for each in signature.outputs},
                "method_name": "tensorflow/serving/predict",
            }
            for signature in info.signatures
        }
        return _document(
            {
                "model_spec": {"name": model, "signature_name": "", "version": str(info.version)},
                "metadata": {"signature_def": {"signature_def": signatures}},
            }
        )

    return read


def _document(value: Any) -> bytes:
    return json.dumps(value, indent=1).encode() + b"\n"


def _state(info: VersionInfo) -> dict[str, Any]:
    code = "INTERNAL" if info.reason else "OK"
    return {
        "version": str(info.version),
        "state": STATES.get(info.state, "UNKNOWN"),
        "status": {"error_code": code, "error_message": info.reason},
    }


def _tensor_info(info: TensorInfo) -> dict[str, Any]:
    sizes = [size if isinstance(size, int) else -1 for size in info.shape]
    return {
        "name": info.name,
        "dtype": DTYPES.get(info.dtype, "DT_INVALID"),
        "tensor_shape": {"dim": [{"size": str(size), "name": ""} for size in sizes], "unknown_rank": False},
    }


def _request(body: bytes) -> dict[str, Any]:
    request = parsed(body)
    if not isinstance(request, dict):
        raise InvalidRequest('the body is no JSON object; needed: {"instances": [...]} or {"inputs": ...}')
    for key in request:
        if key not in ("instances", "inputs", "signature_name"):
            raise InvalidRequest(
                f"the body has the key {key[:80]!r}; needed: instances or inputs, signature_name"
            )
    if ("instances" in request) == ("inputs" in request):
        raise InvalidRequest("the body needs one of instances (rows) and inputs (columns)")
    if not isinstance(request.get("signature_name", ""), str):
        raise InvalidRequest("signature_name is no string")
    return request


def _columns(signature: SignatureInfo, request: Mapping[str, Any]) -> Mapping[str, Any]:
    """Input name -> its nested value, the batch first."""
    names = [info.name for info in signature.inputs]
    if "inputs" in request:
        given = request["inputs"]
        if isinstance(given, dict) and not _is_bytes(given, names):
            return given
        return {_only(names, "inputs"): given}
    rows = request["instances"]
    if not isinstance(rows, list) or not rows:
        raise InvalidRequest("instances is no list of at least one instance")
    if not isinstance(rows[0], dict) or _is_bytes(rows[0], names):
        return {_only(names, "instances[0]"): rows}
    keys = rows[0].keys()
    for at, row in enumerate(rows):
        if not isinstance(row, dict) or row.keys() != keys:
            raise InvalidRequest(
                f"instances[{at}] does not name the inputs that instances[0] does: {_listed(keys)}"
            )
    return {key: [row[key] for row in rows] for key in keys}


def _is_bytes(value: Mapping[str, Any], names: Sequence[str]) -> bool:
    return value.keys() == {"b64"} and "b64" not in names


def _only(names: Sequence[str], what: str) -> str:
    if len(names) != 1:
        raise InvalidRequest(
            f"{what} names no input and the signature takes {_listed(names)}; needed: an object"
        )
    return names[0]


def _listed(names: Any) -> str:
    return ", ".join(name[:80] for name in list(names)[:20])


def _array(array: np.ndarray) -> str:
    """JSON of [rows, ...], some rows at a time: writing is done under the interpreter's lock."""
    step = max(1, ELEMENTS_AT_ONCE * len(array) // max(array.size, 1))

    def blocks() -> Iterator[str]:
        for start in range(0, len(array), step):
            yield json.dumps(values(array[start : start + step]))[1:-1]

    return _list(blocks())


def _list(parts: Iterator[str]) -> str:
    return f"[{', '.join(parts)}]"

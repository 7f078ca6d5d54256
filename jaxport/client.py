"""The Python client: numpy in, numpy out, no JAX needed.

from jaxport import Client
with Client("localhost:8500") as c:
    y = c.predict("iris", {"x": x})["logits"]
"""

import json
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import grpc
import numpy as np
from google.protobuf.message import DecodeError

from jaxport.errors import ServerError, UsageError
from jaxport.message_size import DEFAULT_BYTES
from jaxport.security import Security
from jaxport.tensors import TensorError, array_to_tensor, tensor_to_array
from jaxport.wire import prediction_pb2 as wire

__all__ = ["Client", "ServerError"]

SERVICE = "/jaxport.v1.PredictionService/"
# A name that resolves to several servers (a headless Service) is used in turn, and a lost one is left out.
START_ONE = "start one with jaxport serve, or change --address"
# What grpcio says of a port -> what it may be. "closed" is what a port that expects TLS does, and a server that leaves.
OTHER_PORTS = {
    "Socket closed": f"if it speaks TLS add --tls-ca (Client: tls_ca), else {START_ONE}",
    "Failed parsing HTTP/2": "that is a port for HTTP; --address needs the one for gRPC",
}
SERVICE_CONFIG = json.dumps({"loadBalancingConfig": [{"round_robin": {}}]})

DEFAULT_SIGNATURE = "predict"

Program = tuple[str, int, str, str]  # model, version, label, signature
Specs = Mapping[str, wire.TensorSpec]  # by input


class Client:
    """A channel to one server, or to every server behind a name. Safe to share between threads.

    address: "host:port", "unix:/path" or any other gRPC target. timeout: seconds for a call, None for no limit.
    max_message_bytes: the server's --max-message-bytes. token: a bearer token of its --token-file. tls_ca: PEM file of
    who signed its certificate, which makes this TLS; tls_cert, tls_key: PEM files of a certificate of our own.
    credentials: any others, instead. Raises UsageError for a file that cannot be read.
    """

    def __init__(
        self,
        address: str = "localhost:8500",
        *,
        timeout: float | None = 30.0,
        max_message_bytes: int = DEFAULT_BYTES,
        token: str = "",
        tls_ca: str | Path | None = None,
        tls_cert: str | Path | None = None,
        tls_key: str | Path | None = None,
        credentials: grpc.ChannelCredentials | None = None,
    ) -> None:
        options = channel_options(max_message_bytes)
        ca, cert, key = (None if path is None else Path(path) for path in (tls_ca, tls_cert, tls_key))
        security = Security(token, ca, cert, key)
        credentials = credentials or security.credentials()
        self._metadata = security.metadata
        self._closed = False
        self.address = address
        self.timeout = timeout
        self._channel = (
            grpc.secure_channel(address, credentials, options)
            if credentials
            else grpc.insecure_channel(address, options)
        )
        self._specs: dict[Program, Specs] = {}

    def predict(
        self,
        model: str,
        inputs: Mapping[str, Any],
        *,
        version: int = 0,
        signature: str = "predict",
        outputs: Sequence[str] = (),
        timeout: float | None = None,
        label: str = "",
        priority: int = 0,
        queue_timeout: float | None = None,
    ) -> dict[str, np.ndarray]:
        """The outputs by name, each [rows, ...], for inputs of [rows, ...].

        Arrays are sent as they are; the server says which dtype it needs when it is another. Lists and numbers get
        the input's dtype. version 0 is the one that `label` names, or else the one that serves. `outputs` names
        those wanted, all when empty. priority 1 goes before 0 where requests wait. queue_timeout: seconds the
        request may wait in the server's queue; timeout: for the whole call, with the look-up of what the model declares.
        A request of more rows than the server takes at once is RESOURCE_EXHAUSTED and says how many that is.
        Raises ServerError with the server's status and message.
        """
        request = _made(
            wire.PredictRequest,
            model=model,
            version=version,
            signature=signature,
            outputs=outputs,
            label=label,
            priority=priority,
            queue_timeout_ms=(queue_timeout or 0.0) * 1e3,
        )
        program = (model, version, label, signature or DEFAULT_SIGNATURE)
        ends = _end(self.timeout if timeout is None else timeout)
        known = self._specs.get(program)
        try:
            response = self._predict(program, inputs, request, ends)
        except ServerError as error:
            # An update may have changed what the model takes since it was looked up.
            if known is None or error.code != grpc.StatusCode.INVALID_ARGUMENT:
                raise
            self._specs.pop(program, None)
            if self._declared(program, ends) == known:
                raise
            response = self._predict(program, inputs, request, ends)
        try:
            return {tensor.name: tensor_to_array(tensor) for tensor in response.outputs}
        except TensorError as error:
            raise ServerError(grpc.StatusCode.INTERNAL, f"output {error}") from None

    def model(self, model: str, version: int = 0, label: str = "") -> wire.ModelVersion:
        """What the model takes and gives, its state and its usage. Raises ServerError."""
        return self._model(model, version, label, _end(self.timeout))

    def models(self) -> dict[str, list[wire.ModelVersion]]:
        """Every model of the server by name, with the state of each version. Raises ServerError."""
        response = self._call(
            "ListModels", wire.ListModelsRequest(), wire.ListModelsResponse, _end(self.timeout)
        )
        return {model.name: list(model.versions) for model in response.models}

    def close(self) -> None:
        self._closed = True
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _predict(
        self, program: Program, inputs: Mapping[str, Any], request: wire.PredictRequest, ends: float | None
    ) -> wire.PredictResponse:
        tensors = [self._tensor(program, name, value, ends) for name, value in inputs.items()]
        del request.inputs[:]
        request.inputs.extend(tensors)
        return self._call("Predict", request, wire.PredictResponse, ends)

    def _model(self, model: str, version: int, label: str, ends: float | None) -> wire.ModelVersion:
        request = _made(wire.GetModelRequest, model=model, version=version, label=label)
        return self._call("GetModel", request, wire.GetModelResponse, ends).version

    def _declared(self, program: Program, ends: float | None) -> Specs:
        """What the program takes by input, as it was when it was looked up last."""
        found = self._specs.get(program)
        if found is None:
            model, version, label, signature = program
            signatures = self._model(model, version, label, ends).signatures
            found = {t.name: t for s in signatures if s.name == signature for t in s.inputs}
            self._specs[program] = found
        return found

    def _tensor(self, program: Program, name: str, value: Any, ends: float | None) -> wire.Tensor:
        if not isinstance(value, np.ndarray | np.generic) and not hasattr(value, "__array__"):
            value = self._as_declared(program, name, value, ends)
        try:
            return array_to_tensor(name, np.asarray(value))
        except TensorError as error:
            raise ServerError(grpc.StatusCode.INVALID_ARGUMENT, f"input {error}") from None

    def _as_declared(self, program: Program, name: str, value: Any, ends: float | None) -> np.ndarray:
        """A list has no dtype of its own: it takes the one that the model declares for the input."""
        spec = self._declared(program, ends).get(name)
        try:
            return _converted(value, spec.dtype if spec else None)
        except (ValueError, TypeError, OverflowError) as error:
            raise ServerError(grpc.StatusCode.INVALID_ARGUMENT, f"input {name!r}: {error}") from None

    def _call(self, method: str, request: Any, response: Any, ends: float | None) -> Any:
        """ends: when the caller waits no longer, in seconds of time.monotonic(); None: never."""
        if self._closed:
            raise UsageError(f"the client of {self.address} was closed; make another one")
        call = self._channel.unary_unary(SERVICE + method)
        timeout = None if ends is None else ends - time.monotonic()
        try:
            return response.FromString(
                call(request.SerializeToString(), timeout=timeout, metadata=self._metadata)
            )
        except grpc.RpcError as error:
            raise as_server_error(error, self.address) from None
        except DecodeError:
            message = (
                f"{self.address} answered {method} with bytes that are no {response.__name__}; is it jaxport?"
            )
            raise ServerError(grpc.StatusCode.INTERNAL, message) from None


def _made(message: type, **fields: Any) -> Any:
    """A request. ServerError, as from the server, for a number that no message can carry."""
    try:
        return message(**fields)
    except ValueError as error:
        raise ServerError(grpc.StatusCode.INVALID_ARGUMENT, str(error)) from None


def _end(timeout: float | None) -> float | None:
    """When a call that begins now has to be over; gRPC itself takes no infinity."""
    return None if timeout is None or timeout == math.inf else time.monotonic() + timeout


def _converted(value: Any, dtype: str | None) -> np.ndarray:
    """A list as an array of `dtype`. ValueError, TypeError or OverflowError where that would change what it says."""
    array = np.asarray(value)
    if dtype is None:
        return array
    wanted = np.dtype(dtype)
    # Which kinds of Python's numbers say what the dtype can hold: V is bfloat16 and its kin.
    kinds = {"b": "b", "i": "i", "u": "i", "f": "if", "V": "if", "c": "ifc"}.get(wanted.kind, "")
    if array.size and array.dtype.kind not in kinds:
        raise TypeError(f"the list holds {array.dtype}, {dtype} is needed")
    if wanted.kind in "iu":
        # numpy's own astype would wrap what does not fit; from Python's integers it raises.
        return np.array(value, wanted)
    with np.errstate(over="ignore"):
        converted = array.astype(wanted)
    if not np.array_equal(np.isfinite(array), np.isfinite(converted)):
        raise OverflowError(f"the list holds a number that {dtype} does not")
    return converted


def channel_options(max_message_bytes: int) -> list[tuple[str, Any]]:
    """Options of every channel of ours; one limit holds for both directions."""
    return [
        ("grpc.max_send_message_length", max_message_bytes),
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.service_config", SERVICE_CONFIG),
    ]


def as_server_error(error: grpc.RpcError, address: str) -> ServerError:
    """A gRPC error with what a person can do about it."""
    code: grpc.StatusCode = error.code()  # pyright: ignore[reportAttributeAccessIssue]
    details = str(error.details() or "").strip() or code.name  # pyright: ignore[reportAttributeAccessIssue]
    if code == grpc.StatusCode.UNAVAILABLE and "onnect" in details:
        hint = next((hint for sign, hint in OTHER_PORTS.items() if sign in details), START_ONE)
        details = f"no server at {address} ({details}); {hint}"
    elif code == grpc.StatusCode.RESOURCE_EXHAUSTED and "message larger than max" in details:
        details += "; send fewer rows, or raise max_message_bytes here and --max-message-bytes at the server"
    return ServerError(code, details)

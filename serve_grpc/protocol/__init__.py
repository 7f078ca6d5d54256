"""Bytes <-> named tensors. A protocol knows one wire format; it knows neither batching nor validation."""

import math
from collections.abc import Callable, Mapping, Sequence, Set
from typing import NamedTuple, Protocol

import jax.numpy as jnp
import numpy as np

from converters.manifest import TensorInfo
from serve_grpc.catalog import Catalog
from serve_grpc.transport import Refusal


class GivenTensor(NamedTuple):
    """A tensor as it came: nothing about it has been checked.

    data: row-major, little-endian; bytes or any contiguous buffer of bytes.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: bytes | memoryview


class Inference(NamedTuple):
    """What a request asks for, in no protocol's terms.

    version 0: the one that is serving, or that `label` names. signature "": predict. outputs (): all of them.
    priority: 1 goes before 0 in the queue. timeout: seconds it may wait in the queue, from when it was received.
    encode or frame makes the response, and must not fail. encode: (model, version, outputs, their arrays
    [rows, ...]) -> the response's bytes. frame: for wire formats that hold tensors as bytes: (model, version, outputs,
    their shapes) -> what stands before the first output's bytes, between them, and after the last; None where this
    answer has to be encoded.
    dtypes: those it can write; None: every one.
    """

    model: str
    version: int
    signature: str
    inputs: Sequence[GivenTensor]
    outputs: tuple[str, ...]
    encode: "Encode | None" = None
    label: str = ""
    priority: int = 0
    timeout: float | None = None
    dtypes: Set[str] | None = None
    frame: "Frame | None" = None


Frame = Callable[[str, int, Sequence[TensorInfo], Sequence[tuple[int, ...]]], Sequence[bytes] | None]
Encode = Callable[[str, int, Sequence[TensorInfo], Sequence[np.ndarray]], bytes]
# A method takes a payload and either answers at once from the catalog or says what to infer.
Method = Callable[[bytes, Catalog], "bytes | Inference"]

# A method and its payload: what is left to do for one request.
Read = Callable[[Catalog], "bytes | Inference"]


class WireProtocol(Protocol):
    """name: the `protocol` label of the metrics. methods: full path -> method, for unary calls.

    streams: full path -> (method of each message, how it is refused), for bidirectional ones.
    """

    name: str
    methods: Mapping[str, Method]
    streams: Mapping[str, tuple[Method, Refusal]]


def row_major_bytes(dtype: str, shape: Sequence[int]) -> int:
    """Bytes of an array without gaps."""
    return jnp.dtype(dtype).itemsize * math.prod(shape)

"""numpy arrays <-> the wire's tensors: raw bytes, row-major, little-endian."""

import math

import ml_dtypes  # noqa: F401  (registers bfloat16 and its kin as numpy dtype names)
import numpy as np

from jaxport.wire.prediction_pb2 import Tensor

# XLA's element types of whole bytes; strings and objects never travel.
_WHOLE = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_FLOAT = ("float16", "bfloat16", "float32", "float64", "complex64", "complex128")
_FLOAT8 = ("e3m4", "e4m3", "e4m3b11fnuz", "e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz", "e8m0fnu")
DTYPES = frozenset({*_WHOLE, *_FLOAT, *(f"float8_{kind}" for kind in _FLOAT8)})


class TensorError(ValueError):
    """One line: the tensor, what came, what is needed."""


def array_to_tensor(name: str, array: np.ndarray) -> Tensor:
    """The array as a message. TensorError where its dtype is none of DTYPES."""
    if array.dtype.name not in DTYPES:
        raise TensorError(
            f"{name!r}: dtype {array.dtype} cannot be sent; convert it to one of XLA's, as float32"
        )
    if array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("<"))
    return Tensor(name=name, dtype=array.dtype.name, shape=array.shape, data=array.tobytes())


def tensor_to_array(tensor: Tensor) -> np.ndarray:
    """A read-only view of the message's bytes. TensorError where dtype, shape and length do not agree."""
    if tensor.dtype not in DTYPES:
        known = tensor.dtype or "not given"
        raise TensorError(f"{tensor.name!r}: dtype is {known}; one of numpy's names is needed, as float32")
    dtype = np.dtype(tensor.dtype)
    shape = tuple(tensor.shape)
    if any(dim < 0 for dim in shape):
        raise TensorError(f"{tensor.name!r}: shape {list(shape)}; sizes may not be negative")
    needed = math.prod(shape) * dtype.itemsize
    if len(tensor.data) != needed:
        raise TensorError(
            f"{tensor.name!r}: {len(tensor.data)} bytes came, {tensor.dtype}{list(shape)} needs {needed}"
        )
    array = np.frombuffer(tensor.data, dtype).reshape(shape)
    if dtype == np.bool_ and array.size and array.view(np.uint8).max() > 1:
        raise TensorError(f"{tensor.name!r}: a bool is one byte, 0 or 1; {array.view(np.uint8).max()} came")
    return array

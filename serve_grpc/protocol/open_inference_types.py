"""The names that the Open Inference Protocol has for dtypes, and the contents that are not raw."""

from typing import NamedTuple

import numpy as np

from jaxport.wire import open_inference_pb2 as pb
from serve_grpc.errors import InvalidRequest
from serve_grpc.protocol.narrowed import narrowed
from serve_grpc.protocol.shapes import elements

# datatype -> numpy's name; the configuration says TYPE_ and the datatype.
DTYPES = {
    "BOOL": "bool",
    "INT8": "int8",
    "INT16": "int16",
    "INT32": "int32",
    "INT64": "int64",
    "UINT8": "uint8",
    "UINT16": "uint16",
    "UINT32": "uint32",
    "UINT64": "uint64",
    "FP16": "float16",
    "BF16": "bfloat16",
    "FP32": "float32",
    "FP64": "float64",
}
DATATYPES = {dtype: datatype for datatype, dtype in DTYPES.items()}


class Field(NamedTuple):
    """Where typed contents of a datatype travel, and the numpy dtype that holds what can come there."""

    name: str
    wide: str


FIELDS = {
    "BOOL": Field("bool_contents", "bool"),
    "INT8": Field("int_contents", "int32"),
    "INT16": Field("int_contents", "int32"),
    "INT32": Field("int_contents", "int32"),
    "INT64": Field("int64_contents", "int64"),
    "UINT8": Field("uint_contents", "uint32"),
    "UINT16": Field("uint_contents", "uint32"),
    "UINT32": Field("uint_contents", "uint32"),
    "UINT64": Field("uint64_contents", "uint64"),
    "FP32": Field("fp32_contents", "float32"),
    "FP64": Field("fp64_contents", "float64"),
}


def dtype_of(tensor: pb.ModelInferRequest.InputTensor) -> str:
    """numpy's name of an input's datatype. Raises InvalidRequest."""
    dtype = DTYPES.get(tensor.datatype)
    if dtype is None:
        what = f"input {tensor.name!r} has datatype {tensor.datatype!r}"
        if tensor.datatype == "BYTES":
            raise InvalidRequest(f"{what}; a JAX program takes no strings: send numbers, as UINT8 or INT32")
        raise InvalidRequest(f"{what}; needed: one of {', '.join(DTYPES)}")
    return dtype


def typed_contents(tensor: pb.ModelInferRequest.InputTensor) -> bytes:
    """What `contents` holds, as raw bytes of the input's datatype.

    Raises InvalidRequest for another field than the datatype's, another number of elements than the shape's, and a
    number that the datatype does not have.
    """
    dtype = dtype_of(tensor)
    field = FIELDS.get(tensor.datatype)
    what = f"input {tensor.name!r}"
    if field is None:
        raise InvalidRequest(f"{what} is {tensor.datatype}, which travels in raw_input_contents only")
    given = {descriptor.name for descriptor, _ in tensor.contents.ListFields()}
    if given - {field.name}:
        other = ", ".join(sorted(given - {field.name}))
        raise InvalidRequest(f"{what} is {tensor.datatype} and came with {other}; needed: {field.name}")
    values = getattr(tensor.contents, field.name)
    if len(values) != elements(what, tensor.shape):
        raise InvalidRequest(
            f"{what} has {len(values)} elements in {field.name}; needed: as many as shape {list(tensor.shape)} has"
        )
    return narrowed(what, np.array(values, field.wide), dtype).tobytes()

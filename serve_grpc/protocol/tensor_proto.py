"""TensorFlow's TensorProto <-> raw bytes of a numpy dtype (proto/jaxport/tfs/serving.proto)."""

from collections.abc import Sequence
from typing import NamedTuple

import ml_dtypes  # noqa: F401  (registers bfloat16 and its kin as numpy dtype names)
import numpy as np

from jaxport.wire import tensorflow_serving_pb2 as pb
from serve_grpc.errors import InvalidRequest
from serve_grpc.protocol import GivenTensor, row_major_bytes
from serve_grpc.protocol.messages import delimited
from serve_grpc.protocol.narrowed import narrowed
from serve_grpc.protocol.shapes import elements


class Kind(NamedTuple):
    """A DataType and the field of its values. wide: the numpy dtype of that field's numbers, "" for packed bytes."""

    type: pb.DataType
    field: str
    wide: str = ""


KINDS = {
    "bool": Kind(pb.DT_BOOL, "bool_val"),
    "int8": Kind(pb.DT_INT8, "int_val", "int32"),
    "int16": Kind(pb.DT_INT16, "int_val", "int32"),
    "int32": Kind(pb.DT_INT32, "int_val", "int32"),
    "int64": Kind(pb.DT_INT64, "int64_val", "int64"),
    "uint8": Kind(pb.DT_UINT8, "int_val", "int32"),
    "uint16": Kind(pb.DT_UINT16, "int_val", "int32"),
    "uint32": Kind(pb.DT_UINT32, "uint32_val", "uint32"),
    "uint64": Kind(pb.DT_UINT64, "uint64_val", "uint64"),
    "float16": Kind(pb.DT_HALF, "half_val", "int32"),
    "bfloat16": Kind(pb.DT_BFLOAT16, "half_val", "int32"),
    "float32": Kind(pb.DT_FLOAT, "float_val"),
    "float64": Kind(pb.DT_DOUBLE, "double_val"),
    "complex64": Kind(pb.DT_COMPLEX64, "scomplex_val"),
    "complex128": Kind(pb.DT_COMPLEX128, "dcomplex_val"),
    "float8_e5m2": Kind(pb.DT_FLOAT8_E5M2, "float8_val"),
    "float8_e4m3fn": Kind(pb.DT_FLOAT8_E4M3FN, "float8_val"),
    "float8_e4m3fnuz": Kind(pb.DT_FLOAT8_E4M3FNUZ, "float8_val"),
    "float8_e4m3b11fnuz": Kind(pb.DT_FLOAT8_E4M3B11FNUZ, "float8_val"),
    "float8_e5m2fnuz": Kind(pb.DT_FLOAT8_E5M2FNUZ, "float8_val"),
}
CARRIED = frozenset(KINDS)
ITEM_BYTES = {dtype: np.dtype(dtype).itemsize for dtype in KINDS}
DTYPES = {int(kind.type): dtype for dtype, kind in KINDS.items()}
# Written as bytes. Clients read half_val and float8_val through TensorFlow alone, which takes the content as well.
AS_CONTENT = frozenset({"half_val", "float8_val"})


def given(name: str, tensor: pb.Tensor, max_bytes: int) -> GivenTensor:
    """An input as it came. max_bytes: the size up to which one value is repeated.

    Raises InvalidRequest naming the input, for a dtype without numbers and for values that do not fill the shape.
    """
    dtype = DTYPES.get(tensor.dtype)
    if dtype is None:
        raise InvalidRequest(f"input {name!r} is {_type_name(tensor.dtype)}; {_instead(tensor.dtype)}")
    shape = tensor.tensor_shape
    if shape.unknown_rank:
        raise InvalidRequest(f"input {name!r} has a shape of unknown rank; needed: its sizes")
    sizes = tuple([dim.size for dim in shape.dim])
    # As in TensorFlow the content goes before the values.
    return GivenTensor(
        name, dtype, sizes, tensor.tensor_content or _values(name, tensor, dtype, sizes, max_bytes)
    )


def write(tensor: pb.Tensor, dtype: str, array: np.ndarray) -> None:
    """Fills in dtype, shape and the values: in the field of the dtype, which is where many clients look for them."""
    type_, field, wide = KINDS[dtype]
    tensor.dtype = type_
    add = tensor.tensor_shape.dim.add
    for size in array.shape:
        add(size=size)
    if field in AS_CONTENT:
        tensor.tensor_content = array.tobytes()
    elif wide:
        getattr(tensor, field).extend(array.ravel().tolist())
    else:
        getattr(tensor, field).append(array.tobytes())


def frame_tensor(dtype: str, shape: Sequence[int]) -> bytes | None:
    """What stands before the bytes of the values that `write` would put last; None where they are not those in memory."""
    kind = KINDS[dtype]
    if kind.wide and kind.field not in AS_CONTENT:
        return None
    dims = [pb.TensorShape.Dim(size=size) for size in shape]
    head = pb.Tensor(dtype=kind.type, tensor_shape=pb.TensorShape(dim=dims)).SerializeToString()
    field = "tensor_content" if kind.field in AS_CONTENT else kind.field
    return head + delimited(pb.Tensor.DESCRIPTOR.fields_by_name[field].number, row_major_bytes(dtype, shape))


def type_of(dtype: str) -> pb.DataType:
    """DT_INVALID for a dtype that TensorFlow has not: a model that gives it is refused when it is called."""
    return KINDS[dtype].type if dtype in KINDS else pb.DT_INVALID


def _values(name: str, tensor: pb.Tensor, dtype: str, sizes: Sequence[int], max_bytes: int) -> bytes:
    """The typed values as bytes. The last one is repeated until the shape is full, as TensorFlow does."""
    kind = KINDS[dtype]
    data = _read(name, tensor, dtype, kind)
    what = f"input {name!r}"
    count, size = elements(what, sizes), ITEM_BYTES[dtype]
    if len(data) == count * size:
        return data
    if not data or len(data) > count * size or len(data) % size:
        came = ", ".join(f.name for f, _ in tensor.ListFields() if f.name.endswith("_val")) or "none"
        raise InvalidRequest(
            f"{what} has {len(data) / size:g} values in {kind.field} and no tensor_content; needed: 1 to {count} "
            f"for shape {list(sizes)} (fields of values that came: {came})"
        )
    if count * size > max_bytes:
        raise InvalidRequest(
            f"{what} of {dtype} {list(sizes)} has {count * size} bytes once it is filled; needed: with "
            f"the inputs before it at most --max-message-bytes, which leaves {max(max_bytes, 0)}"
        )
    return data + data[-size:] * (count - len(data) // size)


def _read(name: str, tensor: pb.Tensor, dtype: str, kind: Kind) -> bytes:
    values = getattr(tensor, kind.field)
    if kind.wide:
        narrow = "uint16" if kind.field == "half_val" else dtype
        return narrowed(f"input {name!r}", np.array(values, kind.wide), narrow).tobytes()
    if isinstance(values, bytes):
        return values
    return values[0] if len(values) == 1 else b"".join(values)


def _type_name(number: int) -> str:
    try:
        return pb.DataType.Name(number)  # pyright: ignore[reportArgumentType]
    except ValueError:
        return f"DataType {number}"


def _instead(number: int) -> str:
    if number == pb.DT_STRING:
        return "a JAX program takes no strings: send numbers, as DT_UINT8 or DT_INT32"
    return f"needed: one of {', '.join(pb.DataType.Name(kind.type) for kind in KINDS.values())}"

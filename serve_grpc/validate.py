"""The one place where tensors of a request are checked against a signature, whatever protocol carried them."""

import math
from collections.abc import Sequence, Set
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from converters.manifest import TensorInfo
from serve_grpc.batcher import Buffer
from serve_grpc.errors import InvalidRequest, ResponseTooLarge
from serve_grpc.protocol import GivenTensor
from serve_grpc.protocol.shapes import shown

INT32 = np.dtype(np.int32)
BOOL = np.dtype(np.bool_)


@dataclass(frozen=True)
class InputRule:
    """One input of a signature: [rows, *tail] of dtype. row_bytes: bytes of one row."""

    name: str
    dtype: np.dtype
    dtype_name: str  # numpy makes it anew each time it is asked, which takes longer than all of the checks
    tail: tuple[int, ...]
    row_bytes: int


class SignatureRules:
    """What a request to one signature must look like, symbols aside. Read by any thread.

    declared: the inputs with their symbols, for messages, where they have others than the batch.
    """

    def __init__(
        self,
        signature: str,
        inputs: Sequence[TensorInfo],
        outputs: Sequence[TensorInfo],
        declared: Sequence[TensorInfo] | None = None,
    ) -> None:
        self.signature = signature
        self._declared = inputs if declared is None else declared
        self.inputs = tuple(_rule(tensor) for tensor in inputs)
        self.outputs = tuple(outputs)
        self._index = {rule.name: (at, rule) for at, rule in enumerate(self.inputs)}
        self.output_row_bytes = [_rule(tensor).row_bytes for tensor in outputs]
        self.output_dtypes = [jnp.dtype(tensor.dtype) for tensor in outputs]
        self._output_index = {tensor.name: at for at, tensor in enumerate(outputs)}
        self._output_dtypes = frozenset(tensor.dtype for tensor in outputs)

    def declare(self, inputs: Sequence[TensorInfo]) -> None:
        """The inputs with their symbols, for messages."""
        self._declared = inputs

    def buffers(self, given: Sequence[GivenTensor]) -> tuple[list[Buffer], int]:
        """The bytes of each input's rows in the signature's order, without a copy where the dtype is exact; the rows.

        Raises InvalidRequest naming the input, what came and what is needed.
        """
        found: list[tuple[Buffer, int] | None] = [None] * len(self.inputs)
        for tensor in given:
            entry = self._index.get(tensor.name)
            if entry is None:
                raise InvalidRequest(f"input {tensor.name!r} is not one of {self._takes()}")
            at, rule = entry
            if found[at] is not None:
                raise InvalidRequest(f"input {tensor.name!r} came twice; needed: once")
            found[at] = _checked(rule, tensor)
        checked = [entry for entry in found if entry is not None]
        if len(checked) < len(found):
            missing = next(rule for rule, entry in zip(self.inputs, found, strict=True) if entry is None)
            raise InvalidRequest(f"input {missing.name!r} is missing from {self._takes()}")
        return [data for data, _ in checked], self._rows([rows for _, rows in checked])

    def takes_any_bytes(self, given: Sequence[GivenTensor]) -> bool:
        """Whether any bytes of the same length would be right too: these dtypes have no wrong ones."""
        rules = [self._index[tensor.name][1] for tensor in given]
        return all(
            rule.dtype != BOOL and tensor.dtype == rule.dtype_name
            for rule, tensor in zip(rules, given, strict=True)
        )

    def chosen(self, outputs: Sequence[str]) -> tuple[int, ...]:
        """Positions of the outputs asked for; all of them when none is. Raises InvalidRequest."""
        if not outputs:
            return tuple(range(len(self.outputs)))
        for name in outputs:
            if name not in self._output_index:
                gives = ", ".join(self._output_index)
                raise InvalidRequest(
                    f"output {name!r} is not one of signature {self.signature!r}; it gives: {gives}"
                )
        return tuple(self._output_index[name] for name in dict.fromkeys(outputs))

    def check_dtypes(self, known: Set[str]) -> None:
        """Raises InvalidRequest where the protocol of a request has no word for what the signature gives."""
        if self._output_dtypes <= known:
            return
        output = next(tensor for tensor in self.outputs if tensor.dtype not in known)
        raise InvalidRequest(
            f"output {output.name!r} is {output.dtype}, which this protocol cannot carry; use jaxport.v1"
        )

    def check_response(self, rows: int, outputs: Sequence[int], limit: int) -> None:
        """Raises ResponseTooLarge before the device works for an answer that could not be sent."""
        size = rows * sum(self.output_row_bytes[at] for at in outputs)
        if size > limit:
            raise ResponseTooLarge(
                f"{rows} rows of {', '.join(self.outputs[at].name for at in outputs)} are {size} bytes; needed: at most "
                f"--max-message-bytes {limit}; send fewer rows or ask for fewer outputs"
            )

    def _rows(self, counts: Sequence[int]) -> int:
        rows = counts[0]
        for rule, count in zip(self.inputs, counts, strict=True):
            if count != rows:
                raise InvalidRequest(
                    f"input {rule.name!r} has {count} rows and input {self.inputs[0].name!r} has {rows}; "
                    "needed: the same batch dimension"
                )
        return rows

    def _takes(self) -> str:
        return f"signature {self.signature!r}, which takes: {', '.join(map(_shown, self._declared))}"


def _shown(tensor: TensorInfo) -> str:
    return f"{tensor.name} ({tensor.dtype} [{', '.join(('b', *map(str, tensor.shape[1:])))}])"


def _rule(tensor: TensorInfo) -> InputRule:
    dtype = jnp.dtype(tensor.dtype)
    tail = tuple(int(size) for size in tensor.shape[1:])
    return InputRule(tensor.name, dtype, dtype.name, tail, dtype.itemsize * math.prod(tail))


def _checked(rule: InputRule, tensor: GivenTensor) -> tuple[Buffer, int]:
    """The bytes of an input in its rule's dtype, and its rows."""
    dtype, shape = rule.dtype, tensor.shape
    if tensor.dtype != rule.dtype_name:
        dtype = _convertible(rule, tensor)
    if len(shape) != len(rule.tail) + 1 or shape[1:] != rule.tail:
        raise InvalidRequest(
            f"input {rule.name!r} has shape {shown(shape)}; needed: [{', '.join(('b', *map(str, rule.tail)))}]"
        )
    if shape[0] < 1:
        raise InvalidRequest(f"input {rule.name!r} has a batch of {shape[0]}; needed: at least 1")
    needed = shape[0] * (rule.row_bytes // rule.dtype.itemsize) * dtype.itemsize
    if len(tensor.data) != needed:
        raise InvalidRequest(
            f"input {rule.name!r} has {len(tensor.data)} bytes of data; "
            f"needed: {needed} for {dtype.name} {list(shape)}"
        )
    if dtype is not rule.dtype:
        narrowed = _narrowed(rule, np.frombuffer(tensor.data, dtype).reshape(shape))
        return memoryview(narrowed.tobytes()), shape[0]
    if dtype == BOOL and np.frombuffer(tensor.data, np.uint8).max(initial=0) > 1:
        raise InvalidRequest(f"input {rule.name!r} is bool and has a byte other than 0 and 1")
    return tensor.data, shape[0]


def _convertible(rule: InputRule, tensor: GivenTensor) -> np.dtype:
    """int64 is what numpy makes of a list of integers: it is taken for int32. Nothing else is converted."""
    if tensor.dtype == "int64" and rule.dtype == INT32:
        return np.dtype(np.int64)
    raise InvalidRequest(f"input {rule.name!r} has dtype {tensor.dtype!r}; needed: {rule.dtype_name}")


def _narrowed(rule: InputRule, array: np.ndarray) -> np.ndarray:
    """int32 of an int64 array. JAX would wrap a value that does not fit, silently."""
    limits = np.iinfo(np.int32)
    wrong = (array < limits.min) | (array > limits.max)
    if wrong.any():
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise InvalidRequest(
            f"input {rule.name!r} has the int64 value {int(array[at])} at {list(at)}; needed: int32, "
            f"{limits.min} to {limits.max}"
        )
    return array.astype(np.int32)

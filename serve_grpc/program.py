"""One signature of one version on the device: an executable per bucket, the weights, and buffers to fill."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import cycle
from typing import Any, NamedTuple

import jax
import numpy as np

from serve_grpc.answers import Answered, answers
from serve_grpc.batcher import Buffer, Slice, Work
from serve_grpc.validate import SignatureRules

# With overlap one batch is on the device while the next is filled.
BUFFERS_PER_BUCKET = 2
# Bytes of a host buffer up to which copying twice is cheaper than a view for every request.
SMALL = 1 << 16


class HostBuffer(NamedTuple):
    """An array to fill, and its bytes."""

    array: np.ndarray
    data: memoryview

    @classmethod
    def of(cls, shape: tuple[int, ...], dtype: np.dtype) -> "HostBuffer":
        """Not initialised."""
        array = np.empty(shape, dtype)
        return cls(array, bytes_of(array))


def bytes_of(array: np.ndarray) -> memoryview:
    """The bytes of an array, row-major; the array's own where it lies like that."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


class Program:
    """Runs padded batches. Used by one thread at a time: the buffers are reused.

    executables: bucket -> compiled (weights, {input: [bucket, ...]}) -> {output: [bucket, ...]}.
    pad: input name -> the value of rows nobody asked for. golden_errors: bucket -> the worst error that its goldens
    showed here, as a share of what is allowed.
    """

    def __init__(
        self, rules: SignatureRules, weights: Mapping[str, jax.Array], pad: Mapping[str, float]
    ) -> None:
        self.rules = rules
        self.weights = weights
        self.executables: dict[int, Any] = {}
        self.golden_errors: dict[int, float] = {}
        self._pad = [pad.get(rule.name, 0) for rule in rules.inputs]
        self._names = [rule.name for rule in rules.inputs]
        self._dtypes = [rule.dtype for rule in rules.inputs]
        self._sizes = [rule.row_bytes for rule in rules.inputs]
        self._buffers: dict[int, Iterator[list[HostBuffer]]] = {}

    def add(self, bucket: int, executable: Any) -> None:
        """From now on `bucket` can be run."""
        self.executables[bucket] = executable
        self._buffers[bucket] = cycle(self._allocate(bucket))

    def keep(self, buckets: Iterable[int]) -> None:
        """Frees the executables and buffers of every other bucket."""
        for bucket in set(self.executables).difference(buckets):
            del self.executables[bucket], self._buffers[bucket]

    def assemble(self, slices: Sequence[Slice], bucket: int) -> list[np.ndarray]:
        """Arrays [bucket, ...] in the signature's order. Each row is copied once, or not at all when one request
        fills the bucket. They are the program's again after `fetch`.
        """
        work, start, stop = slices[0]
        if stop - start == bucket:
            return [
                np.frombuffer(memoryview(data)[start * size : stop * size], dtype).reshape(shape)
                for data, size, dtype, shape in zip(
                    work.data, self._sizes, self._dtypes, self._shapes(bucket), strict=True
                )
            ]
        buffers = next(self._buffers[bucket])
        for at, (buffer, size) in enumerate(zip(buffers, self._sizes, strict=True)):
            rows = [
                work.data[at]
                if stop - start == work.rows
                else memoryview(work.data[at])[start * size : stop * size]
                for work, start, stop in slices
            ]
            end = self._fill(buffer.data, rows)
            if end < len(buffer.data):
                buffer.array[end // size :] = self._pad[at]
        return [buffer.array for buffer in buffers]

    def launch(self, bucket: int, arrays: Sequence[np.ndarray]) -> list[jax.Array]:
        """Starts a run; outputs [bucket, ...] in the signature's order, on the device."""
        inputs = dict(zip(self._names, arrays, strict=True))
        outputs = self.executables[bucket](self.weights, inputs)
        return [outputs[output.name] for output in self.rules.outputs]

    def fetch(self, outputs: Sequence[jax.Array]) -> list[np.ndarray]:
        """Waits for a run and brings its outputs to the host."""
        if len(outputs) > 1:  # all at once, not one after the other
            for output in outputs:
                output.copy_to_host_async()
        return [np.asarray(output) for output in outputs]

    def answers(self, slices: Sequence[Slice], arrays: Sequence[np.ndarray]) -> Answered:
        """Requests that are through, and what to send for each. arrays: what `fetch` gave for their batch."""
        return answers(slices, [bytes_of(array) for array in arrays], self.rules.output_row_bytes)

    def cut(self, work: Work, arrays: Sequence[np.ndarray], start: int, stop: int) -> list[np.ndarray]:
        """Rows start to stop of the outputs that a request asked for."""
        return [arrays[i][start:stop] for i in work.outputs]

    def run(self, bucket: int, slices: Sequence[Slice]) -> list[np.ndarray]:
        """Assemble, launch and fetch: the whole way of a batch through the device."""
        return self.fetch(self.launch(bucket, self.assemble(slices, bucket)))

    @staticmethod
    def _fill(target: memoryview, rows: Sequence[Buffer]) -> int:
        """Copies the rows of several requests one after the other; the bytes that they took."""
        if len(target) <= SMALL:
            joined = b"".join(rows)
            target[: len(joined)] = joined
            return len(joined)
        end = 0
        for data in rows:
            begin, end = end, end + len(data)
            target[begin:end] = data
        return end

    def _shapes(self, bucket: int) -> list[tuple[int, ...]]:
        return [(bucket, *rule.tail) for rule in self.rules.inputs]

    def _allocate(self, bucket: int) -> list[list[HostBuffer]]:
        return [
            [
                HostBuffer.of(shape, dtype)
                for shape, dtype in zip(self._shapes(bucket), self._dtypes, strict=True)
            ]
            for _ in range(BUFFERS_PER_BUCKET)
        ]

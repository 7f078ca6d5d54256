"""A program whose rows may be shorter than it: padded behind their ends on the way in, cut there on the way out."""

from collections.abc import Callable, Mapping, Sequence

import jax
import numpy as np

from converters.manifest import Signature
from serve_grpc.answers import Answered, joined
from serve_grpc.batcher import Buffer, Slice, Work
from serve_grpc.program import HostBuffer, Program, bytes_of
from serve_grpc.transport import Answer
from serve_grpc.validate import SignatureRules


class SequenceProgram(Program):
    """Runs rows of any length up to `length`. Work has the bytes of its own length, which follows from their number.

    declared: the signature with its symbols. Everything else is as if `length` were the only one.
    """

    def __init__(self, declared: Signature, length: int, weights: Mapping[str, jax.Array]) -> None:
        fixed, symbol = declared.at_length(length), declared.sequence and declared.sequence.symbol
        super().__init__(SignatureRules(fixed.name, fixed.inputs, fixed.outputs), weights, declared.pad)
        self.length = length
        # By position: whether it has the sequence. Of those inputs the bytes of one element of it.
        self._along = [symbol in tensor.shape for tensor in declared.inputs]
        self._cuts = [symbol in tensor.shape for tensor in declared.outputs]
        self._units = [size // length for size in self._sizes]
        self._telling = self._along.index(True)
        # Told of the positions behind the ends of a batch's rows.
        self.padded: Callable[[float], None] | None = None

    def length_of(self, work: Work) -> int:
        """The length of a request's sequences."""
        return len(work.data[self._telling]) // (work.rows * self._units[self._telling])

    def assemble(self, slices: Sequence[Slice], bucket: int) -> list[np.ndarray]:
        """As `Program.assemble`; what stands behind a row's end is the input's pad."""
        lengths = [self.length_of(work) for work, _, _ in slices]
        if min(lengths) == self.length:
            return super().assemble(slices, bucket)
        if self.padded is not None:
            spans = zip(slices, lengths, strict=True)
            self.padded(sum((stop - start) * (self.length - length) for (_, start, stop), length in spans))
        buffers = next(self._buffers[bucket])
        for at, buffer in enumerate(buffers):
            buffer.array[...] = self._pad[at]
            if self._along[at]:
                self._put(at, buffer, slices, lengths)
            else:
                self._put(at, buffer, slices, [self.length] * len(slices))
        return [buffer.array for buffer in buffers]

    def _put(self, at: int, buffer: HostBuffer, slices: Sequence[Slice], lengths: Sequence[int]) -> None:
        """Copies the rows of one input, each behind the other and as long as it is."""
        array, target, whole = buffer.array, buffer.data, self._sizes[at]
        row = 0
        for (work, start, stop), length in zip(slices, lengths, strict=True):
            rows = stop - start
            size = whole if length == self.length else length * self._units[at]
            data = work.data[at]
            if rows != work.rows:
                data = memoryview(data)[start * size : stop * size]
            if rows == 1 or size == whole:
                target[row * whole : row * whole + len(data)] = data
            else:
                shape = (rows, length, *array.shape[2:])
                array[row : row + rows, :length] = np.frombuffer(data, array.dtype).reshape(shape)
            row += rows

    def answers(self, slices: Sequence[Slice], arrays: Sequence[np.ndarray]) -> Answered:
        """As `Program.answers`, each answer as long as its request."""
        works: list[Work] = []
        found: list[Answer] = []
        outputs = [bytes_of(array) for array in arrays]
        sizes = self.rules.output_row_bytes
        at = 0
        for work, start, stop in slices:
            end, length = at + stop - start, self.length_of(work)
            data: list[Buffer] | None = []
            for i in work.outputs:
                size = sizes[i]
                if not self._cuts[i] or length == self.length:
                    data.append(outputs[i][at * size : end * size])
                elif end - at == 1:  # its beginning is without gaps
                    data.append(outputs[i][at * size : at * size + size // self.length * length])
                else:
                    data.append(bytes_of(arrays[i][at:end, :length]))
            at = end
            if stop - start != work.rows:
                data = joined(work, data, stop)
                if data is None:
                    continue
            works.append(work)
            found.append((work.call, work.encode(data)))
        return works, found

    def cut(self, work: Work, arrays: Sequence[np.ndarray], start: int, stop: int) -> list[np.ndarray]:
        """Rows start to stop of the outputs that a request asked for, as long as it is."""
        length = self.length_of(work)
        return [
            arrays[i][start:stop, :length] if self._cuts[i] else arrays[i][start:stop] for i in work.outputs
        ]

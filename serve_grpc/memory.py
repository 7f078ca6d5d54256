"""Whether a version fits, before anything of it is loaded."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from converters.manifest import Manifest, TensorInfo
from serve_grpc.device import Device
from serve_grpc.host_memory import free_bytes
from serve_grpc.program import BUFFERS_PER_BUCKET, Program
from serve_grpc.version import LoadedVersion

# Batches whose inputs and outputs can be on the device together.
BATCHES = 2
# Without the compiler's word: temporaries of a run, as a multiple of what goes in and out of it.
ESTIMATED_TEMPORARIES = 4


@dataclass(frozen=True)
class Need:
    """Bytes that a version takes.

    weights and run are the device's; a run has its inputs, outputs, temporaries and code. buffers and reading are the
    host's: what batches are put together in, and the weights once more while they are read.
    known: whether the compiler said what a run takes; else it is an estimate.
    """

    weights: int
    run: int
    buffers: int
    reading: int
    known: bool

    def __str__(self) -> str:
        how = "" if self.known else " (estimated: this program has not been compiled here yet)"
        return f"weights {size(self.weights)}, a run {size(self.run)}{how}, host buffers {size(self.buffers)}"


class Shortage(NamedTuple):
    """Where a version does not fit: bytes needed and free."""

    where: str
    needed: int
    free: int

    def __str__(self) -> str:
        return f"needs {size(self.needed)} of {self.where} and {size(self.free)} is free"


class Memory:
    """Predicts what versions take, and knows what is free.

    limit: bytes of the device that all models together may take; None: what the device has. One thread at a time.
    """

    def __init__(
        self,
        device: Device,
        max_batch: int,
        limit: int | None = None,
        host_free: Callable[[], int | None] = free_bytes,
    ) -> None:
        self._device = device
        self._max_batch = max_batch
        self._limit = limit
        self._host_free = host_free
        self._runs: dict[str, int] = {}  # by swap_key, as the compiler said

    def need(self, manifest: Manifest) -> Need:
        """What a version would take. The compiler's figures count where the same program was loaded before."""
        weights = sum(math.prod(w.shape) * np.dtype(w.dtype).itemsize for w in manifest.weights)
        known = self._runs.get(manifest.swap_key)
        run, buffers = 0, 0
        for signature in manifest.signatures.values():
            for fixed in signature.compiled:
                moved = _row_bytes(fixed.inputs) + _row_bytes(fixed.outputs)
                largest = max(fixed.batches, default=self._max_batch)
                run = max(run, moved * largest * (BATCHES + ESTIMATED_TEMPORARIES))
                # Buckets are powers of two: together they have less than twice the rows of the largest.
                together = sum(fixed.batches) or 2 * largest
                buffers += _row_bytes(fixed.inputs) * together * BUFFERS_PER_BUCKET
        return Need(weights, run if known is None else known, buffers, weights, known is not None)

    def learn(self, version: LoadedVersion) -> None:
        """Remembers what the compiler says of a loaded version's programs."""
        if version.swap_key not in self._runs:
            known = run_bytes(version.programs)
            if known is not None:
                self._runs[version.swap_key] = known

    def shortage(
        self, need: Need, loaded: Iterable[LoadedVersion], leaving: Iterable[LoadedVersion] = ()
    ) -> Shortage | None:
        """Where `need` does not fit beside the loaded versions, once the leaving ones among them are gone."""
        gone = list(leaving)
        stays = [version for version in loaded if not any(version is other for other in gone)]
        freed = sum(map(weight_bytes, gone))
        # One run at a time: beside the weights there must be room for the largest.
        run = max([need.run, *(self._runs.get(version.swap_key, 0) for version in stays)])
        checks = self._checks(need, run, sum(map(weight_bytes, stays)), freed)
        return next((check for check in checks if check.needed > check.free), None)

    def _checks(self, need: Need, run: int, taken: int, freed: int) -> Iterator[Shortage]:
        on_device, on_host = need.weights + run, need.buffers + need.reading
        if self._limit is not None:
            yield Shortage("--memory-limit", on_device, max(0, self._limit - taken))
        stats = self._device.handle.memory_stats() or {}
        host = self._host_free()
        if "bytes_limit" in stats:
            left = stats["bytes_limit"] - stats.get("bytes_in_use", 0)
            yield Shortage("device memory", on_device, left + freed)
        else:  # a CPU's device memory is the host's
            on_host, host = on_host + on_device, None if host is None else host + freed
        if host is not None:
            yield Shortage("host memory", on_host, host)


def weight_bytes(version: LoadedVersion) -> int:
    """Bytes of a version's weights on the device; its signatures share them."""
    weights: Mapping[str, Any] = next((p.weights for p in version.programs.values()), {})
    return sum(array.nbytes for array in weights.values())


def run_bytes(programs: Mapping[str, Program]) -> int | None:
    """Bytes that runs take beside the weights, at most: code of all executables and the largest run's needs.

    None when the compiler does not say.
    """
    code, largest = 0, 0
    for program in programs.values():
        weights = sum(array.nbytes for array in program.weights.values())
        for executable in program.executables.values():
            try:
                stats = executable.memory_analysis()
            except NotImplementedError:  # a backend without the figures
                return None
            if stats is None:
                return None
            moved = max(0, stats.argument_size_in_bytes - weights) + stats.output_size_in_bytes
            code += stats.generated_code_size_in_bytes
            largest = max(largest, stats.temp_size_in_bytes + BATCHES * moved)
    return code + largest


def size(count: int) -> str:
    """Bytes for people: 3.4 GB."""
    for unit, name in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if count >= unit:
            return f"{count / unit:.3g} {name}"
    return f"{count} bytes"


def _row_bytes(tensors: Iterable[TensorInfo]) -> int:
    """Bytes of one row of all tensors."""
    return sum(
        math.prod(n for n in tensor.shape[1:] if isinstance(n, int)) * np.dtype(tensor.dtype).itemsize
        for tensor in tensors
    )

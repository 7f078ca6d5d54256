"""Whether a version fits, before anything of it is loaded."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax
import numpy as np

from converters.cuts import pieces
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

    weights and run are the device's, or those of each of its `devices`; a run has its inputs, outputs, temporaries and
    code. buffers and reading are the host's: what batches are put together in, and the weights once more, whole, while
    they are read. known: whether the compiler said what a run takes; else it is an estimate.
    """

    weights: int
    run: int
    buffers: int
    reading: int
    known: bool
    devices: int = 1

    def __str__(self) -> str:
        how = "" if self.known else " (estimated: this program has not been compiled here yet)"
        each = f" on each of {self.devices} devices" if self.devices > 1 else ""
        return f"weights {size(self.weights)}, a run {size(self.run)}{how}{each}, host buffers {size(self.buffers)}"


class Shortage(NamedTuple):
    """Where a version does not fit: bytes needed and free."""

    where: str
    needed: int
    free: int

    def __str__(self) -> str:
        return f"needs {size(self.needed)} of {self.where} and {size(self.free)} is free"


class Memory:
    """Predicts what versions take, and knows what is free.

    limit: bytes of the device that all models together may take, of several devices of each; None: what the device has.
    One thread at a time.
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
        whole = {w.name: math.prod(w.shape) * np.dtype(w.dtype).itemsize for w in manifest.weights}
        held = sum(
            count // pieces(manifest.shardings.get(name, ()), manifest.mesh) for name, count in whole.items()
        )
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
        return Need(
            held,
            run if known is None else known,
            buffers,
            sum(whole.values()),
            known is not None,
            manifest.nr_devices,
        )

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
        return next((check for check in self._checks(need, stays, gone) if check.needed > check.free), None)

    def _checks(
        self, need: Need, stays: Sequence[LoadedVersion], gone: Sequence[LoadedVersion]
    ) -> Iterator[Shortage]:
        # One run at a time: beside the weights there must be room for the largest.
        runs = [(need.run, need.devices)]
        runs += [(self._runs.get(version.swap_key, 0), device_count(version)) for version in stays]
        on_device, on_host = need.weights + max(run for run, _ in runs), need.buffers + need.reading
        if self._limit is not None:  # of the first device, on which every version has a part
            yield Shortage("--memory-limit", on_device, max(0, self._limit - sum(map(weight_bytes, stays))))
        host = self._host_free()
        if (left := self._left(need.devices, gone)) is not None:
            yield Shortage("device memory", on_device, left)
        else:  # a CPU's device memory is the host's, however many devices it simulates
            on_host += need.weights * need.devices + max(run * count for run, count in runs)
            freed = sum(weight_bytes(version) * device_count(version) for version in gone)
            host = None if host is None else host + freed
        if host is not None:
            yield Shortage("host memory", on_host, host)

    def _left(self, devices: int, gone: Sequence[LoadedVersion]) -> int | None:
        """The least of what each of the first devices has left once `gone` are gone; None where they keep no account."""
        left = []
        for at, handle in enumerate(self._device.handles[:devices]):
            stats = handle.memory_stats() or {}
            if "bytes_limit" not in stats:
                return None
            freed = sum(weight_bytes(version) for version in gone if at < device_count(version))
            left.append(stats["bytes_limit"] - stats.get("bytes_in_use", 0) + freed)
        return min(left)


def weight_bytes(version: LoadedVersion) -> int:
    """Bytes of a version's weights on each of its devices; its signatures share them."""
    return sum(map(_held, _weights(version).values()))


def device_count(version: LoadedVersion) -> int:
    """How many devices a version runs on, which are the first ones."""
    return max((len(array.sharding.device_set) for array in _weights(version).values()), default=1)


def _weights(version: LoadedVersion) -> Mapping[str, jax.Array]:
    return next((p.weights for p in version.programs.values()), {})


def _held(array: jax.Array) -> int:
    """Bytes of an array on each device that has a part of it."""
    return math.prod(array.sharding.shard_shape(array.shape)) * array.dtype.itemsize


def run_bytes(programs: Mapping[str, Program]) -> int | None:
    """Bytes that runs take of each device beside the weights, at most: code of all executables and the largest run's needs.

    None when the compiler does not say.
    """
    code, largest = 0, 0
    for program in programs.values():
        weights = sum(map(_held, program.weights.values()))
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

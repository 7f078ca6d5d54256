"""Executables of a program, one per bucket: compiled from its export, or read back from the compile cache."""

import hashlib
import json
import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

import jax
import numpy as np
from jax.experimental.serialize_executable import deserialize_and_load, serialize

from converters.manifest import Manifest, Signature
from converters.placement import Placement
from serve_grpc.cache import CompileCache
from serve_grpc.device import Device
from serve_grpc.errors import CacheDamaged
from serve_grpc.spread import SpreadExecutable

log = logging.getLogger(__name__)


def entry_name(manifest: Manifest, signature: Signature, max_batch: int) -> str:
    """The cache's name for a program: what it is, what it is called with, and the buckets that were tried.

    signature: as it is compiled, without a symbol but the batch: each lane has a name of its own.
    """
    facts = [
        signature.program_sha256,
        [asdict(tensor) for tensor in (*signature.inputs, *signature.outputs)],
        [(weight.name, weight.dtype, weight.shape) for weight in manifest.weights],
        list(signature.batches) or max_batch,
        *([dict(manifest.mesh), sorted(manifest.shardings.items())] if manifest.mesh else ()),
    ]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]


def _compiled(manifest: Manifest) -> Iterator[Signature]:
    """Every signature as it is compiled."""
    for signature in manifest.signatures.values():
        yield from signature.compiled


def compiler(
    exported: jax.export.Exported,
    signature: Signature,
    weights: Mapping[str, jax.Array],
    device: Device,
    placement: Placement | None = None,
) -> Callable[[int], Any]:
    """bucket -> executable. weights: in their places, which tell the compiler. placement: of a program for several devices.

    Inputs are not donated: they come from the host, which frees them.
    """
    single = jax.sharding.SingleDeviceSharding(device.handle)
    whole = single if placement is None else placement.copies
    function = jax.jit(exported.call)
    weight_specs = {
        name: jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=array.sharding)
        for name, array in weights.items()
    }

    def compile_bucket(bucket: int) -> Any:
        inputs = {
            tensor.name: jax.ShapeDtypeStruct(
                (bucket, *map(int, tensor.shape[1:])), np.dtype(tensor.dtype), sharding=whole
            )
            for tensor in signature.inputs
        }
        return callable_on(function.lower(weight_specs, inputs).compile(), exported.nr_devices, device)

    return compile_bucket


def callable_on(compiled: Any, count: int, device: Device) -> Any:
    """What to call: of a program for one device JAX's own executable, with nothing around it."""
    return compiled if count == 1 else SpreadExecutable(compiled, waits=device.platform == "cpu")


def to_bytes(executable: Any) -> bytes:
    """For the compile cache. Raises what JAX makes of an executable that cannot be stored."""
    return serialize(executable.compiled if isinstance(executable, SpreadExecutable) else executable)[0]


@dataclass(frozen=True)
class Stored:
    """Executables of the cache, on the device. seconds: bucket -> seconds of one run when they were chosen."""

    executables: Mapping[int, Any]
    seconds: Mapping[int, float]


class StoredExecutables:
    """Reads executables back in threads of their own: begun by `expect`, handed out once by `take`."""

    def __init__(self, device: Device, cache: CompileCache | None, max_batch: int) -> None:
        self._device = device
        self._cache = cache
        self._max_batch = max_batch
        self._lock = threading.Lock()
        self._loading: dict[str, Future[Stored | None]] = {}

    def expect(self, manifest: Manifest) -> None:
        """Begins to load what the cache has of every signature at every length, unless that has begun."""
        for signature in _compiled(manifest):
            name = entry_name(manifest, signature, self._max_batch)
            with self._lock:
                if name in self._loading:
                    continue
                future: Future[Stored | None] = Future()
                self._loading[name] = future
            threading.Thread(
                target=self._load, args=(name, manifest, signature, future), name="executables", daemon=True
            ).start()

    def take(self, manifest: Manifest, signature: Signature) -> Stored | None:
        """The executables of a signature; None when the cache has none that can be used, and the log says why."""
        self.expect(manifest)
        name = entry_name(manifest, signature, self._max_batch)
        with self._lock:
            future = self._loading.pop(name)
        return future.result()

    def drop(self, manifest: Manifest) -> None:
        """Frees what was expected of a version and not taken: by the next try the cache may have something else."""
        names = {entry_name(manifest, one, self._max_batch) for one in _compiled(manifest)}
        with self._lock:
            for name in names:
                self._loading.pop(name, None)

    def forget(self) -> None:
        """Frees what was expected and not taken."""
        with self._lock:
            self._loading.clear()

    def _load(
        self, name: str, manifest: Manifest, signature: Signature, future: "Future[Stored | None]"
    ) -> None:
        try:
            future.set_result(self._stored(name, manifest, signature))
        except CacheDamaged as error:
            log.warning("cache entry not used: %s", error)
            future.set_result(None)
        # The digest was right, so these bytes are what was written: JAX raises what it likes about them.
        except Exception as error:
            reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0][:200]}"
            log.warning("cache entry not used: %s cannot be loaded: %s", name, reason)
            future.set_result(None)

    def _stored(self, name: str, manifest: Manifest, signature: Signature) -> Stored | None:
        entry = None if self._cache is None else self._cache.get(name)
        if entry is None:
            return None
        weights = {weight.name: 0 for weight in manifest.weights}
        inputs = {tensor.name: 0 for tensor in signature.inputs}
        in_tree = jax.tree.structure(((weights, inputs), {}))
        out_tree = jax.tree.structure({tensor.name: 0 for tensor in signature.outputs})
        count = manifest.nr_devices
        handles = self._device.handles[:count]

        def load(data: bytes) -> Any:
            loaded = deserialize_and_load(data, in_tree, out_tree, handles[0].client, handles)
            return callable_on(loaded, count, self._device)

        # None at all where the program was tried and is not worth using.
        with ThreadPoolExecutor(min(8, os.cpu_count() or 1), "executables") as pool:
            loaded = list(pool.map(load, entry.executables.values()))
        return Stored(dict(zip(entry.executables, loaded, strict=True)), entry.seconds)

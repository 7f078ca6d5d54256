"""A bundle becomes a version that can serve: digests, executables per bucket, goldens, costs."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from converters.bundle import Bundle, open_bundle
from converters.golden import Golden
from converters.manifest import Signature
from serve_grpc.batcher import Batcher, Slice, Work
from serve_grpc.buckets import BucketChoice, candidates, still_climbing, worth_using
from serve_grpc.catalog import LOADING, SignatureInfo, VersionInfo
from serve_grpc.device import Device
from serve_grpc.errors import LoadRefused
from serve_grpc.executor import Runnable
from serve_grpc.metrics import Metrics, VersionMetrics
from serve_grpc.program import Program
from serve_grpc.settings import BatchSettings
from serve_grpc.validate import SignatureRules

log = logging.getLogger(__name__)

# A bucket is timed until it has run this often or this long, whichever comes last.
TIMED_RUNS = 3
TIMED_SECONDS = 0.15
MOST_TIMED_RUNS = 50


@dataclass(frozen=True)
class LoadedVersion:
    """A version on the device. swap_key: two versions with equal keys differ only in weights."""

    model: str
    info: VersionInfo
    swap_key: str
    batchers: Mapping[str, Batcher]
    programs: Mapping[str, Program]
    metrics: VersionMetrics


class Loader:
    """Loads bundles for one device. One thread at a time."""

    def __init__(self, device: Device, batch: BatchSettings, metrics: Metrics) -> None:
        self._device = device
        self._batch = batch
        self._metrics = metrics

    def load(self, model: str, path: Path, like: LoadedVersion | None) -> LoadedVersion:
        """Opens, compiles, proves and measures a bundle. The executables of `like` are used when only weights differ.

        Raises BundleError, LoadRefused, and whatever JAX makes of a program that it cannot load.
        """
        bundle = open_bundle(path)
        self._check_platform(bundle)
        shared = like if like is not None and like.swap_key == bundle.swap_key else None
        weights = jax.device_put(bundle.load_weights(), self._device.handle)
        infos: dict[str, SignatureInfo] = {}
        programs: dict[str, Program] = {}
        for name, signature in bundle.manifest.signatures.items():
            start = time.monotonic()
            program, seconds = self._signature(bundle, signature, weights, shared)
            programs[name] = program
            infos[name] = _info(signature, seconds)
            log.info(
                "loaded model=%s version=%s signature=%s buckets_ms=%s compiled=%s seconds=%.2f",
                model, path.name, name, _milliseconds(seconds), shared is None, time.monotonic() - start,
            )  # fmt: skip
        return self._assembled(model, int(path.name), bundle, infos, programs)

    def _check_platform(self, bundle: Bundle) -> None:
        needed, has = self._device.platform, bundle.manifest.platforms
        if needed not in has:
            raise LoadRefused(
                f"the program was exported for {', '.join(has)} and this device is {needed}; "
                f"export again with --platforms {','.join((*has, needed))}"
            )
        if bundle.manifest.nr_devices != 1:
            raise LoadRefused(f"the program needs {bundle.manifest.nr_devices} devices; needed: 1 per server")

    def _signature(
        self,
        bundle: Bundle,
        signature: Signature,
        weights: Mapping[str, jax.Array],
        shared: LoadedVersion | None,
    ) -> tuple[Program, Mapping[int, float]]:
        """The proven program of a signature and the seconds of its buckets in use."""
        _check_batchable(signature)
        rules = SignatureRules(signature.name, signature.inputs, signature.outputs)
        goldens = bundle.goldens(signature.name)
        program = Program(rules, weights, signature.pad)
        if shared is None:
            compile_bucket = self._compiler(bundle.exported(signature.name), signature, weights)
            seconds = self._climb(program, compile_bucket, goldens[0])
        else:
            for bucket, executable in shared.programs[signature.name].executables.items():
                program.add(bucket, executable)
            old = next(info for info in shared.info.signatures if info.name == signature.name)
            seconds = old.bucket_seconds
        self._prove(bundle, signature, program, goldens)
        return program, seconds

    def _climb(
        self, program: Program, compile_bucket: Callable[[int], Any], golden: Golden
    ) -> Mapping[int, float]:
        """Compiles and times one bucket after the other while that pays; the seconds of those worth using."""
        seconds: dict[int, float] = {}
        for bucket in candidates(self._batch.max_batch):
            program.add(bucket, compile_bucket(bucket))
            _time_all(program, golden, seconds)
            if not still_climbing(seconds):
                break
        _time_all(program, golden, seconds)
        used = worth_using(seconds)
        program.keep(used)
        return used

    def _compiler(
        self, exported: Any, signature: Signature, weights: Mapping[str, jax.Array]
    ) -> Callable[[int], Any]:
        """bucket -> executable. Inputs are not donated: they come from the host, which frees them."""
        sharding = jax.sharding.SingleDeviceSharding(self._device.handle)

        def spec(shape: Sequence[int], dtype: Any) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

        function = jax.jit(exported.call)
        weight_specs = {name: spec(array.shape, array.dtype) for name, array in weights.items()}

        def compile_bucket(bucket: int) -> Any:
            inputs = {
                tensor.name: spec((bucket, *map(int, tensor.shape[1:])), jax.numpy.dtype(tensor.dtype))
                for tensor in signature.inputs
            }
            return function.lower(weight_specs, inputs).compile()

        return compile_bucket

    def _prove(
        self, bundle: Bundle, signature: Signature, program: Program, goldens: Sequence[Golden]
    ) -> None:
        """Every executable gives every golden's outputs, padded and split as requests are. Raises GoldenMismatch."""
        for golden in goldens:
            for bucket in program.executables:
                outputs = _run_all(program, bucket, golden)
                bundle.check_golden(signature.name, golden, outputs, self._device.platform)

    def _assembled(
        self,
        model: str,
        version: int,
        bundle: Bundle,
        infos: Mapping[str, SignatureInfo],
        programs: Mapping[str, Program],
    ) -> LoadedVersion:
        manifest = bundle.manifest
        metrics = VersionMetrics(self._metrics, model, version, manifest.window_ends)
        batchers = {}
        for name, program in programs.items():
            choice = BucketChoice.of(infos[name].bucket_seconds)
            batchers[name] = Batcher(Runnable(program, metrics), choice, self._batch.max_queue)
        for name, batcher in batchers.items():
            metrics.watch_depth(name, lambda batcher=batcher: batcher.rows)
        info = VersionInfo(
            version, LOADING, "", tuple(infos.values()), manifest.window_ends, dict(manifest.usage)
        )
        return LoadedVersion(model, info, bundle.swap_key, batchers, programs, metrics)


def _check_batchable(signature: Signature) -> None:
    """Raises LoadRefused for a signature whose rows cannot be put together."""
    symbol = signature.batch_symbol
    for kind, tensors in (("input", signature.inputs), ("output", signature.outputs)):
        for tensor in tensors:
            where = f"signature {signature.name!r}: {kind} {tensor.name!r} has shape {list(tensor.shape)}"
            if not tensor.shape or tensor.shape[0] != symbol:
                raise LoadRefused(f"{where}; needed: {symbol!r} first, to batch requests")
            if any(not isinstance(size, int) for size in tensor.shape[1:]):
                raise LoadRefused(f"{where}; needed: fixed sizes after {symbol!r}")


def _info(signature: Signature, seconds: Mapping[int, float]) -> SignatureInfo:
    return SignatureInfo(signature.name, signature.inputs, signature.outputs, dict(seconds))


def _rows_of(program: Program, golden: Golden, rows: int | None = None) -> Work:
    """A golden as a request, its rows repeated up to `rows`."""
    inputs = [np.asarray(golden.inputs[rule.name]) for rule in program.rules.inputs]
    if rows is not None:
        inputs = [np.resize(array, (rows, *array.shape[1:])) for array in inputs]
    return Work(None, "", inputs, len(inputs[0]), (), bytes)  # type: ignore[arg-type]


def _run_all(program: Program, bucket: int, golden: Golden) -> dict[str, np.ndarray]:
    """Outputs of a golden's rows through one bucket, in pieces where it is larger."""
    work = _rows_of(program, golden)
    pieces = []
    for start in range(0, work.rows, bucket):
        stop = min(start + bucket, work.rows)
        outputs = program.run(bucket, [Slice(work, start, stop)])
        pieces.append([output[: stop - start].copy() for output in outputs])
    joined = [np.concatenate(parts) for parts in zip(*pieces, strict=True)]
    return {output.name: array for output, array in zip(program.rules.outputs, joined, strict=True)}


def _time_all(program: Program, golden: Golden, seconds: dict[int, float]) -> None:
    """Times every bucket in turn and keeps each one's fastest: a busy moment of the machine judges none of them."""
    for bucket in program.executables:
        seconds[bucket] = min(_seconds(program, bucket, golden), seconds.get(bucket, float("inf")))


def _seconds(program: Program, bucket: int, golden: Golden) -> float:
    """The fastest of a few runs of a full bucket: what else the machine does only ever adds."""
    work = _rows_of(program, golden, bucket)
    # Two halves, so that assembling is a part of the cost as it is for requests.
    half = bucket // 2
    slices = [Slice(work, 0, half), Slice(work, half, bucket)] if half else [Slice(work, 0, bucket)]
    program.run(bucket, slices)  # the first run of an executable also sets it up
    best, spent, runs = float("inf"), 0.0, 0
    while runs < TIMED_RUNS or (spent < TIMED_SECONDS and runs < MOST_TIMED_RUNS):
        start = time.perf_counter()
        program.run(bucket, slices)
        took = time.perf_counter() - start
        best, spent, runs = min(best, took), spent + took, runs + 1
    return best


def _milliseconds(seconds: Mapping[int, float]) -> str:
    return ",".join(f"{bucket}:{value * 1e3:.3g}" for bucket, value in seconds.items())

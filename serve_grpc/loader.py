"""A bundle becomes a version that can serve: digests, executables per bucket, goldens, costs."""

import contextlib
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax

from converters.bundle import Bundle, list_models, list_versions, read_manifest
from converters.errors import BundleError
from converters.golden import Golden
from converters.manifest import ANY_BATCH, UNSIZED, Signature
from converters.placement import Placement, missing
from serve_grpc.buckets import candidates, still_climbing, worth_using
from serve_grpc.cache import CompileCache, Entry
from serve_grpc.device import Device
from serve_grpc.errors import LoadRefused
from serve_grpc.executables import StoredExecutables, compiler, entry_name, to_bytes
from serve_grpc.lanes import lane_name, worth_a_lane
from serve_grpc.metrics import Metrics
from serve_grpc.program import Program
from serve_grpc.rehearsal import goldens_up_to, milliseconds, prove, time_all
from serve_grpc.sequence_program import SequenceProgram
from serve_grpc.settings import BatchSettings
from serve_grpc.validate import SignatureRules
from serve_grpc.version import LoadedVersion, Proven, assemble

log = logging.getLogger(__name__)

# Where the executables of a version come from: one like it that is loaded, the compile cache, or the compiler.
LIKE, CACHE, COMPILER = "like", "cache", "compiler"
# What is published is chosen once for many servers, so it is timed more often: a busy moment must not choose.
LAST_ROUNDS, LAST_ROUNDS_TO_PUBLISH = 1, 4


class Loader:
    """Loads bundles for the devices of this process. One thread at a time.

    publish: called with the cache's name of each program that had to be compiled, and what the next start needs of it.
    compiled: model -> executables that the compile cache did not have.
    """

    def __init__(
        self,
        device: Device,
        batch: BatchSettings,
        metrics: Metrics,
        cache: CompileCache | None = None,
        publish: Callable[[str, Entry], None] | None = None,
    ) -> None:
        self._device = device
        self._batch = batch
        self._metrics = metrics
        self._stored = StoredExecutables(device, cache, batch.max_batch)
        self._publish = publish
        self._threads = 1
        self._beside_requests = False
        self.compiled: Counter[str] = Counter()

    def look_ahead(self, models: Path) -> None:
        """Nobody is served yet: begins to read back the executables of every model's newest version, and lets `load`
        use every core. What is wrong with a version shows in `load`.
        """
        self._threads = os.cpu_count() or 1
        with contextlib.suppress(OSError):
            for model in list_models(models):
                with contextlib.suppress(BundleError, IndexError):
                    manifest = read_manifest(models / model / str(list_versions(models / model)[-1]))
                    if manifest.nr_devices <= len(self._device.handles):
                        self._stored.expect(manifest)

    def end_look_ahead(self) -> None:
        """From now on there are requests to answer. Frees what was read back and not needed."""
        self._threads = 1
        self._beside_requests = True
        self._stored.forget()

    def load(self, model: str, path: Path, like: LoadedVersion | None) -> LoadedVersion:
        """Opens and proves a bundle; compiles and times it where the compile cache has nothing of it.

        The executables of `like` are used when only weights differ. Raises BundleError, LoadRefused, and whatever
        JAX makes of a program that it cannot load.
        """
        bundle = Bundle(path, read_manifest(path))
        self.check_platform(bundle)
        shared = like if like is not None and like.swap_key == bundle.swap_key else None
        if shared is None:
            self._stored.expect(bundle.manifest)
        for code, reason in bundle.manifest.allowed.items():
            log.warning("allowed model=%s version=%d rule=%s reason=%r", model, bundle.version, code, reason)
        try:
            return self._loaded(model, bundle, shared)
        finally:
            self._stored.drop(bundle.manifest)

    def _loaded(self, model: str, bundle: Bundle, shared: LoadedVersion | None) -> LoadedVersion:
        weights = self._weights(bundle)
        loaded: dict[str, list[Proven]] = {}
        refused = {name: why for name, s in bundle.manifest.signatures.items() if (why := _not_served(s))}
        for name, why in refused.items():
            log.warning("not served model=%s version=%s signature=%s: %s", model, bundle.path.name, name, why)
        if len(refused) == len(bundle.manifest.signatures):
            raise LoadRefused("; ".join(f"signature {name!r}: {why}" for name, why in refused.items()))
        for name, signature in bundle.manifest.signatures.items():
            if name not in refused:
                loaded[name] = []
                for sizes in signature.combinations:
                    loaded[name] += self._load_lanes(model, bundle, signature, sizes, weights, shared)
        return assemble(model, bundle, loaded, refused, self._metrics, self._batch, self._device.overlap)

    def _load_lanes(
        self,
        model: str,
        bundle: Bundle,
        declared: Signature,
        sizes: Mapping[str, int],
        weights: Mapping[str, jax.Array],
        shared: LoadedVersion | None,
    ) -> list[Proven]:
        """The programs of a signature at these sizes of its further symbols, by length ascending."""
        signature, key = declared.at_sizes(sizes), tuple(sizes.items())
        _check_batchable(signature)
        lanes: list[Proven] = []
        # The longest first: a shorter one is there for what it saves.
        for length in (None,) if signature.sequence is None else reversed(signature.sequence.lengths):
            start = time.monotonic()
            program = _program(signature, length, weights)
            if sizes:
                program.rules.declare(declared.inputs)
            goldens = goldens_up_to(bundle, signature.name, length, sizes)
            longer = lanes[0].seconds if lanes else None
            name = lane_name(signature.name, length, key)
            if shared is None:
                seconds, source = self._fill(model, bundle, signature, program, length, longer, goldens)
            else:
                seconds, source = self._share(shared, bundle, program, name, length, goldens), LIKE
            log.info(
                "loaded model=%s version=%s signature=%s buckets_ms=%s compiled=%s from=%s seconds=%.2f",
                model, bundle.path.name, name, milliseconds(seconds) or "not worth it",
                source == COMPILER, source, time.monotonic() - start,
            )  # fmt: skip
            if length is not None and not seconds:
                if 2 * length <= (lanes[0].length or 0):
                    break  # half the length saved next to nothing: shorter ones will not either
                continue
            lanes.insert(0, Proven(length, key, program, dict(seconds)))
        return lanes

    def _weights(self, bundle: Bundle) -> Mapping[str, jax.Array]:
        """The weights on the device, or each in its part on several, while a second thread hashes every other file."""
        with ThreadPoolExecutor(1, "digests") as pool:
            others = pool.submit(bundle.check_files, weights=False)
            placement, loaded = self._placement(bundle), bundle.load_weights()
            weights = placement.place(loaded) if placement else jax.device_put(loaded, self._device.handle)
            others.result()
        return weights

    def _placement(self, bundle: Bundle) -> Placement | None:
        """None for programs of one device."""
        return Placement.of(bundle.manifest, str(bundle.path), self._device.handles)

    def check_platform(self, bundle: Bundle) -> None:
        """Raises LoadRefused for a bundle that this device cannot run."""
        needed, has = self._device.platform, bundle.manifest.platforms
        if needed not in has:
            raise LoadRefused(
                f"the program was exported for {', '.join(has)} and this device is {needed}; "
                f"export again with --platforms {','.join((*has, needed))}"
            )
        count = len(self._device.handles)
        if bundle.manifest.nr_devices > count:
            raise LoadRefused(f"the program {missing(bundle.manifest.mesh, count, needed)}")

    def _share(
        self,
        old: LoadedVersion,
        bundle: Bundle,
        program: Program,
        name: str,
        length: int | None,
        goldens: Sequence[Golden],
    ) -> Mapping[int, float]:
        """The executables and costs of a version that differs in its weights only."""
        if length is not None and name not in old.programs:
            return {}  # a lane that was not worth it
        for bucket, executable in old.programs[name].executables.items():
            program.add(bucket, executable)
        self._prove(bundle, program, goldens)
        return old.batchers[name].choice.seconds

    def _fill(
        self,
        model: str,
        bundle: Bundle,
        declared: Signature,
        program: Program,
        length: int | None,
        longer: Mapping[int, float] | None,
        goldens: Sequence[Golden],
    ) -> tuple[Mapping[int, float], str]:
        """Proven executables from the cache or else from the compiler: seconds of the buckets in use, and whence.

        longer: the seconds of the next longer lane, if there is one. No buckets are in use where this one saves too
        little, which the cache remembers as well.
        """
        signature = declared if length is None else declared.at_length(length)
        stored = self._stored.take(bundle.manifest, signature)
        if stored is not None:
            if not stored.executables and longer is not None:
                return {}, CACHE
            for bucket, executable in stored.executables.items():
                program.add(bucket, executable)
            try:
                self._prove(bundle, program, goldens)
                return stored.seconds, CACHE
            # What was stored may not run here, in whatever way JAX says that; what is compiled here decides.
            except Exception as error:
                program.keep(())
                reason = str(error).partition("\n")[0]
                log.warning("cache entry not used: model=%s signature=%s: %s", model, signature.name, reason)
        measured = self._climb(bundle, signature, program, goldens[0])
        self.compiled[model] += len(measured)
        self._metrics.cache_misses.inc(len(measured))
        used = dict(measured) if signature.batches else worth_using(measured)
        if longer is not None and not worth_a_lane(used, longer):
            used = {}
        program.keep(used)
        if used:
            self._prove(bundle, program, goldens)
        if self._publish is not None:
            executables = {bucket: to_bytes(program.executables[bucket]) for bucket in used}
            name = entry_name(bundle.manifest, signature, self._batch.max_batch)
            self._publish(name, Entry(executables, measured))
        return used, COMPILER

    def _climb(
        self, bundle: Bundle, signature: Signature, program: Program, golden: Golden
    ) -> dict[int, float]:
        """Compiles and times one bucket after the other while that pays, or those that there is a program for; the seconds
        of all of them.
        """
        placement = self._placement(bundle)
        compilers = {
            batch: compiler(exported, signature, program.weights, self._device, placement)
            for batch, exported in bundle.programs(signature.name).items()
        }
        seconds: dict[int, float] = {}
        for bucket in signature.batches or candidates(self._batch.max_batch):
            program.add(bucket, compilers[bucket if signature.batches else ANY_BATCH](bucket))
            time_all(program, golden, seconds, self._beside_requests)
            if not signature.batches and not still_climbing(seconds):
                break
        for _ in range(LAST_ROUNDS if self._publish is None else LAST_ROUNDS_TO_PUBLISH):
            time_all(program, golden, seconds, self._beside_requests)
        return seconds

    def _prove(self, bundle: Bundle, program: Program, goldens: Sequence[Golden]) -> None:
        prove(bundle, program.rules.signature, program, goldens, self._device.platform, self._threads)


def _program(signature: Signature, length: int | None, weights: Mapping[str, jax.Array]) -> Program:
    if length is not None:
        return SequenceProgram(signature, length, weights)
    rules = SignatureRules(signature.name, signature.inputs, signature.outputs)
    return Program(rules, weights, signature.pad)


def _not_served(signature: Signature) -> str:
    """Why a signature cannot be served: it is a loss, or has symbols of which nothing says what to compile; else empty."""
    if signature.loss:
        return "it is a loss, one number for a whole batch, which is for training: load_bundle has it"
    if signature.combinations:
        return ""
    names = ", ".join(repr(name) for name in sorted(signature.free))
    return f"its inputs have sizes {names} beside the batch, and {UNSIZED}"


def _check_batchable(signature: Signature) -> None:
    """Raises LoadRefused for a signature whose rows cannot be put together."""
    symbol = signature.batch_symbol
    for kind, tensors in (("input", signature.inputs), ("output", signature.outputs)):
        for tensor in tensors:
            where = f"signature {signature.name!r}: {kind} {tensor.name!r} has shape {list(tensor.shape)}"
            if not tensor.shape or tensor.shape[0] != symbol:
                raise LoadRefused(f"{where}; needed: {symbol!r} first, to batch requests")
            free = (
                1 if signature.sequence is None else 2
            )  # where a sequence may stand, the manifest's reader knows
            if any(not isinstance(size, int) for size in tensor.shape[free:]):
                raise LoadRefused(f"{where}; needed: fixed sizes after {symbol!r}")

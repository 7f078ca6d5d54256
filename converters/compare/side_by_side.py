"""Runs every way in turn, round after round, so that whatever else the machine does falls on all of them alike."""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import jax
import jax.export
import numpy as np
from jax.experimental.compilation_cache import compilation_cache

from converters.bundle import Bundle, open_bundle
from converters.compare.figures import Asked, Cell, Comparison, WayFigures, cell_of
from converters.compare.inputs import batches_of, goldens_of, tokens_per_row
from converters.compare.machine import machine_facts
from converters.compare.saved_model import FOLDER, NotThere, open_saved_model
from converters.compare.source import NoSource, find_source
from converters.compare.ways import Arrays, Way, jax_ways
from converters.errors import GoldenMismatch, PlatformMissing
from converters.golden import Golden, worst_error
from converters.manifest import Manifest, Signature, Tolerance
from converters.placement import Placement, place, simulate
from converters.program import Program
from converters.run import calling

EXACT = Tolerance(0.0, 0.0, 0.0)
WARM_CALLS = 3
Say = Callable[[str], None]
Samples = Mapping[tuple[str, int], list[float]]


def compare(path: Path | str, asked: Asked, say: Say = lambda _line: None) -> Comparison:
    """Measures the bundle at `path` in this process, and its SavedModel in one of its own. say: a line of progress.

    Raises BundleNotFound, BundleError, BadSpec (a batch that it has no program for), PlatformMissing (no program for
    this machine's device, or for more devices than there are).
    """
    bundle = open_bundle(path)
    simulate(bundle.manifest.nr_devices)
    signature = bundle.signature(asked.signature)
    here = jax.export.default_export_platform()
    if here not in bundle.manifest.platforms:
        raise PlatformMissing(
            f"{path}: has programs for {', '.join(bundle.manifest.platforms)}, this machine is {here}; compare it on "
            f"one of those, or export with --platforms {here}"
        )
    machine = machine_facts(bundle.manifest.nr_devices)
    batches = batches_of(bundle, signature, asked.batches)
    with _as_exported(bundle.manifest), contextlib.ExitStack() as opened:
        ways, absent = _ways(bundle, signature, asked, batches, here, say)
        for way in ways:
            opened.callback(way.close)
        _rehearse(ways, goldens_of(bundle, signature.name), batches)
        firsts = _first_calls(ways, asked.batches, say)
        answers = {way.name: _differences(way, bundle, signature, here) for way in ways}
        samples = interleave(ways, asked, say)
    length = tokens_per_row(bundle, signature, batches[asked.batches[0]])
    ran = [
        WayFigures(
            way.name,
            way.what,
            None,
            way.load_s,
            *answers[way.name],
            _cells(way.name, firsts, samples, length),
        )
        for way in ways
    ]
    return Comparison(
        model=bundle.manifest.model,
        version=bundle.version,
        bundle=str(path),
        signature=signature.name,
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        seconds=asked.seconds,
        rounds=asked.rounds,
        tokens_per_row=length,
        sizes=_sizes(bundle.manifest, signature),
        machine=machine | {k: v for way in ways for k, v in getattr(way, "versions", {}).items()},
        ways=(*ran, *absent),
    )


@contextlib.contextmanager
def _as_exported(manifest: Manifest) -> Iterator[None]:
    """JAX as the bundle's export had it, and no compile that a cache of an earlier process would spare."""
    enabled = jax.config.jax_enable_compilation_cache  # pyright: ignore[reportAttributeAccessIssue]
    kinds = [t.dtype for s in manifest.signatures.values() for t in (*s.inputs, *s.outputs)]
    wide = any(dtype.endswith("64") and dtype != "complex64" for dtype in kinds)
    wide = wide or "complex128" in kinds
    precision = None if manifest.matmul_precision == "default" else manifest.matmul_precision
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()
    try:
        with jax.enable_x64(wide), jax.default_matmul_precision(precision):
            yield
    finally:
        jax.config.update("jax_enable_compilation_cache", enabled)
        compilation_cache.reset_cache()


def _ways(
    bundle: Bundle,
    signature: Signature,
    asked: Asked,
    batches: Mapping[int, Arrays],
    platform: str,
    say: Say,
) -> tuple[list[Way], list[WayFigures]]:
    """Those that can be run, and those that cannot, with the reason."""
    weights = place(bundle.load_weights(), Placement.of(bundle.manifest, str(bundle.path)))
    start = time.perf_counter()
    programs = bundle.programs(signature.name)
    program = calling({batch: exported.call for batch, exported in programs.items()}, signature.pad)
    load_s = time.perf_counter() - start
    function, named = _function(bundle, signature, asked, weights, platform, program)
    say(f"jit and AOT are of {named}")
    ways, absent = list(jax_ways(function, named, program, load_s, weights, batches)), []
    try:
        saved = open_saved_model(bundle, signature, batches, asked.tensorflow_python)
        try:
            saved.answer(
                goldens_of(bundle, signature.name)[-1]
            )  # the largest; one that cannot run says so now
        except NotThere:
            saved.close()
            raise
        ways.append(saved)
    except NotThere as reason:
        absent.append(WayFigures("SavedModel", f"{FOLDER}/, in TensorFlow", str(reason)))
    return ways, absent


def _function(
    bundle: Bundle,
    signature: Signature,
    asked: Asked,
    weights: Mapping[str, jax.Array],
    platform: str,
    exported: Program,
) -> tuple[Program, str]:
    """What jit and AOT compile, and its name."""
    try:
        if not asked.source:
            raise NoSource("--no-source was given")
        return find_source(bundle, signature.name, weights, platform)
    except NoSource as reason:
        return exported, f"the exported program, as the source is not here ({reason})"


def _differences(
    way: Way, bundle: Bundle, signature: Signature, platform: str
) -> tuple[float, float | None, str | None]:
    """(largest difference from the goldens, as a share of its tolerance, what is over it)."""
    largest, share, mismatch = 0.0, 0.0, None
    for golden in goldens_of(bundle, signature.name):
        outputs = way.answer(golden)
        for name, wanted in golden.outputs.items():
            if name in outputs and outputs[name].shape == wanted.shape:
                largest = max(largest, worst_error(outputs[name], wanted, EXACT)[0])
        try:
            share = max(share, bundle.check_golden(signature.name, golden, outputs, platform))
        except GoldenMismatch as error:
            mismatch = mismatch or str(error)
    return largest, None if mismatch else share, mismatch


def _rehearse(ways: Sequence[Way], goldens: Sequence[Golden], batches: Mapping[int, Arrays]) -> None:
    """Every way answers once at a shape that is not measured: what a process does but once is in no first call."""
    measured = [_shapes(arrays) for arrays in batches.values()]
    unmeasured = next((golden for golden in goldens if _shapes(golden.inputs) not in measured), None)
    if unmeasured is not None:
        for way in ways:
            way.answer(unmeasured)


def _shapes(arrays: Arrays) -> dict[str, tuple[int, ...]]:
    return {name: array.shape for name, array in arrays.items()}


def _first_calls(ways: Sequence[Way], batches: Sequence[int], say: Say) -> dict[tuple[str, int], float]:
    found = {}
    for batch in batches:
        for way in ways:
            found[way.name, batch] = way.first(batch)
        slowest = max(ways, key=lambda way: found[way.name, batch])
        say(f"batch {batch}: first calls took up to {found[slowest.name, batch]:.2f} s ({slowest.name})")
    return found


def interleave(ways: Sequence[Way], asked: Asked, say: Say) -> dict[tuple[str, int], list[float]]:
    """Seconds of calls, by way and batch. All ways follow each other at one batch, and each round another begins."""
    burst = {
        (way.name, batch): _burst(way, batch, asked.seconds / asked.rounds)
        for batch in asked.batches
        for way in ways
    }
    samples: dict[tuple[str, int], list[float]] = {key: [] for key in burst}
    for turn in range(asked.rounds):
        begin = turn % len(ways)
        for batch in asked.batches:
            for way in (*ways[begin:], *ways[:begin]):
                samples[way.name, batch] += way.burst(batch, burst[way.name, batch])
        say(f"round {turn + 1} of {asked.rounds}")
    return samples


def _burst(way: Way, batch: int, seconds: float) -> int:
    """How many calls fill `seconds`, after calls that warm up; at least one."""
    return max(1, round(seconds / max(median(way.burst(batch, WARM_CALLS)), 1e-6)))


def _cells(
    name: str, firsts: Mapping[tuple[str, int], float], samples: Samples, length: int | None
) -> tuple[Cell, ...]:
    cells = []
    for way, batch in samples:
        if way == name:
            jit = float(np.median(samples["jit", batch]))
            cells.append(cell_of(batch, firsts[name, batch], samples[name, batch], jit, length))
    return tuple(cells)


def _sizes(manifest: Manifest, signature: Signature) -> dict[str, int]:
    """Bytes by what they are; a SavedModel has the weights once more."""
    sizes = {
        "program": sum(manifest.files[path].bytes for path in signature.programs.values()),
        "weights": manifest.weight_bytes,
    }
    saved = sum(d.bytes for name, d in manifest.files.items() if name.startswith(f"{FOLDER}/"))
    return sizes | ({"savedmodel": saved} if saved else {})

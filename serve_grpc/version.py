"""A version that can serve: its programs, a queue for each, and what the catalog says of it."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from converters.bundle import Bundle
from converters.manifest import Signature
from serve_grpc.batcher import Account, Batcher
from serve_grpc.buckets import BucketChoice
from serve_grpc.catalog import LOADING, LaneInfo, SignatureInfo, VersionInfo
from serve_grpc.executor import Runnable
from serve_grpc.lanes import Lanes, OneLane, SequenceLanes, SizedLanes, Sizes, lane_name
from serve_grpc.metrics import Metrics, VersionMetrics
from serve_grpc.program import Program
from serve_grpc.sequence_program import SequenceProgram
from serve_grpc.settings import BatchSettings


@dataclass(frozen=True)
class LoadedVersion:
    """A version on the device. swap_key: two versions with equal keys differ only in weights.

    lanes: by signature. batchers, programs: all there are, by `lane_name`. refused: why signatures of the bundle are not
    among them.
    """

    model: str
    info: VersionInfo
    swap_key: str
    lanes: Mapping[str, Lanes]
    batchers: Mapping[str, Batcher]
    programs: Mapping[str, Program]
    metrics: VersionMetrics
    refused: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Proven:
    """A program that is proven. length: of its sequences, None where the signature has none. sizes: of its further
    symbols.
    """

    length: int | None
    sizes: Sizes
    program: Program
    seconds: Mapping[int, float]


def assemble(
    model: str,
    bundle: Bundle,
    loaded: Mapping[str, Sequence[Proven]],
    refused: Mapping[str, str],
    metrics: Metrics,
    batch: BatchSettings,
    overlap: bool,
) -> LoadedVersion:
    """The version of what was proven, by signature, and of those `refused` with the reason.

    overlap: whether the next batch is put together while one computes.
    """
    manifest, version = bundle.manifest, int(bundle.path.name)
    version_metrics = VersionMetrics(metrics, model, version, manifest.window_ends, manifest.jaxlib_version)
    lanes: dict[str, Lanes] = {}
    batchers: dict[str, Batcher] = {}
    for name, each in loaded.items():
        mine = _batchers(each, version_metrics, batch, overlap)
        batchers |= {lane_name(name, length, sizes): b for (sizes, length), b in mine.items()}
        lanes[name] = _lanes(manifest.signatures[name], mine)
        version_metrics.watch_depth(name, lambda mine=mine: sum(batcher.rows for batcher in mine.values()))
    info = VersionInfo(
        version,
        LOADING,
        signatures=tuple(_described(manifest.signatures[name], each) for name, each in loaded.items()),
        window_ends=manifest.window_ends,
        jaxlib=manifest.jaxlib_version,
        usage=dict(manifest.usage),
        proven_at=time.time(),
    )
    programs = {
        lane_name(name, one.length, one.sizes): one.program for name, each in loaded.items() for one in each
    }
    return LoadedVersion(model, info, bundle.swap_key, lanes, batchers, programs, version_metrics, refused)


def _batchers(
    loaded: Sequence[Proven], metrics: VersionMetrics, batch: BatchSettings, overlap: bool
) -> dict[tuple[Sizes, int | None], Batcher]:
    """A queue for each size and length. They are one model's: together they get one share of the device."""
    account = Account()
    batchers = {
        (one.sizes, one.length): Batcher(
            Runnable(one.program, metrics),
            BucketChoice.of(one.seconds),
            batch.max_queue,
            batch.max_delay,
            overlap,
            account,
        )
        for one in loaded
    }
    for one in loaded:
        if isinstance(one.program, SequenceProgram):
            one.program.padded = metrics.padded
    if len(batchers) > 1:
        account.lanes = tuple(batchers.values())
    return batchers


def _lanes(signature: Signature, batchers: Mapping[tuple[Sizes, int | None], Batcher]) -> Lanes:
    by_sizes: dict[Sizes, dict[int | None, Batcher]] = {}
    for (sizes, length), batcher in batchers.items():
        by_sizes.setdefault(sizes, {})[length] = batcher
    lanes = {sizes: _of_lengths(signature.at_sizes(dict(sizes)), each) for sizes, each in by_sizes.items()}
    return SizedLanes(signature, lanes) if signature.sizes else lanes[()]


def _of_lengths(signature: Signature, batchers: Mapping[int | None, Batcher]) -> Lanes:
    if None in batchers:
        return OneLane(batchers[None])
    return SequenceLanes(signature, {length: b for length, b in batchers.items() if length is not None})


def _described(signature: Signature, loaded: Sequence[Proven]) -> SignatureInfo:
    lanes = tuple(
        LaneInfo(one.length, dict(one.sizes), one.seconds, dict(one.program.golden_errors))
        for one in loaded
        if one.length is not None or one.sizes
    )
    longest = loaded[-1]
    errors = dict(longest.program.golden_errors)
    return SignatureInfo(signature.name, signature.inputs, signature.outputs, longest.seconds, errors, lanes)

"""Goldens through a program's executables before anybody is served: are the answers right, and what does a run cost."""

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from converters.bundle import Bundle
from converters.errors import BundleError
from converters.golden import Golden
from serve_grpc.batcher import Work
from serve_grpc.program import Program, bytes_of

# A bucket is timed until it has run this long or this often, whichever comes first, and a few times in any case.
TIMED_SECONDS = 0.1
LEAST_TIMED_RUNS, MOST_TIMED_RUNS = 2, 50
# Beside requests the device is theirs for as long again after each few runs.
BURST_SECONDS = 0.01


def goldens_up_to(
    bundle: Bundle, signature: str, length: int | None, sizes: Mapping[str, int] | None = None
) -> tuple[Golden, ...]:
    """Those that a program of this length and these sizes can take, of a sequence the longest first. Raises BundleError
    for none.

    The longest rows there may be are among them: what is said of `most` is proven.
    """
    goldens = tuple(golden for golden in bundle.goldens(signature) if golden.sizes == (sizes or {}))
    if not goldens:
        where = bundle.path / bundle.signature(signature).golden
        raise BundleError(f"{where}: has no golden for {sizes or 'the signature'}; export the bundle again")
    if length is None:
        return goldens
    fitting = sorted((g for g in goldens if g.length <= length), key=lambda golden: -golden.length)
    sequence = bundle.signature(signature).sequence
    if not fitting or (sequence is not None and length == sequence.most != fitting[0].length):
        raise BundleError(
            f"{bundle.path / bundle.signature(signature).golden}: its longest golden for lengths up to {length} is "
            f"{fitting[0].length if fitting else 'absent'}; export the bundle again"
        )
    return tuple(fitting)


def prove(
    bundle: Bundle,
    signature: str,
    program: Program,
    goldens: Sequence[Golden],
    platform: str,
    threads: int = 1,
) -> None:
    """Every executable is run once, on as many goldens as it holds, padded and split as requests are; and every
    golden is met by one of them. Raises GoldenMismatch. The worst errors are kept in `program.golden_errors`.

    threads: buckets run side by side. One run of a small model keeps one core busy.
    """

    groups = proofs(sorted(program.executables), goldens)

    def check(bucket: int) -> None:
        for together in groups[bucket]:
            for golden, outputs in zip(together, _outputs(program, bucket, together), strict=True):
                error = bundle.check_golden(signature, golden, outputs, platform)
                program.golden_errors[bucket] = max(error, program.golden_errors.get(bucket, 0.0))

    # The largest first, as the small ones fit beside it. Each bucket has its buffers and stays with one thread.
    buckets = sorted(groups, reverse=True)
    if threads == 1:
        for bucket in buckets:
            check(bucket)
        return
    with ThreadPoolExecutor(threads, "proofs") as pool:
        list(pool.map(check, buckets))


def proofs(buckets: Sequence[int], goldens: Sequence[Golden]) -> dict[int, list[list[Golden]]]:
    """bucket -> goldens to run together, once each: the fewest runs that prove every bucket and meet every golden.

    A golden that is larger than its bucket comes alone, and is run in pieces.
    """
    by_size = sorted(goldens, key=lambda golden: (golden.batch, golden.length))
    groups: dict[int, list[list[Golden]]] = {}
    met: set[int] = set()
    for bucket in buckets:
        together, room = [], bucket
        for golden in reversed(by_size):
            if golden.batch <= room:
                together.append(golden)
                room -= golden.batch
        groups[bucket] = [together or by_size[:1]]
        met.update(id(golden) for golden in groups[bucket][0])
    groups[buckets[-1]] += [[golden] for golden in by_size if id(golden) not in met]
    return groups


def _outputs(program: Program, bucket: int, goldens: Sequence[Golden]) -> list[dict[str, np.ndarray]]:
    """The outputs of each golden: of one run that holds all of them, or of one golden in as many as it takes."""
    works = [_work(program, golden) for golden in goldens]
    pieces: list[list[list[np.ndarray]]] = [[] for _ in works]
    for start in range(0, max(work.rows for work in works), bucket):
        slices = [(work, start, min(work.rows, start + bucket)) for work in works]
        outputs, at = program.run(bucket, slices), 0
        for kept, (work, begin, stop) in zip(pieces, slices, strict=True):
            end = at + stop - begin
            kept.append([rows.copy() for rows in program.cut(work, outputs, at, end)])
            at = end
    names = [output.name for output in program.rules.outputs]
    return [
        dict(zip(names, (np.concatenate(parts) for parts in zip(*kept, strict=True)), strict=True))
        for kept in pieces
    ]


def time_all(
    program: Program, golden: Golden, seconds: dict[int, float], beside_requests: bool = False
) -> None:
    """Times every bucket in turn and keeps each one's fastest: a busy moment of the machine judges none of them.

    seconds: bucket -> seconds of one run, updated; a bucket that is not in it yet is set up first.
    beside_requests: half of the time is left to them.
    """
    for bucket in program.executables:
        before = seconds.get(bucket, float("inf"))
        new = bucket not in seconds
        seconds[bucket] = min(before, _seconds(program, bucket, golden, new=new, pause=beside_requests))


def _seconds(program: Program, bucket: int, golden: Golden, *, new: bool, pause: bool) -> float:
    """The fastest of a few runs of a full bucket: what else the machine does only ever adds."""
    work = _work(program, golden, bucket)
    # Two halves, so that assembling is a part of the cost as it is for requests.
    half = bucket // 2
    slices = [(work, 0, half), (work, half, bucket)] if half else [(work, 0, bucket)]
    if new:
        program.run(bucket, slices)  # the first run of an executable also sets it up
    best, spent, runs, burst = float("inf"), 0.0, 0, 0.0
    while runs < LEAST_TIMED_RUNS or (spent < TIMED_SECONDS and runs < MOST_TIMED_RUNS):
        start = time.perf_counter()
        program.run(bucket, slices)
        took = time.perf_counter() - start
        best, spent, runs, burst = min(best, took), spent + took, runs + 1, burst + took
        if pause and burst > BURST_SECONDS:
            time.sleep(burst)
            burst = 0.0
    return best


def _work(program: Program, golden: Golden, rows: int | None = None) -> Work:
    """A golden as a request, its rows repeated up to `rows`."""
    inputs = [np.asarray(golden.inputs[rule.name]) for rule in program.rules.inputs]
    if rows is not None:
        inputs = [np.resize(array, (rows, *array.shape[1:])) for array in inputs]
    data = [bytes_of(array) for array in inputs]
    every = range(len(program.rules.outputs))
    return Work(None, "", data, len(inputs[0]), every, lambda _: b"")  # type: ignore[arg-type]


def milliseconds(seconds: Mapping[int, float]) -> str:
    """1:0.0438,2:0.0617 for the log."""
    return ",".join(f"{bucket}:{value * 1e3:.3g}" for bucket, value in seconds.items())

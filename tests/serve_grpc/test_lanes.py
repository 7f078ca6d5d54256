"""Which lengths have a program of their own, which of them a request goes to, and how it gets in and out."""

import time
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np
import pytest

from converters.bundle import open_bundle, read_manifest
from converters.errors import BundleError
from converters.manifest import SequenceSpec, Signature, TensorInfo
from serve_grpc import loader as loader_module
from serve_grpc.batcher import Work
from serve_grpc.cache import CacheKey, CompileCache
from serve_grpc.device import Device, open_device
from serve_grpc.errors import ResponseTooLarge
from serve_grpc.loader import Loader
from serve_grpc.memory import Memory
from serve_grpc.metrics import Metrics
from serve_grpc.program import Program
from serve_grpc.protocol import GivenTensor
from serve_grpc.rehearsal import goldens_up_to
from serve_grpc.sequence_program import SequenceProgram
from serve_grpc.settings import BatchSettings
from serve_grpc.transport import Answer, Call
from serve_grpc.version import LoadedVersion
from tests.serve_grpc import bundles

DECLARED = Signature(
    "predict",
    (
        TensorInfo("x", "float32", ("b", "t", 2)),
        TensorInfo("n", "int32", ("b",)),
        TensorInfo("m", "bfloat16", ("b", "t")),
    ),
    (TensorInfo("y", "float32", ("b", "t", 2)), TensorInfo("k", "int32", ("b",))),
    "b",
    ("t <= 8",),
    {"x": -1.0, "n": 0, "m": 5},
    "",
    SequenceSpec("t", 8),
)


@pytest.fixture(scope="module")
def device() -> Device:
    return open_device()


@pytest.fixture(scope="session")
def models(sequences: Path) -> Path:
    """Versions of sequence."""
    return sequences / "sequence"


@pytest.fixture(scope="module")
def other_weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another version of sequence: the same program."""
    return bundles.export_sequence(tmp_path_factory.mktemp("other"), version=2, seed=1)


def costs(monkeypatch: pytest.MonkeyPatch, per_position: float) -> None:
    """A run costs this much for each position, and a unit for each row: whatever this machine is busy with."""

    def time_all(program: Program, _: object, seconds: dict[int, float], __: bool = False) -> None:
        for bucket in program.executables:
            seconds[bucket] = 1e-3 * bucket * (1 + per_position * getattr(program, "length", 0))

    monkeypatch.setattr(loader_module, "time_all", time_all)


def lengths(version: LoadedVersion) -> list[int]:
    return [lane.length for lane in version.info.signatures[0].lanes]


@pytest.mark.parametrize(
    ("most", "wanted"),
    [(1, [1]), (8, [8]), (9, [8, 9]), (24, [8, 16, 24]), (256, [16, 32, 64, 128, 256]), (300, [32, 64, 128, 256, 300])],
)  # fmt: skip
def test_lengths_are_powers_of_two_and_the_longest(most: int, wanted: list[int]) -> None:
    assert list(SequenceSpec("t", most).lengths) == wanted


def test_a_lane_that_saves_next_to_nothing_is_not_kept_and_not_compiled_again(
    device: Device, models: Path, other_weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = CompileCache(tmp_path, CacheKey({"jaxlib": "1", "device_kind": "k"}))
    cache.prepare()
    for per_position, kept in ((1.0, [8, 16, 24]), (0.0, [24])):
        costs(monkeypatch, per_position)
        # Another --max-batch has other entries.
        batch = BatchSettings(max_batch=1 if kept == [24] else 2)
        cold = Loader(device, batch, Metrics(), cache, cache.put)
        assert lengths(cold.load("sequence", models / "1", None)) == kept
        assert cold.compiled["sequence"] > 0
        warm = Loader(device, batch, Metrics(), cache)
        again = warm.load("sequence", models / "1", None)
        assert warm.compiled.total() == 0, "what was not worth it is remembered as well"
        assert lengths(again) == kept
        other = warm.load("sequence", other_weights, again)
        assert warm.compiled.total() == 0 and lengths(other) == kept, "new weights, old executables"
        for name, program in other.programs.items():
            assert program.executables == again.programs[name].executables


def test_a_request_goes_to_the_shortest_lane_that_holds_it(
    device: Device, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    costs(monkeypatch, 1.0)
    loaded = Loader(device, BatchSettings(max_batch=1), Metrics()).load("sequence", models / "1", None)
    assert set(loaded.batchers) == {"predict[8]", "predict[16]", "predict[24]"}
    for length, lane in ((1, 8), (8, 8), (9, 16), (16, 16), (17, 24), (24, 24)):
        given = [GivenTensor(n, d, (1, length), b"") for n, d in (("tokens", "int32"), ("keep", "bool"))]
        batcher, rules = loaded.lanes["predict"].lane(given)
        assert batcher is loaded.batchers[f"predict[{lane}]"]
        needed = length * 3 * 4 + 256 * 4  # of its own length
        rules.check_response(1, (0, 1), needed)
        with pytest.raises(ResponseTooLarge, match=f"are {needed} bytes"):
            rules.check_response(1, (0, 1), needed - 1)
    accounts = {batcher.account for batcher in loaded.batchers.values()}
    assert len(accounts) == 1, "one model, one share of the device"


def test_memory_counts_every_lane(device: Device, models: Path) -> None:
    need = Memory(device, max_batch=4).need(read_manifest(models / "1"))
    row = 4 + 1
    assert need.buffers >= 4 * row * (8 + 16 + 24)
    assert need.run >= 4 * LARGEST_ROW


LARGEST_ROW = bundles.LONGEST * (4 + 1 + 3 * 4) + 256 * 4


def test_a_manifest_that_promises_more_than_was_proven_is_refused(models: Path) -> None:
    bundle = open_bundle(models / "1")
    assert [golden.length for golden in goldens_up_to(bundle, "predict", 16)] == [13, 5]
    assert goldens_up_to(bundle, "predict", 24)[0].length == 24
    signature = bundle.manifest.signatures["predict"]
    object.__setattr__(signature, "sequence", SequenceSpec("t", 32))
    with pytest.raises(BundleError, match="longest golden for lengths up to 32 is 24"):
        goldens_up_to(bundle, "predict", 32)


class Sink:
    def respond(self, answers: Sequence[Answer]) -> None:
        raise AssertionError("answers are looked at here")


def work(rows: int, length: int, seed: int) -> tuple[Work, list[np.ndarray]]:
    rng = np.random.default_rng(seed)
    arrays = [
        rng.normal(size=(rows, length, 2)).astype(np.float32),
        rng.integers(0, 99, rows).astype(np.int32),
        rng.normal(size=(rows, length)).astype(jax.numpy.bfloat16),
    ]
    call = Call("/m", b"", None, time.monotonic(), seed, Sink())
    data = [array.tobytes() for array in arrays]
    return Work(call, "p", data, rows, (0, 1), b"|".join), arrays


@pytest.mark.parametrize("seed", range(12))
def test_rows_get_in_padded_and_out_as_long_as_they_were(seed: int) -> None:
    """Requests of every length side by side, in pieces, with rows to spare; then all of the program's own length."""
    rng = np.random.default_rng(seed)
    program = SequenceProgram(DECLARED, 8, {})
    program.add(16, None)
    made = [
        work(int(rng.integers(1, 5)), 8 if seed == 0 else int(rng.integers(1, 9)), 100 * seed + at)
        for at in range(3)
    ]
    first, rest = made[0][0], made[1:]
    cut = int(rng.integers(0, first.rows))
    slices = [(one, 0, one.rows) for one, _ in rest] + (
        [(first, cut, first.rows)] if cut else [(first, 0, first.rows)]
    )
    filled = program.assemble(slices, 16)
    x, n, m = (np.array(array) for array in filled)
    rows = sum(stop - start for _, start, stop in slices)
    at = 0
    for one, start, stop in slices:
        x_in, n_in, m_in = next(arrays for each, arrays in made if each is one)
        length, end = x_in.shape[1], at + stop - start
        np.testing.assert_array_equal(x[at:end, :length], x_in[start:stop])
        np.testing.assert_array_equal(n[at:end], n_in[start:stop])
        np.testing.assert_array_equal(m[at:end, :length], m_in[start:stop])
        assert (x[at:end, length:] == -1).all() and (m[at:end, length:] == 5).all()
        at = end
    assert (x[rows:] == -1).all() and (n[rows:] == 0).all() and (m[rows:] == 5).all()

    first.parts = [[made[0][1][0][:cut].tobytes(), made[0][1][1][:cut].tobytes()]] if cut else None
    works, answers = program.answers(slices, [x, n])
    assert works == [one for one, _, _ in slices]
    for one, (call, answer) in zip(works, answers, strict=True):
        x_in, n_in, _ = next(arrays for each, arrays in made if each is one)
        assert call is one.call and answer == x_in.tobytes() + b"|" + n_in.tobytes()


def test_a_request_that_fills_its_program_is_not_copied() -> None:
    program = SequenceProgram(DECLARED, 8, {})
    program.add(2, None)
    one, arrays = work(2, 8, 1)
    x, _, _ = program.assemble([(one, 0, 2)], 2)
    np.testing.assert_array_equal(x, arrays[0])
    assert not x.flags.writeable, "it lies in the request's own bytes"

"""Which goldens are run through which buckets before a version serves."""

from pathlib import Path

import jax
import numpy as np
import pytest

from converters.bundle import Bundle, open_bundle
from converters.errors import GoldenMismatch
from converters.golden import Golden
from serve_grpc.program import Program
from serve_grpc.rehearsal import proofs, prove, time_all
from serve_grpc.validate import SignatureRules

ONE, THREE, TEN = (Golden(batch, {}, {}) for batch in (1, 3, 10))


@pytest.mark.parametrize(
    ("buckets", "goldens", "wanted"),
    [
        ((1, 2, 4, 8), (ONE, THREE), {1: [[ONE]], 2: [[ONE]], 4: [[THREE, ONE]], 8: [[THREE, ONE]]}),
        ((1, 2), (ONE, THREE), {1: [[ONE]], 2: [[ONE], [THREE]]}),  # in two pieces
        ((1, 8), (THREE, TEN), {1: [[THREE]], 8: [[THREE], [TEN]]}),
        ((16,), (ONE, THREE, TEN), {16: [[TEN, THREE, ONE]]}),
        ((4,), (THREE,), {4: [[THREE]]}),
    ],
)
def test_every_bucket_is_run_and_every_golden_is_met(
    buckets: tuple[int, ...], goldens: tuple[Golden, ...], wanted: dict[int, list[list[Golden]]]
) -> None:
    assert proofs(buckets, goldens) == wanted


@pytest.fixture
def bundle(models: Path) -> Bundle:
    return open_bundle(models / "mlp" / "1")


def program_of(bundle: Bundle, executables: dict[int, object]) -> Program:
    signature = bundle.signature()
    rules = SignatureRules(signature.name, signature.inputs, signature.outputs)
    program = Program(rules, jax.device_put(bundle.load_weights()), signature.pad)
    for bucket, executable in executables.items():
        program.add(bucket, executable)
    return program


@pytest.mark.parametrize("threads", [1, 2])
def test_one_wrong_executable_among_right_ones_is_found(bundle: Bundle, threads: int) -> None:
    right = jax.jit(bundle.exported().call)

    def wrong(weights, inputs):
        return {name: output + 1 for name, output in right(weights, inputs).items()}

    goldens = bundle.goldens()
    prove(bundle, "predict", program_of(bundle, dict.fromkeys((1, 2, 4), right)), goldens, "cpu", threads)
    for bucket in (1, 2, 4):
        program = program_of(bundle, {**dict.fromkeys((1, 2, 4), right), bucket: wrong})
        with pytest.raises(GoldenMismatch, match="logits"):
            prove(bundle, "predict", program, goldens, "cpu", threads)


def test_the_last_row_of_a_shared_run_counts(bundle: Bundle) -> None:
    """Goldens that are run together are told apart by their rows."""
    right = jax.jit(bundle.exported().call)
    for row in range(4):

        def wrong(weights, inputs, row=row):
            return {name: output.at[row].add(1.0) for name, output in right(weights, inputs).items()}

        with pytest.raises(GoldenMismatch, match="batch 1" if row == 3 else "batch 3"):
            prove(bundle, "predict", program_of(bundle, {4: wrong}), bundle.goldens(), "cpu")


def test_a_bucket_keeps_its_fastest_time(bundle: Bundle) -> None:
    program = program_of(bundle, dict.fromkeys((1, 2), jax.jit(bundle.exported().call)))
    seconds = {1: 1e-9}
    time_all(program, bundle.goldens()[0], seconds)
    assert seconds[1] == 1e-9
    assert 0 < seconds[2] < 1
    assert not np.isnan(seconds[2])

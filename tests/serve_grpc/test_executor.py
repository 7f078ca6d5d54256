"""The device's thread, with and without overlap, on a program that can be watched."""

import threading
import time
from collections.abc import Sequence

import numpy as np
import pytest

from converters.manifest import TensorInfo
from serve_grpc.batcher import Batcher, Work
from serve_grpc.buckets import BucketChoice
from serve_grpc.errors import Code
from serve_grpc.executor import Executor, Runnable
from serve_grpc.metrics import Metrics, VersionMetrics
from serve_grpc.program import Program
from serve_grpc.scheduler import Scheduler
from serve_grpc.transport import Answer, Call, Status
from serve_grpc.validate import SignatureRules

RULES = SignatureRules(
    "predict", [TensorInfo("x", "float32", ("b", 2))], [TensorInfo("y", "float32", ("b", 2))]
)


class Output:
    """As a jax.Array: the result is there when it is asked for."""

    def __init__(self, value: np.ndarray) -> None:
        self._value = value

    def copy_to_host_async(self) -> None:
        pass

    def __array__(self, *_: object, **__: object) -> np.ndarray:
        time.sleep(0.002)
        return self._value * 2  # read late, as a device does: a buffer reused too soon would show


def double(_: object, inputs: dict[str, np.ndarray]) -> dict[str, Output]:
    if (inputs["x"] == 13).any():
        raise RuntimeError("thirteen\non the second line")
    return {"y": Output(inputs["x"])}


class Answers:
    def __init__(self) -> None:
        self.by_call: dict[Call, bytes | Status] = {}
        self.arrived = threading.Condition()

    def respond(self, answers: Sequence[Answer]) -> None:
        with self.arrived:
            for call, answer in answers:
                assert call not in self.by_call, "answered twice"
                self.by_call[call] = answer
            self.arrived.notify_all()

    def wait(self, count: int) -> None:
        with self.arrived:
            assert self.arrived.wait_for(lambda: len(self.by_call) >= count, 10)


@pytest.mark.parametrize("overlap", [False, True])
def test_every_request_gets_its_own_rows_and_a_failed_run_hurts_only_its_batch(overlap: bool) -> None:
    choice = BucketChoice.of({1: 1.0, 4: 1.0})
    program = Program(RULES, {}, {"x": -1})
    for bucket in (1, 4):
        program.add(bucket, double)
    scheduler, answers = Scheduler(), Answers()
    batcher = Batcher(Runnable(program, VersionMetrics(Metrics(), "m", 1, "")), choice, 10_000)
    executor = Executor(scheduler, overlap)
    rng = np.random.default_rng(0)
    works, expected = [], []
    for i in range(300):
        rows = int(rng.integers(1, 11))
        x = np.full((rows, 2), 13 if i % 50 == 7 else 100 + i, np.float32)
        call = Call("/m", b"", None, time.monotonic(), None, answers)
        works.append(Work(call, "test", [x.tobytes()], rows, (0,), lambda data: bytes(data[0])))
        expected.append((x * 2).tobytes())
    executor.start()
    for at in range(0, 300, 7):
        scheduler.submit([(batcher, work) for work in works[at : at + 7]])
        time.sleep(0.001)
    answers.wait(300)
    failed = 0
    for work, right in zip(works, expected, strict=True):
        answer = answers.by_call[work.call]
        if isinstance(answer, Status):
            failed += 1
            assert answer.code is Code.INTERNAL
            assert "thirteen" in answer.message
            assert "second line" not in answer.message
        else:
            assert answer == right
    assert 6 <= failed <= 6 * 8
    scheduler.stop()
    executor.join(5)
    assert (batcher.rows, batcher.running) == (0, 0)

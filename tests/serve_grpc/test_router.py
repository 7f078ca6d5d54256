"""The fast path: what is read once must say what a fresh reading says, and must not outlive the version it was for."""

import gc
import time
import weakref
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from serve_grpc.catalog import SERVING, Catalog
from serve_grpc.device import Device, open_device
from serve_grpc.executor import Executor
from serve_grpc.heads import Heads
from serve_grpc.loader import Loader
from serve_grpc.metrics import Metrics
from serve_grpc.protocol import Inference
from serve_grpc.protocol.jaxport_v1 import SERVICE, JaxportV1, predict
from serve_grpc.route import Routes
from serve_grpc.router import Router
from serve_grpc.scheduler import Scheduler
from serve_grpc.serving import Live, Serving
from serve_grpc.settings import BatchSettings
from serve_grpc.transport import Answer, Call
from serve_grpc.version import LoadedVersion
from tests.server_process import outputs_of, pb, request

X = np.arange(4, dtype=np.float32).reshape(1, 4)


@pytest.fixture(scope="module")
def device() -> Device:
    return open_device()


class Wired:
    """A router on one model, without a network."""

    def __init__(self, device: Device, models: Path) -> None:
        self.loader = Loader(device, BatchSettings(max_batch=2), Metrics())
        self.path = models / "mlp" / "1"
        self.catalog = Catalog()
        self.serving = Serving(self.catalog)
        self.scheduler = Scheduler()
        self.executor = Executor(self.scheduler, device.overlap)
        routes = Routes(self.serving, 2**20, 10.0)
        self.protocol = JaxportV1()
        self.router = Router(
            [self.protocol], self.catalog, self.serving, self.scheduler, self.executor, Metrics(), routes
        )
        self.heads = {
            path: Heads(lambda payload, method=method: method(payload, self.catalog))
            for path, method in self.protocol.methods.items()
        }
        self.answers: list[Answer] = []

    def respond(self, answers: Sequence[Answer]) -> None:
        self.answers += answers

    def serve(self, version: LoadedVersion) -> None:
        self.catalog.put("mlp", replace(version.info, state=SERVING))
        self.serving.put("mlp", Live(version, {version.info.version: version}))

    def ask(self, payload: bytes) -> pb.PredictResponse:
        call = Call(f"/{SERVICE}/Predict", payload, None, time.monotonic(), 0, self)
        self.router._handle([call], self.heads)
        answer = self.answers.pop()[1]
        assert isinstance(answer, bytes), answer
        return pb.PredictResponse.FromString(answer)


def payload(x: np.ndarray = X, **fields: object) -> bytes:
    return request("mlp", {"x": x}, **fields).SerializeToString()


def test_a_version_that_was_replaced_is_let_go_although_its_requests_were_remembered(
    device: Device, models: Path
) -> None:
    wired = Wired(device, models)
    first = wired.loader.load("mlp", wired.path, None)
    wired.serve(first)
    for _ in range(4):
        wired.ask(payload())
    assert wired.serving.live("mlp").known, "the fast path was taken"
    second = wired.loader.load("mlp", wired.path, first)
    weights = weakref.ref(first.programs["predict"])
    wired.serve(second)
    for batcher in first.batchers.values():  # as a swap does
        wired.scheduler.close(batcher)
    first.metrics.forget()
    del first, batcher
    gc.collect()
    assert weights() is None, "its weights would stay on the device"
    wired.ask(payload())


def test_what_is_remembered_answers_as_what_is_read_anew(device: Device, models: Path) -> None:
    wired = Wired(device, models)
    wired.serve(wired.loader.load("mlp", wired.path, None))
    rng = np.random.default_rng(0)
    for rows in (1, 3, 1, 2, 1, 3, 3, 2):
        x = rng.normal(size=(rows, 4)).astype(np.float32)
        fresh = Wired.ask(wired, payload(x))
        wired.heads = {path: Heads(heads._read) for path, heads in wired.heads.items()}
        again = [wired.ask(payload(x)) for _ in range(4)]
        for answer in again:
            np.testing.assert_array_equal(outputs_of(answer)["logits"], outputs_of(fresh)["logits"])


def learned(*payloads: bytes) -> Heads:
    """What is known after each came three times."""
    heads = Heads(lambda payload: predict(payload, Catalog()))
    for one in payloads:
        for _ in range(3):
            inference = predict(one, Catalog())
            assert isinstance(inference, Inference)
            heads.learn(one, inference)
    return heads


def test_a_payload_with_another_head_of_the_same_length_is_not_taken_for_it() -> None:
    known, other = payload(version=1), payload(version=2)
    assert len(known) == len(other)
    heads = learned(known)
    assert heads.find(known) is not None
    assert heads.find(payload(X + 1, version=1)) is not None
    assert heads.find(other) is None


def test_a_payload_whose_last_bytes_only_look_like_the_data_is_never_learned() -> None:
    field = b"\xfa\x01\x10" + X.tobytes()  # an unknown field that ends with the same sixteen bytes
    assert learned(payload() + field).find(payload() + field) is None


def test_data_that_is_not_last_is_never_learned() -> None:
    tensor = pb.Tensor(dtype="float32", shape=[1, 4], data=X.tobytes()).SerializeToString()
    tensor += pb.Tensor(name="x").SerializeToString()  # fields may come in any order
    odd = pb.PredictRequest(model="mlp").SerializeToString() + b"\x22" + bytes([len(tensor)]) + tensor
    read = predict(odd, Catalog())
    assert isinstance(read, Inference)
    assert learned(odd).find(odd) is None

"""The server's way from bytes to bytes in this process, without a device: every model answers with its first input."""

import queue
import time
from collections.abc import Sequence

import numpy as np

from converters.manifest import SequenceSpec, Signature, TensorInfo
from serve_grpc.batcher import Account, Batcher
from serve_grpc.buckets import BucketChoice
from serve_grpc.catalog import SERVING, Catalog, SignatureInfo, VersionInfo
from serve_grpc.errors import RequestError, status_of
from serve_grpc.executor import Executor, Runnable
from serve_grpc.lanes import OneLane, SequenceLanes
from serve_grpc.metrics import Metrics, VersionMetrics
from serve_grpc.program import Program
from serve_grpc.protocol import Read, WireProtocol
from serve_grpc.protocol.jaxport_v1 import JaxportV1
from serve_grpc.protocol.open_inference import OpenInference
from serve_grpc.protocol.tensorflow_serving import TensorflowServing
from serve_grpc.route import Routes
from serve_grpc.router import LONGEST_REASON, Router
from serve_grpc.scheduler import Scheduler
from serve_grpc.sequence_program import SequenceProgram
from serve_grpc.serving import Live, Serving
from serve_grpc.transport import Answer, Call, Status
from serve_grpc.validate import SignatureRules
from serve_grpc.version import LoadedVersion

MAX_MESSAGE_BYTES = 1 << 20
MAX_LATENCY = float("inf")
SEQUENCE = SequenceSpec("t", 12)
INPUTS = {
    "echo": {"x": ("float32", (2,))},
    "tokens": {"tokens": ("int32", (8,))},
    "mixed": {"h": ("bfloat16", (3,)), "keep": ("bool", ())},
    "bytes": {"u": ("uint8", (5,))},
    "flags": {"b": ("bool", (3,))},
    "wide": {"n": ("int64", (2,))},
    "large": {"page": ("uint8", (4096,))},
    "words": {"w": ("int32", ("t",))},
    "pairs": {"p": ("float32", ("t", 2)), "q": ("bool", ("t",))},
}


class EchoServer:
    """Use as a context manager; calls go in with `ask`, in any number at once."""

    def __init__(self) -> None:
        self.metrics = Metrics()
        self.catalog = Catalog()
        self.serving = Serving(self.catalog)
        self._scheduler = Scheduler(MAX_LATENCY)
        self._executor = Executor(self._scheduler, overlap=False)
        protocols: list[WireProtocol] = [
            JaxportV1(),
            OpenInference(lambda: True, self.metrics),
            TensorflowServing(MAX_MESSAGE_BYTES),
        ]
        self.methods = {path: method for each in protocols for path, method in each.methods.items()}
        self.methods |= {path: method for each in protocols for path, (method, _) in each.streams.items()}
        self._protocol = {path: each.name for each in protocols for path in (*each.methods, *each.streams)}
        self.routes = Routes(self.serving, MAX_MESSAGE_BYTES, MAX_LATENCY)
        self.router = Router(
            protocols,
            self.catalog,
            self.serving,
            self._scheduler,
            self._executor,
            self.metrics,
            self.routes,
        )
        self._calls: queue.SimpleQueue[list[Call]] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[Sequence[Answer]] = queue.SimpleQueue()
        for model, inputs in INPUTS.items():
            self.serve(model, 1, {name: TensorInfo(name, d, ("b", *s)) for name, (d, s) in inputs.items()})

    def __enter__(self) -> "EchoServer":
        self._executor.start()
        self.router.start([self._receive])
        return self

    def __exit__(self, *_: object) -> None:
        self.router.stop()
        self._scheduler.stop()
        self._executor.join(10)

    def serve(self, model: str, version: int, inputs: dict[str, TensorInfo]) -> None:
        """From now on a model takes these inputs and gives the first one back as `y`."""
        first = next(iter(inputs.values()))
        output = TensorInfo("y", first.dtype, first.shape)
        sequence = SEQUENCE if "t" in first.shape else None
        declared = Signature("predict", (*inputs.values(),), (output,), "b", (), {}, "", sequence)
        seconds = {bucket: 1e-5 * (1 + bucket / 8) for bucket in (1, 2, 4, 8)}
        metrics = VersionMetrics(self.metrics, model, version, "2030-01-01")
        batchers: dict[int, Batcher] = {}
        account = Account()
        for length in (0,) if sequence is None else sequence.lengths:
            if sequence is None:
                program = Program(SignatureRules("predict", declared.inputs, declared.outputs), {}, {})
            else:
                program = SequenceProgram(declared, length, {})
            for bucket in seconds:
                program.add(bucket, lambda _, arrays: {"y": arrays[first.name].copy()})
            runnable, choice = Runnable(program, metrics), BucketChoice.of(seconds)
            batchers[length] = Batcher(runnable, choice, 1_000_000, account=account)
        lanes = OneLane(batchers[0]) if sequence is None else SequenceLanes(declared, batchers)
        programs = {str(length): batcher.program.program for length, batcher in batchers.items()}
        queues = {str(length): batcher for length, batcher in batchers.items()}
        signature = SignatureInfo("predict", declared.inputs, (output,), seconds)
        info = VersionInfo(version, SERVING, "", (signature,), "2030-01-01")
        key = f"{model}/{version}"
        loaded = LoadedVersion(model, info, key, {"predict": lanes}, queues, programs, metrics)
        self.catalog.put(model, info)
        self.serving.put(model, Live(loaded, {version: loaded}, {"stable": loaded}))

    def ask(self, requests: Sequence[tuple[str, bytes]]) -> list[bytes | Status]:
        """The answers to (method, payload), which come in together as from one receiver."""
        now = time.monotonic()
        calls = [Call(method, payload, None, now, at, self) for at, (method, payload) in enumerate(requests)]
        self._calls.put(calls)
        answers: dict[int, bytes | Status] = {}
        while len(answers) < len(calls):
            for call, answer in self._answers.get(timeout=20):
                assert call.handle not in answers, "answered twice"
                answers[call.handle] = answer
        return [answers[at] for at in range(len(calls))]

    def admit(self, reads: Sequence[Read]) -> list[bytes | Status]:
        """As `ask`, through the door of requests that come by no transport."""
        now = time.monotonic()
        calls = [Call("/v1/models:predict", b"", None, now, at, self) for at in range(len(reads))]
        self.router.admit([(call, "rest", read) for call, read in zip(calls, reads, strict=True)])
        answers: dict[int, bytes | Status] = {}
        while len(answers) < len(calls):
            answers |= {call.handle: answer for call, answer in self._answers.get(timeout=20)}
        return [answers[at] for at in range(len(calls))]

    def respond(self, answers: Sequence[Answer]) -> None:
        self._answers.put(answers)

    def fresh(self, method: str, payload: bytes) -> bytes | Status:
        """The right answer: the whole payload is parsed and checked, and its first input encoded."""
        try:
            inference = self.methods[method](payload, self.catalog)
            if isinstance(inference, bytes):
                return inference
            route, data = self.routes.route(self._protocol[method], inference)
        except RequestError as error:
            return Status(status_of(error), str(error)[:LONGEST_REASON])
        return route.encode([np.frombuffer(data[0], np.uint8).data for _ in route.outputs])

    def _receive(self, most: int, timeout: float) -> list[Call]:
        try:
            return self._calls.get(timeout=timeout)
        except queue.Empty:
            return []

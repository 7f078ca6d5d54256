"""Every protocol at once, callers who give up, for ten minutes: python -m benchmarks.soak [--seconds 600]

Clients of jaxport.v1, the Open Inference Protocol (unary and stream), TensorFlow Serving and REST ask one small model
and compare every answer with the one right output; a share of them cancels or has a deadline that cannot be met.
Afterwards nothing may be wrong, and the server's memory must not have grown with the requests. Exit code 3 otherwise.
"""

import argparse
import asyncio
import json
import os
import platform
import random
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

import grpc
import grpc.aio
import numpy as np

from benchmarks.serving import export_models
from jaxport.client import SERVICE
from jaxport.scrape import difference, scrape
from jaxport.tensors import array_to_tensor
from jaxport.tour import served
from jaxport.wire import open_inference_pb2 as oip
from jaxport.wire import prediction_pb2 as wire
from jaxport.wire import tensorflow_serving_pb2 as tfs

MODEL = "mlp"
CLIENTS = 4  # of each kind
GIVE_UP = 0.1  # share of calls that are cancelled or have too short a deadline
# Growth of the resident memory over the second half that is told from noise: the allocator's own steps are larger
# than any request.
MOST_GROWTH_BYTES = 16 * 2**20


@dataclass
class Outcome:
    """What every client saw. memory: (seconds, resident bytes)."""

    right: Counter[str] = field(default_factory=Counter)
    given_up: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    memory: list[tuple[float, float]] = field(default_factory=list)


class Row:
    """One question and its answer, in every protocol's words."""

    def __init__(self, x: np.ndarray, y: np.ndarray) -> None:
        self.y = y
        raw = x.tobytes()
        self.jaxport = wire.PredictRequest(model=MODEL, inputs=[array_to_tensor("x", x)]).SerializeToString()
        request = oip.ModelInferRequest(model_name=MODEL, raw_input_contents=[raw])
        request.inputs.add(name="x", datatype="FP32", shape=x.shape)
        self.open_inference = request.SerializeToString()
        predict = tfs.PredictRequest(model_spec=tfs.ModelSpec(name=MODEL))
        predict.inputs["x"].CopyFrom(tfs.Tensor(dtype=tfs.DT_FLOAT, tensor_content=raw))
        for size in x.shape:
            predict.inputs["x"].tensor_shape.dim.add(size=size)
        self.tensorflow = predict.SerializeToString()
        self.rest = json.dumps({"inputs": {"x": x.tolist()}}).encode()


def output_of(protocol: str, payload: bytes) -> np.ndarray:
    """The output in a response, [1, 3]."""
    if protocol == "jaxport.v1":
        data = wire.PredictResponse.FromString(payload).outputs[0].data
    elif protocol == "tensorflow":
        tensor = tfs.PredictResponse.FromString(payload).outputs["y"]
        data = tensor.tensor_content or b"".join(tensor.float_val)
    else:
        data = oip.ModelInferResponse.FromString(payload).raw_output_contents[0]
    return np.frombuffer(data, np.float32).reshape(1, -1)


class Soak:
    """The clients. `until`: when they stop, by time.monotonic()."""

    def __init__(self, channel: grpc.aio.Channel, http: str, rows: list[Row], until: float) -> None:
        self._channel, self._http, self._rows, self._until = channel, http, rows, until
        self._random = random.Random(0)
        self.outcome = Outcome()

    async def run(self) -> Outcome:
        """Until the time is over."""
        unary = [
            ("jaxport.v1", f"{SERVICE}Predict", lambda row: row.jaxport),
            ("open_inference", "/inference.GRPCInferenceService/ModelInfer", lambda row: row.open_inference),
            ("tensorflow", "/tensorflow.serving.PredictionService/Predict", lambda row: row.tensorflow),
        ]
        clients: list[Awaitable[None]] = [self._watch()]
        for name, path, request in unary:
            clients += [self._unary(name, path, request) for _ in range(CLIENTS)]
        clients += [self._stream() for _ in range(CLIENTS)]
        clients += [self._rest() for _ in range(CLIENTS)]
        await asyncio.gather(*clients)
        return self.outcome

    def _over(self) -> bool:
        return time.monotonic() >= self._until

    def _row(self) -> Row:
        return self._random.choice(self._rows)

    def _check(self, protocol: str, found: np.ndarray, row: Row) -> None:
        # A bucket of another size may round otherwise; another question's answer is far away.
        if np.allclose(found, row.y, rtol=1e-4, atol=1e-4):
            self.outcome.right[protocol] += 1
        else:
            self.outcome.wrong.append(f"{protocol}: an answer that is not this question's")

    async def _unary(self, name: str, path: str, request: Callable[[Row], bytes]) -> None:
        method = self._channel.unary_unary(path)
        while not self._over():
            row = self._row()
            chance = self._random.random()
            timeout = 0.0005 if chance < GIVE_UP / 2 else 30
            call = method(request(row), timeout=timeout)
            if GIVE_UP / 2 <= chance < GIVE_UP:
                await asyncio.sleep(self._random.random() * 0.004)
                call.cancel()
            try:
                self._check(name, output_of(name, await call), row)
            except asyncio.CancelledError:
                self.outcome.given_up[name] += 1
            except grpc.aio.AioRpcError as error:
                if chance < GIVE_UP and error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                    self.outcome.given_up[name] += 1
                else:
                    self.outcome.wrong.append(f"{name}: {error.code().name} {error.details()}")
                    await asyncio.sleep(0.05)

    async def _stream(self) -> None:
        method = self._channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
        while not self._over():
            asked: list[Row] = [self._row() for _ in range(20)]
            keep = 20 if self._random.random() > GIVE_UP else 3

            async def requests(asked: list[Row] = asked) -> AsyncIterator[bytes]:
                for row in asked:
                    yield row.open_inference

            call = method(requests())
            for row in asked[:keep]:
                payload = await call.read()
                if not isinstance(payload, bytes):
                    self.outcome.wrong.append("stream: fewer answers than questions")
                    break
                answer = oip.ModelStreamInferResponse.FromString(payload)
                if answer.error_message:
                    self.outcome.wrong.append(f"stream: {answer.error_message}")
                else:
                    payload = answer.infer_response.SerializeToString()
                    self._check("stream", output_of("stream", payload), row)
            if keep < len(asked):
                call.cancel()
                self.outcome.given_up["stream"] += 1
            elif isinstance(await call.read(), bytes):
                self.outcome.wrong.append("stream: more answers than questions")

    async def _rest(self) -> None:
        url = f"http://{self._http}/v1/models/{MODEL}:predict"

        def post(body: bytes) -> list[float]:
            with urllib.request.urlopen(urllib.request.Request(url, body), timeout=30) as answer:
                return json.load(answer)["outputs"][0]

        while not self._over():
            row = self._row()
            try:
                numbers = await asyncio.to_thread(post, row.rest)
            except OSError as error:
                self.outcome.wrong.append(f"rest: {error}")
                await asyncio.sleep(0.05)
                continue
            self._check("rest", np.array([numbers]), row)

    async def _watch(self) -> None:
        started = time.monotonic()
        while not self._over():
            figures = await asyncio.to_thread(scrape, self._http)
            if figures and (resident := figures.total("process_resident_memory_bytes")):
                self.outcome.memory.append((time.monotonic() - started, resident))
            await asyncio.sleep(2)


def growth(memory: list[tuple[float, float]]) -> float:
    """Bytes by which a straight line through the second half rises: the first half warms allocators and caches."""
    half = memory[len(memory) // 2 :]
    seconds, resident = np.array(half).T
    return float(np.polyfit(seconds, resident, 1)[0] * (seconds[-1] - seconds[0]))


async def soak(address: str, http: str, seconds: float) -> Outcome:
    """Learns the right answers one by one, then asks for `seconds`."""
    generator = np.random.default_rng(0)
    async with grpc.aio.insecure_channel(address) as channel:
        call = channel.unary_unary(f"{SERVICE}Predict")
        rows = []
        for _ in range(64):
            x = generator.normal(size=(1, 4)).astype(np.float32)
            request = wire.PredictRequest(model=MODEL, inputs=[array_to_tensor("x", x)])
            rows.append(Row(x, output_of("jaxport.v1", await call(request.SerializeToString()))))
        return await Soak(channel, http, rows, time.monotonic() + seconds).run()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=600.0)
    options = parser.parse_args()
    versions = ", ".join(f"{name} {version(name)}" for name in ("jax", "grpcio", "pygrpc-native"))
    print(f"{platform.platform()}, {os.cpu_count()} cores, {versions}")
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        export_models(root / "models")
        with served(root) as (address, http):
            before = scrape(http)
            outcome = asyncio.run(soak(address, http, options.seconds))
            after = scrape(http)
            compiles = difference(before, after, "jaxport_compiles_after_ready_total") or 0
    grown = growth(outcome.memory)
    print(
        f"right: {dict(outcome.right)}; given up: {dict(outcome.given_up)}; compiles after READY: {compiles:.0f}"
    )
    print(f"wrong: {len(outcome.wrong)}")
    for text, count in Counter(outcome.wrong).most_common(10):
        print(f"  {count} x {text}")
    print(
        f"resident memory {outcome.memory[0][1] / 2**20:.0f} -> {outcome.memory[-1][1] / 2**20:.0f} MiB; the second half "
        f"rose by {grown / 2**20:.1f} MiB (limit {MOST_GROWTH_BYTES / 2**20:.0f})"
    )
    return 3 if outcome.wrong or compiles or grown > MOST_GROWTH_BYTES else 0


if __name__ == "__main__":
    sys.exit(main())

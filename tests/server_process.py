"""A real server in a process of its own, and the few calls the tests make of it."""

import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from grpc_health.v1 import health_pb2, health_pb2_grpc

from jaxport.wire import prediction_pb2 as pb

ROOT = Path(__file__).resolve().parents[1]
SERVICE = "/jaxport.v1.PredictionService/"


class ServerProcess:
    """`jaxport serve` on free ports, by `python`. Use as a context manager; leaving it kills what still runs."""

    def __init__(
        self,
        models: Path,
        *flags: str,
        grpc_port: int = 0,
        prefix: Sequence[str] = (),
        python: str = sys.executable,
    ) -> None:
        command = [
            *prefix,
            python,
            "-m",
            "jaxport",
            "serve",
            "--models",
            str(models),
            "--http-port",
            "0",
        ]
        if "--grpc-socket" not in flags:
            command += ["--grpc-port", str(grpc_port)]
        self.models = models
        self.lines: list[str] = []
        self._process = subprocess.Popen(
            [*command, "--poll-seconds", "0.2", "--drain-delay", "0", *flags],
            stderr=subprocess.PIPE,
            text=True,
            errors="backslashreplace",  # grpcio repeats in its log what came
            cwd=ROOT,
            env={**os.environ, "JAX_PLATFORMS": "cpu"},
        )
        self._arrived: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.grpc = self.http = ""
        self._channel: grpc.Channel | None = None

    def __enter__(self) -> "ServerProcess":
        return self

    def __exit__(self, *_: object) -> None:
        if self._channel is not None:
            self._channel.close()
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._reader.join()
        assert self._process.stderr is not None
        self._process.stderr.close()

    def ready(self) -> "ServerProcess":
        """Waits for the line that says ready."""
        return self._addresses(self.line(r"ready grpc=(\S+) http=(\S+)"))

    def listening(self) -> "ServerProcess":
        """Waits for the ports; models may still be loading."""
        return self._addresses(self.line(r"listening grpc=(\S+) http=(\S+)"))

    def line(self, pattern: str, timeout: float = 180) -> re.Match[str]:
        """Waits for a log line that matches, from the start of the log."""
        end = time.monotonic() + timeout
        seen = 0
        while True:
            for text in self.lines[seen:]:
                seen += 1
                if match := re.search(pattern, text):
                    return match
            try:
                if self._arrived.get(timeout=max(0.0, end - time.monotonic())) is None and seen == len(
                    self.lines
                ):
                    raise AssertionError(f"the server ended without {pattern!r}:\n" + "".join(self.lines))
            except queue.Empty:
                raise AssertionError(f"no {pattern!r} within {timeout} s:\n" + "".join(self.lines)) from None

    def signal(self, number: int = signal.SIGTERM) -> None:
        self._process.send_signal(number)

    def wait(self, timeout: float = 30) -> int:
        return self._process.wait(timeout)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    @property
    def channel(self) -> grpc.Channel:
        if self._channel is None:
            self._channel = connect(self.grpc)
        return self._channel

    def predict(self, model: str, inputs: Mapping[str, np.ndarray], **fields: Any) -> dict[str, np.ndarray]:
        """Outputs by name."""
        timeout = fields.pop("timeout", 20)
        return outputs_of(predict_call(self.channel)(request(model, inputs, **fields), timeout=timeout))

    def state(self, model: str) -> dict[int, str]:
        """version -> state."""
        call = self.channel.unary_unary(
            f"{SERVICE}ListModels",
            request_serializer=pb.ListModelsRequest.SerializeToString,
            response_deserializer=pb.ListModelsResponse.FromString,
        )
        return {
            version.version: version.state
            for entry in call(pb.ListModelsRequest(), timeout=10).models
            if entry.name == model
            for version in entry.versions
        }

    def model(self, model: str, version: int = 0) -> pb.ModelVersion:
        call = self.channel.unary_unary(
            f"{SERVICE}GetModel",
            request_serializer=pb.GetModelRequest.SerializeToString,
            response_deserializer=pb.GetModelResponse.FromString,
        )
        return call(pb.GetModelRequest(model=model, version=version), timeout=10).version

    def health(self, service: str = "") -> str:
        stub = health_pb2_grpc.HealthStub(self.channel)
        reply = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=10)
        return health_pb2.HealthCheckResponse.ServingStatus.Name(reply.status)

    def get(self, path: str) -> tuple[int, str]:
        """HTTP status and body."""
        try:
            with urllib.request.urlopen(f"http://{self.http}{path}", timeout=10) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def metric(self, name: str, **labels: str) -> float:
        """The sum over every series of that name with those labels."""
        total = 0.0
        for line in self.get("/metrics")[1].splitlines():
            series, _, value = line.rpartition(" ")
            if series.partition("{")[0] == name and all(f'{k}="{v}"' in series for k, v in labels.items()):
                total += float(value)
        return total

    def _addresses(self, match: re.Match[str]) -> "ServerProcess":
        self.grpc, self.http = match.groups()
        return self

    def _read(self) -> None:
        assert self._process.stderr is not None
        for text in self._process.stderr:
            self.lines.append(text)
            self._arrived.put(text)
        self._arrived.put(None)


def connect(address: str) -> grpc.Channel:
    """A channel that sends any size: the server's limit is what is tested."""
    options = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
    return grpc.insecure_channel(address, options)


def predict_call(channel: grpc.Channel) -> Any:
    return channel.unary_unary(
        f"{SERVICE}Predict",
        request_serializer=pb.PredictRequest.SerializeToString,
        response_deserializer=pb.PredictResponse.FromString,
    )


def tensor(name: str, array: np.ndarray, **changed: Any) -> pb.Tensor:
    """An array on the wire; `changed` replaces fields, to make a wrong one."""
    fields = {"dtype": array.dtype.name, "shape": array.shape, "data": array.tobytes(), **changed}
    return pb.Tensor(name=name, **fields)


def request(model: str, inputs: Mapping[str, np.ndarray], **fields: Any) -> pb.PredictRequest:
    return pb.PredictRequest(model=model, inputs=[tensor(n, a) for n, a in inputs.items()], **fields)


def outputs_of(response: pb.PredictResponse) -> dict[str, np.ndarray]:
    import ml_dtypes  # noqa: F401  (registers bfloat16)

    return {
        t.name: np.frombuffer(t.data, np.dtype(t.dtype)).reshape(tuple(t.shape)) for t in response.outputs
    }


def publish(source: Path, target: Path) -> None:
    """As an exporter does: written under a hidden name, then renamed."""
    hidden = target.parent / f".{target.name}.writing"
    shutil.copytree(source, hidden)
    hidden.rename(target)


def eventually(condition: Callable[[], bool], what: str, seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(0.05)

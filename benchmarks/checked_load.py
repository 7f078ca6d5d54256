"""Clients that check every answer, in processes of their own, for as long as a measurement lasts."""

import asyncio
import contextlib
import multiprocessing
import time
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from typing import Any

import grpc
import grpc.aio

from jaxport.client import SERVICE
from jaxport.wire import prediction_pb2 as wire

START_SECONDS = 60.0
MOST_FAULTS = 20  # kept in words; all of them are counted


@dataclass(frozen=True)
class Question:
    """A serialized request, and by version the bytes of the one right output."""

    request: bytes
    answers: Mapping[int, bytes]


@dataclass
class Answers:
    """What came back, by position: when it was sent and received (time.monotonic), and the version that answered.

    failed: requests with an error. wrong: answers that are not exactly that version's. faults: some of both, in words.
    """

    sent: array = field(default_factory=lambda: array("d"))
    received: array = field(default_factory=lambda: array("d"))
    versions: array = field(default_factory=lambda: array("q"))
    failed: int = 0
    wrong: int = 0
    faults: list[str] = field(default_factory=list)

    def add(self, other: "Answers") -> None:
        self.sent.extend(other.sent)
        self.received.extend(other.received)
        self.versions.extend(other.versions)
        self.failed += other.failed
        self.wrong += other.wrong
        self.faults += other.faults


@contextlib.contextmanager
def asking(address: str, questions: Sequence[Question], clients: int, processes: int) -> Iterator[Answers]:
    """Clients that ask one question after the other while the block lasts. What they saw is complete after it."""
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    answers = Answers()
    workers = []
    for index in range(processes):
        ours, theirs = context.Pipe(duplex=False)
        share = clients // processes + (index < clients % processes)
        worker = context.Process(target=_work, args=(address, questions, share, stop, theirs), daemon=True)
        worker.start()
        theirs.close()
        workers.append((worker, ours))
    try:
        for _, connection in workers:  # each says when it is connected
            if not connection.poll(START_SECONDS):
                raise TimeoutError("a client process did not start")
            connection.recv()
        yield answers
        stop.set()
        for worker, connection in workers:
            answers.add(connection.recv())
            worker.join()
    finally:
        for worker, connection in workers:
            worker.terminate()
            worker.join()
            connection.close()


def _work(
    address: str, questions: Sequence[Question], clients: int, stop: Event, results: Connection
) -> None:
    with contextlib.suppress(KeyboardInterrupt):  # the parent says what happened
        results.send(asyncio.run(_ask(address, questions, clients, stop, results)))


async def _ask(
    address: str, questions: Sequence[Question], clients: int, stop: Event, results: Connection
) -> Answers:
    answers = Answers()
    async with grpc.aio.insecure_channel(address) as channel:
        call = channel.unary_unary(f"{SERVICE}Predict")
        await asyncio.wait_for(channel.channel_ready(), START_SECONDS)
        results.send("connected")
        await asyncio.gather(*(_client(call, questions, n, stop, answers) for n in range(clients)))
    return answers


async def _client(call: Any, questions: Sequence[Question], turn: int, stop: Event, answers: Answers) -> None:
    while not stop.is_set():
        question = questions[turn % len(questions)]
        turn += 1
        sent = time.monotonic()
        try:
            payload = await call(question.request, timeout=30.0)
        except grpc.aio.AioRpcError as error:
            answers.failed += 1
            _note(answers, f"{error.code().name}: {error.details()}")
            await asyncio.sleep(0.01)
            continue
        answers.received.append(time.monotonic())
        answers.sent.append(sent)
        response = wire.PredictResponse.FromString(payload)
        answers.versions.append(response.version)
        if response.outputs[0].data != question.answers.get(response.version):
            answers.wrong += 1
            _note(answers, f"version {response.version} gave an answer that is not its own")


def _note(answers: Answers, what: str) -> None:
    if len(answers.faults) < MOST_FAULTS:
        answers.faults.append(what)

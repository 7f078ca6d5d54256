"""From calls to queues: through their protocol and validation, on the threads that receive them."""

import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from serve_grpc.access import Access
from serve_grpc.batcher import Batcher, Refusal, Scheduler, Work
from serve_grpc.catalog import Catalog
from serve_grpc.errors import ExecutionFailed, QueueFull, RequestError, status_of
from serve_grpc.metrics import Metrics
from serve_grpc.protocol import Inference, Method, Read, WireProtocol
from serve_grpc.serving import Serving
from serve_grpc.transport import Answer, Call, Receive, Status, respond
from serve_grpc.version import LoadedVersion

log = logging.getLogger(__name__)

MOST_CALLS = 64
# How often an idle receiver looks whether it should end.
WAKE_SECONDS = 0.2


class Routed(NamedTuple):
    """A request on its way to a queue; kept to send it to the next version when this one closes first."""

    inference: Inference
    version: LoadedVersion
    batcher: Batcher
    work: Work


class Router:
    """Requests of every way in, to the queues: one hand-over per batch of calls.

    One thread for each receiver of the transport; `admit` is for requests that come without one, such as HTTP's.
    """

    def __init__(
        self,
        protocols: Sequence[WireProtocol],
        catalog: Catalog,
        serving: Serving,
        scheduler: Scheduler,
        metrics: Metrics,
        max_message_bytes: int,
        access: Access | None = None,
    ) -> None:
        self._methods: Mapping[str, tuple[str, Method]] = {
            path: (protocol.name, method)
            for protocol in protocols
            for path, method in (
                *protocol.methods.items(),
                *((path, method) for path, (method, _) in protocol.streams.items()),
            )
        }
        self._catalog = catalog
        self._serving = serving
        self._scheduler = scheduler
        self._metrics = metrics
        self._max_message_bytes = max_message_bytes
        self._access = access
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self, receivers: Iterable[Receive]) -> None:
        """Begins to receive."""
        for receive in receivers:
            thread = threading.Thread(target=self._run, args=(receive,), name="router", daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        """Ends the threads; no accepted call may be left."""
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def _run(self, receive: Receive) -> None:
        while not self._stopping.is_set():
            calls = receive(MOST_CALLS, WAKE_SECONDS)
            if calls:
                self._handle(calls)

    def _handle(self, calls: Sequence[Call]) -> None:
        def parse(call: Call) -> tuple[Call, str, Read]:
            protocol, method = self._methods[call.method]
            return call, protocol, partial(method, call.payload)

        self.admit([parse(call) for call in calls])

    def admit(self, requests: Sequence[tuple[Call, str, Read]]) -> None:
        """Queues or answers each (call, protocol, what reads it). Any thread."""
        answers: list[Answer] = []
        routed: list[Routed] = []
        for call, protocol, read in requests:
            inference = None
            try:
                if self._access is None:
                    inference = read(self._catalog)
                else:
                    inference = self._allowed(self._access, call, read)
                if isinstance(inference, bytes):
                    answers.append((call, inference))
                    self._metrics.looked_up(call, protocol)
                else:
                    routed.append(self._route(call, protocol, inference))
            except RequestError as error:
                answers.append(self._refuse(call, protocol, inference, error))
            except Exception:  # a fault of ours in one request must not take the others down
                log.exception("a request failed before it was queued")
                error = ExecutionFailed("the server failed on this request; its log says why")
                answers.append(self._refuse(call, protocol, inference, error))
        if routed:
            self._submit(routed, answers)
        if answers:
            respond(answers)

    def _allowed(self, access: Access, call: Call, read: Read) -> bytes | Inference:
        caller = access.caller(call.metadata, call.subject)
        seen = caller.sees(self._catalog)
        inference = read(seen)
        if isinstance(inference, Inference):
            caller.may(inference.model)
            if not self._serving.live(inference.model).versions:
                seen.version(inference.model, 0)  # what says that it is not here must not name the others
        return inference

    def _route(self, call: Call, protocol: str, inference: Inference) -> Routed:
        version, batcher = self._serving.find(
            inference.model, inference.version, inference.signature, inference.label
        )
        rules = batcher.program.program.rules
        if inference.dtypes is not None:
            rules.check_dtypes(inference.dtypes)
        inputs, rows = rules.arrays(inference.inputs)
        outputs = rules.chosen(inference.outputs)
        rules.check_response(rows, outputs, self._max_message_bytes)
        infos = [rules.outputs[at] for at in outputs]
        number = version.info.version

        def encode(arrays: Sequence) -> bytes:
            return inference.encode(inference.model, number, infos, arrays)

        return Routed(inference, version, batcher, Work(call, protocol, inputs, rows, outputs, encode))

    def _submit(self, routed: Sequence[Routed], answers: list[Answer]) -> None:
        by_work = {id(entry.work): entry for entry in routed}
        for batcher, work, refusal in self._scheduler.submit([(r.batcher, r.work) for r in routed]):
            entry = by_work[id(work)]
            if refusal is Refusal.CLOSED:
                self._again(entry, answers)
                continue
            entry.version.metrics.full.inc()
            error = QueueFull(
                f"model {entry.version.model!r} has {batcher.rows} rows waiting and {work.rows} more came; "
                f"--max-queue allows {batcher.max_rows}; try again later"
            )
            answers.append(self._refuse(work.call, work.protocol, entry.inference, error))

    def _again(self, entry: Routed, answers: list[Answer]) -> None:
        """The version was replaced between look-up and queue: the request goes to the one that replaced it."""
        call, protocol = entry.work.call, entry.work.protocol
        try:
            self._submit([self._route(call, protocol, entry.inference)], answers)
        except RequestError as error:
            answers.append(self._refuse(call, protocol, entry.inference, error))

    def _refuse(
        self, call: Call, protocol: str, inference: Inference | bytes | None, error: RequestError
    ) -> Answer:
        code, reason = status_of(error), str(error)
        asked = inference if isinstance(inference, Inference) else None
        live = self._serving.get(asked.model) if asked else None
        if live is not None and asked is not None:
            live.metrics.refused(call, protocol, asked.signature, code, reason)
        else:
            self._metrics.unrouted(call, protocol, code, reason, asked.model if asked else "")
        return call, Status(code, reason)

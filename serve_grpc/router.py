"""From calls to queues: through their protocol and validation, on the threads that receive them."""

import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from serve_grpc.access import Access
from serve_grpc.batcher import Batcher, Work
from serve_grpc.catalog import Catalog
from serve_grpc.errors import STATUS, ExecutionFailed, NotLoaded, QueueFull, RequestError, status_of
from serve_grpc.executor import Executor
from serve_grpc.heads import Head, Heads
from serve_grpc.metrics import Metrics
from serve_grpc.protocol import Inference, Method, Read, WireProtocol
from serve_grpc.route import Route, Routes
from serve_grpc.scheduler import Refusal, Scheduler
from serve_grpc.serving import Live, Serving
from serve_grpc.transport import Answer, Call, Receive, Status, respond

log = logging.getLogger(__name__)

MOST_CALLS = 64
# How often an idle receiver looks whether it should end.
WAKE_SECONDS = 0.2
# Of requests that come again and again, kept for each model.
MOST_ROUTES = 4096
# Times that a request is sent on because its version was replaced between look-up and queue.
MOST_TRIES = 5
# Data of so many bytes is copied out of its payload: a view of it costs more.
SMALL = 4096
# A reason names what came, and a name that came may have megabytes.
LONGEST_REASON = 2000

# (call, protocol, what reads it)
Request = tuple[Call, str, Read]


class Receiver(NamedTuple):
    """What one receiving thread keeps for itself."""

    receive: Receive
    heads: Mapping[str, Heads]


class Router:
    """Requests of every way in, to the queues: one hand-over per batch of calls.

    One thread for each receiver of the transport; `admit` is for requests that come without one, such as HTTP's.
    A short batch runs on the thread that received it while the device is idle: see Scheduler.
    """

    def __init__(
        self,
        protocols: Sequence[WireProtocol],
        catalog: Catalog,
        serving: Serving,
        scheduler: Scheduler,
        executor: Executor,
        metrics: Metrics,
        routes: Routes,
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
        self._executor = executor
        self._metrics = metrics
        self._routes = routes
        self._access = access
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self, receivers: Iterable[Receive]) -> None:
        """Begins to receive."""
        for receive in receivers:
            heads = {
                path: Heads(lambda payload, method=method: method(payload, self._catalog))
                for path, (_, method) in self._methods.items()
            }
            receiver = Receiver(receive, heads)
            thread = threading.Thread(target=self._run, args=(receiver,), name="router", daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        """Ends the threads; no accepted call may be left."""
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def admit(self, requests: Sequence[Request]) -> None:
        """Queues or answers each request. Any thread."""
        works: list[tuple[Batcher, Work]] = []
        answers: list[Answer] = []
        for request in requests:
            self._admit(request, works, answers)
        self._submit(works, answers, {id(request[0]): request for request in requests}, run_here=False)

    def _run(self, receiver: Receiver) -> None:
        receive = receiver.receive
        while not self._stopping.is_set():
            calls = receive(MOST_CALLS, WAKE_SECONDS)
            if calls:
                self._handle(calls, receiver.heads)

    def _handle(self, calls: Sequence[Call], by_method: Mapping[str, Heads]) -> None:
        works: list[tuple[Batcher, Work]] = []
        answers: list[Answer] = []
        live, access = self._serving.live, self._access
        route, method, begin, size, length, small = (
            None,
            "",
            b"",
            0,
            0,
            True,
        )  # of the call before: most are like it
        for call in calls:
            payload = call.payload
            if (
                route is not None
                and access is None
                and len(payload) == length
                and call.method == method
                and payload.startswith(begin)
            ):
                data = payload[size:] if small else memoryview(payload)[size:]
                works.append((route.batcher, route.work(call, (data,))))
                continue
            heads = by_method[call.method]
            head, current = heads.find(payload), None
            if head is not None:
                current = live(head.inference.model)
                route = current.known.get(head)
                if access is not None and not self._may(access, call, head.inference.model):
                    route = None  # to be refused as any other
                if route is not None:
                    method, begin, size, length = call.method, head.head, len(head.head), len(payload)
                    small = length - size <= SMALL
                    works.append((route.batcher, route.work(call, (memoryview(payload)[size:],))))
                    continue
            found = self._admit(self._request(call), works, answers)
            if head is not None and current is not None:
                if (
                    found is not None
                    and live(head.inference.model) is current
                    and self._takes_any_bytes(*found)
                ):
                    self._keep(current, head, found[1])
            elif found is not None:
                self._learn(heads, payload, *found)
        self._submit(works, answers, {}, run_here=True)

    @staticmethod
    def _keep(live: Live, head: Head, route: Route) -> None:
        if len(live.known) >= MOST_ROUTES:
            live.known.clear()
        live.known[head] = route

    def _learn(self, heads: Heads, payload: bytes, inference: Inference, route: Route) -> None:
        if self._takes_any_bytes(inference, route):
            heads.learn(payload, inference)

    @staticmethod
    def _takes_any_bytes(inference: Inference, route: Route) -> bool:
        """Asked of every new route: another version may want the same request's data narrowed, or checked."""
        return route.batcher.program.program.rules.takes_any_bytes(inference.inputs)

    def _request(self, call: Call) -> Request:
        protocol, method = self._methods[call.method]
        return call, protocol, partial(method, call.payload)

    def _admit(
        self, request: Request, works: list[tuple[Batcher, Work]], answers: list[Answer]
    ) -> tuple[Inference, Route] | None:
        """Adds the request to `works`, or its answer to `answers`."""
        call, protocol, read = request
        inference = None
        try:
            if self._access is None:
                inference = read(self._catalog)
            else:
                inference = self._allowed(self._access, call, read)
            if isinstance(inference, bytes):
                answers.append((call, inference))
                self._metrics.looked_up(call, protocol)
                return None
            route, data = self._routes.route(protocol, inference)
            works.append((route.batcher, route.work(call, data)))
            return inference, route
        except RequestError as error:
            answers.append(self._refuse(call, protocol, inference, error))
        except Exception:  # a fault of ours in one request must not take the others down
            log.exception("a request failed before it was queued")
            error = ExecutionFailed("the server failed on this request; its log says why")
            answers.append(self._refuse(call, protocol, inference, error))
        return None

    def _allowed(self, access: Access, call: Call, read: Read) -> bytes | Inference:
        caller = access.caller(call.metadata, call.subject)
        seen = caller.sees(self._catalog)
        inference = read(seen)
        if isinstance(inference, Inference):
            caller.may(inference.model)
            if not self._serving.live(inference.model).versions:
                seen.version(inference.model, 0)  # what says that it is not here must not name the others
        return inference

    @staticmethod
    def _may(access: Access, call: Call, model: str) -> bool:
        try:
            access.caller(call.metadata, call.subject).may(model)
        except RequestError:
            return False
        return True

    def _submit(
        self,
        works: list[tuple[Batcher, Work]],
        answers: list[Answer],
        requests: Mapping[int, Request],
        run_here: bool,
    ) -> None:
        for _ in range(MOST_TRIES):
            if not works:
                break
            refused, mine = self._scheduler.submit(works, run_here)
            works = []  # those whose version was replaced since it was looked up: to the one that came after
            for batcher, work, refusal in refused:
                if refusal is Refusal.CLOSED:
                    self._admit(requests.get(id(work.call)) or self._request(work.call), works, answers)
                else:
                    answers.append(self._full(batcher, work, refusal))
            if answers:
                respond(answers)
                answers = []
            if mine:
                self._executor.run_here()
        for _, work in works:
            error = NotLoaded("the version is being replaced; try again")
            answers.append(self._refuse(work.call, work.protocol, None, error))
        if answers:
            respond(answers)

    def _full(self, batcher: Batcher, work: Work, refusal: Refusal) -> Answer:
        runnable = batcher.program
        metrics, signature = runnable.metrics, runnable.program.rules.signature
        if refusal is Refusal.LARGE:
            flag = "--max-queue" if work.rows > batcher.max_rows else "--max-latency"
            counter, reason = (
                metrics.large,
                (
                    f"model {metrics.model!r} takes at most {self._scheduler.most_rows(batcher)} rows in a request and "
                    f"{work.rows} came; send them in pieces, or raise {flag} at the server"
                ),
            )
        elif refusal is Refusal.FULL:
            waiting = batcher.urgent_rows if work.urgent else batcher.rows
            kind = "urgent rows" if work.urgent else "rows"
            counter, reason = (
                metrics.full,
                (
                    f"model {metrics.model!r} has {waiting} {kind} waiting and {work.rows} more came; "
                    f"--max-queue allows {batcher.max_rows}; try again later"
                ),
            )
        else:
            seconds = batcher.seconds_until(work.rows)
            counter, reason = (
                metrics.slow,
                (
                    f"model {metrics.model!r} has {batcher.rows} rows waiting: this would be answered in about "
                    f"{seconds:.2f} s, past --max-latency or too near to it; try again later"
                ),
            )
        counter.inc()
        code = STATUS[QueueFull]
        metrics.refused(work.call, work.protocol, signature, code, reason)
        return work.call, Status(code, reason)

    def _refuse(
        self, call: Call, protocol: str, inference: Inference | bytes | None, error: RequestError
    ) -> Answer:
        code, reason = status_of(error), str(error)[:LONGEST_REASON]
        asked = inference if isinstance(inference, Inference) else None
        live = self._serving.get(asked.model) if asked else None
        if live is not None and asked is not None:
            live.metrics.refused(call, protocol, asked.signature, code, reason)
        else:
            self._metrics.unrouted(call, protocol, code, reason, asked.model if asked else "")
        return call, Status(code, reason)

"""jaxport drain --admin-socket /run/jaxport/admin.sock --seconds 20   (a pod's preStop, in the server's container)

Nothing but the standard library, and no gRPC: it runs inside the time that a pod has to end.
"""

import argparse
import http.client
import json
import math
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DESCRIPTION = """\
Empties the Envoy in front of a server, before the server gets its SIGTERM. First its health checks fail while it serves
on, so that endpoints and balancers forget this server; then each connection is told to go elsewhere (GOAWAY) by its next
answer; when no request is left, or the time is nearly up, no connection is taken any more. Envoy itself is left running,
for the server's own drain. A call of Envoy's admin that fails is tried again as long as there is time. It ends within
--seconds and with exit code 0 whatever it finds, because a preStop that fails helps nobody. Without an Envoy there is
nothing to call: `jaxport serve --drain-delay` waits for endpoints by itself."""

# Of the runtime keys of deploy/'s configuration: its health checks fail, and nothing else changes.
LEAVING = "/runtime_modify?jaxport.leaving=100"
# Every connection gets a GOAWAY with its next answer. Sooner, clients would come back to a server that is still named.
SEND_AWAY = "/healthcheck/fail"
# Takes no new connection; what is open stays open.
CLOSE = "/drain_listeners"
FIGURES = "/stats?format=json&filter=^http.grpc.downstream_rq_(active|total)$"
TICK = 0.1
# Nothing under way and nothing new for so long is quiet.
QUIET_SECONDS = 1.0
# A call of Envoy's admin takes milliseconds, unless its CPU is taken away; after so long another one is made. Each step
# that is still to come has its time before the end.
CALL_SECONDS, LAST_CALL_SECONDS = 3.0, 1.0
# Of the time, for the interpreter to start and to end.
AROUND_SECONDS = 0.2


@dataclass(frozen=True)
class Requests:
    """active: under way now. total: ever begun."""

    active: int
    total: int


class NoAnswer(Exception):
    """Envoy's admin did not answer, or not as it does: this once."""


class _Until(socket.socket):
    """A unix socket whose reads end at `end` all together: a limit for each of them is none for a trickle."""

    end = math.inf

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        left = self.end - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        self.settimeout(left)
        return super().recv_into(buffer, nbytes, flags)


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a unix socket; connecting, asking and the whole answer take `seconds` at most."""

    def __init__(self, path: Path, seconds: float) -> None:
        super().__init__("localhost")
        self._path = path
        self._seconds = seconds

    def connect(self) -> None:
        self.sock = made = _Until(socket.AF_UNIX)
        made.end = time.monotonic() + self._seconds
        made.settimeout(self._seconds)
        made.connect(str(self._path))


class Admin:
    """Envoy's admin, behind the unix socket `path`, until `end` (of time.monotonic())."""

    def __init__(self, path: Path, end: float) -> None:
        self._path = path
        self._end = end
        self._told = False

    def left(self) -> float:
        """Seconds until the end."""
        return self._end - time.monotonic()

    def insist(self, path: str, steps_after: int) -> None:
        """Posts until it is answered, or there is only the time of the steps after it.

        All that is posted here may be posted twice: an answer that was lost does no harm.
        """
        while True:
            try:
                self._call("POST", path, steps_after)
                return
            except NoAnswer as error:
                self.tell(error)
            if self.left() <= steps_after * LAST_CALL_SECONDS + TICK:
                return
            time.sleep(TICK)

    def requests(self) -> Requests:
        """Of the gRPC port. Raises NoAnswer, also where the answer has no such figures."""
        text = self._call("GET", FIGURES, 1)
        try:
            found = {
                stat["name"].rpartition("_")[2]: int(stat["value"]) for stat in json.loads(text)["stats"]
            }
            return Requests(**found)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise NoAnswer(f"{FIGURES} gives no figures") from error

    def tell(self, error: NoAnswer) -> None:
        """The first failure at once: whoever gave a wrong path need not wait for the end."""
        if not self._told:
            print(f"drain: Envoy's admin at {self._path} does not answer ({error}); trying on", flush=True)
        self._told = True

    def _call(self, method: str, path: str, steps_after: int) -> str:
        """Raises NoAnswer: there was none in time, or one that is no 200."""
        seconds = min(CALL_SECONDS, self.left() - steps_after * LAST_CALL_SECONDS)
        connection = _UnixConnection(self._path, max(0.05, seconds))
        try:
            connection.request(method, path)
            reply = connection.getresponse()
            text = reply.read().decode()
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise NoAnswer(
                _one_line(getattr(error, "strerror", None) or str(error) or type(error).__name__)
            ) from error
        finally:
            connection.close()
        if reply.status != 200:
            raise NoAnswer(f"{path} answers {reply.status}: {_one_line(text.strip())}")
        return text


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    flag = parser.add_argument
    flag("--admin-socket", type=Path, required=True, metavar="PATH", help="the unix socket of Envoy's admin")
    flag(
        "--seconds",
        type=_seconds,
        default=20.0,
        metavar="S",
        help="all in all, at most (default: %(default)g)",
    )
    flag(
        "--propagate",
        type=_seconds,
        default=5.0,
        metavar="S",
        help="of them, serve on for so long first: endpoints are still spreading (default: %(default)g)",
    )


def run(options: argparse.Namespace) -> int:
    begun = time.monotonic()
    admin = Admin(options.admin_socket, begun + options.seconds - AROUND_SECONDS)
    outcome = drain(admin, options.propagate)
    print(f"drain: {outcome}, {time.monotonic() - begun:.1f} s", flush=True)
    return 0


def drain(admin: Admin, propagate: float) -> str:
    """Fails the health checks, serves on for `propagate` seconds, sends every client away, and waits until it is quiet
    or the time is up. Returns how it ended."""
    admin.insist(LEAVING, steps_after=2)
    time.sleep(max(0.0, min(propagate, admin.left() - 2 * LAST_CALL_SECONDS)))
    admin.insist(SEND_AWAY, steps_after=1)
    outcome = _until_quiet(admin)
    admin.insist(CLOSE, steps_after=0)
    return outcome


def _until_quiet(admin: Admin) -> str:
    """Waits until no request is left or the time is up, and says which."""
    last, since = None, 0.0
    while True:
        try:
            now = admin.requests()
        # What was quiet before and after a failure, with no request begun between, was quiet.
        except NoAnswer as error:
            admin.tell(error)
            outcome = f"the time was up, and Envoy's admin does not answer ({error})"
        else:
            if last is None or now.active or now.total != last.total:
                since = time.monotonic()
            last = now
            if now.active == 0 and time.monotonic() - since >= QUIET_SECONDS:
                return "no request is left"
            left = f"requests left when the time was up: {now.active}"
            outcome = left if now.active else "no request is left"
        if admin.left() <= LAST_CALL_SECONDS + TICK:
            return outcome
        time.sleep(TICK)


def _one_line(text: str) -> str:
    """Whatever came in place of an answer."""
    return (text if text.isprintable() else ascii(text))[:100]


def _seconds(text: str) -> float:
    value = float(text)
    if not (math.isfinite(value) and 0 <= value <= 86400):
        raise argparse.ArgumentTypeError(f"{text!r} is no time; needed: 0 to 86400 seconds")
    return value

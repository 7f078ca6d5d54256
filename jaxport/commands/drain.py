"""jaxport drain --admin-socket /run/jaxport/admin.sock --seconds 20   (a pod's preStop, in the server's container)

Nothing but the standard library, and no gRPC: it runs inside the time that a pod has to end.
"""

import argparse
import http.client
import json
import math
import signal
import socket
import time
from dataclasses import dataclass
from pathlib import Path

DESCRIPTION = """\
Empties the Envoy in front of a server, before the server gets its SIGTERM. First its health checks fail while it serves
on, so that endpoints and balancers forget this server; then each connection is told to go elsewhere (GOAWAY) by its next
answer; when no request is left, or the time is nearly up, no connection is taken any more. Envoy itself is left running,
for the server's own drain. It ends within --seconds and with exit code 0 whatever it finds, because a preStop that fails
helps nobody. Without an Envoy there is nothing to call: `jaxport serve --drain-delay` waits for endpoints by itself."""

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
# A call of Envoy's admin takes milliseconds, unless its CPU is taken away. The last has its time before the end.
CALL_SECONDS, LAST_CALL_SECONDS = 3.0, 1.0
# Of the time, for the interpreter to start and to end.
AROUND_SECONDS = 0.2


@dataclass(frozen=True)
class Requests:
    """active: under way now. total: ever begun."""

    active: int
    total: int


class NoEnvoy(Exception):
    """Its admin socket does not answer, or not as Envoy's does."""


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: Path, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


class Admin:
    """Envoy's admin, behind the unix socket `path`, until `end` (of time.monotonic())."""

    def __init__(self, path: Path, end: float) -> None:
        self._path = path
        self._end = end

    def left(self) -> float:
        """Seconds until the end."""
        return self._end - time.monotonic()

    def post(self, path: str) -> str:
        return self._call("POST", path)

    def requests(self) -> Requests:
        """Of the gRPC port; raises NoEnvoy where its figures are not recorded."""
        try:
            stats = json.loads(self._call("GET", FIGURES))["stats"]
            found = {stat["name"].rpartition("_")[2]: int(stat["value"]) for stat in stats}
            return Requests(**found)
        except (ValueError, TypeError, KeyError) as error:
            raise NoEnvoy(f"{FIGURES} gives no figures") from error

    def _call(self, method: str, path: str) -> str:
        """Raises NoEnvoy: within CALL_SECONDS there was no answer, or one that is no 200."""
        connection = _UnixConnection(self._path, max(0.05, min(CALL_SECONDS, self.left())))
        try:
            connection.request(method, path)
            reply = connection.getresponse()
            text = reply.read().decode()
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise NoEnvoy(f"{error or type(error).__name__}") from error
        finally:
            connection.close()
        if reply.status != 200:
            raise NoEnvoy(f"{path} answers {reply.status}: {text.strip()[:100]}")
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
    # A socket's limit is for each piece that comes, not for all of an answer.
    signal.signal(signal.SIGALRM, _time_is_up)
    signal.setitimer(signal.ITIMER_REAL, max(TICK, options.seconds))
    try:
        outcome = drain(admin, options.propagate)
    except NoEnvoy as error:
        outcome = f"Envoy's admin at {options.admin_socket} does not answer ({error}); nothing more to drain"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    print(f"drain: {outcome}, {time.monotonic() - begun:.1f} s", flush=True)
    return 0


def _time_is_up(*_: object) -> None:
    raise NoEnvoy("its answer had not ended when the time was up")


def drain(admin: Admin, propagate: float) -> str:
    """Fails the health checks, serves on for `propagate` seconds, sends every client away, and waits until it is quiet
    or the time is up. Returns how it ended; raises NoEnvoy."""
    admin.post(LEAVING)
    time.sleep(max(0.0, min(propagate, admin.left() - 2 * LAST_CALL_SECONDS)))
    admin.post(SEND_AWAY)
    active = _until_quiet(admin)
    admin.post(CLOSE)
    return "no request is left" if active == 0 else f"requests left when the time was up: {active}"


def _until_quiet(admin: Admin) -> int:
    """Waits; the requests that are under way when it is over."""
    last, since = admin.requests(), time.monotonic()
    while admin.left() > LAST_CALL_SECONDS + TICK:
        if last.active == 0 and time.monotonic() - since >= QUIET_SECONDS:
            return 0
        time.sleep(TICK)
        now = admin.requests()
        if now.active or now.total != last.total:
            since = time.monotonic()
        last = now
    return last.active


def _seconds(text: str) -> float:
    value = float(text)
    if not (math.isfinite(value) and 0 <= value <= 86400):
        raise argparse.ArgumentTypeError(f"{text!r} is no time; needed: 0 to 86400 seconds")
    return value

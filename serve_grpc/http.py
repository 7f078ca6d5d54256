"""The HTTP port: /metrics, /healthz, /readyz, the status page at /, and TensorFlow Serving's REST form under /v1.

The parser is the standard library's, one thread for each connection. What it leaves open is bounded here: how many
connections and requests there are, how long a peer may take over a head, a body or an answer, how large a head is.
"""

import io
import logging
import socket
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from serve_grpc.connections import Connections, Places, TimedReader, close_gently, has_gone
from serve_grpc.errors import EnvironmentUnfit, QueueFull
from serve_grpc.rest import Page, Request, Rest, Target, error_page, target
from serve_grpc.settings import HttpSettings
from serve_grpc.transport import Drained

log = logging.getLogger(__name__)

TEXT = "text/plain; charset=utf-8"
Pages = Mapping[str, Callable[[], Page]]

# A peer that sends or takes fewer bytes than this in a second, after the first seconds, is let go.
SLOWEST_BYTES = 100_000
# After a refusal what the peer still sends is read and dropped, so that it sees the refusal.
ACCEPT_AGAIN_SECONDS = 0.05
LINGER_SECONDS, LINGER_BYTES = 2.0, 256 * 2**20


class HttpServer:
    """Serves `pages` by exact path, and `rest` under /v1/models.

    Probes and pages need no place among the requests in flight, and a new connection always finds one that is idle
    or slow to close: neither slow peers nor a full queue keep a probe waiting.
    """

    def __init__(self, host: str, settings: HttpSettings, pages: Pages, rest: Rest) -> None:
        self._places = Places(settings.max_requests, 4 * settings.max_body_bytes)
        try:
            self._server = _Server(host, settings, pages, rest, self._places)
        except OSError as error:
            raise EnvironmentUnfit(
                f"cannot listen on {host}:{settings.port}: {error.strerror}; change --host or --http-port"
            ) from error
        self._thread = threading.Thread(target=self._server.serve_forever, name="http", daemon=True)

    def start(self) -> str:
        """Answers from now on; returns host:port."""
        self._thread.start()
        host, port = self._server.server_address[:2]
        return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"

    def refuse(self) -> None:
        """New requests under /v1 are answered 503 from now on; pages as before."""
        self._places.refuse()

    def drain(self, timeout: float) -> Drained:
        """Waits up to `timeout` seconds for the requests under /v1 that are in flight."""
        return self._places.drain(timeout)

    def stop(self) -> None:
        """Closes the port."""
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    # Its default lets a second server take a port that lingers, not one in use; exit 4 must mean taken.
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(self, host: str, settings: HttpSettings, pages: Pages, rest: Rest, places: Places) -> None:
        if ":" in host:
            self.address_family = socket.AF_INET6
        self.settings, self.pages, self.rest, self.places = settings, pages, rest, places
        self.connections = Connections(settings.max_connections)
        super().__init__((host, settings.port), _Handler)

    def get_request(self) -> Any:
        try:
            return super().get_request()
        except (
            OSError
        ):  # no descriptor is left: the connection still waits, and asking again at once would spin
            self.connections.make_room()
            time.sleep(ACCEPT_AGAIN_SECONDS)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        if self.connections.opened(request):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def shutdown_request(self, request: Any) -> None:
        self.connections.closed(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 (their names)
        log.debug("an answer was not delivered to %s", client_address, exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    server: _Server  # pyright: ignore[reportIncompatibleVariableOverride]
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # head and body are two writes

    def setup(self) -> None:
        super().setup()
        self._reader = TimedReader(self.connection)
        self.rfile = io.BufferedReader(self._reader)
        self._unread = False  # a body that was refused is still coming

    def finish(self) -> None:
        super().finish()
        if self._unread:
            close_gently(self.connection, LINGER_SECONDS, LINGER_BYTES)

    def handle_one_request(self) -> None:
        self.server.connections.idle(self.connection)
        self._reader.allow(self.server.settings.max_head_bytes, self.server.settings.idle_seconds)
        super().handle_one_request()

    def handle_expect_100(self) -> bool:
        return True  # `_body` says when to go on: not before the length is known to be allowed

    def do_GET(self) -> None:
        received = time.monotonic()
        if self._announces_body():
            self._leave_unread()
        at = target(self.path)
        if at is not None and at.verb != ":predict":
            self._in_place(self._request(at, received), 0, self.server.rest.describe)
            return
        path = self.path.partition("?")[0]
        page = self.server.pages.get(path)
        if page is not None:
            self._send(page())
        elif at is not None:
            self._send(error_page(405, "predict is asked for by POST", [("Allow", "POST")]))
        else:
            there = " ".join(self.server.pages)
            self._send(Page(404, TEXT, f"no page {path}; there are: {there}\n".encode()))

    do_HEAD = do_GET

    def do_POST(self) -> None:
        received = time.monotonic()
        at = target(self.path)
        if at is None or at.verb != ":predict":
            needed = "POST /v1/models/MODEL[/versions/N|/labels/L]:predict"
            self._turn_away(404, f"{self.path[:200]} takes no POST; needed: {needed}")
            return
        length = self._length()
        if length is None:
            return
        self._in_place(self._request(at, received), length, partial(self._predict, length))

    def _predict(self, length: int, request: Request) -> Page | None:
        if refusal := self.server.rest.unwelcome(request):
            self._leave_unread()
            return refusal
        body = self._body(length)
        if body is None:
            return None
        return self.server.rest.predict(request, body)

    def _in_place(self, request: Request, size: int, answer: Callable[[Request], Page | None]) -> None:
        """Answers within one of the places, until the last byte is written."""
        server = self.server
        if server.rest.closed:
            self._turn_away(HTTPStatus.FORBIDDEN, server.rest.closed)
            return
        if not server.places.take(size):
            self._leave_unread()
            self._deliver(self._refused(request))
            return
        server.connections.in_flight(self.connection, True)
        try:
            self._deliver(answer(request))
        finally:
            server.connections.in_flight(self.connection, False)
            server.places.give_back(size)

    def _refused(self, request: Request) -> Page | None:
        places = self.server.places
        if places.draining:
            return error_page(HTTPStatus.SERVICE_UNAVAILABLE, "the server is stopping; ask another")
        return self.server.rest.refuse(
            request, QueueFull(f"{places.most} requests or their bodies fill the HTTP port; try again later")
        )

    def _deliver(self, page: Page | None) -> None:
        if page is None:  # the caller has gone
            self.close_connection = True
        else:
            self._send(page)

    def _request(self, at: Target, received: float) -> Request:
        metadata = tuple((name.lower(), value) for name, value in self.headers.items())
        host, port = self.client_address[:2]
        peer = f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}"
        return Request(at, metadata, peer, received, partial(has_gone, self.connection))

    def _announces_body(self) -> bool:
        return "Transfer-Encoding" in self.headers or self.headers.get("Content-Length", "0") != "0"

    def _leave_unread(self) -> None:
        """The bytes of a body that is not read must not be taken for the next request."""
        self._unread = True
        self.close_connection = True

    def _length(self) -> int | None:
        """Bytes of the body; None when that was answered with a refusal."""
        if "Transfer-Encoding" in self.headers:
            return self._turn_away(411, "a body in chunks is not taken; needed: Content-Length")
        given = self.headers.get_all("Content-Length", [])
        if not given:
            return self._turn_away(411, "the request has no Content-Length")
        text = given[0].strip()
        if len(set(given)) > 1 or not (text.isascii() and text.isdigit()):
            return self._turn_away(400, f"Content-Length {', '.join(given)[:80]!r} is no number of bytes")
        limit = self.server.settings.max_body_bytes
        if len(text) > 18 or int(text) > limit:
            return self._turn_away(413, f"the body has {text[:20]} bytes; --max-message-bytes allows {limit}")
        return int(text)

    def _turn_away(self, status: int, message: str) -> None:
        self._leave_unread()
        self._send(error_page(status, message))

    def _body(self, length: int) -> bytes | None:
        """The body, or None when the peer left before its end. Raises TimeoutError for a slow one."""
        if self.headers.get("Expect", "").lower() == "100-continue":
            self.send_response_only(HTTPStatus.CONTINUE)
            self.end_headers()
        # The buffer may already hold some, and reads ahead.
        seconds = self.server.settings.body_seconds + length / SLOWEST_BYTES
        self._reader.allow(length + io.DEFAULT_BUFFER_SIZE, seconds)
        body = self.rfile.read(length)
        return body if len(body) == length else None

    def _send(self, page: Page) -> None:
        settings = self.server.settings
        self.connection.settimeout(settings.body_seconds + len(page.body) / SLOWEST_BYTES)
        if self.server.places.draining:
            self.close_connection = True
        self.send_response(page.status)
        self.send_header("Content-Type", page.content_type)
        self.send_header("Content-Length", str(len(page.body)))
        for name, value in page.headers:
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(page.body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:  # noqa: ARG002
        """What the parser refuses: its own answer would be HTML with the request in it."""
        self._leave_unread()
        self.request_version = "HTTP/1.0"  # where it is not known yet the answer would have no head
        self._send(error_page(code, message or HTTPStatus(code).phrase))

    def version_string(self) -> str:
        return "jaxport"

    def log_message(self, format: str, *args: object) -> None:
        log.debug(format, *args)

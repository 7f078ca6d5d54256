"""The HTTP port: /metrics, /healthz, /readyz and the status page at /."""

import logging
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar, NamedTuple

from serve_grpc.errors import EnvironmentUnfit

log = logging.getLogger(__name__)


class Page(NamedTuple):
    """An HTTP answer."""

    status: int
    content_type: str
    body: bytes


TEXT = "text/plain; charset=utf-8"
Pages = Mapping[str, Callable[[], Page]]


class HttpServer:
    """Serves `pages` by exact path, in threads: a slow scrape delays nobody."""

    def __init__(self, host: str, port: int, pages: Pages) -> None:
        handler = type("Handler", (_Handler,), {"pages": pages})
        try:
            self._server = _Server((host, port), handler)
        except OSError as error:
            raise EnvironmentUnfit(
                f"cannot listen on {host}:{port}: {error.strerror}; change --host or --http-port"
            ) from error
        self._thread = threading.Thread(target=self._server.serve_forever, name="http", daemon=True)

    def start(self) -> str:
        """Answers from now on; returns host:port."""
        self._thread.start()
        host, port = self._server.server_address[:2]
        return f"{host}:{port}"

    def stop(self) -> None:
        """Closes the port."""
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    # Its default lets a second server take a port that lingers, not one in use; exit 4 must mean taken.
    allow_reuse_address = True

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 (their names)
        log.debug("a page was not delivered to %s", client_address, exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    pages: ClassVar[Pages]
    server_version = "jaxport"
    timeout = 10  # seconds an idle connection may hold a thread

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        page = self.pages.get(path)
        self._send(
            page()
            if page
            else Page(404, TEXT, f"no page {path}; there are: {' '.join(self.pages)}\n".encode())
        )

    do_HEAD = do_GET

    def _send(self, page: Page) -> None:
        self.send_response(page.status)
        self.send_header("Content-Type", page.content_type)
        self.send_header("Content-Length", str(len(page.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(page.body)

    def log_message(self, format: str, *args: object) -> None:
        log.debug(format, *args)

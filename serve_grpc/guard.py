"""What stands between the network and the models, opened from the settings before anything slow begins."""

import logging
from typing import NamedTuple

from serve_grpc.access import Access
from serve_grpc.settings import ServeSettings
from serve_grpc.transport.choose import private
from serve_grpc.transport.tls import Certificates

log = logging.getLogger(__name__)

HTTP_IS_PLAIN = (
    "this server speaks TLS, and its HTTP port is plain for probes and metrics: it takes no requests; "
    "use gRPC, or a proxy that ends TLS before a server without it"
)
HTTP_IS_CLOSED = "this server takes no requests over HTTP (--no-http-predict); use gRPC"


class Guard(NamedTuple):
    """access: who may ask; None: everyone. certificates: None without TLS. http_closed: why HTTP takes no requests."""

    access: Access | None
    certificates: Certificates | None
    http_closed: str


def open_guard(settings: ServeSettings) -> Guard:
    """Reads the files that the flags name. Raises ConfigError naming the one that is not right."""
    listen = settings.listen
    certificates = None if listen.tls is None else Certificates(listen.tls)
    access = None if settings.token_file is None else Access(settings.token_file)
    if access is not None:
        log.info("asks for tokens token_file=%s %s", settings.token_file, access)
        if certificates is None and private(listen) is None and not listen.behind_proxy:
            log.warning(
                "host=%s is open to other machines and tokens come in the clear; add --tls-cert, or end TLS in front "
                "and say --behind-proxy",
                listen.host,
            )
    if certificates is not None:
        return Guard(access, certificates, HTTP_IS_PLAIN)
    return Guard(access, certificates, "" if listen.http_predict else HTTP_IS_CLOSED)

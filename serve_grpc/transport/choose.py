"""Which transport carries gRPC, and why."""

import importlib.util
import ipaddress
from collections.abc import Sequence
from typing import NamedTuple

from serve_grpc.errors import ConfigError
from serve_grpc.protocol import WireProtocol
from serve_grpc.settings import ListenSettings
from serve_grpc.transport import Transport
from serve_grpc.transport.grpcio import GrpcioTransport
from serve_grpc.transport.tls import Certificates


class Choice(NamedTuple):
    """name: "native" or "grpcio". reason: a few words for the log."""

    name: str
    reason: str


def choose(listen: ListenSettings) -> Choice:
    """The transport of the settings. Raises ConfigError for one that must not be used as told."""
    here = private(listen)
    if listen.transport == "grpcio":
        return Choice("grpcio", "asked for")
    if listen.transport == "native":
        if listen.tls is not None:
            raise ConfigError(
                "--transport native has no TLS; use --transport grpcio, or an Envoy in front that ends TLS and reaches "
                "the server by its --grpc-socket"
            )
        if not _installed():
            raise ConfigError(
                "--transport native needs the package pygrpc-native; install jaxport[native], or use --transport grpcio"
            )
        if here is None and not listen.behind_proxy:
            raise ConfigError(
                f"--transport native on --host {listen.host} would meet anyone's traffic without a limit on message "
                "sizes; use --transport grpcio, a --grpc-socket behind a proxy, or say --behind-proxy"
            )
        return Choice("native", "asked for")
    if listen.tls is not None:
        return Choice("grpcio", "TLS is asked for")
    if here is None and not listen.behind_proxy:
        return Choice("grpcio", f"{listen.host} is open to other machines")
    if not _installed():
        return Choice("grpcio", "pygrpc-native is not installed")
    return Choice("native", here or "behind a proxy")


def open_transport(
    choice: Choice,
    listen: ListenSettings,
    protocols: Sequence[WireProtocol],
    certificates: Certificates | None = None,
) -> Transport:
    """The chosen transport, not yet bound. certificates: for grpcio alone."""
    methods = [path for protocol in protocols for path in protocol.methods]
    streams = {path: refusal for protocol in protocols for path, (_, refusal) in protocol.streams.items()}
    if listen.grpc_socket is not None:
        target = f"unix:{listen.grpc_socket.absolute()}"
    else:
        host = f"[{listen.host}]" if ":" in listen.host else listen.host
        target = f"{host}:{listen.grpc_port}"
    if choice.name == "native":
        from serve_grpc.transport.native import NativeTransport  # an optional package

        return NativeTransport(target, methods, streams, listen.max_message_bytes, listen.connections)
    return GrpcioTransport(
        target, methods, streams, listen.max_message_bytes, listen.connections, certificates
    )


def private(listen: ListenSettings) -> str | None:
    """Why only this machine can connect; None when others can."""
    if listen.grpc_socket is not None:
        return "a unix socket"
    if listen.host == "localhost":
        return "loopback"
    try:
        return "loopback" if ipaddress.ip_address(listen.host).is_loopback else None
    except ValueError:
        return None


def _installed() -> bool:
    return importlib.util.find_spec("pygrpc_native") is not None

"""The flags of `jaxport serve` and `python -m serve_grpc`, and the settings they make."""

import argparse
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from jaxport.message_size import DEFAULT, message_size, size_in_bytes
from serve_grpc.errors import ConfigError
from serve_grpc.settings import (
    BatchSettings,
    ConnectionSettings,
    DrainSettings,
    ListenSettings,
    RecordSettings,
    RepositorySettings,
    ServeSettings,
    TlsSettings,
    UpdateSettings,
)

# A timer of grpcio's has milliseconds in 32 bits, which its jitter of a tenth may not pass either.
LONGEST_AGE = 1_000_000
# No wait and no count of rows is longer; a timer takes no infinity.
MOST = 10**9


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds every flag of the server to `parser`."""
    _add_models(parser.add_argument_group("models").add_argument)
    _add_listening(parser.add_argument_group("listening").add_argument)
    _add_security(parser.add_argument_group("who may ask").add_argument)
    _add_limits(parser.add_argument_group("batches and limits").add_argument)
    _add_leaving(parser.add_argument_group("stopping").add_argument)
    _add_records(parser.add_argument_group("records").add_argument)


def _add_models(flag: Callable[..., Any]) -> None:
    flag("--models", type=_folder, required=True, metavar="DIR", help="folder of <model>/<version>/ bundles")
    flag(
        "--poll-seconds",
        type=float,
        default=RepositorySettings.poll_seconds,
        metavar="S",
        help="how often the folder is read",
    )
    flag(
        "--cache-dir",
        type=Path,
        metavar="DIR",
        help="folder of the compile caches (default: cache beside DIR)",
    )
    flag("--warm-only", action="store_true", help="fill the compile cache and exit")
    flag("--wait", action="store_true", help="with --warm-only: wait until there is a model to warm for")
    flag(
        "--ready",
        default=RepositorySettings.ready,
        choices=("any", "all"),
        help="READY once each model found at start was tried, and any of them has a version that serves, or all of them "
        "have; what comes, fails or goes later takes nothing away (default: %(default)s)",
    )
    flag(
        "--swap",
        default="overlap",
        choices=("overlap", "unload-first"),
        help="a version that does not fit beside the old one: is refused, or the old one goes first",
    )
    flag(
        "--memory-limit",
        metavar="SIZE",
        help="device memory of all models together, on each device (default: all there is)",
    )


def _add_listening(flag: Callable[..., Any]) -> None:
    flag("--host", default=ListenSettings.host, help="address to bind (default: %(default)s)")
    flag(
        "--grpc-port", type=int, default=None, metavar="PORT", help="gRPC port, 0: a free one (default: 8500)"
    )
    flag("--grpc-socket", type=Path, metavar="PATH", help="a unix socket instead of the gRPC port")
    flag(
        "--http-port",
        type=int,
        default=ListenSettings.http_port,
        metavar="PORT",
        help="metrics, probes and predict for curl (default: %(default)s)",
    )
    flag(
        "--no-http-predict",
        action="store_true",
        help="the HTTP port takes no requests: what limits or guards those over gRPC does not stand before it",
    )
    flag(
        "--transport",
        default=ListenSettings.transport,
        choices=("auto", "grpcio", "native"),
        help="what carries gRPC; auto: native where only this machine can connect (default: %(default)s)",
    )
    flag(
        "--max-connection-age",
        type=float,
        default=ConnectionSettings.max_age,
        metavar="S",
        help="grpcio: clients connect anew so often, 0: never (default: %(default)g)",
    )
    flag("--behind-proxy", action="store_true", help="a proxy limits what reaches an open native port")


def _add_security(flag: Callable[..., Any]) -> None:
    flag("--tls-cert", type=Path, metavar="FILE", help="TLS for gRPC: the certificate and its chain, in PEM")
    flag("--tls-key", type=Path, metavar="FILE", help="its private key")
    flag("--tls-client-ca", type=Path, metavar="FILE", help="clients need a certificate that this one signed")
    flag("--token-file", type=Path, metavar="FILE", help="who may ask: a bearer token on each line")


def _add_limits(flag: Callable[..., Any]) -> None:
    flag(
        "--max-message-bytes",
        default=DEFAULT,
        metavar="N",
        help="largest message, with unit (default: %(default)s)",
    )
    flag(
        "--max-queue",
        type=int,
        default=BatchSettings.max_queue,
        metavar="ROWS",
        help="rows that may wait per model and signature; of a sequence, per length that is compiled",
    )
    flag(
        "--max-batch",
        type=int,
        default=BatchSettings.max_batch,
        metavar="ROWS",
        help="rows of the largest bucket, where a version has no batches of its own",
    )
    flag(
        "--max-delay",
        type=float,
        default=BatchSettings.max_delay * 1e3,
        metavar="MS",
        help="a batch that is not full waits so long for more (default: %(default)g)",
    )
    flag(
        "--max-latency",
        type=float,
        default=BatchSettings.max_latency * 1e3,
        metavar="MS",
        help="a request that would be answered later is refused (default: %(default)g)",
    )


def _add_leaving(flag: Callable[..., Any]) -> None:
    flag(
        "--grace-seconds",
        type=float,
        default=DrainSettings.grace_seconds,
        metavar="S",
        help="from SIGTERM to exit, at most",
    )
    flag(
        "--drain-delay",
        type=float,
        default=DrainSettings.delay_seconds,
        metavar="S",
        help="answer on after SIGTERM for this long",
    )


def _add_records(flag: Callable[..., Any]) -> None:
    flag("--access-log", metavar="FILE", help="one JSON line for each request; -: standard output")
    flag(
        "--trace-endpoint",
        metavar="URL",
        help="OpenTelemetry collector, OTLP over HTTP (default: OTEL_EXPORTER_OTLP_ENDPOINT)",
    )
    flag(
        "--trace-sample",
        type=float,
        default=RecordSettings.trace_sample,
        metavar="RATIO",
        help="share of requests traced that came without a trace (default: %(default)s)",
    )


def settings_from(flags: argparse.Namespace) -> ServeSettings:
    """The settings of parsed flags. Raises ConfigError naming the flag that is not right."""
    _check_ranges(flags)
    return ServeSettings(
        repository=RepositorySettings(
            flags.models, flags.poll_seconds, flags.cache_dir, flags.warm_only, flags.wait, flags.ready
        ),
        listen=ListenSettings(
            host=flags.host,
            grpc_port=ListenSettings.grpc_port if flags.grpc_port is None else flags.grpc_port,
            grpc_socket=flags.grpc_socket,
            http_port=flags.http_port,
            http_predict=not flags.no_http_predict,
            transport=flags.transport,
            behind_proxy=flags.behind_proxy,
            connections=ConnectionSettings(max_age=flags.max_connection_age),
            max_message_bytes=message_bytes(flags.max_message_bytes),
            tls=_tls(flags),
        ),
        batch=BatchSettings(flags.max_batch, flags.max_queue, flags.max_delay / 1e3, flags.max_latency / 1e3),
        drain=DrainSettings(flags.drain_delay, flags.grace_seconds),
        records=RecordSettings(
            flags.access_log, trace_endpoint(flags.trace_endpoint, os.environ), flags.trace_sample
        ),
        token_file=flags.token_file,
        updates=UpdateSettings(flags.swap == "unload-first", _memory_limit(flags.memory_limit)),
    )


def trace_endpoint(given: str | None, environment: Mapping[str, str]) -> str | None:
    """The URL that takes traces: of the flag ("": none), else of OpenTelemetry's variables. Raises ConfigError."""
    exact = environment.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "")
    url = exact or environment.get("OTEL_EXPORTER_OTLP_ENDPOINT", "") if given is None else given
    disabled = environment.get("OTEL_SDK_DISABLED", "").lower() == "true"
    if not url or (given is None and disabled):
        return None
    try:
        parts = urlsplit(url)
        fits = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        parts, fits = None, False
    if parts is None or not fits:
        source = "--trace-endpoint" if given is not None else "OTEL_EXPORTER_OTLP_ENDPOINT"
        raise ConfigError(f"{source} {url!r} is no URL of a collector; needed: like http://localhost:4318")
    if given is None and exact:
        return url
    # The variable names a collector, and each signal has a path below it; a flag with a path is taken as it is.
    if given is not None and parts.path.strip("/"):
        return url
    return f"{url.rstrip('/')}/v1/traces"


def message_bytes(text: str) -> int:
    """Bytes of `32MiB`, `4MB`, `100000`. Raises ConfigError."""
    try:
        return message_size(text)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _folder(text: str) -> Path:
    """An unset variable in a script must not become the folder that the script runs in."""
    if not text:
        raise argparse.ArgumentTypeError("'' is no folder; needed: the folder of the models")
    return Path(text)


def _tls(flags: argparse.Namespace) -> TlsSettings | None:
    if flags.tls_cert is None and flags.tls_key is None:
        if flags.tls_client_ca is not None:
            raise ConfigError("--tls-client-ca needs TLS; add --tls-cert and --tls-key")
        return None
    if flags.tls_cert is None or flags.tls_key is None:
        given, missing = (
            ("--tls-key", "--tls-cert") if flags.tls_cert is None else ("--tls-cert", "--tls-key")
        )
        raise ConfigError(f"{given} stands alone; add {missing}")
    return TlsSettings(flags.tls_cert, flags.tls_key, flags.tls_client_ca)


def _memory_limit(text: str | None) -> int | None:
    try:
        return None if text is None else size_in_bytes("--memory-limit", text, 2**60)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _check_ranges(flags: argparse.Namespace) -> None:
    for name in ("grpc_port", "http_port"):
        port = getattr(flags, name)
        if port is not None and not 0 <= port <= 65535:
            raise ConfigError(f"--{name.replace('_', '-')} {port} is not a port; needed: 0 to 65535")
    for name, least in (
        ("max_queue", 1),
        ("max_batch", 1),
        ("max_delay", 0),
        ("grace_seconds", 0),
        ("drain_delay", 0),
    ):
        if not least <= getattr(flags, name) < MOST:  # not (>=): NaN is refused too
            raise ConfigError(
                f"--{name.replace('_', '-')} {getattr(flags, name)} is out of range; needed: at least {least}, "
                f"below {MOST:,}"
            )
    if not 0 <= flags.trace_sample <= 1:
        raise ConfigError(f"--trace-sample {flags.trace_sample} is no share; needed: 0 to 1")
    for name in ("poll_seconds", "max_latency"):
        if not 0 < getattr(flags, name) < MOST:
            raise ConfigError(
                f"--{name.replace('_', '-')} {getattr(flags, name)} is out of range; needed: more than 0, "
                f"below {MOST:,}"
            )
    if flags.max_connection_age != 0 and not 1 <= flags.max_connection_age <= LONGEST_AGE:
        raise ConfigError(
            f"--max-connection-age {flags.max_connection_age:g} is out of range; needed: 0, or 1 to {LONGEST_AGE:,}"
        )
    if flags.wait and not flags.warm_only:
        raise ConfigError("--wait is for --warm-only; a server waits for models by itself: leave it out")
    if flags.grpc_socket is not None and flags.grpc_port is not None:
        raise ConfigError("--grpc-socket and --grpc-port exclude each other; give one")
    if flags.drain_delay > flags.grace_seconds:
        raise ConfigError(
            f"--drain-delay {flags.drain_delay:g} leaves no time to drain; needed: below --grace-seconds "
            f"{flags.grace_seconds:g}"
        )

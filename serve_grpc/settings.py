"""What the server is told at the edge, once, in small frozen groups."""

from dataclasses import dataclass, field
from pathlib import Path

from jaxport.message_size import DEFAULT_BYTES


@dataclass(frozen=True)
class TlsSettings:
    """Files in PEM. client_ca: clients need a certificate that it signed."""

    cert: Path
    key: Path
    client_ca: Path | None = None


@dataclass(frozen=True)
class ConnectionSettings:
    """How long a gRPC connection lives, in seconds.

    max_age: then its client is told to connect anew, which spreads clients over replicas; 0: for ever. age_grace: calls
    of such a connection may still take so long. keepalive: an idle peer is asked whether it is there so often.
    """

    max_age: float = 300.0
    age_grace: float = 60.0
    keepalive: float = 60.0
    keepalive_timeout: float = 20.0


@dataclass(frozen=True)
class ListenSettings:
    """Where the server listens. A port of 0 takes a free one; a socket path replaces the gRPC port.

    http_predict: whether the HTTP port takes requests, beside probes, metrics and pages.
    """

    host: str = "127.0.0.1"
    grpc_port: int = 8500
    grpc_socket: Path | None = None
    http_port: int = 8501
    http_predict: bool = True
    transport: str = "auto"
    behind_proxy: bool = False
    max_message_bytes: int = DEFAULT_BYTES
    tls: TlsSettings | None = None
    connections: ConnectionSettings = field(default_factory=ConnectionSettings)


@dataclass(frozen=True)
class HttpSettings:
    """The HTTP port and what it bounds.

    max_connections: threads, one each. max_requests: under /v1, in flight together. idle_seconds: for a connection
    without a request, the head of one included. body_seconds: for a body or an answer, beside the time its size takes.
    """

    port: int = 8501
    max_body_bytes: int = DEFAULT_BYTES
    max_head_bytes: int = 128 * 1024
    max_connections: int = 256
    max_requests: int = 64
    idle_seconds: float = 30.0
    body_seconds: float = 10.0


@dataclass(frozen=True)
class BatchSettings:
    """max_batch: rows of the largest bucket. max_queue: rows that may wait per model and signature.

    max_delay: seconds that a batch which is not full waits for more. max_latency: seconds in
    which a request must be answered, else it is refused.
    """

    max_batch: int = 64
    max_queue: int = 4096
    max_delay: float = 0.0
    max_latency: float = 10.0


@dataclass(frozen=True)
class RepositorySettings:
    """The models folder and the compile caches, which lie in `cache` unless another folder is given.

    warm_only: fill the cache and end; wait: once there is a model to warm for. ready: which of the models found at
    start have to serve before the server is READY, "any" or "all".
    """

    models: Path
    poll_seconds: float = 5.0
    cache_dir: Path | None = None
    warm_only: bool = False
    wait: bool = False
    ready: str = "any"

    @property
    def cache(self) -> Path:
        """The folder of the compile caches, one below it per kind of device."""
        return self.cache_dir or self.models.absolute().parent / "cache"


@dataclass(frozen=True)
class UpdateSettings:
    """unload_first: where a version does not fit beside the one it replaces, that one goes first; else it is refused.

    memory_limit: bytes of the device, or of each of several, that all models together may take; None: all it has.
    """

    unload_first: bool = False
    memory_limit: int | None = None


@dataclass(frozen=True)
class DrainSettings:
    """delay: seconds of answering on after NOT_SERVING, while endpoints propagate.

    grace: seconds from the signal to the exit, the delay included.
    """

    delay_seconds: float = 2.0
    grace_seconds: float = 25.0


@dataclass(frozen=True)
class RecordSettings:
    """What is written down of each request.

    access_log: a file, or "-" for standard output; None: none. trace_endpoint: the full URL that takes OTLP traces;
    None: none. trace_sample: share of the requests without a trace of their caller's that begin one.
    """

    access_log: str | None = None
    trace_endpoint: str | None = None
    trace_sample: float = 0.01


@dataclass(frozen=True)
class ServeSettings:
    """Everything `serve_grpc.server.serve` needs. token_file: who may ask; None: everyone who can connect."""

    repository: RepositorySettings
    listen: ListenSettings = field(default_factory=ListenSettings)
    batch: BatchSettings = field(default_factory=BatchSettings)
    drain: DrainSettings = field(default_factory=DrainSettings)
    records: RecordSettings = field(default_factory=RecordSettings)
    token_file: Path | None = None
    updates: UpdateSettings = field(default_factory=UpdateSettings)

"""How a client shows who it is and knows whom it talks to: a bearer token, TLS."""

from dataclasses import dataclass, field
from pathlib import Path

import grpc

from jaxport.errors import UsageError


@dataclass(frozen=True)
class Security:
    """token: sent with each call. tls_ca: PEM of who signed the server's certificate; TLS is used when it is given.

    tls_cert, tls_key: PEM of this client's own certificate, for a server that asks for one.
    """

    token: str = field(default="", repr=False)
    tls_ca: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None

    @property
    def metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        """Of every call."""
        return (("authorization", f"Bearer {self.token}"),) if self.token else ()

    def credentials(self) -> grpc.ChannelCredentials | None:
        """None: no TLS. UsageError names the file that is missing or cannot be read."""
        if self.tls_ca is None:
            if self.tls_cert or self.tls_key:
                raise UsageError("a client's certificate is for TLS; add --tls-ca (tls_ca=)")
            return None
        if (self.tls_cert is None) != (self.tls_key is None):
            raise UsageError("--tls-cert and --tls-key (tls_cert=, tls_key=) go together; give both")
        cert = None if self.tls_cert is None else _bytes(self.tls_cert)
        key = None if self.tls_key is None else _bytes(self.tls_key)
        return grpc.ssl_channel_credentials(_bytes(self.tls_ca), key, cert)


def read_token(path: Path) -> str:
    """The first token of a file; a server's --token-file will do. UsageError."""
    for line in _bytes(path).decode("utf-8", "replace").splitlines():
        words = line.split("#")[0].split()
        if words and not words[0].startswith("cn:"):
            return words[0]
    raise UsageError(f"--token-file {path} has no token; needed: one on a line of its own")


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}; name a file that can") from None

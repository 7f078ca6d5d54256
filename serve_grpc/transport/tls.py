"""Certificates of the grpcio transport, read again when their files change: a new connection meets the new ones."""

import logging
import ssl
import threading
from pathlib import Path

import grpc

from serve_grpc.changes import Changes
from serve_grpc.errors import ConfigError
from serve_grpc.settings import TlsSettings

log = logging.getLogger(__name__)


class Certificates:
    """The files of the flags. Raises ConfigError naming the flag whose file is not right."""

    def __init__(self, settings: TlsSettings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        paths = (settings.cert, settings.key, settings.client_ca)
        self._changes = Changes([path for path in paths if path is not None])
        self._pem = _read(settings)
        self._wrong = ""  # with the last reading

    @property
    def asks_clients(self) -> bool:
        """Whether a client needs a certificate too."""
        return self._settings.client_ca is not None

    def credentials(self) -> grpc.ServerCredentials:
        """For a server's port."""
        return grpc.dynamic_ssl_server_credentials(
            _configuration(self._pem),
            self._newer,  # pyright: ignore[reportArgumentType]  (None is for no change, its documentation says)
            require_client_authentication=self.asks_clients,
        )

    def _newer(self) -> grpc.ServerCertificateConfiguration | None:
        """Before every handshake, on a thread of grpcio's. None: as before."""
        with self._lock:
            if not self._changes.since_last() and not self._wrong:
                return None
            try:
                pem = _read(self._settings)
            except ConfigError as error:  # as between the writing of a certificate and of its key
                if str(error) != self._wrong:
                    log.error("%s; the certificate before it stays", error)
                self._wrong = str(error)
                return None
            self._wrong = ""
            if pem == self._pem:
                return None
            self._pem = pem
        log.info("read again tls_cert=%s", self._settings.cert)
        return _configuration(pem)


Pem = tuple[bytes, bytes, bytes | None]


def _configuration(pem: Pem) -> grpc.ServerCertificateConfiguration:
    cert, key, ca = pem
    return grpc.ssl_server_certificate_configuration([(key, cert)], ca)


def _read(settings: TlsSettings) -> Pem:
    """grpcio takes any bytes and then refuses every handshake, so what they are is checked here."""
    cert = _bytes("--tls-cert", settings.cert)
    key = _bytes("--tls-key", settings.key)
    ca = None if settings.client_ca is None else _bytes("--tls-client-ca", settings.client_ca)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _check_certificates(context, "--tls-cert", settings.cert, cert)
    if ca is not None and settings.client_ca is not None:
        _check_certificates(context, "--tls-client-ca", settings.client_ca, ca)
    try:
        # A password is never asked for: there may be nobody at the terminal.
        context.load_cert_chain(settings.cert, settings.key, password=lambda: b"")
    except (ssl.SSLError, OSError, ValueError) as error:
        mismatch = isinstance(error, ssl.SSLError) and "MISMATCH" in str(error.reason)
        what = (
            f"is not that of --tls-cert {settings.cert}"
            if mismatch
            else "is no private key in PEM without a password"
        )
        raise ConfigError(f"--tls-key {settings.key} {what}; name the right file") from None
    return cert, key, ca


def _check_certificates(context: ssl.SSLContext, flag: str, path: Path, pem: bytes) -> None:
    try:
        context.load_verify_locations(cadata=pem.decode("ascii"))
    except (ssl.SSLError, ValueError):
        raise ConfigError(f"{flag} {path} has no certificate in PEM; name a file that has") from None


def _bytes(flag: str, path: Path) -> bytes:
    if path.is_fifo():  # opening one waits for who writes
        raise ConfigError(f"{flag} {path} is a pipe; needed: a file, which is read again")
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{flag} {path} cannot be read: {error.strerror}; name a file that can") from None

"""Flags of every command that talks to a server."""

import argparse
from pathlib import Path

from jaxport.client import Client
from jaxport.errors import UsageError
from jaxport.message_size import DEFAULT, message_size
from jaxport.security import Security, read_token


def add_connection_flags(parser: argparse.ArgumentParser) -> None:
    flag = parser.add_argument
    flag(
        "--address",
        default="localhost:8500",
        metavar="HOST:PORT",
        help="gRPC target (default: localhost:8500)",
    )
    flag("--timeout", type=float, default=30.0, metavar="SECONDS", help="for each call (default: 30)")
    flag(
        "--max-message-bytes",
        default=DEFAULT,
        metavar="SIZE",
        help="the server's limit (default: %(default)s)",
    )
    flag("--token-file", type=Path, metavar="FILE", help="a bearer token for the server")
    flag("--tls-ca", type=Path, metavar="FILE", help="TLS: who signed the server's certificate, in PEM")
    flag(
        "--tls-cert",
        type=Path,
        metavar="FILE",
        help="a certificate of our own, for a server that asks for one",
    )
    flag("--tls-key", type=Path, metavar="FILE", help="its private key")


def client_from(options: argparse.Namespace) -> Client:
    """A client as the flags describe it. UsageError names the flag that does not fit."""
    if not options.address:
        raise UsageError("--address '': HOST:PORT or unix:/path is needed")
    if options.timeout <= 0:
        raise UsageError(f"--timeout {options.timeout:g}: a positive number of seconds is needed")
    security = security_from(options)
    return Client(
        options.address,
        timeout=options.timeout,
        max_message_bytes=message_bytes(options),
        token=security.token,
        tls_ca=security.tls_ca,
        tls_cert=security.tls_cert,
        tls_key=security.tls_key,
    )


def security_from(options: argparse.Namespace) -> Security:
    """Token and TLS of the flags. UsageError."""
    token = "" if options.token_file is None else read_token(options.token_file)
    return Security(token, options.tls_ca, options.tls_cert, options.tls_key)


def message_bytes(options: argparse.Namespace) -> int:
    """--max-message-bytes in bytes. UsageError."""
    try:
        return message_size(options.max_message_bytes)
    except ValueError as error:
        raise UsageError(str(error)) from None

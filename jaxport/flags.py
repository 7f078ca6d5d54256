"""Flags of every command that talks to a server."""

import argparse

from jaxport.client import Client
from jaxport.errors import UsageError
from jaxport.message_size import DEFAULT, message_size


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


def client_from(options: argparse.Namespace) -> Client:
    """A client as the flags describe it. UsageError names the flag that does not fit."""
    if not options.address:
        raise UsageError("--address '': HOST:PORT or unix:/path is needed")
    if options.timeout <= 0:
        raise UsageError(f"--timeout {options.timeout:g}: a positive number of seconds is needed")
    return Client(options.address, timeout=options.timeout, max_message_bytes=message_bytes(options))


def message_bytes(options: argparse.Namespace) -> int:
    """--max-message-bytes in bytes. UsageError."""
    try:
        return message_size(options.max_message_bytes)
    except ValueError as error:
        raise UsageError(str(error)) from None

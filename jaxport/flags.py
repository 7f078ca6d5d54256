"""Flags of every command that talks to a server."""

import argparse
import re

from jaxport.client import Client
from jaxport.errors import UsageError

UNITS = {"": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "kb": 10**3, "mb": 10**6, "gb": 10**9}


def add_connection_flags(parser: argparse.ArgumentParser) -> None:
    flag = parser.add_argument
    flag(
        "--address",
        default="localhost:8500",
        metavar="HOST:PORT",
        help="gRPC target (default: localhost:8500)",
    )
    flag("--timeout", type=float, default=30.0, metavar="SECONDS", help="for each call (default: 30)")
    flag("--max-message-bytes", default="32MiB", metavar="SIZE", help="the server's limit (default: 32MiB)")


def client_from(options: argparse.Namespace) -> Client:
    """A client as the flags describe it. UsageError names the flag that does not fit."""
    if options.timeout <= 0:
        raise UsageError(f"--timeout {options.timeout:g}: a positive number of seconds is needed")
    return Client(
        options.address, timeout=options.timeout, max_message_bytes=parse_size(options.max_message_bytes)
    )


def parse_size(text: str) -> int:
    """Bytes of "32MiB", "4MB" or "100000"."""
    match = re.fullmatch(r"(\d+)\s*([a-z]*)", text.strip().lower())
    size = int(match[1]) * UNITS[match[2]] if match and match[2] in UNITS else 0
    if not 0 < size < 1 << 31:
        raise UsageError(f"--max-message-bytes {text!r}: a size as 32MiB, below 2GiB, is needed")
    return size

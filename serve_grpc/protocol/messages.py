"""Bytes to messages, the same way for every protocol."""

from collections.abc import Callable

from google.protobuf.message import DecodeError, Message

from serve_grpc.errors import InvalidRequest


def parsed[M: Message](parse: Callable[[bytes], M], payload: bytes, name: str) -> M:
    """The message. Raises InvalidRequest when the bytes are none of that `name`."""
    try:
        return parse(payload)
    except DecodeError as error:
        raise InvalidRequest(f"the message has {len(payload)} bytes that are no {name}") from error

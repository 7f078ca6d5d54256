"""Bytes to messages and what stands around bytes in them, the same way for every protocol."""

from collections.abc import Callable

from google.protobuf.message import DecodeError, Message

from serve_grpc.errors import InvalidRequest


def parsed[M: Message](parse: Callable[[bytes], M], payload: bytes, name: str) -> M:
    """The message. Raises InvalidRequest when the bytes are none of that `name`."""
    try:
        return parse(payload)
    except DecodeError as error:
        raise InvalidRequest(f"the message has {len(payload)} bytes that are no {name}") from error


def delimited(field: int, size: int) -> bytes:
    """What stands before the `size` bytes of a field of that number: its tag, and its length."""
    made = bytearray()
    for number in (field << 3 | 2, size):
        while number > 0x7F:
            made.append(number & 0x7F | 0x80)
            number >>= 7
        made.append(number)
    return bytes(made)

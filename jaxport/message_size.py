"""--max-message-bytes, one flag with one meaning for the server and for its clients."""

import re

DEFAULT = "32MiB"
LARGEST = 2**31 - 1  # gRPC keeps its limits in a C int
_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}


def message_size(text: str) -> int:
    """Bytes of "32MiB", "4MB" or "100000". ValueError in words fit for a person."""
    return size_in_bytes("--max-message-bytes", text, LARGEST)


def size_in_bytes(flag: str, text: str, most: int) -> int:
    """Bytes that the value of a flag says, 1 to `most`. ValueError in words fit for a person."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", text)
    unit = _UNITS.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise ValueError(f"{flag} {text!r} is not a size; write it like 32MiB, 4MB or 100000")
    size = int(float(match[1]) * unit)
    if not 1 <= size <= most:
        raise ValueError(f"{flag} {text!r} is {size} bytes; needed: 1 to {most}")
    return size


DEFAULT_BYTES = message_size(DEFAULT)

"""Values of JSON that nobody vouches for: each is what it has to be, or a ValueError says which is not, and what is needed.

`where` is the place of a value in its file: "signatures.predict.inputs[0].name". Nothing here needs more than Python.
"""

import re
import sys
from collections.abc import Sequence
from typing import Any

LARGEST = 2**63 - 1
MOST_FLOAT = sys.float_info.max
SHOWN = 40  # characters of a value, for a line
# Lists and objects inside each other that readers go through one by one.
DEEPEST = 32
_SHA256 = re.compile(r"[0-9a-f]{64}")


def shown(value: Any) -> str:
    """The value for a line of a message: short, and of characters that every terminal and log has."""
    return ascii(value) if len(ascii(value)) <= SHOWN else f"{ascii(value)[:SHOWN]}…"


def wrong(value: Any, where: str, needed: str) -> ValueError:
    """What to raise."""
    return ValueError(f"{where} is {shown(value)}; needed: {needed}")


def at(where: str, key: str) -> str:
    """The place of what an object has by this key, which may be any text."""
    name = key if len(key) <= SHOWN and key.isascii() and key.isprintable() else shown(key)
    return f"{where}.{name}" if where else name


def text(value: Any, where: str, *, empty: bool = False) -> str:
    """A string, which other formats and files can carry: JSON can escape half of a character, and a NUL."""
    if not isinstance(value, str) or not (value or empty) or "\0" in value:
        raise wrong(value, where, "text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise wrong(value, where, "text of whole characters") from None
    return value


def identifier(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value.isidentifier():
        raise wrong(value, where, "a name of letters, digits and _")
    return value


def digest(value: Any, where: str) -> str:
    if not isinstance(value, str) or not _SHA256.fullmatch(value):
        raise wrong(value, where, "a sha256 of 64 hexadecimal digits")
    return value


def whole(value: Any, where: str, least: int = 0, most: int = LARGEST) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise wrong(value, where, f"a whole number from {least} to {most}")
    return value


def flag(value: Any, where: str) -> bool:
    if not isinstance(value, bool):
        raise wrong(value, where, "true or false")
    return value


def number(value: Any, where: str) -> float:
    """One that a float holds; infinity and NaN are some, as Python's JSON has them."""
    if (
        not isinstance(value, int | float)
        or isinstance(value, bool)
        or not -MOST_FLOAT <= value <= MOST_FLOAT
    ):
        if isinstance(value, float):  # infinite, or no number
            return value
        raise wrong(value, where, "a number")
    return value


def mapping(value: Any, where: str) -> dict[str, Any]:
    """An object of any keys that are text."""
    if not isinstance(value, dict):
        raise wrong(value, where, "an object")
    for key in value:
        text(key, f"a name in {where}", empty=True)
    return dict(value)


def record(value: Any, where: str, required: Sequence[str], optional: Sequence[str] = ()) -> dict[str, Any]:
    """An object that has all of the required fields, and no others than the two name."""
    found = mapping(value, where)
    for name in required:
        if name not in found:
            raise ValueError(f"{at(where, name)} is missing")
    for name in found:
        if name not in required and name not in optional:
            raise ValueError(f"{at(where, name)} is no field that this jaxport knows")
    return found


def items(value: Any, where: str, *, empty: bool = True) -> list[Any]:
    if not isinstance(value, list) or not (value or empty):
        raise wrong(value, where, "a list" if empty else "a list that is not empty")
    return value


def texts(value: Any, where: str) -> dict[str, str]:
    """An object of texts."""
    return {key: text(each, at(where, key), empty=True) for key, each in mapping(value, where).items()}


def plain(value: Any, where: str, depth: int = 0) -> Any:
    """Anything at all, of text that can be written elsewhere, and not too deep to be gone through."""
    if depth > DEEPEST:
        raise ValueError(f"{where} has more than {DEEPEST} lists and objects inside each other")
    if isinstance(value, str):
        text(value, where, empty=True)
    elif isinstance(value, dict):
        for key, each in mapping(value, where).items():
            plain(each, at(where, key), depth + 1)
    elif isinstance(value, list):
        for index, each in enumerate(value):
            plain(each, f"{where}[{index}]", depth + 1)
    return value

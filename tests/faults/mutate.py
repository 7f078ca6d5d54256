"""Valid requests made wrong: blindly by bytes, and with knowledge of protobuf's fields or of JSON's values."""

from collections.abc import Callable, Sequence
from random import Random

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
NUMBERS = (
    0, 1, 2, 3, 7, 8, 16, 127, 128, 255, 2**14, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1,
)  # fmt: skip
TOKENS = (
    "NaN", "Infinity", "-Infinity", "1e999", "-0", "0.1", "1" * 5000, "-1", "1e-400", "null", "true", '"x"', "[]", "{}",
    "[[[]]]", '{"b64": "AAAA"}', '"inputs"', '"instances"', "[1, 2]", "1.0000000000000001", "9007199254740993", "\\u0000",
)  # fmt: skip

# field number, wire type, value (a varint's number, or bytes)
Field = tuple[int, int, "int | bytes"]


def varint(number: int) -> bytes:
    made = bytearray()
    while number > 0x7F:
        made.append(number & 0x7F | 0x80)
        number >>= 7
    made.append(number)
    return bytes(made)


def fields(payload: bytes) -> list[Field] | None:
    """The fields of a message; None where the bytes are none."""
    found: list[Field] = []
    at = 0

    def read_varint() -> int:
        nonlocal at
        number = shift = 0
        while True:
            byte = payload[at]
            at += 1
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return number
            if shift > 63:
                raise ValueError

    try:
        while at < len(payload):
            tag = read_varint()
            wire = tag & 7
            if wire == VARINT:
                value: int | bytes = read_varint()
            else:
                size = {FIXED64: 8, FIXED32: 4}[wire] if wire != BYTES else read_varint()
                value = payload[at : at + size]
                at += size
                if len(value) < size:
                    return None
            if not tag >> 3:
                return None
            found.append((tag >> 3, wire, value))
    except (IndexError, KeyError, ValueError):
        return None
    return found


def joined(parts: Sequence[Field]) -> bytes:
    made = bytearray()
    for number, wire, value in parts:
        made += varint(number << 3 | wire)
        if isinstance(value, int):
            made += varint(value)
        else:
            made += varint(len(value)) * (wire == BYTES) + value
    return bytes(made)


def blind(random: Random, payload: bytes, other: bytes) -> bytes:
    """Any bytes: flipped, cut off, doubled, taken out, put in, or exchanged with those of another request."""
    made = bytearray(payload)
    at, end = sorted((random.randint(0, len(made)), random.randint(0, len(made))))
    kind = random.randrange(8)
    if kind == 0 and made:
        made[random.randrange(len(made))] ^= 1 << random.randrange(8)
    elif kind == 1 and made:
        made[random.randrange(len(made))] = random.choice((0, 1, 0x7F, 0x80, 0xFF, random.randrange(256)))
    elif kind == 2:
        del made[at:]
    elif kind == 3:
        made[end:end] = made[at : min(end, at + 64)]
    elif kind == 4:
        del made[at : min(end, at + 16)]
    elif kind == 5:
        made[at:at] = random.randbytes(random.randint(1, 12))
    elif kind == 6:
        made[at : at + random.randint(1, 2)] = varint(random.choice(NUMBERS))
    else:
        made[at:end] = other[at:end]
    return bytes(made)


def by_fields(random: Random, payload: bytes, other: bytes, depth: int = 0) -> bytes:
    """Still a message: fields that go, come twice, change places, numbers, types or values; lengths stay right."""
    parts = fields(payload)
    if not parts:
        return blind(random, payload, other)
    at = random.randrange(len(parts))
    number, wire, value = parts[at]
    kind = random.randrange(10)
    if kind < 4 and depth < 4 and wire == BYTES and isinstance(value, bytes):
        inner = by_fields(random, value, other, depth + 1) if fields(value) else blind(random, value, other)
        parts[at] = (number, wire, inner)
    elif kind == 4:
        del parts[at]
    elif kind == 5:
        parts.insert(random.randint(0, len(parts)), parts[at])
    elif kind == 6:
        parts.append(parts.pop(at))
    elif kind == 7:
        parts[at] = (random.choice((1, 2, 3, 4, 5, 6, 7, 8, 15, 1000)), wire, value)
    elif kind == 8:
        parts[at] = (number, VARINT, random.choice(NUMBERS))
    else:  # what ends the message again, in a field that nobody knows or in one that counts
        last = parts[-1][2]
        parts.append((random.choice((number, 15, 99)), BYTES, last if isinstance(last, bytes) else b"x"))
    return joined(parts)


def other_tail(random: Random, payload: bytes) -> bytes:
    """The same length and the same beginning: what a remembered head is compared with."""
    count = random.randint(1, min(40, len(payload))) if payload else 0
    return payload[: len(payload) - count] + random.randbytes(count)


def json_values(random: Random, payload: bytes, other: bytes) -> bytes:
    """A number, a list, a key or a bracket of a document becomes something else."""
    text = payload.decode("latin-1")
    places = [at for at, letter in enumerate(text) if letter in '0123456789[{"tf,:']
    if not places:
        return blind(random, payload, other)
    if random.random() < 0.5:  # the document stays one
        places = [at for at in places if text[at].isdigit() and text[at - 1] in " ["] or places
        at = random.choice(places)
        value = random.choice(("0", "1", "-1", "2.5", "1e3", "7e-3", "255", "256", "true", "NaN", "[1]"))
        return (text[:at] + value + text[at + 1 :]).encode("latin-1")
    at = random.choice(places)
    return (text[:at] + random.choice(TOKENS) + text[at + random.randint(0, 3) :]).encode("latin-1")


Mutator = Callable[[Random, bytes, bytes], bytes]


def mutated(random: Random, payload: bytes, other: bytes, structured: Mutator) -> bytes:
    """One to three changes."""
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        payload = (structured if random.random() < 0.6 else blind)(random, payload, other)
    return payload

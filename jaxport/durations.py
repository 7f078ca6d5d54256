"""Spans of time for people."""


def age(seconds: int) -> str:
    """95 -> 1m35s, as kubectl shows it."""
    for unit, size, below, smaller in (("d", 86400, 3600, "h"), ("h", 3600, 60, "m"), ("m", 60, 1, "s")):
        if seconds >= size:
            return f"{seconds // size}{unit}{seconds % size // below}{smaller}"
    return f"{seconds}s"

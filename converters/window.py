"""Until when a program loads: JAX promises six months between the release that writes and the one that reads.

Source: jax.export's compatibility guarantees. A pinned jaxlib never loses its own artifacts.
"""

from datetime import date

# Days of the first upload of each jaxlib wheel to the package index.
RELEASED = {
    "0.11.2": date(2026, 9, 17),
    "0.12.0": date(2026, 10, 19),
    "0.12.0.1": date(2026, 10, 21),
}
MONTHS = 6


def window_ends(jaxlib_version: str) -> date:
    """The day after which a newly released jaxlib may refuse what this one wrote.

    A version newer than the table was released after the table's last entry, so the day given is early, never late.
    """
    known = {parse_version(v): day for v, day in RELEASED.items()}
    wanted = parse_version(jaxlib_version)
    older = [v for v in known if v <= wanted]
    return add_months(known[max(older)] if older else min(known.values()), MONTHS)


def parse_version(text: str) -> tuple[int, ...]:
    """Leading numbers of a version: "0.12.0.1.dev3" is (0, 12, 0, 1)."""
    numbers = []
    for part in text.split("."):
        if not part.isdigit():
            break
        numbers.append(int(part))
    return tuple(numbers)


def add_months(day: date, months: int) -> date:
    """The same day of a later month, or that month's last day where it is shorter."""
    year, month = divmod(day.year * 12 + day.month - 1 + months, 12)
    for number in range(day.day, 0, -1):
        try:
            return date(year, month + 1, number)
        except ValueError:
            continue
    raise ValueError(day)

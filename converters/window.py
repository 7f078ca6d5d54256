"""Which jaxlibs JAX promises will read a program: by the days they were released on, not by today's.

A program is read by what is released up to six months after the jaxlib that wrote it, and by what was released up to
three weeks before. Source: jax.export's compatibility guarantees, which count releases of jaxlib. Outside of that it may
be read or refused: nothing is known before it is tried. A pinned jaxlib never loses its own programs.

What JAX does when it refuses (read in its source, and tried): the flatbuffer of an export names no release that is
too old, but lacks fields that are needed since (ValueError in `deserialize`); StableHLO that is too new has operations
that the reader does not know (JaxRuntimeError when the module is parsed).
"""

import re
from dataclasses import dataclass
from datetime import date, timedelta
from importlib.metadata import version as installed

# Days of the first upload of each jaxlib wheel to the package index. The first is where jax.export begins.
RELEASED = {
    "0.4.30": date(2024, 6, 18),
    "0.8.0": date(2025, 10, 15),
    "0.8.1": date(2025, 11, 18),
    "0.8.2": date(2025, 12, 18),
    "0.9.0": date(2026, 1, 20),
    "0.8.3": date(2026, 1, 29),
    "0.9.0.1": date(2026, 2, 5),
    "0.9.1": date(2026, 3, 2),
    "0.9.2": date(2026, 3, 18),
    "0.10.0": date(2026, 4, 16),
    "0.10.1": date(2026, 5, 20),
    "0.10.2": date(2026, 6, 17),
    "0.11.0": date(2026, 7, 16),
    "0.11.1": date(2026, 8, 17),
    "0.11.2": date(2026, 9, 17),
    "0.12.0": date(2026, 10, 19),
    "0.12.0.1": date(2026, 10, 21),
}
MONTHS_AFTER = 6
BEFORE = timedelta(weeks=3)

INSIDE, AFTER, EARLIER, UNKNOWN = "inside", "after", "before", "unknown"


@dataclass(frozen=True)
class Window:
    """The releases of jaxlib that are promised to read a program of `jaxlib`: both days, and all between them.

    exact: the day that `jaxlib` came out on is known; else it is the earliest that it can be, and so are the two.
    """

    jaxlib: str
    released: date
    exact: bool

    @property
    def begins(self) -> date:
        return self.released - BEFORE

    @property
    def ends(self) -> date:
        return add_months(self.released, MONTHS_AFTER)

    def place(self, reader: str) -> str:
        """Where the jaxlib `reader` stands: INSIDE, AFTER or EARLIER than it, or UNKNOWN."""
        if reader == self.jaxlib:
            return INSIDE
        day, exact = released(reader)
        if day > self.ends and self.exact:  # and later still, if the day is not exact
            return AFTER
        if not exact or (not self.exact and day >= self.begins):
            return UNKNOWN
        return EARLIER if day < self.begins else INSIDE

    @property
    def may_refuse(self) -> tuple[str, ...]:
        """Releases of the table that are promised nothing, by day. One that is in no table may be another."""
        return tuple(name for name in RELEASED if self.place(name) in (AFTER, EARLIER))

    @property
    def newest(self) -> str:
        """The last known release that is promised to read the program."""
        return max(
            (name for name in RELEASED if self.place(name) == INSIDE),
            key=RELEASED.__getitem__,
            default=self.jaxlib,
        )


def window_of(jaxlib_version: str, recorded_end: str) -> Window:
    """Of a bundle, whose manifest has a `window_ends`: what writes newer programs may know a later release than this."""
    day, exact = released(jaxlib_version)
    if exact:
        return Window(jaxlib_version, day, exact=True)
    return Window(jaxlib_version, add_months(date.fromisoformat(recorded_end), -MONTHS_AFTER), exact=False)


def window_ends(jaxlib_version: str) -> date:
    """The day after which a newly released jaxlib may refuse what this one wrote: early where it is not exact, never late."""
    return add_months(released(jaxlib_version)[0], MONTHS_AFTER)


def released(jaxlib_version: str) -> tuple[date, bool]:
    """(day, exact) of a release. Of one that no table has it is the day of the one before it, and not exact.

    A nightly says its day in its name: 0.13.0.dev20261101.
    """
    if jaxlib_version in RELEASED:
        return RELEASED[jaxlib_version], True
    if nightly := re.search(r"\.dev(20\d{6})(?!\d)", jaxlib_version):
        try:
            return date.fromisoformat(nightly[1]), True
        except ValueError:
            pass
    wanted = parse_version(jaxlib_version)
    older = [v for v in RELEASED if parse_version(v) <= wanted]
    return RELEASED[max(older, key=parse_version)] if older else min(RELEASED.values()), False


def refusal(window: Window, jax_here: str, bundle: str, *, of_a_run: bool) -> str:
    """Why the JAX of this process cannot read the program of a bundle, and what to do: one line.

    of_a_run: it can be refreshed, as what comes of a function cannot.
    """
    here = installed("jaxlib")
    place, (day, exact) = window.place(here), released(here)
    until = f"{window.ends}{'' if window.exact else ' or later'}"
    theirs = f"this program of jaxlib {window.jaxlib}, for releases from {window.begins} to {until}"
    mine = f"jax {jax_here}, released {f'on {day}' if exact else f'after {day}'},"
    renew = f"jaxport refresh {bundle}" if of_a_run else "export its function again with this one"
    refresh = f"{renew}, or read it with jax {window.newest}"
    if place == EARLIER:
        return f"{bundle}: {mine} is too old for {theirs}: read it with jax {window.jaxlib}, or export it again with this one"
    if place == AFTER:
        return f"{bundle}: {mine} cannot read {theirs}: {refresh}"
    if place == UNKNOWN:
        return f"{bundle}: {mine} cannot read {theirs}, which may be the reason: {refresh}"
    return f"{bundle}: {mine} cannot read {theirs}, though it is one of them; the program is damaged, or JAX at fault: {refresh}"


def parse_version(text: str) -> tuple[int, ...]:
    """Leading numbers of a version: "0.12.0.1.dev3" is (0, 12, 0, 1)."""
    numbers = []
    for part in text.split("."):
        if not (part.isascii() and part.isdigit()):
            break
        numbers.append(int(part))
    return tuple(numbers)


def add_months(day: date, months: int) -> date:
    """The same day of another month, or that month's last day where it is shorter."""
    year, month = divmod(day.year * 12 + day.month - 1 + months, 12)
    for number in range(day.day, 0, -1):
        try:
            return date(year, month + 1, number)
        except ValueError:
            continue
    raise ValueError(day)

"""Rules about weights, by patterns of their names: the one way in which they are read, for exports and the trainer alike.

Here because neither of the two may import the other, and a reader of bundles, which knows names and no patterns, neither.
"""

from collections.abc import Collection, Iterable, Mapping
from fnmatch import fnmatchcase


def first_matches(patterns: Collection[str], names: Iterable[str]) -> dict[str, str]:
    """By name the pattern that counts for it, which is the first that matches; a name that none matches is left out."""
    found = {}
    for name in names:
        pattern = next((pattern for pattern in patterns if fnmatchcase(name, pattern)), None)
        if pattern is not None:
            found[name] = pattern
    return found


def unused(patterns: Iterable[str], matches: Mapping[str, str], names: Iterable[str]) -> str:
    """Which pattern counts for no name, as a misspelt one; empty where each counts for some."""
    idle = set(patterns) - set(matches.values())
    return f"no weight is called like {min(idle)!r}; the names are {sorted(names)}"[:400] if idle else ""

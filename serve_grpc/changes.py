"""Whether files have changed, by looking: what a cluster mounts is swapped under a link, and NFS does not tell."""

from collections.abc import Sequence
from pathlib import Path

Stamp = tuple[int, int, int, int, int]


class Changes:
    """Looks at files by their paths. One thread at a time."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = paths
        self._stamps = self._look()

    def since_last(self) -> bool:
        """Whether one of them changed, came or went since it was asked before, or since the start."""
        before, self._stamps = self._stamps, self._look()
        return self._stamps != before

    def _look(self) -> list[Stamp | None]:
        return [_stamp(path) for path in self._paths]


def _stamp(path: Path) -> Stamp | None:
    """Of what a link on the way leads to. With the time of its last change of owner or mode: what could not be read
    may be readable now."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size

"""What has changed in the fake cluster, by version, and watches of it."""

import copy
import threading
from collections.abc import Callable, Iterator
from typing import Any

Object = dict[str, Any]
TICK = 0.02


class History:
    """Every change; `changed` guards it, and is told of each."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.version = 0
        self.oldest = 0
        self._history: list[tuple[int, str, str, Object]] = []

    def tell(self, kind: str, collection: str, each: Object) -> None:
        """Of a change, by one who holds `changed`."""
        self.version += 1
        self._history.append((self.version, kind, collection, copy.deepcopy(each)))
        self.changed.notify_all()

    def forget_history(self) -> None:
        """Every version before now has expired."""
        with self.changed:
            self.oldest = self.version

    def changes(
        self, collection: str, version: int, goes_on: Callable[[], bool]
    ) -> Iterator[tuple[str, Object]]:
        """What has changed after `version` in a collection, and what does for as long as it goes on.

        Raises TooOld.
        """
        if version < self.oldest:
            raise TooOld
        at = 0
        while goes_on():
            with self.changed:
                if at >= len(self._history):
                    self.changed.wait(TICK)
                new = self._history[at:]
                at += len(new)
            for changed_at, kind, where, each in new:
                if changed_at > version and where == collection:
                    yield kind, each


class TooOld(Exception):
    """That far back nobody remembers."""

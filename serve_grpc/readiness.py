"""When the server becomes READY: once, and for good. What comes, fails or goes later takes nothing away."""

import logging
from collections.abc import Iterable

from serve_grpc.serving import Serving

log = logging.getLogger(__name__)

ANY, ALL = "any", "all"
# Attribute caches of network volumes lag: a model is gone when it was missing this often in a row.
POLLS_UNTIL_GONE = 2


class Readiness:
    """Of the models that were found at start, by the first reading of the folder that found any.

    rule: ANY, one of them has a version that serves; ALL, each has one for requests that name no version, so that its
    own health says SERVING too. A model whose folder goes before it serves is not waited for. One thread at a time,
    but `waiting`.
    """

    def __init__(self, serving: Serving, rule: str = ANY) -> None:
        self._serving = serving
        self._rule = rule
        self._missing: dict[str, int] = {}  # model found at start -> readings in a row without it
        self._said: tuple[str, ...] = ()
        self._reached = False

    def reached(self, names: Iterable[str]) -> bool:
        """Whether it is now READY for the first time. names: the models in the folder, each of which was tried."""
        if self._reached:
            return False
        found = set(names)
        self._missing = {
            model: 0 if model in found else misses + 1
            for model, misses in (self._missing or dict.fromkeys(found, 0)).items()
            if model in found or misses + 1 < POLLS_UNTIL_GONE
        }
        waiting = self.waiting()
        served = bool(self._serving.names())
        self._reached = served and not (waiting and self._rule == ALL)
        if not self._reached and waiting != self._said:
            log.warning(
                "not ready, by --ready %s: no version serves of model=%s", self._rule, ",".join(waiting)
            )
            self._said = waiting
        return self._reached

    def waiting(self) -> tuple[str, ...]:
        """Models found at start that keep the server from being READY, sorted; none once it is. Any thread."""
        if self._reached:
            return ()
        return tuple(model for model in sorted(self._missing) if self._serving.get(model) is None)

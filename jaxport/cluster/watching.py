"""What there is of a kind, and every change of it: a list and then watches, over connections that may break."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from jaxport.cluster.api import Api, Object
from jaxport.cluster.errors import ClientError, Expired, Unreachable
from jaxport.cluster.outcome import uid_of

# A watch that ends at once, again and again, must not become a storm of requests.
SHORTEST = 0.2


@dataclass(frozen=True)
class Seen:
    """An object as it is now, or as it was last."""

    each: Object
    gone: bool = False


@dataclass(frozen=True)
class Listed:
    """All that there are, by uid: what is not among them is gone."""

    kind: str
    uids: frozenset[str]


@dataclass(frozen=True)
class Trouble:
    """For people: a connection that broke, or is there again."""

    text: str


@dataclass(frozen=True)
class Lost:
    """The end of watching; an error that is no ClientError is a fault of ours."""

    error: Exception


class Patience:
    """How long the API may be silent. seconds: since the first failure. first: the first pause, which doubles."""

    def __init__(self, seconds: float, first: float = 0.5, longest: float = 8.0) -> None:
        self._seconds, self._first, self._longest = seconds, first, longest
        self._since: float | None = None
        self._pause = first

    @property
    def troubled(self) -> bool:
        return self._since is not None

    def well(self) -> None:
        self._since, self._pause = None, self._first

    def pause(self) -> float | None:
        """Seconds until the next try; None when the time is up."""
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        left = self._since + self._seconds - now
        if left <= 0:
            return None
        pause, self._pause = min(self._pause, left), min(2 * self._pause, self._longest)
        return pause


def watch(
    api: Api,
    path: str,
    selector: str,
    tell: Callable[[Seen | Listed | Trouble | Lost], None],
    patience: Patience,
    stop: threading.Event,
) -> None:
    """Tells of every object and every change until `stop`, or ends with Lost: the patience is over, or it may not look."""
    version = ""
    try:
        while not stop.is_set():
            try:
                if not version:
                    version = _list(api, path, selector, tell)
                    _well(patience, tell)
                begun = time.monotonic()
                for kind, each in api.watch(path, version, labelSelector=selector):
                    _well(patience, tell)
                    version = each["metadata"].get("resourceVersion", version)
                    if kind != "BOOKMARK":
                        tell(Seen(each, kind == "DELETED"))
                _well(patience, tell)
                stop.wait(max(0.0, SHORTEST - (time.monotonic() - begun)))
            except Expired:
                version = ""
                stop.wait(SHORTEST)
            except Unreachable as error:
                first, pause = not patience.troubled, patience.pause()
                if pause is None:
                    raise
                if first:
                    tell(Trouble(f"the connection is lost, trying again: {error}"))
                stop.wait(pause)
    except ClientError as error:
        tell(Lost(error))


def _list(api: Api, path: str, selector: str, tell: Callable[[Seen | Listed], None]) -> str:
    found, version = api.listing(path, labelSelector=selector)
    for each in found:
        tell(Seen(each))
    tell(Listed(path.rpartition("/")[2], frozenset(map(uid_of, found))))
    return version


def _well(patience: Patience, tell: Callable[[Trouble], None]) -> None:
    if patience.troubled:
        patience.well()
        tell(Trouble("connected again"))

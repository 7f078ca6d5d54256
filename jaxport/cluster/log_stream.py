"""A container's log to its end, over connections that may break: no line twice, and none left out."""

import datetime
import threading
from collections import Counter
from collections.abc import Callable, Iterator

from jaxport.cluster.api import Api, pods
from jaxport.cluster.errors import ClientError, Forbidden, NotThere

# Lines of two streams come a little out of order, and sinceTime knows whole seconds only.
OVERLAP = datetime.timedelta(seconds=2)
PAUSE = 0.3
LAST_TRIES = 3
# Lines remembered before the old ones are looked for.
MANY = 1000


class Position:
    """How far a log has been given: which lines of the last moments were.

    The API gives each line the time of its writing, to the nanosecond, and takes a time to begin from, to the second.
    """

    def __init__(self) -> None:
        self._latest: datetime.datetime | None = None
        self._given: Counter[tuple[str, str]] = Counter()
        self._again: Counter[tuple[str, str]] = Counter()
        self._most = MANY

    @property
    def since(self) -> str | None:
        """From where to ask; None: from the beginning. What was given from there on is then expected once more."""
        self._again = Counter(self._given)
        if self._latest is None:
            return None
        return (self._latest - OVERLAP).astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def new(self, line: str) -> str | None:
        """The text of a line that was not given before, without its time."""
        stamp, _, text = line.partition(" ")
        try:
            at = _time(stamp)
        except ValueError:
            return line  # kubelet's own words, about the log
        key = (stamp, text)
        if self._again[key]:
            self._again[key] -= 1
            return None
        if self._latest is None or at > self._latest:
            self._latest = at
            self._forget()
        self._given[key] += 1
        return text

    def _forget(self) -> None:
        if len(self._given) < self._most or self._latest is None:
            return
        # A second more than is asked for again.
        oldest = self._latest - OVERLAP - datetime.timedelta(seconds=1)
        for key in [key for key in self._given if _time(key[0]) < oldest]:
            del self._given[key]
        self._most = max(MANY, 2 * len(self._given))


def _time(stamp: str) -> datetime.datetime:
    """Raises ValueError: no time, or none of a log."""
    at = datetime.datetime.fromisoformat(stamp)
    if not 1970 < at.year < 9000:
        raise ValueError(stamp)
    return at if at.tzinfo else at.replace(tzinfo=datetime.UTC)


def follow_log(
    api: Api,
    namespace: str,
    pod: str,
    container: str,
    tell: Callable[[str], None],
    ended: Callable[[], bool],
    stop: threading.Event,
    tail: int | None = None,
) -> None:
    """Tells every line, from the last `tail` on, until the container has ended and its log is read.

    A log that cannot be read goes on being asked for while the pod runs: whether the cluster is there at all is found out
    elsewhere. `ended` is asked before each request, so that the last one is made after the end.

    Raises:
        Forbidden: it may not be read.
    """
    position, tries = Position(), 0
    while not stop.is_set():
        over = ended()
        try:
            for line in _lines(api, namespace, pod, container, position.since, not over, tail):
                text = position.new(line)
                if text is not None:
                    tell(text)
                if stop.is_set():
                    return
            if over:
                return
        except NotThere:
            return
        except Forbidden:
            raise
        except ClientError as error:
            tries += over
            if tries >= LAST_TRIES:
                tell(f"(the rest of the log of {pod} cannot be read: {error})")
                return
        stop.wait(PAUSE)


def _lines(
    api: Api, namespace: str, pod: str, container: str, since: str | None, follow: bool, tail: int | None
) -> Iterator[str]:
    query = {"container": container, "timestamps": "true"}
    if follow:
        query["follow"] = "true"
    if since is not None:
        query["sinceTime"] = since
    elif tail is not None:
        query["tailLines"] = str(tail)
    yield from api.lines(f"{pods(namespace, pod)}/log", query, api.limits.silence)

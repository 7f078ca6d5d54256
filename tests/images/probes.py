"""Probes as kubelet makes them."""

import http.client
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

TIMES = {"periodSeconds": 10, "timeoutSeconds": 1, "failureThreshold": 3, "initialDelaySeconds": 0}
TICK = 0.1


@dataclass(frozen=True)
class Probe:
    """What a container declares, at the addresses that its ports have on this machine."""

    declared: Mapping[str, Any]
    host: str
    ports: Mapping[int | str, int]  # a container's port, by number and by name -> the port of `host`

    def __post_init__(self) -> None:
        unknown = set(self.declared) - {*TIMES, "httpGet", "tcpSocket"}
        assert not unknown, f"a probe with {sorted(unknown)} cannot be rehearsed"

    def __call__(self) -> str:
        """Nothing where it succeeds, or else why it does not."""
        try:
            return self._get() if "httpGet" in self.declared else self._connect()
        except (OSError, http.client.HTTPException) as error:
            return f"{type(error).__name__}: {error}"

    @property
    def seconds(self) -> float:
        """How long it may fail until kubelet acts."""
        return self._time("initialDelaySeconds") + self._time("periodSeconds") * self._time(
            "failureThreshold"
        )

    def _time(self, name: str) -> float:
        return self.declared.get(name, TIMES[name])

    def _get(self) -> str:
        asked = self.declared["httpGet"]
        assert set(asked) <= {"path", "port"}, f"httpGet with {sorted(asked)} cannot be rehearsed"
        port = self.ports[asked["port"]]
        connection = http.client.HTTPConnection(self.host, port, timeout=self._time("timeoutSeconds"))
        try:
            connection.request("GET", asked["path"])
            status = connection.getresponse().status
        finally:
            connection.close()
        return "" if 200 <= status < 400 else f"GET {asked['path']} answers {status}"

    def _connect(self) -> str:
        port = self.ports[self.declared["tcpSocket"]["port"]]
        socket.create_connection((self.host, port), timeout=self._time("timeoutSeconds")).close()
        return ""


def until(check: Callable[[], str], seconds: float, what: str, alive: Callable[[], None]) -> None:
    """Asks `check` until it has nothing to say; fails with its last word after `seconds`, or as soon as `alive` does."""
    end = time.monotonic() + seconds
    while said := check():
        alive()
        assert time.monotonic() < end, f"{what}, after {seconds:g} s: {said}"
        time.sleep(TICK)

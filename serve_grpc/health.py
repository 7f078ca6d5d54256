"""What probes and load balancers are told, in one place: the whole server ("") and each model by name."""

import threading
from collections.abc import Callable


class Health:
    """tell: passes a service's state on to grpc.health.v1 (None: unknown to it)."""

    def __init__(self, tell: Callable[[str, bool | None], None]) -> None:
        self._tell = tell
        self._lock = threading.Lock()
        self._models: dict[str, bool] = {}
        self._ready = False
        self._leaving = False

    @property
    def ready(self) -> bool:
        """The overall state, which `/readyz` says."""
        return self._ready and not self._leaving

    def set_model(self, model: str, serving: bool | None) -> None:
        """A model serves, does not, or has gone."""
        with self._lock:
            if serving is None:
                self._models.pop(model, None)
            else:
                self._models[model] = serving
            if not self._leaving:
                self._tell(model, serving)

    def set_ready(self) -> None:
        """The server serves, and says so until it leaves."""
        with self._lock:
            self._ready = True
            if not self._leaving:
                self._tell("", True)

    def leave(self) -> None:
        """Nothing serves any more, for good: the server is about to drain."""
        with self._lock:
            self._leaving = True
            for service in ("", *self._models):
                self._tell(service, False)

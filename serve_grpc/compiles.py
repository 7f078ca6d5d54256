"""Counts what JAX traces and compiles, and tells loading a version from a request that was not warm."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from jax import monitoring

from serve_grpc.metrics import Metrics

TRACE = "/jax/core/compile/jaxpr_trace_duration"
COMPILE = "/jax/core/compile/backend_compile_duration"


class CompileWatch:
    """Listens to jax.monitoring for the life of the process.

    Events come on the thread that compiles, so a thread inside `loading()` is not a request's.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._thread = threading.local()
        self.ready = False
        monitoring.register_event_duration_secs_listener(self._duration)

    @contextmanager
    def loading(self) -> Iterator[None]:
        """Compiles of this thread belong to a load, which is off the request path."""
        self._thread.loading = True
        try:
            yield
        finally:
            self._thread.loading = False

    def _duration(self, event: str, duration_secs: float, **_: Any) -> None:  # noqa: ARG002 (their name)
        if event not in (TRACE, COMPILE):
            return
        self._metrics.compiles.inc()
        # A hit in JAX's own cache fires COMPILE too, rightly: a request must not even look there.
        if self.ready and not getattr(self._thread, "loading", False):
            self._metrics.compiles_after_ready.inc()

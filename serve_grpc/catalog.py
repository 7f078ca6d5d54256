"""What the server knows of its models: read by protocols, health and the status page, written by the repository.

Every method may be called from any thread. The facts are frozen: a reader keeps a consistent picture.
"""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

from converters.manifest import TensorInfo
from serve_grpc.errors import NotFound

LOADING, SERVING, DRAINING, FAILED = "LOADING", "SERVING", "DRAINING", "FAILED"


@dataclass(frozen=True)
class SignatureInfo:
    """inputs, outputs: "b" for the batch dimension, integers for fixed ones.

    bucket_seconds: seconds of one run per bucket in use, measured at load.
    """

    name: str
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    bucket_seconds: Mapping[int, float]

    @property
    def buckets(self) -> tuple[int, ...]:
        """The batch sizes in use, ascending."""
        return tuple(self.bucket_seconds)


@dataclass(frozen=True)
class VersionInfo:
    """One version of a model and how it is doing; reason: why it failed, else empty."""

    version: int
    state: str
    reason: str = ""
    signatures: tuple[SignatureInfo, ...] = ()
    window_ends: str = ""
    usage: Mapping[str, str] = field(default_factory=dict)


class Catalog:
    """model name -> version -> VersionInfo."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._models: dict[str, dict[int, VersionInfo]] = {}

    def put(self, model: str, info: VersionInfo) -> None:
        """Adds or replaces what is known of one version."""
        with self._lock:
            self._models.setdefault(model, {})[info.version] = info

    def remove(self, model: str, version: int) -> None:
        """Forgets a version; a model without versions is forgotten too."""
        with self._lock:
            versions = self._models.get(model, {})
            versions.pop(version, None)
            if not versions:
                self._models.pop(model, None)

    def models(self) -> dict[str, list[VersionInfo]]:
        """Every model by name, versions ascending."""
        with self._lock:
            return {
                name: [versions[number] for number in sorted(versions)]
                for name, versions in sorted(self._models.items())
            }

    def serving(self, model: str) -> VersionInfo | None:
        """The version that answers requests without a version."""
        return next((info for info in self.models().get(model, ()) if info.state == SERVING), None)

    def version(self, model: str, version: int) -> VersionInfo:
        """One version; 0: the one that is serving, or the newest when none is. Raises NotFound."""
        models = self.models()
        versions = models.get(model)
        if not versions:
            raise NotFound(f"model {model!r} is not here; the models are: {', '.join(models) or 'none'}")
        if version == 0:
            return self.serving(model) or versions[-1]
        for info in versions:
            if info.version == version:
                return info
        known = ", ".join(str(info.version) for info in versions)
        raise NotFound(f"model {model!r} has no version {version}; the versions are: {known}")

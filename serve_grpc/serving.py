"""The versions that answer requests now. The repository replaces them; the router looks them up."""

from serve_grpc.batcher import Batcher
from serve_grpc.catalog import Catalog
from serve_grpc.errors import NotFound, NotLoaded
from serve_grpc.version import LoadedVersion

DEFAULT_SIGNATURE = "predict"


class Serving:
    """model name -> the version in use. Reading and replacing an entry are atomic."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._live: dict[str, LoadedVersion] = {}

    def get(self, model: str) -> LoadedVersion | None:
        """The version in use."""
        return self._live.get(model)

    def names(self) -> tuple[str, ...]:
        """Models that answer."""
        return tuple(self._live)

    def put(self, version: LoadedVersion) -> None:
        """From now on requests go to this version."""
        self._live[version.model] = version

    def remove(self, model: str) -> None:
        """From now on the model does not answer."""
        self._live.pop(model, None)

    def find(self, model: str, version: int, signature: str) -> tuple[LoadedVersion, Batcher]:
        """Where a request goes. version 0: the one in use; signature "": predict.

        Raises NotFound for names that are not here, NotLoaded for a version that is and does not answer.
        """
        live = self._live.get(model)
        if live is None or (version and live.info.version != version):
            raise self._absent(model, version, live)
        name = signature or DEFAULT_SIGNATURE
        batcher = live.batchers.get(name)
        if batcher is None:
            has = ", ".join(live.batchers)
            raise NotFound(f"model {model!r} has no signature {name!r}; its signatures are: {has}")
        return live, batcher

    def _absent(self, model: str, version: int, live: LoadedVersion | None) -> NotLoaded:
        info = self._catalog.version(model, version)
        reason = f": {info.reason}" if info.reason else ""
        other = "" if live is None else f"; version {live.info.version} is serving"
        return NotLoaded(f"model {model!r} version {info.version} is {info.state}{reason}{other}")

"""The versions that answer requests now. The repository replaces them; the router looks them up."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from serve_grpc.catalog import SERVING, Catalog
from serve_grpc.errors import NotFound, NotLoaded
from serve_grpc.lanes import Lanes
from serve_grpc.plan import Routes
from serve_grpc.version import LoadedVersion

DEFAULT_SIGNATURE = "predict"


@dataclass(frozen=True)
class Live:
    """What one model answers with. Never changed, only replaced: a request sees one consistent choice.

    default: for requests that name no version; None while there is none. labels: label -> one of `versions`.
    known: what the router found out of requests that come again and again; here, so that it goes with the versions
    that it holds.
    """

    default: LoadedVersion | None = None
    versions: Mapping[int, LoadedVersion] = field(default_factory=dict)
    labels: Mapping[str, LoadedVersion] = field(default_factory=dict)
    known: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def of(cls, routes: Routes, versions: Mapping[int, LoadedVersion]) -> "Live":
        """The routes with the versions they name."""
        default = None if routes.default is None else versions[routes.default]
        kept = {number: versions[number] for number in sorted(routes.loaded)}
        return cls(default, kept, {label: versions[number] for label, number in routes.labels.items()})

    @property
    def routes(self) -> Routes:
        """The same by numbers."""
        default = None if self.default is None else self.default.info.version
        labels = {label: version.info.version for label, version in self.labels.items()}
        return Routes(frozenset(self.versions), default, labels)


NOTHING = Live()


class Serving:
    """model name -> its versions in use. Reading and replacing an entry are atomic."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._live: dict[str, Live] = {}

    def live(self, model: str) -> Live:
        """The versions in use; none of them for a model that does not answer."""
        return self._live.get(model, NOTHING)

    def get(self, model: str) -> LoadedVersion | None:
        """The version of requests that name none."""
        return self.live(model).default

    def names(self) -> tuple[str, ...]:
        """Models that answer."""
        return tuple(self._live)

    def loaded(self) -> list[LoadedVersion]:
        """Every version of every model that is in use."""
        return [version for live in list(self._live.values()) for version in live.versions.values()]

    def put(self, model: str, live: Live) -> None:
        """From now on requests go to these versions; without any the model does not answer."""
        if live.versions:
            self._live[model] = live
        else:
            self._live.pop(model, None)

    def find(self, model: str, version: int, signature: str, label: str = "") -> tuple[LoadedVersion, Lanes]:
        """Where a request goes. version 0: what `label` stands for, or else the default; signature "": predict.

        Raises NotFound for names that are not here, NotLoaded for a version that is and does not answer.
        """
        live = self._live.get(model, NOTHING)
        if version:
            found = live.versions.get(version)
        elif label:
            found = live.labels.get(label)
        else:
            found = live.default
        if found is None:
            raise self._absent(model, version, label, live)
        name = signature or DEFAULT_SIGNATURE
        lanes = found.lanes.get(name)
        if lanes is None:
            if name in found.refused:
                raise NotFound(f"model {model!r} does not serve signature {name!r}: {found.refused[name]}")
            has = ", ".join(found.lanes)
            raise NotFound(f"model {model!r} has no signature {name!r}; its signatures are: {has}")
        return found, lanes

    def _absent(self, model: str, version: int, label: str, live: Live) -> NotLoaded:
        """Raises NotFound for what is not here at all; else says why it does not answer."""
        choice = self._catalog.choice(model)
        if label and not version:
            if label not in choice.pending:
                self._catalog.version(model, 0, label)
            version = choice.pending.get(label, 0)
            what = f"model {model!r} label {label!r}: version {version}"
            known = {info.version for info in self._catalog.models().get(model, ())}
            if version not in known:
                return NotLoaded(f"{what} is not in the models folder; change the label")
        info = self._catalog.version(model, version)
        what = f"model {model!r} version {info.version}"
        if not version and info.state == SERVING:
            return NotLoaded(
                f"{what} serves requests that name it; for those that do not there is none at this moment (policy "
                f"{choice.policy!r}); try again, and if that does not help see the status page"
            )
        reason = f": {info.reason}" if info.reason else ""
        numbers = ", ".join(map(str, live.versions))
        other = f"; serving: version {numbers}" if numbers else ""
        return NotLoaded(f"{what} is {info.state}{reason}{other}")

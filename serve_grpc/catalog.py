"""What the server knows of its models: read by protocols, health and the status page, written by the repository.

Every method may be called from any thread. The facts are frozen: a reader keeps a consistent picture.
"""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from converters.manifest import TensorInfo
from serve_grpc.errors import NotFound, NotLoaded

LOADING, SERVING, DRAINING, FAILED = "LOADING", "SERVING", "DRAINING", "FAILED"


@dataclass(frozen=True)
class LaneInfo:
    """Rows up to `length`, None where no sequence has one, whose further symbols are `sizes`. bucket_seconds,
    golden_errors: as of SignatureInfo.
    """

    length: int | None
    sizes: Mapping[str, int]
    bucket_seconds: Mapping[int, float]
    golden_errors: Mapping[int, float]


@dataclass(frozen=True)
class SignatureInfo:
    """inputs, outputs: "b" for the batch dimension, "t" or another name for a sequence or a further symbol, integers for fixed sizes.

    bucket_seconds: seconds of one run per bucket in use, measured at load. golden_errors: per bucket, the worst error
    of the goldens on this device as a share of what is allowed. lanes: of a signature with a sequence or further symbols,
    the same for each of the sizes that these may have, and for each length that rows are padded to, ascending; the two
    before are then those of the last.
    """

    name: str
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    bucket_seconds: Mapping[int, float]
    golden_errors: Mapping[int, float] = field(default_factory=dict)
    lanes: tuple["LaneInfo", ...] = ()

    @property
    def buckets(self) -> tuple[int, ...]:
        """The batch sizes in use, ascending."""
        return tuple(self.bucket_seconds)

    @property
    def lengths(self) -> tuple[int, ...]:
        """That rows are padded to, ascending; none without a sequence."""
        return tuple(sorted({lane.length for lane in self.lanes if lane.length is not None}))

    @property
    def sizes(self) -> tuple[Mapping[str, int], ...]:
        """What further symbols may be together, ascending; none without any."""
        return tuple(
            dict(each) for each in dict.fromkeys(tuple(lane.sizes.items()) for lane in self.lanes) if each
        )


@dataclass(frozen=True)
class VersionInfo:
    """One version of a model and how it is doing; reason: why it failed, else empty.

    labels: those that requests may use for it now; the catalog fills them in. Every loaded version is SERVING;
    which of them answers requests that name none is `Catalog.serving`. proven_at: seconds since the epoch when its
    goldens were right on this device, 0 for never. jaxlib: the release that wrote the program.
    """

    version: int
    state: str
    reason: str = ""
    signatures: tuple[SignatureInfo, ...] = ()
    window_ends: str = ""
    jaxlib: str = ""
    usage: Mapping[str, str] = field(default_factory=dict)
    labels: tuple[str, ...] = ()
    proven_at: float = 0.0


@dataclass(frozen=True)
class Choice:
    """How a model's versions are chosen now.

    policy: as its file says it; "" before it could be read. default: the version of requests that name none.
    labels: label -> the version it stands for. pending: label -> the version it will stand for once that is loaded.
    problems: one line for each policy or label file that cannot be followed.
    """

    policy: str = ""
    default: int | None = None
    labels: Mapping[str, int] = field(default_factory=dict)
    pending: Mapping[str, int] = field(default_factory=dict)
    problems: tuple[str, ...] = ()

    def labels_of(self, version: int) -> tuple[str, ...]:
        """The labels that stand for a version, sorted."""
        return tuple(sorted(label for label, number in self.labels.items() if number == version))


class Catalog:
    """model name -> version -> VersionInfo, and how the versions of a model are chosen.

    surveyed: whether the models folder was read at all; until then nobody can say that a model is not here.
    """

    def __init__(self, surveyed: bool = True) -> None:
        self.surveyed = surveyed
        self._lock = threading.Lock()
        self._models: dict[str, dict[int, VersionInfo]] = {}
        self._choices: dict[str, Choice] = {}

    def put(self, model: str, info: VersionInfo) -> None:
        """Adds or replaces what is known of one version."""
        with self._lock:
            labels = self._choices.get(model, Choice()).labels_of(info.version)
            self._models.setdefault(model, {})[info.version] = replace(info, labels=labels)

    def remove(self, model: str, version: int) -> None:
        """Forgets a version; a model without versions is forgotten too."""
        with self._lock:
            versions = self._models.get(model, {})
            versions.pop(version, None)
            if not versions:
                self._models.pop(model, None)

    def choose(self, model: str, choice: Choice | None) -> None:
        """How a model's versions are chosen from now on; None: the model has gone."""
        with self._lock:
            if choice is None:
                self._choices.pop(model, None)
                return
            self._choices[model] = choice
            versions = self._models.get(model, {})
            for number, info in versions.items():
                versions[number] = replace(info, labels=choice.labels_of(number))

    def choice(self, model: str) -> Choice:
        """How a model's versions are chosen; an empty one for a model that is not here."""
        return self._choices.get(model, Choice())

    def policy(self, model: str) -> str:
        """A model's policy as its file says it; "" before it could be read."""
        return self.choice(model).policy

    def models(self) -> dict[str, list[VersionInfo]]:
        """Every model by name, versions ascending."""
        with self._lock:
            return {
                name: [versions[number] for number in sorted(versions)]
                for name, versions in sorted(self._models.items())
            }

    def noticed(self) -> dict[str, list[VersionInfo]]:
        """As `models`, and with those of which there is only a problem to tell: they have no versions."""
        with self._lock:
            troubled = {name: [] for name, choice in self._choices.items() if choice.problems}
        return dict(sorted((troubled | self.models()).items()))

    def serving(self, model: str) -> VersionInfo | None:
        """The version that answers requests without a version."""
        default = self.choice(model).default
        return next(
            (i for i in self.models().get(model, ()) if i.version == default and i.state == SERVING), None
        )

    def version(self, model: str, version: int, label: str = "") -> VersionInfo:
        """One version; 0: what `label` stands for, else the one that is serving, or the newest when none is.

        Raises NotFound; NotLoaded as long as the models folder was not read.
        """
        models = self.models()
        versions = models.get(model)
        if not versions and not self.surveyed:
            raise NotLoaded(f"model {model!r}: the models folder is still to be read; try again")
        if not versions:
            if problems := self.choice(model).problems:
                raise NotFound(f"model {model!r} has no version loaded: {problems[0]}")
            raise NotFound(f"model {model!r} is not here; the models are: {', '.join(models) or 'none'}")
        if version == 0 and label:
            labels = self.choice(model).labels
            if label not in labels:
                raise NotFound(
                    f"model {model!r} has no label {label!r}; the labels are: {', '.join(sorted(labels)) or 'none'}"
                )
            version = labels[label]
        if version == 0:
            return self.serving(model) or versions[-1]
        for info in versions:
            if info.version == version:
                return info
        known = ", ".join(str(info.version) for info in versions)
        raise NotFound(f"model {model!r} has no version {version}; the versions are: {known}")

"""Which versions to load, keep and send requests to: a pure function of the rules, the folder and what is loaded."""

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from converters.labels import ByLabel, Latest, Pinned
from serve_grpc.rules import Rules


@dataclass(frozen=True)
class Routes:
    """Where requests go now. loaded: versions on the device. default: for requests that name no version.

    labels: label -> the version it stands for, always a loaded one.
    """

    loaded: frozenset[int] = frozenset()
    default: int | None = None
    labels: Mapping[str, int] = field(default_factory=dict)

    def having(self, loaded: Iterable[int]) -> "Routes":
        """The same routes with these versions on the device."""
        return replace(self, loaded=frozenset(loaded))


@dataclass(frozen=True)
class Plan:
    """load: in this order. routes: what to serve until then; its `loaded` are the versions to keep.

    problems: one line for each rule that cannot be followed.
    """

    load: tuple[int, ...]
    routes: Routes
    problems: tuple[str, ...]


def make_plan(rules: Rules, present: Sequence[int], blocked: Set[int], now: Routes) -> Plan:
    """What to do next.

    present: versions in the folder. blocked: those of them that failed to load and are not to be tried yet.
    A version that serves stays until what replaces it is loaded: only then do the default and the labels move.
    """
    usable = now.loaded | (set(present) - blocked)
    targets = _targets(rules, present, usable)
    labels = _labels(rules, now)
    default = _default(rules, targets, labels, now)
    wanted = dict.fromkeys((*targets, *sorted(rules.labels.values())))
    load = tuple(v for v in wanted if v not in now.loaded and v in usable)
    keep = {*wanted, *labels.values(), *_fallbacks(rules, targets, present, now)}
    if default is not None:
        keep.add(default)
    problems = (*rules.problems, *_problems(rules, present, blocked, now))
    return Plan(load, Routes(now.loaded & keep, default, labels), problems)


def _targets(rules: Rules, present: Sequence[int], usable: Set[int]) -> list[int]:
    """The versions the policy asks for, in the order to load them."""
    match rules.policy:
        case Latest(count):
            return sorted(usable & set(present), reverse=True)[:count]
        case Pinned(versions):
            return [version for version in reversed(versions) if version in usable]
        case ByLabel(label) if label in rules.labels:
            return [rules.labels[label]]
    return []


def _labels(rules: Rules, now: Routes) -> dict[str, int]:
    """A label moves when the version it points to is loaded; until then it stays where it was."""
    labels = {}
    for label, version in rules.labels.items():
        for candidate in (version, now.labels.get(label)):
            if candidate in now.loaded and candidate is not None:
                labels[label] = candidate
                break
    return labels


def _default(rules: Rules, targets: Iterable[int], labels: Mapping[str, int], now: Routes) -> int | None:
    if isinstance(rules.policy, ByLabel):
        chosen = labels.get(rules.policy.label)
    else:
        chosen = max(now.loaded.intersection(targets), default=None)
    if chosen is None and now.default in now.loaded:
        return now.default
    return chosen


def _fallbacks(rules: Rules, targets: Iterable[int], present: Sequence[int], now: Routes) -> list[int]:
    """What `latest` returns to when one of the versions that are still to be loaded fails."""
    if isinstance(rules.policy, Latest) and not now.loaded.issuperset(targets):
        return sorted(now.loaded & set(present))[-rules.policy.count :]
    return []


def _problems(rules: Rules, present: Sequence[int], blocked: Set[int], now: Routes) -> Iterable[str]:
    def why_not(version: int) -> str:
        if version in now.loaded:
            return "" if version in present else "whose folder has gone; it serves on until the server stops"
        if version not in present:
            return "which is not in the folder"
        return "which failed to load" if version in blocked else ""

    if isinstance(rules.policy, Pinned):
        for version in rules.policy.versions:
            if reason := why_not(version):
                yield f"policy '{rules.policy}' asks for version {version}, {reason}"
    if isinstance(rules.policy, ByLabel) and rules.policy.label not in rules.labels:
        yield (
            f"policy '{rules.policy}' names a label that is not there; "
            f"jaxport promote MODEL VERSION --label {rules.policy.label}"
        )
    for label, version in rules.labels.items():
        if reason := why_not(version):
            yield f"label {label!r} points to version {version}, {reason}"

"""What an API has answered, held to the shapes that the launcher reads: everything behind this takes the fields as they are.

A real API answers by its schemas. What is between here and there may not, and then it is said in a line which field of
which object is wrong. Fields that nothing here reads are let through as they came.
"""

import datetime
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jaxport.cluster.shape import NAME, NAMESPACE


class NotAsAgreed(Exception):
    """One line: the field, what was found in it, what is needed."""


@dataclass(frozen=True)
class Leaf:
    """A value without parts. needed: for people."""

    needed: str
    holds: Callable[[Any], bool]


def _is_time(value: Any) -> bool:
    try:
        return datetime.datetime.fromisoformat(value).tzinfo is not None
    except (TypeError, ValueError):
        return False


def _matches(pattern: re.Pattern[str]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, str) and pattern.fullmatch(value) is not None


TEXT = Leaf("text", lambda value: isinstance(value, str))
FLAG = Leaf("true or false", lambda value: isinstance(value, bool))
# As wide as any of Kubernetes is: behind this it is added to and compared with times.
WHOLE = Leaf("a whole number of 64 bits", lambda value: type(value) is int and -(2**63) <= value < 2**63)
TIME = Leaf("a time such as 2026-01-03T01:00:00Z", _is_time)
ANY = Leaf("anything", lambda _: True)
NAMED = Leaf("a name", _matches(NAME))
IN_NAMESPACE = Leaf("the name of a namespace", _matches(NAMESPACE))

# A dict: a mapping with these fields, those with a "!" have to be there; "*" is every other field. A list: of such items.
Shape = Leaf | dict[str, Any] | list[Any]

_TEXTS: Shape = {"*": TEXT}
_META: dict[str, Shape] = {
    "name!": NAMED, "uid!": TEXT, "resourceVersion": TEXT, "labels": _TEXTS, "annotations": _TEXTS,
    "deletionTimestamp": ANY,
}  # fmt: skip
_OURS: dict[str, Shape] = {**_META, "namespace!": IN_NAMESPACE, "creationTimestamp!": TIME}
_CONDITIONS: Shape = [{"type!": TEXT, "status!": TEXT, "reason": TEXT, "message": TEXT}]
_POD_SPEC: Shape = {
    "containers!": [{"name!": TEXT, "args": [TEXT]}], "terminationGracePeriodSeconds": WHOLE,
}  # fmt: skip
_CONTAINER_STATUSES: Shape = [
    {
        "name!": TEXT,
        "restartCount": WHOLE,
        "state": {
            "running": {},
            "waiting": {"reason": TEXT, "message": TEXT},
            "terminated": {"exitCode!": WHOLE, "reason": TEXT, "finishedAt": TEXT},
        },
    }
]
# Collections of which more is read than the metadata.
OBJECTS: dict[str, Shape] = {
    "jobs": {
        "metadata!": _OURS,
        "spec!": {
            "template!": {"metadata": {"labels": _TEXTS, "annotations": _TEXTS}, "spec!": _POD_SPEC},
            "suspend": FLAG, "completions": WHOLE, "parallelism": WHOLE, "activeDeadlineSeconds": WHOLE,
        },
        "status": {"conditions": _CONDITIONS, "failed": WHOLE},
    },
    "pods": {
        "metadata!": {**_OURS, "ownerReferences": [{"kind!": TEXT, "uid!": TEXT}]},
        "status": {
            "phase": TEXT, "conditions": _CONDITIONS,
            "containerStatuses": _CONTAINER_STATUSES, "initContainerStatuses": _CONTAINER_STATUSES,
        },
    },
    "deployments": {
        "metadata!": _OURS,
        "spec!": {"replicas": WHOLE, "selector!": {"matchLabels": _TEXTS}},
        "status": {"readyReplicas": WHOLE},
    },
    "events": {"metadata!": _META, "message": TEXT},
}  # fmt: skip
ANYTHING: Shape = {"metadata!": _META}
# Of a watch: how far it has come, and nothing else.
BOOKMARK: Shape = {"metadata!": {"resourceVersion": TEXT}}
KINDS: Shape = {"resources!": [{"name!": TEXT, "kind!": TEXT, "namespaced!": FLAG}]}
LISTING: Shape = {"metadata!": {"resourceVersion!": TEXT}, "items": [ANY]}
EVENT: Shape = {"type!": TEXT, "object!": {"*": ANY}}


def shape_of(path: str) -> Shape:
    """Of the objects at a path, or of the ones of a collection: .../jobs and .../jobs/NAME."""
    words = path.split("/")
    return next((OBJECTS[word] for word in words[-1:-3:-1] if word in OBJECTS), ANYTHING)


def parsed(data: bytes | str) -> Any:
    """What JSON says. Half a character, which JSON can say and nothing can print, becomes a question mark.

    Raises:
        ValueError: it is none, or too deep to be read.
    """
    try:
        found = json.loads(data)
        text = data.decode(errors="replace") if isinstance(data, bytes) else data
        if "\\ud" in text or "\\uD" in text:
            found = json.loads(json.dumps(found, ensure_ascii=False).encode(errors="replace"))
        return found
    except RecursionError:
        raise ValueError("too deep") from None


def held(shape: Shape, found: Any, at: str = "") -> Any:
    """A copy of `found` in which every field of the shape is what it has to be; fields that are null are left out, which is
    what null says.

    Raises:
        NotAsAgreed: one is not.
    """
    if isinstance(shape, list):
        _require(isinstance(found, list), at, found, _needed(shape))
        return [held(shape[0], each, f"{at}[{number}]") for number, each in enumerate(found)]
    if isinstance(shape, Leaf):
        _require(shape.holds(found), at, found, shape.needed)
        return found
    _require(isinstance(found, dict), at, found, _needed(shape))
    made = {key: value for key, value in found.items() if value is not None}
    for field, of in shape.items():
        name = field.removesuffix("!")
        here = f"{at}.{name}" if at else name
        if field == "*":
            made |= {key: held(of, value, f"{at}.{key}" if at else key) for key, value in made.items()}
        elif name in made:
            made[name] = held(of, made[name], here)
        else:
            _require(not field.endswith("!"), here, None, _needed(of))
    return made


def _needed(shape: Shape) -> str:
    if isinstance(shape, Leaf):
        return shape.needed
    return "a list" if isinstance(shape, list) else "a mapping"


def _require(holds: bool, at: str, found: Any, needed: str) -> None:
    if not holds:
        said = "nothing" if found is None else " ".join(repr(found)[:60].split())
        raise NotAsAgreed(f"{at or 'all of it'} is {said}; needed: {needed}")

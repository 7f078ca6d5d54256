"""In what a Job that is there differs from the one that is wanted.

A Job cannot be changed, so this decides whether it is followed or refused. The API adds defaults, and clusters add what they
please (tolerations, resources), so what is compared is what was asked for then with what is asked for now, where there is
a record: the annotation that `kubectl apply` and `kubectl create --save-config` leave, and that jaxport leaves too.
"""

import copy
import difflib
import json
from collections.abc import Iterator
from typing import Any

from kubernetes.utils import parse_quantity

from jaxport.cluster.api import Object

RECORD = "kubectl.kubernetes.io/last-applied-configuration"


def recorded(wanted: Object) -> Object:
    """A copy with the record of what was asked for."""
    made = copy.deepcopy(wanted)
    annotations = made["metadata"].setdefault("annotations", {})
    annotations[RECORD] = json.dumps(wanted, separators=(",", ":")) + "\n"
    return made


def differences(there: Object, wanted: Object) -> list[str]:
    """One line for each place where the spec differs: where, what it is there, what is wanted."""
    try:
        before = json.loads(there["metadata"]["annotations"][RECORD])["spec"]
    except (KeyError, TypeError, ValueError, RecursionError):
        return list(_differences("spec", there["spec"], wanted["spec"], whole=False))
    return list(_differences("spec", before, wanted["spec"], whole=True))


def _differences(path: str, before: Any, now: Any, whole: bool) -> Iterator[str]:
    """whole: a key that is only in `before` counts; it does not where the API may have put it there."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key in [*now, *(key for key in before if whole and key not in now)]:
            yield from _differences(f"{path}.{key}", before.get(key), now.get(key), whole)
    elif _named(before) and _named(now) and [e["name"] for e in before] == [e["name"] for e in now]:
        for one, other in zip(before, now, strict=True):
            yield from _differences(f"{path}[{one['name']}]", one, other, whole)
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now) and not _words(now):
        for at, (one, other) in enumerate(zip(before, now, strict=True)):
            yield from _differences(f"{path}[{at}]", one, other, whole)
    elif not _equal(before, now):
        yield f"{path.removeprefix('spec.template.spec.')}: {_said(before, now)}"


def _named(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(e, dict) and "name" in e for e in value)


def _words(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _equal(before: Any, now: Any) -> bool:
    if before == now:
        return True
    try:
        return parse_quantity(before) == parse_quantity(now)  # 1 and "1", 1024Mi and 1Gi
    except (ValueError, ArithmeticError):
        return False


def _said(before: Any, now: Any) -> str:
    if _words(before) and _words(now):
        gone, new = [], []
        for kind, a, b, c, d in difflib.SequenceMatcher(None, before, now, autojunk=False).get_opcodes():
            if kind != "equal":
                flag = int(kind == "replace" and a > 0 and before[a - 1].startswith("--"))  # of a value
                gone += before[a - flag : b]
                new += now[c - flag : d]
        return f"{_joined(gone)} there, {_joined(new)} wanted"
    return f"{_short(before)} there, {_short(now)} wanted"


def _short(value: Any) -> str:
    text = "nothing" if value is None else json.dumps(value)
    return text if len(text) <= 80 else f"{text[:80]}..."


def _joined(words: list[str]) -> str:
    return f"'{' '.join(words)}'" if words else "nothing"

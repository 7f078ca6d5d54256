"""What goes wrong on the way to the fake cluster, and in it: what a test says is to happen."""

import copy
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Object = dict[str, Any]


@dataclass
class Refusal:
    """An answer to requests that match. times: how often; None: always."""

    method: str
    path: re.Pattern[str]
    status: int
    message: str
    times: int | None = None


@dataclass
class Foreign:
    """What somebody on the way answers, with 200, to GET requests that match. times: how often; None: always."""

    path: re.Pattern[str]
    watch: bool
    data: bytes
    content_type: str
    times: int | None = None


PATH = re.compile(
    r"/apis?/(?:(?P<group>[^/]+)/)?v[0-9a-z]+(?:/namespaces/(?P<namespace>[^/]+))?"
    r"/(?P<resource>\w+)(?:/(?P<name>[^/]+)(?:/(?P<sub>\w+))?)?"
)
VERBS = {"POST": "create", "PATCH": "patch", "DELETE": "delete"}


@dataclass(frozen=True)
class Right:
    """What a request needs, in RBAC's terms. name: nothing where it is about a collection."""

    verb: str
    group: str
    resource: str
    namespace: str
    name: str

    @property
    def kind(self) -> tuple[str, str, str]:
        return self.verb, self.group, self.resource


def verbs(method: str, path: str, query: Mapping[str, str], there: bool) -> list[str]:
    """An apply of what is not there yet needs the right to create it, by its name, as well."""
    if method != "GET":
        return ["patch", "create"] if method == "PATCH" and not there else [VERBS[method]]
    found = PATH.fullmatch(path)
    return ["watch" if "watch" in query else "get" if found and found["name"] else "list"]


def right(verb: str, path: str) -> Right | None:
    """None: a request that everybody may make, for what kinds there are."""
    found = PATH.fullmatch(path)
    if found is None:
        return None
    resource = found["resource"] + (f"/{found['sub']}" if found["sub"] else "")
    return Right(verb, found["group"] or "", resource, found["namespace"] or "", found["name"] or "")


@dataclass(frozen=True)
class Rule:
    """Of a Role, as RBAC judges by it. namespace: of the Role; None: of a ClusterRole, anywhere. names: None: any."""

    verbs: frozenset[str]
    groups: frozenset[str]
    resources: frozenset[str]
    namespace: str | None
    names: frozenset[str] | None = None

    def allows(self, asked: Right) -> bool:
        return (
            asked.verb in self.verbs
            and asked.group in self.groups
            and asked.resource in self.resources
            and self.namespace in (None, asked.namespace)
            and (self.names is None or asked.name in self.names)
        )


class Faults:
    """By default there are none."""

    def __init__(self) -> None:
        self.refusals: list[Refusal] = []
        self.foreign: list[Foreign] = []
        # None: everybody may do everything.
        self.rules: list[Rule] | None = None
        # Changes each object on its way out: (the path of its collection, the object).
        self.rewrite: Callable[[str, Object], Any] = lambda _path, each: each
        self.down = False
        self.silent = "nothing"  # watches of such collections tell nothing
        self.delay = 0.0
        self.broken: list[str] = []  # paths of requests that broke while it was down
        self.cut_logs_after: list[int] = []

    def refuse(
        self, method: str, path: str, status: int, message: str = "", times: int | None = None
    ) -> None:
        self.refusals.append(Refusal(method, re.compile(path), status, message, times))

    def answer(
        self,
        path: str,
        data: bytes,
        content_type: str = "text/html; charset=utf-8",
        watch: bool = False,
        times: int | None = None,
    ) -> None:
        self.foreign.append(Foreign(re.compile(path), watch, data, content_type, times))

    def refused(self, method: str, path: str) -> Refusal | None:
        """The first refusal that matches, one time less from now on."""
        for each in self.refusals:
            if each.times != 0 and each.method == method and each.path.search(path):
                each.times = each.times and each.times - 1
                return each
        return None

    def in_its_place(self, method: str, path: str, query: Mapping[str, str]) -> Foreign | None:
        """What somebody else answers, one time less from now on."""
        for each in self.foreign:
            matches = each.path.search(path) and each.watch == ("watch" in query)
            if each.times != 0 and method == "GET" and matches:
                each.times = each.times and each.times - 1
                return each
        return None

    def forbidden(self, verb: str, path: str) -> str:
        """What an API says to who may not; nothing to who may."""
        asked = right(verb, path)
        if self.rules is None or asked is None or any(rule.allows(asked) for rule in self.rules):
            return ""
        where = f'in the namespace "{asked.namespace}"' if asked.namespace else "at the cluster scope"
        return (
            f'{asked.resource} "{asked.name}" is forbidden: User "launcher" cannot {verb} resource "{asked.resource}" '
            f'in API group "{asked.group}" {where}'
        )

    def rewritten(self, path: str, each: Object) -> Any:
        return self.rewrite(path, copy.deepcopy(each))

"""What the fake cluster holds: objects by their paths, with the uids, versions and defaults that an API gives them."""

import copy
import datetime
import re
from collections.abc import Callable, Mapping
from typing import Any

from tests.jaxport.cluster.fake_watch import History

Object = dict[str, Any]


def now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Storage(History):
    """path -> object."""

    def __init__(self) -> None:
        super().__init__()
        self.objects: dict[str, Object] = {}
        # Field -> who has set it: what server-side apply then refuses to change.
        self.owners: dict[tuple[str, str], str] = {}

    def of_kind(self, plural: str) -> list[Object]:
        return [each for path, each in self.objects.items() if f"/{plural}/" in path]

    def job(self, name: str, namespace: str = "jaxport") -> Object:
        return self.objects[f"/apis/batch/v1/namespaces/{namespace}/jobs/{name}"]

    def listed(self, collection: str, query: Mapping[str, str]) -> Object:
        selector = query.get("labelSelector", "")
        with self.changed:
            items = [
                each
                for where, each in self.objects.items()
                if where.rpartition("/")[0] == collection
                and matches(each, selector)
                and selected(each, query)
            ]
            # As a real list has it: items do not say what they are.
            items = [{k: v for k, v in each.items() if k not in ("kind", "apiVersion")} for each in items]
            return {"metadata": {"resourceVersion": str(self.version)}, "items": items}

    def store(self, path: str, each: Object, kind: str) -> Object:
        with self.changed:
            each["metadata"]["resourceVersion"] = str(self.version + 1)
            if kind == "DELETED":
                self.objects.pop(path, None)
            else:
                self.objects[path] = each
            self.tell(kind, path.rpartition("/")[0], each)
        return each

    def modify(self, path: str, change: Callable[[Object], None]) -> None:
        with self.changed:
            each = copy.deepcopy(self.objects[path])
            change(each)
            self.store(path, each, "MODIFIED")

    def create(self, path: str, body: Object) -> Object:
        """path: of the collection."""
        meta = body["metadata"]
        each = copy.deepcopy(body)
        each["metadata"] |= {"uid": f"uid-{self.version + 1}-{meta['name']}", "creationTimestamp": now()}
        if found := re.search(r"/namespaces/([^/]+)/", path):
            each["metadata"]["namespace"] = found[1]
        if each["kind"] == "Job":
            _default_job(each)
        return self.store(f"{path}/{meta['name']}", each, "ADDED")

    def conflict(self, path: str, body: Object) -> str:
        """Whose field, and which, an apply of `body` would change; nothing when it may."""
        there = self.objects[path]
        for (where, dotted), owner in self.owners.items():
            wanted, has = at(body, dotted), at(there, dotted)
            if where == path and wanted not in (None, has):
                return f'Apply failed with 1 conflict: conflict with "{owner}": .{dotted}'
        return ""


def matches(each: Object, selector: str) -> bool:
    labels = each["metadata"].get("labels") or {}
    for part in re.split(r",(?![^(]*\))", selector) if selector else ():
        if among := re.fullmatch(r"(\S+) in \((.*)\)", part):
            if labels.get(among[1]) not in among[2].split(","):
                return False
        elif "=" in part:
            key, _, value = part.partition("=")
            if labels.get(key) != value:
                return False
        elif part not in labels:
            return False
    return True


def selected(each: Object, query: Mapping[str, str]) -> bool:
    """fieldSelector, for events."""
    parts = [part.partition("=") for part in query.get("fieldSelector", "").split(",") if part]
    return all(at(each, key) == value for key, _, value in parts)


def at(each: Any, dotted: str) -> Any:
    for key in dotted.split("."):
        each = each.get(key) if isinstance(each, dict) else None
    return each


def merge(there: Object, body: Object) -> None:
    for key, value in body.items():
        if isinstance(value, dict) and isinstance(there.get(key), dict):
            merge(there[key], value)
        else:
            there[key] = copy.deepcopy(value)


def _default_job(job: Object) -> None:
    """What the API adds to what it is sent."""
    uid, name = job["metadata"]["uid"], job["metadata"]["name"]
    spec = job["spec"]
    spec.setdefault("suspend", False)
    spec["selector"] = {"matchLabels": {"batch.kubernetes.io/controller-uid": uid}}
    labels = spec["template"].setdefault("metadata", {}).setdefault("labels", {})
    labels |= {
        "batch.kubernetes.io/controller-uid": uid,
        "batch.kubernetes.io/job-name": name,
        "job-name": name,
    }
    pod = spec["template"]["spec"]
    pod.setdefault("dnsPolicy", "ClusterFirst")
    for container in pod["containers"]:
        container.setdefault("terminationMessagePath", "/dev/termination-log")
        container.setdefault("imagePullPolicy", "IfNotPresent")
    job["status"] = {}

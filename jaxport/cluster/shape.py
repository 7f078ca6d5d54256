"""Whether a document is an object of Kubernetes, as far as the launcher reads and changes it. The rest is the API's to judge.

Everything behind this takes an object's fields as they are: what they have to be is checked here, once.
"""

import json
import re
from typing import Any

from jaxport.cluster.errors import UsageError

Object = dict[str, Any]
# Their pods are looked into.
WORKLOADS = (
    ("batch/v1", "Job"),
    ("apps/v1", "Deployment"),
    ("apps/v1", "StatefulSet"),
    ("apps/v1", "DaemonSet"),
    ("apps/v1", "ReplicaSet"),
)
NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
NAMESPACE_NEEDED = "at most 63 lower-case letters, digits and -, beginning and ending with a letter or digit"
_VERSION = re.compile(r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?v[a-z0-9]+")
_KIND = re.compile(r"[A-Za-z0-9]+")
# What can be a part of a path: some kinds allow more than letters, digits, - and dots, none allows less.
NAME = re.compile(r"(?!\.\.?$)[^/%\s]{1,253}")


def objects_of(where: str, document: Any) -> list[Object]:
    """The object that a document is, or those of a List. `where`: the document's file and number.

    Fields of `metadata` that are null are left out, which is what null says.

    Raises:
        UsageError: it is none; the line names the object and the field.
    """
    if isinstance(document, dict) and document.get("kind") == "List":
        items = document.get("items")
        if items is None:
            items = []
        _require(isinstance(items, list), where, "List: items", items, "a list")
        return [each for at, item in enumerate(items) for each in objects_of(f"{where}, item {at + 1}", item)]
    _require_object(where, document)
    where = f"{where}: {document['kind']} {document['metadata']['name']}"
    document["metadata"] = _meta(where, "metadata", document["metadata"])
    if (document["apiVersion"], document["kind"]) in WORKLOADS:
        _workload(where, document)
    return [document]


def _require(holds: bool, where: str, field: str, found: Any, needed: str) -> None:
    if not holds:
        text = "nothing" if found is None else json.dumps(found)
        text = text if len(text) <= 80 else f"{text[:80]}..."
        raise UsageError(f"{where}: {' '.join(field.split())}: found {text}; needed: {needed}")


def _require_object(where: str, document: Any) -> None:
    if not (
        isinstance(document, dict)
        and isinstance(document.get("apiVersion"), str)
        and isinstance(document.get("kind"), str)
        and isinstance(document.get("metadata"), dict)
        and isinstance(document["metadata"].get("name"), str)
    ):
        raise UsageError(
            f"{where}: without apiVersion, kind or metadata.name, as text, it is no object of Kubernetes"
        )
    for field, value, pattern, needed in (
        ("apiVersion", document["apiVersion"], _VERSION, "VERSION or GROUP/VERSION"),
        ("kind", document["kind"], _KIND, "letters and digits"),
        ("metadata.name", document["metadata"]["name"], NAME, "a name, without /, % and spaces"),
    ):
        _require(pattern.fullmatch(value) is not None, where, field, value, needed)


def _meta(where: str, field: str, meta: Any) -> Object:
    _require(isinstance(meta, dict), where, field, meta, "a mapping")
    made = {key: value for key, value in meta.items() if value is not None}
    namespace = made.get("namespace", "default")
    is_one = isinstance(namespace, str) and NAMESPACE.fullmatch(namespace) is not None
    _require(is_one, where, f"{field}.namespace", namespace, NAMESPACE_NEEDED)
    for name in ("labels", "annotations"):
        found = made.get(name, {})
        _require(isinstance(found, dict), where, f"{field}.{name}", found, "a mapping of text to text")
        for key, value in found.items():
            _require(isinstance(value, str), where, f"{field}.{name}.{key}", value, "text; quote it")
    return made


def _workload(where: str, each: Object) -> None:
    inner: Any = each
    path: list[str] = []
    for name in ("spec", "template"):
        path.append(name)
        inner = inner.get(name)
        _require(isinstance(inner, dict), where, ".".join(path), inner, "a mapping")
    if inner.get("metadata") is None:
        inner.pop("metadata", None)
    else:
        inner["metadata"] = _meta(where, "spec.template.metadata", inner["metadata"])
    pod = inner.get("spec")
    _require(isinstance(pod, dict), where, "spec.template.spec", pod, "a mapping")
    at = "spec.template.spec.containers"
    containers = pod.get("containers")
    _require(isinstance(containers, list) and bool(containers), where, at, containers, "a list of containers")
    _containers(where, at, containers)
    first = pod.get("initContainers")
    if first is not None:
        at = "spec.template.spec.initContainers"
        _require(isinstance(first, list), where, at, first, "a list of containers")
        _containers(where, at, first)


def _containers(where: str, at: str, containers: list[Any]) -> None:
    for number, each in enumerate(containers):
        path = f"{at}[{number}]"
        _require(isinstance(each, dict), where, path, each, "a container")
        name = each.get("name")
        _require(isinstance(name, str) and bool(name), where, f"{path}.name", name, "text")
        path = f"{at}[{name}]"
        image = each.get("image")
        _require(image is None or isinstance(image, str), where, f"{path}.image", image, "text")
        for field in ("command", "args"):
            words = each.get(field)
            _require(
                words is None or isinstance(words, list), where, f"{path}.{field}", words, "a list of text"
            )
            for index, word in enumerate(words or []):
                _require(isinstance(word, str), where, f"{path}.{field}[{index}]", word, "text; quote it")
        _environment(where, f"{path}.env", each.get("env"))


def _environment(where: str, path: str, found: Any) -> None:
    _require(found is None or isinstance(found, list), where, path, found, "a list of variables")
    for index, variable in enumerate(found or []):
        here = f"{path}[{index}]"
        _require(isinstance(variable, dict), where, here, variable, "a mapping with a name")
        name, value = variable.get("name"), variable.get("value")
        _require(isinstance(name, str), where, f"{here}.name", name, "text")
        _require(
            value is None or isinstance(value, str), where, f"{path}[{name}].value", value, "text; quote it"
        )

"""One request to the Kubernetes API: its path, how long it may take, and what its failure means.

Objects are dicts, as YAML and JSON have them: a field that the library's models do not know yet is not lost.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import urllib3
from kubernetes.client import ApiClient, ApiException
from kubernetes.dynamic import DynamicClient

from jaxport.cluster import answered, refusals
from jaxport.cluster.errors import NotThere, Unreachable
from jaxport.cluster.shape import Object

FIELD_MANAGER = "jaxport"


@dataclass(frozen=True)
class Limits:
    """Seconds. connect, read: of any request. watch: after which a watch is ended and asked for anew, so that a
    connection that has died silently is noticed. silence: of a log, after which it is asked for anew."""

    connect: float = 10
    read: float = 30
    watch: int = 50
    silence: float = 60


class Api:
    """A cluster's API, by path. Every method raises what `refusals.explained` makes of a failure."""

    def __init__(self, client: ApiClient, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self.host: str = client.configuration.host
        # Only for its requests: what kinds there are is asked for where it is needed, not at every start.
        self._client = DynamicClient(client, discoverer=lambda *_: None)
        self._kinds: dict[str, list[Object]] = {}

    def get(self, path: str, **query: str) -> Object:
        return self._object(path, self._json("get", path, query))

    def listing(self, path: str, **query: str) -> tuple[list[Object], str]:
        """The objects that there are, and the version from which to watch what changes."""
        found = self._held(path, answered.LISTING, self._json("get", path, query))
        # An API that is written in Go says null of a list without items.
        return [self._object(path, each) for each in found.get("items", [])], found["metadata"][
            "resourceVersion"
        ]

    def text(self, path: str, **query: str) -> str:
        return self._data("get", path, query)[1].decode(errors="replace")

    def create(self, path: str, body: Object) -> Object:
        return self._object(path, self._json("post", path, {"fieldManager": FIELD_MANAGER}, body=body))

    def apply(self, path: str, body: Object, force: bool = False) -> bool:
        """Server-side apply: what others own stays theirs. True where the object was not there before."""
        query = {"fieldManager": FIELD_MANAGER, "force": json.dumps(force)}
        status, _ = self._data("patch", path, query, body=body, content_type="application/apply-patch+yaml")
        return status == 201

    def delete(self, path: str, uid: str) -> None:
        """With what belongs to it first; `uid` so that a later object of the same name is left alone."""
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Foreground",
                "preconditions": {"uid": uid}}  # fmt: skip
        self._data("delete", path, {}, body=body)

    def watch(self, path: str, version: str, **query: str) -> Iterator[tuple[str, Object]]:
        """What changes after `version`: (ADDED, MODIFIED, DELETED or BOOKMARK, the object). Ends by itself.

        Raises Expired where `version` is too old.
        """
        asked = query | {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(self.limits.watch),
        }
        for line in self.lines(path, asked, self.limits.watch + self.limits.read):
            event = self._held(path, answered.EVENT, self._parsed(path, line))
            kind, each = event["type"], event["object"]
            if kind == "ERROR":
                raise refusals.of_status(each, f"watch {path}")
            if kind == "BOOKMARK":
                yield kind, self._held(path, answered.BOOKMARK, each)
            elif kind in ("ADDED", "MODIFIED", "DELETED"):
                yield kind, self._object(path, each)
            else:
                raise self._foreign(path, line)

    def lines(self, path: str, query: Mapping[str, str], silence: float) -> Iterator[str]:
        """The lines of an answer as they come; raises Unreachable after `silence` seconds without one."""
        response = None
        try:
            response = self._send("get", path, query, silence)
            self._require_text(path, response)
            rest = b""
            for chunk in response.stream(1 << 16):
                *whole, rest = (rest + chunk).split(b"\n")
                for line in whole:
                    yield line.decode(errors="replace")
            if rest:
                yield rest.decode(errors="replace")
        except urllib3.exceptions.HTTPError as error:
            raise refusals.explained(error, self.host, f"get {path}") from error
        finally:
            if response is not None:
                # Not back to the pool: what is left of the answer would be taken for the next one's.
                response.close()

    def path_of(self, each: Object, name: bool = True) -> str:
        """Where an object lives, by the cluster's own account of its kinds; without `name`, where its kind does.

        Raises NotThere: the cluster does not know the kind.
        """
        version, kind = each["apiVersion"], each["kind"]
        base = f"/apis/{version}" if "/" in version else f"/api/{version}"
        if version not in self._kinds:
            self._kinds[version] = self._known(base)
        for known in self._kinds[version]:
            if known["kind"] == kind and "/" not in known["name"]:
                break
        else:
            raise NotThere(
                f"{kind} {each['metadata']['name']}: the cluster knows no kind {kind} in {version}; "
                "install what brings it, or leave the object out"
            )
        where = base
        if known["namespaced"]:
            where += f"/namespaces/{each['metadata'].get('namespace', 'default')}"
        return f"{where}/{known['name']}" + (f"/{each['metadata']['name']}" if name else "")

    def _known(self, base: str) -> list[Object]:
        """The kinds of a version; none where the cluster does not know it."""
        try:
            found = self._json("get", base, {})
        except NotThere:
            return []
        return self._held(base, answered.KINDS, found)["resources"]

    def _json(self, method: str, path: str, query: Mapping[str, str], body: Object | None = None) -> Object:
        return self._parsed(path, self._data(method, path, query, body=body)[1])

    def _parsed(self, path: str, data: bytes | str) -> Object:
        try:
            found = answered.parsed(data)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise self._foreign(path, data)
        return found

    def _object(self, path: str, found: Object) -> Object:
        """`found`, as an object of this path has to be."""
        return self._held(path, answered.shape_of(path), found)

    def _held(self, path: str, shape: answered.Shape, found: Object) -> Object:
        try:
            return answered.held(shape, found)
        except answered.NotAsAgreed as error:
            raise self._foreign(path, found, f" ({error})") from None

    def _require_text(self, path: str, response: Any) -> None:
        """A log is plain text, a watch JSON; a page comes from somebody else."""
        kind = (response.headers.get("Content-Type") or "text/plain").partition(";")[0].strip().lower()
        if kind not in ("text/plain", "application/json"):
            raise self._foreign(path, f"a document of the type {kind}")

    def _foreign(self, path: str, found: Any, why: str = "") -> Unreachable:
        """Something on the way has answered, or the answer was cut: asked again, it may be another."""
        said = found.decode(errors="replace") if isinstance(found, bytes) else str(found)
        return Unreachable(
            f"{self.host}{path}: the answer is no object of Kubernetes but {said[:60]!r}{why}; "
            "is it a Kubernetes API, and does nothing on the way (a proxy, a login page) answer in its place?"
        )

    def _data(self, method: str, path: str, query: Mapping[str, str], **more: Any) -> tuple[int, bytes]:
        try:
            response = self._send(method, path, query, self.limits.read, **more)
            data = response.data
        except urllib3.exceptions.HTTPError as error:
            raise refusals.explained(error, self.host, f"{method} {path}") from error
        self._require_text(path, response)
        return response.status, data

    def _send(self, method: str, path: str, query: Mapping[str, str], read: float, **more: Any) -> Any:
        try:
            return self._client.request(
                method,
                path,
                query_params=list(query.items()),
                header_params={},
                path_params={},
                serialize=False,
                _request_timeout=(self.limits.connect, read),
                **more,
            )
        except (ApiException, urllib3.exceptions.HTTPError, OSError) as error:
            if isinstance(error, ApiException) and error.status == 404 and refusals.is_of_another(error):
                raise self._foreign(path, error.body) from error
            raise refusals.explained(error, self.host, f"{method} {path}") from error


def namespaced(namespace: str, plural: str, group: str = "", name: str = "") -> str:
    """/apis/batch/v1/namespaces/jaxport/jobs/..."""
    base = f"/apis/{group}" if group else "/api/v1"
    return f"{base}/namespaces/{namespace}/{plural}" + (f"/{name}" if name else "")


def jobs(namespace: str, name: str = "") -> str:
    return namespaced(namespace, "jobs", "batch/v1", name)


def pods(namespace: str, name: str = "") -> str:
    return namespaced(namespace, "pods", name=name)

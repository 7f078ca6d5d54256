"""A Kubernetes API over HTTP, as far as the launcher asks it: objects, watches, logs, and every way to say no.

What it knows of Kubernetes is written down from its documents, not taken from a cluster: uids, resourceVersions, defaults
and labels of a Job, foreground deletion, Status objects, the words of its refusals. What it holds is in fake_storage, what
changes in fake_watch, what Jobs do in fake_jobs, and what goes wrong in fake_faults.
"""

import datetime
import json
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.deploy.schemas import problems
from tests.jaxport.cluster.fake_faults import Faults, verbs
from tests.jaxport.cluster.fake_jobs import Controlled, JobScript, Log
from tests.jaxport.cluster.fake_storage import matches, merge
from tests.jaxport.cluster.fake_watch import TICK, TooOld

__all__ = ["FakeCluster", "JobScript", "eventually"]

Object = dict[str, Any]
VERSION = "1.33"  # whose schemas objects are held to
KINDS = {
    "v1": {"Namespace": "namespaces", "ServiceAccount": "serviceaccounts", "ConfigMap": "configmaps", "Pod": "pods",
           "PersistentVolumeClaim": "persistentvolumeclaims", "Service": "services", "Event": "events"},
    "batch/v1": {"Job": "jobs"},
    "apps/v1": {"Deployment": "deployments"},
    "policy/v1": {"PodDisruptionBudget": "poddisruptionbudgets"},
    "autoscaling/v2": {"HorizontalPodAutoscaler": "horizontalpodautoscalers"},
    "networking.k8s.io/v1": {"NetworkPolicy": "networkpolicies"},
    "storage.k8s.io/v1": {"StorageClass": "storageclasses"},
    "scheduling.k8s.io/v1": {"PriorityClass": "priorityclasses"},
    "apiregistration.k8s.io/v1": {"APIService": "apiservices"},
    "rbac.authorization.k8s.io/v1": {"Role": "roles", "RoleBinding": "rolebindings", "ClusterRole": "clusterroles",
                                     "ClusterRoleBinding": "clusterrolebindings"},
}  # fmt: skip
CLUSTER_WIDE = (
    "Namespace",
    "StorageClass",
    "PriorityClass",
    "APIService",
    "ClusterRole",
    "ClusterRoleBinding",
)
PLURALS = {plural for kinds in KINDS.values() for plural in kinds.values()}


def eventually(holds: Callable[[], object]) -> None:
    """Waits for it, and fails after a while that no machine needs."""
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end
        time.sleep(TICK)


class FakeCluster(Controlled, Faults):
    """Its API is at `url` until `close`."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        Controlled.__init__(self)
        Faults.__init__(self)
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self.sent: list[Object] = []  # bodies of what was to be created or applied
        self.tokens: set[str] = set()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"cluster": self}))
        self._server.daemon_threads = True
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self.port: int = self._server.server_address[1]
        self.url = f"{'http' if tls is None else 'https'}://127.0.0.1:{self.port}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self.down = True
        self._server.shutdown()
        self._server.server_close()

    def seen(self, method: str, path: str) -> list[dict[str, str]]:
        """The queries of the requests that match."""
        return [query for verb, where, query in self.requests if verb == method and re.search(path, where)]

    def watching(self, plural: str) -> bool:
        """Somebody has listed them, and waits for what changes."""
        return any("watch" in query for query in self.seen("GET", f"/{plural}$"))


def _status(code: int, message: str) -> Object:
    return {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": message}


class _Cut(Exception):
    """The connection breaks here."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    cluster: FakeCluster

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except (_Cut, OSError):
            self.close_connection = True

    def do_GET(self) -> None:
        self._answer()

    do_POST = do_PATCH = do_DELETE = do_GET

    def _answer(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else {}
        url = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        cluster, method, path = self.cluster, self.command, url.path
        cluster.requests.append((method, path, query))
        if method in ("POST", "PATCH"):
            cluster.sent.append(body)
        cluster.tokens.add(self.headers.get("Authorization", ""))
        time.sleep(cluster.delay)
        self._stay_up()
        if refusal := cluster.refused(method, path):
            return self._json(refusal.status, _status(refusal.status, refusal.message))
        if foreign := cluster.in_its_place(method, path, query):
            return self._send(200, foreign.data, foreign.content_type)
        if found := re.fullmatch(r"/apis?/([^/]+(?:/[^/]+)?)", path):
            return self._kinds(found[1])
        for verb in verbs(method, path, query, there=path in cluster.objects):
            if said := cluster.forbidden(verb, path):
                return self._json(403, _status(403, said))
        if path.endswith("/log"):
            return self._log(path.split("/")[-2], query)
        return {"GET": self._get, "POST": self._post, "PATCH": self._patch, "DELETE": self._delete}[method](
            path, query, body
        )

    def _stay_up(self) -> None:
        if self.cluster.down:
            self.cluster.broken.append(urlsplit(self.path).path)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            self.connection.close()
            raise _Cut

    def _kinds(self, version: str) -> None:
        if version not in KINDS:
            return self._json(404, _status(404, "the server could not find the requested resource"))
        known = KINDS[version]
        resources = [{"name": p, "kind": k, "namespaced": k not in CLUSTER_WIDE} for k, p in known.items()]
        resources.append({"name": "jobs/status", "kind": "Job", "namespaced": True})
        return self._json(200, {"kind": "APIResourceList", "groupVersion": version, "resources": resources})

    def _get(self, path: str, query: Mapping[str, str], _: Object) -> None:
        cluster = self.cluster
        if path.rpartition("/")[2] in PLURALS:
            if query.get("watch") == "true":
                return self._watch(path, query)
            found = cluster.listed(path, query)
            return self._json(
                200, found | {"items": [cluster.rewritten(path, each) for each in found["items"]]}
            )
        if path not in cluster.objects:
            return self._missing(path)
        return self._object(200, path, cluster.objects[path])

    def _object(self, status: int, path: str, each: Object) -> None:
        self._json(status, self.cluster.rewritten(path.rpartition("/")[0], each))

    def _watch(self, path: str, query: Mapping[str, str]) -> None:
        if not query["resourceVersion"].isdigit():
            return self._json(400, _status(400, f"Invalid value: {query['resourceVersion']!r}"))
        return self._stream(json.dumps(each).encode() + b"\n" for each in self._events(path, query))

    def _events(self, path: str, query: Mapping[str, str]) -> Iterator[Object]:
        cluster, end = self.cluster, time.monotonic() + float(query["timeoutSeconds"])
        try:
            for kind, each in cluster.changes(
                path, int(query["resourceVersion"]), lambda: time.monotonic() < end and not cluster.down
            ):
                if matches(each, query.get("labelSelector", "")) and not path.endswith(cluster.silent):
                    yield {"type": kind, "object": cluster.rewritten(path, each)}
        except TooOld:
            yield {"type": "ERROR", "object": _status(410, "too old resource version")}

    def _missing(self, path: str) -> None:
        plural, name = path.split("/")[-2:]
        return self._json(404, _status(404, f'{plural} "{name}" not found'))

    def _no_namespace(self, path: str) -> bool:
        found = re.search(r"/namespaces/([^/]+)/", path)
        if found and f"/api/v1/namespaces/{found[1]}" not in self.cluster.objects:
            self._json(404, _status(404, f'namespaces "{found[1]}" not found'))
            return True
        return False

    def _unfit(self, body: Object) -> bool:
        found = list(problems(body, VERSION))
        if found:
            self._json(
                422, _status(422, f'{body["kind"]} "{body["metadata"]["name"]}" is invalid: {found[0]}')
            )
        return bool(found)

    def _post(self, path: str, query: Mapping[str, str], body: Object) -> None:
        name = body["metadata"]["name"]
        if self._no_namespace(path + "/") or self._unfit(body):
            return None
        if f"{path}/{name}" in self.cluster.objects:
            return self._json(409, _status(409, f'{path.rpartition("/")[2]} "{name}" already exists'))
        return self._object(201, f"{path}/{name}", self.cluster.create(path, body))

    def _patch(self, path: str, query: Mapping[str, str], body: Object) -> None:
        if self.headers["Content-Type"] != "application/apply-patch+yaml" or not query.get("fieldManager"):
            return self._json(415, _status(415, "no server-side apply"))
        if self._no_namespace(path) or self._unfit(body):
            return None
        cluster, there = self.cluster, self.cluster.objects.get(path)
        if there is None:
            return self._json(201, cluster.create(path.rpartition("/")[0], body))
        said = cluster.conflict(path, body)
        if said and query.get("force") != "true":
            return self._json(409, _status(409, said))
        cluster.modify(path, lambda each: merge(each, body))
        return self._json(200, cluster.objects[path])

    def _delete(self, path: str, query: Mapping[str, str], body: Object) -> None:
        there = self.cluster.objects.get(path)
        if there is None:
            return self._missing(path)
        if body.get("preconditions", {}).get("uid", there["metadata"]["uid"]) != there["metadata"]["uid"]:
            return self._json(409, _status(409, "the UID in the precondition does not match"))
        if body.get("propagationPolicy") != "Foreground":
            return self._json(400, _status(400, "the tests ask for foreground"))
        self.cluster.delete(path)
        return self._json(200, self.cluster.objects.get(path, {}))

    def _log(self, pod: str, query: Mapping[str, str]) -> None:
        log = self.cluster.logs.get(pod)
        if log is None or not any(path.endswith(f"/pods/{pod}") for path in self.cluster.objects):
            return self._json(404, _status(404, f'pods "{pod}" not found'))
        return self._stream(self._log_lines(log, query))

    def _log_lines(self, log: Log, query: Mapping[str, str]) -> Iterator[bytes]:
        at = max(0, len(log.lines) - int(query.get("tailLines", len(log.lines))))
        since = 0
        if "sinceTime" in query:
            since = int(datetime.datetime.fromisoformat(query["sinceTime"]).timestamp()) * 10**9
        cut = (
            self.cluster.cut_logs_after.pop(0) if self.cluster.cut_logs_after and "follow" in query else None
        )
        sent = 0
        while True:
            ended = log.ended
            for nanos, line in log.lines[at:]:
                at += 1
                if nanos < since:
                    continue
                if sent == cut:
                    raise _Cut
                sent += 1
                stamp = datetime.datetime.fromtimestamp(nanos // 10**9, datetime.UTC).strftime(
                    "%Y-%m-%dT%H:%M:%S"
                )
                prefix = f"{stamp}.{nanos % 10**9:09d}Z " if query.get("timestamps") == "true" else ""
                yield f"{prefix}{line}\n".encode()
            if ended or query.get("follow") != "true":
                return
            time.sleep(TICK)

    def _json(self, status: int, body: Object) -> None:
        self._send(status, json.dumps(body).encode(), "application/json")

    def _send(self, status: int, data: bytes, content_type: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _stream(self, parts: Iterator[bytes]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.flush()
        for part in parts:
            self._stay_up()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
            self.wfile.flush()
        self._stay_up()
        self.wfile.write(b"0\r\n\r\n")

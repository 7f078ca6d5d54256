"""A Kubernetes API over HTTP, as far as the launcher asks it: objects, watches, logs, and every way to say no.

What it knows of Kubernetes is written down from its documents, not taken from a cluster: uids, resourceVersions, defaults
and labels of a Job, foreground deletion, Status objects, the words of its refusals.
"""

import copy
import datetime
import json
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.deploy.schemas import problems

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
}  # fmt: skip
TICK = 0.02


def now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def eventually(holds: Callable[[], object]) -> None:
    """Waits for it, and fails after a while that no machine needs."""
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end
        time.sleep(TICK)


@dataclass
class Log:
    """Lines with the nanosecond at which each was written."""

    lines: list[tuple[int, str]] = field(default_factory=list)
    ended: bool = False


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


class FakeCluster:
    """Its API is at `url` until `close`."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.changed = threading.Condition()
        self.objects: dict[str, Object] = {}
        self.logs: dict[str, Log] = {}
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self.sent: list[Object] = []  # bodies of what was to be created or applied
        self.tokens: set[str] = set()
        self.refusals: list[Refusal] = []
        self.foreign: list[Foreign] = []
        # Field -> who has set it: what server-side apply then refuses to change.
        self.owners: dict[tuple[str, str], str] = {}
        self.down = False
        self.silent = "nothing"  # watches of such collections tell nothing
        self.delay = 0.0
        self.broken: list[str] = []  # paths of requests that broke while it was down
        self.cut_logs_after: list[int] = []
        self.oldest = 0
        self.scripts: dict[str, Callable[[JobScript], None]] = {}
        self.failures: list[BaseException] = []
        self._version = 0
        self._history: list[tuple[int, str, str, Object]] = []
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

    # What tests say.

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

    def forget_history(self) -> None:
        """Every version before now has expired."""
        with self.changed:
            self.oldest = self._version

    def seen(self, method: str, path: str) -> list[dict[str, str]]:
        """The queries of the requests that match."""
        return [query for verb, where, query in self.requests if verb == method and re.search(path, where)]

    def watching(self, plural: str) -> bool:
        """Somebody has listed them, and waits for what changes."""
        return any("watch" in query for query in self.seen("GET", f"/{plural}$"))

    def of_kind(self, plural: str) -> list[Object]:
        return [each for path, each in self.objects.items() if f"/{plural}/" in path]

    def job(self, name: str, namespace: str = "jaxport") -> Object:
        return self.objects[f"/apis/batch/v1/namespaces/{namespace}/jobs/{name}"]

    # What happens.

    def store(self, path: str, each: Object, kind: str) -> Object:
        with self.changed:
            self._version += 1
            each["metadata"]["resourceVersion"] = str(self._version)
            if kind == "DELETED":
                self.objects.pop(path, None)
            else:
                self.objects[path] = each
            self._history.append((self._version, kind, path.rpartition("/")[0], copy.deepcopy(each)))
            self.changed.notify_all()
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
        each["metadata"] |= {"uid": f"uid-{self._version + 1}-{meta['name']}", "creationTimestamp": now()}
        if each["kind"] == "Job":
            _default_job(each)
        stored = self.store(f"{path}/{meta['name']}", each, "ADDED")
        script = self.scripts.get(meta["name"]) if each["kind"] == "Job" else None
        if script is not None:
            threading.Thread(target=self._play, args=(script, JobScript(self, stored)), daemon=True).start()
        return stored

    def _play(self, script: "Callable[[JobScript], None]", job: "JobScript") -> None:
        try:
            script(job)
        except BaseException as error:
            self.failures.append(error)

    def delete(self, path: str) -> None:
        each = self.objects[path]
        if "deletionTimestamp" in each["metadata"]:
            return
        if each["kind"] != "Job":
            self.store(path, copy.deepcopy(each), "DELETED")
            return
        self.modify(
            path,
            lambda job: job["metadata"].update(deletionTimestamp=now(), finalizers=["foregroundDeletion"]),
        )
        threading.Thread(
            target=self._play, args=(lambda job: job.stop(), JobScript(self, each)), daemon=True
        ).start()

    def watched(self, collection: str, version: int, selector: str, until: float) -> Iterator[Object]:
        if version < self.oldest:
            yield {"type": "ERROR", "object": _status(410, "too old resource version")}
            return
        at = 0
        while time.monotonic() < until and not self.down:
            with self.changed:
                if at >= len(self._history):
                    self.changed.wait(TICK)
                new = self._history[at:]
                at += len(new)
            for changed_at, kind, where, each in () if collection.endswith(self.silent) else new:
                if changed_at > version and where == collection and matches(each, selector):
                    yield {"type": kind, "object": each}


class JobScript:
    """What the Job controller and kubelet would do to a Job, one step at a time."""

    def __init__(self, cluster: FakeCluster, job: Object) -> None:
        self.cluster = cluster
        self.name, self.uid = job["metadata"]["name"], job["metadata"]["uid"]
        self.namespace = job["metadata"]["namespace"]
        self.path = f"/apis/batch/v1/namespaces/{self.namespace}/jobs/{self.name}"
        self.template = job["spec"]["template"]
        self.container = self.template["spec"]["containers"][0]["name"]
        self._made = 0

    @property
    def pods(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods"

    def pod(self, index: int = 0, running: bool = True) -> str:
        """A pod of the Job; its name."""
        self._made += 1
        name = f"{self.name}-{index}-{self._made:05d}"
        meta = {
            "name": name,
            "namespace": self.namespace,
            "labels": dict(self.template["metadata"]["labels"]),
            "annotations": {"batch.kubernetes.io/job-completion-index": str(index)},
            "ownerReferences": [
                {"apiVersion": "batch/v1", "kind": "Job", "name": self.name, "uid": self.uid}
            ],
        }
        self.cluster.logs[name] = Log()
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": meta,
            "spec": copy.deepcopy(self.template["spec"]),
        }
        self.cluster.create(self.pods, body | {"status": {"phase": "Pending"}})
        self.status(lambda status: status.update(active=status.get("active", 0) + 1))
        if running:
            self.runs(name)
        return name

    def change(self, pod: str, change: Callable[[Object], None]) -> None:
        self.cluster.modify(f"{self.pods}/{pod}", change)

    def unschedulable(self, pod: str, message: str) -> None:
        found = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
        self.change(pod, lambda each: each["status"].update(conditions=[found]))

    def runs(self, pod: str) -> None:
        state = {"running": {"startedAt": now()}}
        self.change(pod, lambda each: each.update(status=_pod_status("Running", self.container, state)))

    def log(self, pod: str, *lines: str) -> None:
        log = self.cluster.logs[pod]
        for line in lines:
            at = max(time.time_ns(), log.lines[-1][0] + 1 if log.lines else 0)
            log.lines.append((at, line))

    def ends(self, pod: str, code: int, disrupted: bool = False, reason: str = "") -> None:
        """Its container exits."""
        self.cluster.logs[pod].ended = True
        phase = "Failed" if code else "Succeeded"
        reason = reason or ("Error" if code else "Completed")
        end = {"terminated": {"exitCode": code, "reason": reason, "finishedAt": now()}}
        status = _pod_status(phase, self.container, end)
        if disrupted:
            status["conditions"] = [
                {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
            ]
        self.change(pod, lambda each: each.update(status=status))

    def removes(self, pod: str) -> None:
        self.cluster.delete(f"{self.pods}/{pod}")

    def status(self, change: Callable[[Object], None]) -> None:
        self.cluster.modify(self.path, lambda job: change(job.setdefault("status", {})))

    def completes(self) -> None:
        self._condition("Complete", "", "")

    def fails(self, reason: str, message: str = "") -> None:
        self._condition("Failed", reason, message)

    def _condition(self, kind: str, reason: str, message: str) -> None:
        found = {"type": kind, "status": "True", "reason": reason, "message": message}
        self.status(lambda status: status.update(conditions=[found], active=0))

    def runs_through(self, *lines: str, code: int = 0, reason: str = "") -> None:
        """A pod says its lines and ends; so does the Job."""
        pod = self.pod()
        self.log(pod, *lines)
        self.ends(pod, code)
        if code:
            self.fails(reason or "PodFailurePolicy")
        else:
            self.completes()

    def stop(self) -> None:
        """A Job that is being deleted: its pods have SIGTERM, save, and go; then it goes."""
        own = [
            each["metadata"]["name"]
            for each in self.cluster.of_kind("pods")
            if each["metadata"]["ownerReferences"][0]["uid"] == self.uid
        ]
        time.sleep(0.05)
        for pod in own:
            if self.cluster.objects[f"{self.pods}/{pod}"]["status"]["phase"] == "Running":
                self.log(pod, "preempted: saved step 20 of 300; start again to go on")
                self.ends(pod, 75)
            self.removes(pod)
        self.cluster.store(self.path, copy.deepcopy(self.cluster.objects[self.path]), "DELETED")


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


def _pod_status(phase: str, container: str, state: Object) -> Object:
    status = {
        "name": container,
        "state": state,
        "restartCount": 0,
        "ready": False,
        "image": "",
        "imageID": "",
    }
    return {"phase": phase, "containerStatuses": [status]}


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
        for refusal in cluster.refusals:
            if refusal.times != 0 and refusal.method == method and refusal.path.search(path):
                refusal.times = refusal.times and refusal.times - 1
                return self._json(refusal.status, _status(refusal.status, refusal.message))
        for one in cluster.foreign:
            if (
                one.times != 0
                and method == "GET"
                and one.path.search(path)
                and one.watch == ("watch" in query)
            ):
                one.times = one.times and one.times - 1
                return self._send(200, one.data, one.content_type)
        if found := re.fullmatch(r"/apis?/([^/]+(?:/[^/]+)?)", path):
            return self._kinds(found[1])
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
        resources = [{"name": p, "kind": k, "namespaced": k != "Namespace"} for k, p in known.items()]
        resources.append({"name": "jobs/status", "kind": "Job", "namespaced": True})
        return self._json(200, {"kind": "APIResourceList", "groupVersion": version, "resources": resources})

    def _get(self, path: str, query: Mapping[str, str], _: Object) -> None:
        cluster = self.cluster
        if path.rpartition("/")[2] in {plural for kinds in KINDS.values() for plural in kinds.values()}:
            selector = query.get("labelSelector", "")
            if query.get("watch") == "true":
                until = time.monotonic() + float(query["timeoutSeconds"])
                found = cluster.watched(path, int(query["resourceVersion"]), selector, until)
                return self._stream(json.dumps(each).encode() + b"\n" for each in found)
            with cluster.changed:
                items = [
                    each
                    for where, each in cluster.objects.items()
                    if where.rpartition("/")[0] == path and matches(each, selector) and _selected(each, query)
                ]
                # As a real list has it: items do not say what they are.
                items = [{k: v for k, v in each.items() if k not in ("kind", "apiVersion")} for each in items]
                return self._json(
                    200, {"metadata": {"resourceVersion": str(cluster._version)}, "items": items}
                )
        if path not in cluster.objects:
            return self._missing(path)
        return self._json(200, cluster.objects[path])

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
        return self._json(201, self.cluster.create(path, body))

    def _patch(self, path: str, query: Mapping[str, str], body: Object) -> None:
        if self.headers["Content-Type"] != "application/apply-patch+yaml" or not query.get("fieldManager"):
            return self._json(415, _status(415, "no server-side apply"))
        if self._no_namespace(path) or self._unfit(body):
            return None
        cluster, there = self.cluster, self.cluster.objects.get(path)
        if there is None:
            return self._json(201, cluster.create(path.rpartition("/")[0], body))
        for (where, dotted), owner in cluster.owners.items():
            wanted, has = _value(body, dotted), _value(there, dotted)
            if where == path and wanted not in (None, has) and query.get("force") != "true":
                said = f'Apply failed with 1 conflict: conflict with "{owner}": .{dotted}'
                return self._json(409, _status(409, said))
        cluster.modify(path, lambda each: _merge(each, body))
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


def _selected(each: Object, query: Mapping[str, str]) -> bool:
    """fieldSelector, for events."""
    parts = [part.partition("=") for part in query.get("fieldSelector", "").split(",") if part]
    return all(_value(each, key) == value for key, _, value in parts)


def _value(each: Any, dotted: str) -> Any:
    for key in dotted.split("."):
        each = each.get(key) if isinstance(each, dict) else None
    return each


def _merge(there: Object, body: Object) -> None:
    for key, value in body.items():
        if isinstance(value, dict) and isinstance(there.get(key), dict):
            _merge(there[key], value)
        else:
            there[key] = copy.deepcopy(value)

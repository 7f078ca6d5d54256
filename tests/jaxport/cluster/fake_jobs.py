"""What the Job controller and kubelet do to the Jobs of the fake cluster, as a test tells them to."""

import copy
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.jaxport.cluster.fake_storage import Storage, now

Object = dict[str, Any]


@dataclass
class Log:
    """Lines with the nanosecond at which each was written."""

    lines: list[tuple[int, str]] = field(default_factory=list)
    ended: bool = False


class Controlled(Storage):
    """Objects, the logs of pods, and Jobs that go by a script."""

    def __init__(self) -> None:
        super().__init__()
        self.logs: dict[str, Log] = {}
        self.scripts: dict[str, Callable[[JobScript], None]] = {}
        self.failures: list[BaseException] = []

    def create(self, path: str, body: Object) -> Object:
        stored = super().create(path, body)
        script = self.scripts.get(body["metadata"]["name"]) if body["kind"] == "Job" else None
        if script is not None:
            self._play(script, stored)
        return stored

    def delete(self, path: str) -> None:
        """A Job goes after its pods."""
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
        self._play(JobScript.stop, each)

    def _play(self, script: "Callable[[JobScript], None]", job: Object) -> None:
        def play() -> None:
            try:
                script(JobScript(self, job))
            except BaseException as error:
                self.failures.append(error)

        threading.Thread(target=play, daemon=True).start()


class JobScript:
    """What the Job controller and kubelet would do to a Job, one step at a time."""

    def __init__(self, cluster: Controlled, job: Object) -> None:
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

"""Follows Jobs to their end: the logs of their pods as they come, what they wait for, and the exit code of it all."""

import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from jaxport.cluster import outcome
from jaxport.cluster.api import Api, Object, jobs, namespaced, pods
from jaxport.cluster.errors import ClientError, JobEnded
from jaxport.cluster.followed import FollowedJob, FollowedPod, FollowSettings
from jaxport.cluster.log_stream import follow_log
from jaxport.cluster.stages import JOBS, STAGES, named, namespace_of
from jaxport.cluster.watching import Listed, Lost, Patience, Seen, Trouble, watch


@dataclass(frozen=True)
class _Line:
    pod: str
    text: str


@dataclass(frozen=True)
class _LogEnded:
    pod: str
    error: ClientError | None = None


_Message = Seen | Listed | Trouble | Lost | _Line | _LogEnded


class Follow:
    """Of Jobs of one namespace. out: a line of a log. note: of what happens, for people."""

    def __init__(
        self,
        api: Api,
        followed: Sequence[Object],
        settings: FollowSettings,
        out: Callable[[str], None],
        note: Callable[[str], None],
    ) -> None:
        self._api, self._settings, self._out, self._note = api, settings, out, note
        self._namespace = namespace_of(followed[0])
        self._jobs = {outcome.uid_of(each): FollowedJob(each) for each in followed}
        self._stop = threading.Event()
        # Bounded: a terminal that is slower than a log slows the log.
        self._inbox: queue.Queue[_Message] = queue.Queue(1000)
        self._listed = False

    def run(self) -> None:
        """Until every Job is over, or one on which the rest waits has failed.

        Raises:
            JobEnded: of the first that is not complete. Unreachable, Forbidden: it cannot be followed any further.
        """
        selectors = {jobs(self._namespace): STAGES, pods(self._namespace): self._selector()}
        for path, selector in selectors.items():
            patience = Patience(self._settings.patience)
            self._thread(partial(watch, self._api, path, selector, self._tell, patience, self._stop))
        try:
            while not self._over():
                self._take()
                for job in self._jobs.values():
                    self._attend(job)
        finally:
            self._stop.set()
        self._judge()

    def _selector(self) -> str:
        names = ",".join(sorted(each.each["metadata"]["name"] for each in self._jobs.values()))
        return f"batch.kubernetes.io/job-name in ({names})"

    def _thread(self, work: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=self._told, args=(work,), daemon=True)
        thread.start()
        return thread

    def _told(self, work: Callable[[], None]) -> None:
        """A thread that ended without a word would be waited for without an end: a fault of ours is raised by `run`."""
        try:
            work()
        except Exception as error:
            self._tell(Lost(error))

    def _tell(self, message: _Message) -> None:
        while not self._stop.is_set():
            try:
                self._inbox.put(message, timeout=0.2)
                return
            except queue.Full:
                continue

    def _take(self) -> None:
        """All that has come, or a moment's wait."""
        try:
            message = self._inbox.get(timeout=0.2)
            while True:
                self._handle(message)
                message = self._inbox.get_nowait()
        except queue.Empty:
            return

    def _handle(self, message: _Message) -> None:
        match message:
            case Seen(each, gone):
                self._seen(each, gone)
            case Listed("jobs", uids):
                for uid in self._jobs.keys() - uids:
                    self._jobs[uid].gone = True
            case Listed(_, uids):
                self._listed = True
                for job in self._jobs.values():
                    for uid in job.pods.keys() - uids:
                        job.pods[uid].gone = True
            case _Line(uid, text):
                self._line(uid, text)
            case _LogEnded(uid, error):
                if error is not None:
                    raise error
                self._pod(uid).read = True
            case Trouble(text):
                self._note(text)
            case Lost(error):
                raise error

    def _seen(self, each: Object, gone: bool) -> None:
        uid = outcome.uid_of(each)
        if uid in self._jobs:
            # A list's items do not say what they are.
            self._jobs[uid].each = {"apiVersion": "batch/v1", "kind": "Job"} | each
            self._jobs[uid].gone = gone
            return
        job = self._jobs.get(outcome.job_uid_of(each))
        if job is not None:
            found = job.pods.setdefault(uid, FollowedPod(each))
            found.each, found.gone = each, found.gone or gone

    def _pod(self, uid: str) -> FollowedPod:
        return next(job.pods[uid] for job in self._jobs.values() if uid in job.pods)

    def _line(self, uid: str, text: str) -> None:
        job = next(job for job in self._jobs.values() if uid in job.pods)
        pod = job.pods[uid]
        job.moved_at = time.monotonic()
        if text.strip():
            pod.last = text.strip()
        names = [job.stage] * (len(self._jobs) > 1) + [pod.index] * job.several
        self._out(f"[{' '.join(names)}] {text}" if names else text)

    def _attend(self, job: FollowedJob) -> None:
        """Starts the logs that can be read, says what is waited for, and notices the end."""
        for uid, pod in job.pods.items():
            self._read(job, uid, pod)
            self._explain(job, pod)
        if not job.pods and self._listed and not job.done:
            self._ask_events(job)
        found = job.judged()
        if found is not None and job.over_at is None:
            job.over_at = time.monotonic()
            self._look_again(job)
        elif found is not None and not job.done and job.settled(self._settings):
            job.done, job.verdict = True, found
            if len(self._jobs) > 1 or not found.code:
                self._note(f"{named(job.each)} {'failed: ' * bool(found.code)}{found.text}")

    def _look_again(self, job: FollowedJob) -> None:
        """For pods whose end is on its way to us more slowly than the Job's."""
        selector = f"batch.kubernetes.io/job-name={job.each['metadata']['name']}"
        try:
            found, _ = self._api.listing(pods(self._namespace), labelSelector=selector)
        except ClientError:
            return  # the watches go on trying
        for each in found:
            self._seen(each, False)

    def _read(self, job: FollowedJob, uid: str, pod: FollowedPod) -> None:
        if pod.thread is not None or pod.read or not self._listed or not job.has_log(pod):
            return
        if job.passed(pod):
            pod.read = pod.told = True
        else:
            pod.thread = self._thread(partial(self._follow_log, job, uid, pod))

    def _follow_log(self, job: FollowedJob, uid: str, pod: FollowedPod) -> None:
        error = None
        try:
            follow_log(
                self._api,
                self._namespace,
                pod.name,
                job.container,
                lambda text: self._tell(_Line(uid, text)),
                lambda: job.ended(pod),
                self._stop,
                self._settings.tail,
            )
        except ClientError as found:
            error = found
        self._tell(_LogEnded(uid, error))

    def _explain(self, job: FollowedJob, pod: FollowedPod) -> None:
        name = pod.name
        waits = "" if pod.gone else outcome.waits_for(pod.each)
        if waits and waits != pod.waits:
            self._note(f"{name} waits: {waits}")
        pod.waits = waits
        if pod.told or not (outcome.finished(pod.each) or pod.gone) or (pod.thread and not pod.read):
            return
        pod.told = True
        end = outcome.ended(pod.each, job.container)
        said = f"exit code {end.code}" if end else "gone before its exit code was seen"
        if outcome.preempted(pod.each, job.container):
            self._note(f"{name} preempted ({said}); the Job starts another, which goes on from what is saved")
        elif outcome.phase_of(pod.each) == "Failed":
            self._note(f"{name} failed ({said})")

    def _ask_events(self, job: FollowedJob) -> None:
        """Why there is no pod: a quota, a missing ServiceAccount. Whoever may not read events goes without."""
        if time.monotonic() - job.asked_at < self._settings.quiet:
            return
        job.asked_at = time.monotonic()
        if job.each["spec"].get("suspend"):
            self._say_once(job, "it is suspended: a queue holds it back")
        selector = f"involvedObject.uid={outcome.uid_of(job.each)},type=Warning"
        try:
            found, _ = self._api.listing(namespaced(self._namespace, "events"), fieldSelector=selector)
        except ClientError:
            return
        for event in found:
            self._say_once(job, " ".join(str(event.get("message")).split()))

    def _say_once(self, job: FollowedJob, text: str) -> None:
        if text not in job.said:
            job.said.add(text)
            self._note(f"{named(job.each)} waits: {text}")

    def _over(self) -> bool:
        """Stages wait for the ones before them: nothing comes of the rest when one has failed."""
        for job in sorted(self._jobs.values(), key=lambda each: JOBS.index(each.stage)):
            if not job.done:
                return False
            if job.verdict is not None and job.verdict.code:
                return True
        return True

    def _judge(self) -> None:
        for job in sorted(self._jobs.values(), key=lambda each: JOBS.index(each.stage)):
            found = job.verdict
            if found is None or not found.code:
                continue
            pod = next((p for p in job.pods.values() if p.name == found.pod), None)
            raise JobEnded(outcome.failed_as(job.each, found, pod.last if pod else ""), found.code)

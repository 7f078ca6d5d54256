"""An API, or what is on the way to it, that says of a field what it cannot be: a line, or on it goes; never a traceback.

Each field of the objects that the fake has is replaced in turn. All of them, by all commands, would be some 20,000 runs:
here are the fields that anything reads with every replacement, and of the rest a sample by a seed.
"""

import copy
import json
import random
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from jaxport.cluster import answered
from jaxport.cluster.difference import RECORD, differences
from jaxport.cluster.log_stream import Position
from jaxport.cluster.progress import Progress, read_progress
from tests.deploy.objects import Object, plain
from tests.jaxport.cluster.conftest import Done, Run
from tests.jaxport.cluster.fake_api import FakeCluster, JobScript, eventually

MISSING = object()
NONSENSE: dict[str, Any] = {
    "null": None, "text": "nonsense", "no text": "", "half a character": "\ud800", "list": [], "list of lists": [[]],
    "mapping": {}, "number": 7, "negative": -1.5, "huge": 10**30, "infinite": float("inf"), "flag": True, "missing": MISSING,
}  # fmt: skip
COLLECTIONS = ("jobs", "pods", "deployments", "events")
Place = tuple[str | int, ...]


def places(value: Any, at: Place = ()) -> Iterator[Place]:
    """Of every field and item, at any depth."""
    for key, below in (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    ):
        yield (*at, key)
        yield from places(below, (*at, key))


def with_nonsense(each: Any, place: Place, value: Any) -> Any:
    """A copy."""
    made = copy.deepcopy(each)
    inner = made
    for key in place[:-1]:
        inner = inner[key]
    if value is MISSING:
        del inner[place[-1]]
    else:
        inner[place[-1]] = value
    return made


def read(shape: Any, each: Any, at: Place = ()) -> Iterator[Place]:
    """The places of an object of which the launcher says what they have to be."""
    if isinstance(shape, dict) and isinstance(each, dict):
        for field, of in shape.items():
            names = list(each) if field == "*" else [field.removesuffix("!")]
            for name in names:
                if name in each:
                    yield (*at, name)
                    yield from read(of, each[name], (*at, name))
    elif isinstance(shape, list) and isinstance(each, list):
        for number, item in enumerate(each):
            yield (*at, number)
            yield from read(shape[0], item, (*at, number))


@pytest.fixture
def full(run: Run, with_all: FakeCluster) -> FakeCluster:
    """A training whose first pod was preempted and whose second failed; an export without a pod, of which an event says why;
    a server that waits."""

    def train(job: JobScript) -> None:
        first = job.pod()
        job.log(first, "step 20/300  train_loss 2.5  val_loss 2.6  lr 1e-3  1 tokens/s")
        job.ends(first, 75, disrupted=True)
        second = job.pod()
        job.log(second, "train: --steps: nonsense")
        job.ends(second, 2)
        job.fails("PodFailurePolicy", "a container failed")

    with_all.scripts["jaxport-train"] = train
    for stage in ("train", "export"):
        assert run("submit", stage, "--no-follow").code == 0
    eventually(lambda: with_all.job("jaxport-train")["status"].get("conditions"))
    deployment = next(each for each in plain() if each["kind"] == "Deployment")
    server = with_all.create("/apis/apps/v1/namespaces/jaxport/deployments", deployment)
    server["status"] = {"readyReplicas": 0}
    template = copy.deepcopy(deployment["spec"]["template"])
    waiting = {"waiting": {"reason": "ErrImagePull", "message": "not found"}}
    statuses = [{"name": "serve", "state": waiting, "restartCount": 1}]
    meta = template["metadata"] | {"name": "jaxport-serve-1"}
    condition = {"type": "PodScheduled", "status": "True", "reason": "", "message": ""}
    status = {
        "phase": "Pending",
        "conditions": [condition],
        "containerStatuses": statuses,
        "initContainerStatuses": statuses,
    }
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": template["spec"], "status": status}
    with_all.create("/api/v1/namespaces/jaxport/pods", pod)
    uid = with_all.job("jaxport-export")["metadata"]["uid"]
    event = {
        "kind": "Event",
        "metadata": {"name": "e"},
        "involvedObject": {"uid": uid},
        "type": "Warning",
        "message": "no quota",
    }
    with_all.create("/api/v1/namespaces/jaxport/events", event)
    return with_all


def as_sent(cluster: FakeCluster, plural: str) -> Object:
    """The fullest object of a collection."""
    return max(cluster.of_kind(plural), key=lambda each: len(json.dumps(each)))


Case = tuple[str, Place, str]


def of_read_fields(cluster: FakeCluster) -> list[Case]:
    return [
        (plural, place, name)
        for plural in COLLECTIONS
        for place in read(answered.OBJECTS[plural], as_sent(cluster, plural))
        for name in NONSENSE
    ]


def of_all_fields(cluster: FakeCluster) -> list[Case]:
    return [
        (plural, place, name)
        for plural in COLLECTIONS
        for each in cluster.of_kind(plural)
        for place in places(each)
        for name in NONSENSE
    ]


def rewriting(plural: str, place: Place, name: str) -> Callable[[str, Object], Any]:
    """Every object of the collection that has such a place."""

    def rewrite(path: str, each: Object) -> Any:
        if not path.endswith(f"/{plural}"):
            return each
        try:
            return with_nonsense(each, place, NONSENSE[name])
        except (KeyError, IndexError, TypeError):
            return each

    return rewrite


def fine(done: Done) -> bool:
    """It went on, or said in one line what is wrong."""
    return (
        "Traceback" not in done.err
        and (not done.err.count("error: ") or bool(done.error))
        and done.code in (0, 2, 3, 4, 75)
    )


def tried(run: Run, cluster: FakeCluster, cases: list[Case], *command: str) -> list[tuple[Case, Done]]:
    """Those in which a command was not fine."""
    bad = []
    for case in cases:
        cluster.rewrite = rewriting(*case)
        try:
            done = run(*command)
        except Exception as error:  # what main() lets through is what a person sees as a traceback
            done = Done(1, "", f"Traceback {error!r}")
        if not fine(done):
            bad.append((case, done))
    return bad


def sample(cases: list[Case], many: int) -> list[Case]:
    return random.Random(20260).sample(cases, min(many, len(cases)))


def test_status_says_what_is_wrong_or_goes_on(run: Run, full: FakeCluster) -> None:
    cases = sample(of_read_fields(full), 100) + sample(of_all_fields(full), 20)
    assert tried(run, full, cases, "status", "--json") == []


@pytest.mark.parametrize("command", [("logs", "train"), ("logs", "serve"), ("cancel", "export", "--wait"), ("submit", "train", "--no-follow"), ("submit", "train", "--replace", "--no-follow")], ids=" ".join)  # fmt: skip
def test_the_other_commands_do_as_well(
    run: Run, full: FakeCluster, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    full.delete = lambda path: None  # so that each has the same before it
    days = iter(range(0, 10**12, 10**5))
    # Pods that never go are waited for until the time is up, which is at once.
    clock = SimpleNamespace(monotonic=days.__next__, sleep=lambda _: None)
    monkeypatch.setattr("jaxport.cluster.apply.time", clock)
    cases = sample(of_read_fields(full), 25) + sample(of_all_fields(full), 5)
    assert tried(run, full, cases, *command) == []


def test_following_does_as_well(run: Run, full: FakeCluster) -> None:
    cases = sample([case for case in of_read_fields(full) if case[0] != "deployments"], 25)
    assert tried(run, full, cases, "logs", "train", "--follow", "--patience", "0") == []


def test_every_field_that_is_read_is_what_it_has_to_be_or_refused(full: FakeCluster) -> None:
    """All of them with every replacement, where they come in."""
    refused = 0
    for plural, place, name in of_read_fields(full):
        shape, each = answered.OBJECTS[plural], as_sent(full, plural)
        try:
            made = answered.held(shape, with_nonsense(each, place, NONSENSE[name]))
        except answered.NotAsAgreed as error:
            refused += 1
            assert "needed: " in str(error) and "\n" not in str(error)
        else:
            assert answered.held(shape, made) == made
            assert name not in ("list of lists", "infinite"), (plural, place)
    assert refused > 500
    for plural in COLLECTIONS:
        assert answered.held(answered.OBJECTS[plural], as_sent(full, plural)) == as_sent(full, plural)


ENVELOPES: dict[str, tuple[str, dict[str, Any]]] = {
    "a list": ("/jobs$", {"metadata": {"resourceVersion": "1"}, "items": []}),
    "the kinds": ("/apis/batch/v1$", {"resources": [{"name": "jobs", "kind": "Job", "namespaced": True}]}),
}


@pytest.mark.parametrize("envelope", ENVELOPES)
def test_what_is_around_the_objects_is_held_to_its_shape_too(
    run: Run, full: FakeCluster, envelope: str
) -> None:
    path, whole = ENVELOPES[envelope]
    command = ("status",) if envelope == "a list" else ("submit", "train", "--no-follow")
    for place in places(whole):
        for name, value in NONSENSE.items():
            full.foreign.clear()
            full.answer(path, json.dumps(with_nonsense(whole, place, value)).encode(), "application/json")
            assert fine(run(*command)), (place, name)


@pytest.mark.parametrize("message", [None, [], {}, 7, "\ud800"])
def test_a_refusal_that_says_nonsense_is_a_line(run: Run, full: FakeCluster, message: Any) -> None:
    for code in (400, 403, 404, 409):
        full.refusals.clear()
        full.refuse("GET", "/jobs$", code, message)
        assert run("status").error.encode()


@pytest.mark.parametrize(
    "record", ["", "[]", "7", '{"spec": 7}', '{"spec": {"template": "x"}}', "[" * 100_000, '{"spec": {"parallelism": "sNaN"}}',
               '{"spec": {"parallelism": "1e999999999Ki"}}'],
)  # fmt: skip
def test_a_record_that_is_none_makes_a_job_differ_or_not(full: FakeCluster, record: str) -> None:
    there, wanted = full.job("jaxport-train"), full.job("jaxport-export")
    assert differences(with_nonsense(there, ("metadata", "annotations", RECORD), record), wanted)


@pytest.mark.parametrize(
    "line", ["step 1/3  val_loss 1.2.3  x", f"step {'9' * 5000}/3  val_loss 1", "done: loss ... after 3 steps", "done: a -. after 1 steps",
             "step 1/2  val_loss .", f"saved step 3 of {'1' * 5000}"],
)  # fmt: skip
def test_a_line_of_a_log_that_only_looks_like_progress_is_none(line: str) -> None:
    found = read_progress([line])
    assert found.value is None and found in (Progress(), Progress(1, 3), Progress(1, 2))


@pytest.mark.parametrize("stamp", ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59-23:00", "2026-W01-1"])
def test_a_time_that_no_log_has_is_no_end_of_it(stamp: str) -> None:
    position = Position()
    assert position.new(f"{stamp} text") is not None
    position.since  # noqa: B018


def test_nonsense_would_be_seen(run: Run, full: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same, with nothing at the boundary."""
    monkeypatch.setattr(answered, "held", lambda _shape, found: found)
    cases = [
        ("jobs", ("status", "conditions"), "number"),
        ("jobs", ("metadata", "creationTimestamp"), "text"),
    ]
    assert [case for case, _ in tried(run, full, cases, "status")] == cases

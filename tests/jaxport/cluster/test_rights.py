"""The Roles of deploy/optional/launcher are what the commands need: no right is missing, none is for nothing."""

import re
from functools import partial

import pytest

from jaxport.cluster.followed import FollowSettings
from tests.deploy.objects import DEPLOY, parsed
from tests.jaxport.cluster.conftest import Run
from tests.jaxport.cluster.fake_api import FakeCluster, JobScript, eventually

Right = tuple[str, str, str]
VERBS = {"POST": "create", "PATCH": "patch", "DELETE": "delete"}
PATH = re.compile(
    r"/apis?/(?:(?P<group>[^/]+)/)?v[0-9a-z]+(?:/namespaces/[^/]+)?/(?P<resource>\w+)(?:/(?P<name>[^/]+)(?:/(?P<sub>\w+))?)?"
)


def asked(cluster: FakeCluster) -> set[Right]:
    """Verb, group and resource of every request but those for the kinds that there are, which all may make."""
    found = set()
    for method, path, query in cluster.requests:
        match = PATH.fullmatch(path)
        if not match:
            continue
        read = "watch" if "watch" in query else "get" if match["name"] else "list"
        resource = match["resource"] + (f"/{match['sub']}" if match["sub"] else "")
        found.add((VERBS.get(method, read), match["group"] or "", resource))
    return found


def granted(name: str) -> set[Right]:
    objects = parsed((DEPLOY / "optional" / "launcher" / "launcher.yaml").read_text())
    role = next(each for each in objects if each["kind"] == "Role" and each["metadata"]["name"] == name)
    return {
        (verb, group, resource)
        for rule in role["rules"]
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }


def test_the_role_of_the_launcher_is_what_it_asks_for(
    run: Run, with_all: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def script(job: JobScript) -> None:
        eventually(lambda: with_all.seen("GET", "/events$"))
        job.runs_through("done")

    monkeypatch.setattr("jaxport.cluster.following.FollowSettings", partial(FollowSettings, quiet=0.05))
    with_all.scripts["jaxport-train"] = script
    assert run("submit", "train", "--follow").code == 0
    assert run("status").code == 0
    assert run("logs", "train").code == 0
    assert run("cancel", "train", "--wait").code == 0
    assert asked(with_all) == granted("jaxport-launcher")


def test_all_needs_the_other_role_too(run: Run, cluster: FakeCluster) -> None:
    assert run("submit", "all", "--no-follow").code == 0
    # The namespace itself is no right within it; where it may not be made, it is taken to be there.
    assert asked(cluster) - granted("jaxport-launcher") - {("patch", "", "namespaces")} == {
        right for right in granted("jaxport-launcher-all") if right[0] == "patch"
    }, "applying what is not there yet takes the right to create it as well"

"""The Roles of deploy/optional/launcher are what the commands need: the fake grants what they say and refuses all else, no
right is missing, and none is for nothing."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import yaml

from jaxport.cluster.followed import FollowSettings
from tests.deploy.objects import DEPLOY, Object, outputs, parsed, plain
from tests.deploy.schemas import VERSIONS, problems
from tests.jaxport.cluster.conftest import Run
from tests.jaxport.cluster.fake_api import FakeCluster, JobScript, eventually
from tests.jaxport.cluster.fake_faults import Right, Rule, right, verbs

LAUNCHER = DEPLOY / "optional" / "launcher"
OVERLAYS = [name for name in outputs() if name == "deploy/" or name.startswith("overlays/")]


def rules(*files: str) -> list[Rule]:
    """What the ServiceAccount jaxport-launcher may do once these files are applied: Roles count if they are bound to it."""
    objects = [each for file in files for each in parsed((LAUNCHER / file).read_text())]
    return [
        Rule(
            verbs=frozenset(rule["verbs"]),
            groups=frozenset(rule["apiGroups"]),
            resources=frozenset(rule["resources"]),
            namespace=binding["metadata"].get("namespace"),
            names=frozenset(rule["resourceNames"]) if "resourceNames" in rule else None,
        )
        for binding in objects
        if {"kind": "ServiceAccount", "name": "jaxport-launcher", "namespace": "jaxport"}
        in binding.get("subjects", [])
        for role in objects
        if role["kind"] == binding["roleRef"]["kind"]
        and role["metadata"]["name"] == binding["roleRef"]["name"]
        for rule in role["rules"]
    ]


def granted(found: list[Rule]) -> set[tuple[str, str, str]]:
    return {
        (verb, group, resource)
        for rule in found
        for verb in rule.verbs
        for group in rule.groups
        for resource in rule.resources
    }


def asked(cluster: FakeCluster) -> set[Right]:
    """What every request needs, but for the questions what kinds there are, which all may ask."""
    found = {
        right(verb, path)
        for method, path, query in cluster.requests
        for verb in verbs(method, path, query, there=False)
    }
    return {each for each in found if each is not None}


@pytest.fixture
def everything(run: Run, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Every command in turn, as far as one Job of each stage takes them; `submit all` is not among them."""

    def script(job: JobScript) -> None:
        eventually(lambda: cluster.seen("GET", "/events$"))
        job.runs_through("done")

    monkeypatch.setattr("jaxport.cluster.following.FollowSettings", partial(FollowSettings, quiet=0.05))

    def go() -> None:
        cluster.create("/api/v1/namespaces", next(each for each in plain() if each["kind"] == "Namespace"))
        for stage in ("train", "export", "warm"):
            cluster.scripts[f"jaxport-{stage}"] = script
            assert run("submit", stage, "--follow").code == 0
            assert run("submit", stage, "--replace", "--no-follow").code == 0
            assert run("logs", stage).code == 0
        assert run("logs", "train", "--follow").code == 0
        assert run("status").code == 0
        assert run("logs", "serve").code == 2  # there is none
        assert run("cancel", "all", "--wait").code == 0

    return go


def test_the_launcher_does_everything_with_its_role_and_needs_all_of_it(
    everything: Callable[[], None], cluster: FakeCluster
) -> None:
    cluster.rules = rules("launcher.yaml")
    everything()
    assert {each.kind for each in asked(cluster)} == granted(cluster.rules)


@pytest.fixture
def overlay(tmp_path: Path) -> Callable[[str], str]:
    """The path of a file with what an overlay is built to."""

    def write(name: str) -> str:
        path = tmp_path / "overlay.yaml"
        path.write_text(yaml.safe_dump_all(outputs()[name]))
        return str(path)

    return write


def elsewhere(objects: list[Object]) -> Iterator[str]:
    """What is not in the stages' namespace and no class of a volume, as kind/name."""
    for each in objects:
        if each["metadata"].get("namespace") != "jaxport" and each["kind"] != "StorageClass":
            yield f"{each['kind'].lower()}/{each['metadata']['name']}"


@pytest.mark.parametrize("name", OVERLAYS)
def test_submit_all_of_every_overlay_goes_through_with_what_is_shipped(
    run: Run, cluster: FakeCluster, overlay: Callable[[str], str], name: str
) -> None:
    cluster.create("/api/v1/namespaces", next(each for each in plain() if each["kind"] == "Namespace"))
    cluster.rules = rules("launcher.yaml", "submit-all.yaml")
    for _ in range(2):  # an apply that changes what is there needs less than one that makes it
        done = run("submit", "all", "--no-follow", "--manifests", overlay(name))
        assert done.code == 0, done
    # What an administrator brings is said, each in a line of its own, and nothing else is left out.
    left = {line.partition(":")[0] for line in done.err.splitlines() if "taken to be there" in line}
    assert left == set(elsewhere(outputs()[name]))
    made = {path.rpartition("/")[2] for path in cluster.objects}
    assert {
        each["metadata"]["name"] for each in outputs()[name] if each["metadata"].get("namespace") == "jaxport"
    } <= made


def test_no_right_to_submit_all_is_for_nothing(
    run: Run, cluster: FakeCluster, overlay: Callable[[str], str]
) -> None:
    assert run("submit", "all", "--no-follow", "--manifests", overlay("overlays/gke-l4")).code == 0
    needed = {each.kind for each in asked(cluster)}
    own = granted(rules("submit-all.yaml"))
    assert own <= needed and not own & granted(rules("launcher.yaml"))


@pytest.mark.parametrize("version", VERSIONS)
def test_the_roles_are_ones_that_kubernetes_knows(version: str) -> None:
    objects = [
        each
        for file in ("launcher.yaml", "submit-all.yaml")
        for each in parsed((LAUNCHER / file).read_text())
    ]
    assert [said for each in objects for said in problems(each, version)] == []


def test_without_any_one_rule_it_is_refused_or_said(
    run: Run, cluster: FakeCluster, overlay: Callable[[str], str]
) -> None:
    manifests = overlay("overlays/gke-l4")
    cluster.create("/api/v1/namespaces", next(each for each in plain() if each["kind"] == "Namespace"))
    shipped = rules("launcher.yaml", "submit-all.yaml")
    for missing in rules("submit-all.yaml"):
        cluster.rules = [each for each in shipped if each != missing]
        cluster.objects = {
            path: each for path, each in cluster.objects.items() if path == "/api/v1/namespaces/jaxport"
        }
        done = run("submit", "all", "--no-follow", "--manifests", manifests)
        if "storageclasses" in missing.resources:
            assert done.code == 0 and "storageclass/jaxport-filestore: taken to be there" in done.err
        else:
            assert done.code == 4 and "ask for a Role with the verb" in done.error, (missing, done)


def test_a_storage_class_of_another_name_is_none_of_the_launchers(
    run: Run, cluster: FakeCluster, overlay: Callable[[str], str]
) -> None:
    cluster.create("/api/v1/namespaces", next(each for each in plain() if each["kind"] == "Namespace"))
    cluster.rules = rules("launcher.yaml", "submit-all.yaml")
    path = Path(overlay("overlays/gke-l4"))
    path.write_text(path.read_text().replace("name: jaxport-filestore", "name: fastest"))
    done = run("submit", "all", "--no-follow", "--manifests", str(path))
    assert "storageclass/fastest: taken to be there, for an administrator applies it: forbidden" in done.err
    assert "/apis/storage.k8s.io/v1/storageclasses/fastest" not in cluster.objects

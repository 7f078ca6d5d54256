"""The overlay that deploy/README.md tells people to write: in a copy of deploy/, held to what our own are held to."""

import re
import shutil
from pathlib import Path

import pytest

from tests.deploy.kubectl import kustomized
from tests.deploy.objects import DEPLOY, Objects, Pod, components, fits, overlays, parsed, pods, reached
from tests.deploy.operations import README, misplaced, staged
from tests.deploy.policies import POLICIES
from tests.deploy.schemas import VERSIONS, problems
from tests.deploy.test_order import misordered


def example() -> str:
    """The kustomization of the document, as its reader types it."""
    found = re.search(
        r"^    # deploy/overlays/mine/kustomization\.yaml\n((?:    .*\n)+)", README, re.MULTILINE
    )
    assert found, "deploy/README.md has no deploy/overlays/mine/kustomization.yaml"
    return re.sub(r"^    ", "", found[1], flags=re.MULTILINE)


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    deploy = tmp_path_factory.mktemp("copy").resolve() / "deploy"
    shutil.copytree(DEPLOY, deploy, symlinks=True)
    folder = deploy / "overlays" / "mine"
    folder.mkdir()
    (folder / "kustomization.yaml").write_text(example())
    return folder


@pytest.fixture(scope="module")
def objects(mine: Path) -> Objects:
    return parsed(kustomized(mine))


def test_it_is_found_with_all_that_it_is_made_of(mine: Path) -> None:
    assert mine in overlays(mine.parents[1])
    assert reached(mine) == {"mine", "gke-l4", "base", "pod-monitoring", "priority"}


def test_it_says_what_the_document_says_of_it(objects: Objects) -> None:
    server: Pod = next(pod for pod in pods(objects) if pod.owner["kind"] == "Deployment")
    assert server.containers[-1].spec["image"].startswith("registry.example.com/jaxport/serve:")
    assert server.spec["priorityClassName"] == "jaxport-serve"
    assert any(each["kind"] == "PodMonitoring" for each in objects)


def test_it_keeps_every_policy_and_schema_and_its_order_and_steps(objects: Objects) -> None:
    assert [said for policy in POLICIES for said in policy(objects)] == []
    assert [said for version in VERSIONS for each in objects for said in problems(each, version)] == []
    assert list(misordered(objects)) == []
    assert [said for steps in staged() for said in misplaced(steps, objects)] == []


def test_what_it_has_is_not_laid_over_it_again_and_all_else_is(mine: Path) -> None:
    # And who gives way the other way round.
    there = {"pod-monitoring", "priority", "training-first"}
    others = [each for each in components(mine.parents[1]) if fits(each, mine)]
    assert {each.name for each in components(mine.parents[1])} - {each.name for each in others} == there
    for each in others:
        assert kustomized(mine, each)
    priority = mine.parents[1] / "components" / "priority"
    with pytest.raises(RuntimeError, match="may not add resource with an already registered id"):
        kustomized(mine, priority)

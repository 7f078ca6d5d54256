"""The order in which objects arrive: a pod's policies and accounts before it, and GPUs are asked for by who is waited for first."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.kubectl import kustomized
from tests.deploy.objects import BASE, DEPLOY, Objects, named, outputs, overlays, parsed, plain
from tests.deploy.policies.stages import COMPONENT

MAKE_PODS = ("JobSet", "Job", "Deployment")
# Each waits for what is before it. The export has no GPU, so it may be made before the training that it waits for.
WAITING = ("train", "warm", "serve")


def misordered(objects: Objects) -> Iterator[str]:
    """What comes too early, one line each."""
    namespaces = sum(each["kind"] == "Namespace" for each in objects)
    for each in objects[:namespaces]:
        if each["kind"] != "Namespace":
            yield f"{named(each)} comes before a Namespace"
    first = next((i for i, each in enumerate(objects) if each["kind"] in MAKE_PODS), len(objects))
    for each in objects[first:]:
        if each["kind"] not in MAKE_PODS:
            yield f"{named(objects[first])} comes before {named(each)}"
    stages = [each["metadata"].get("labels", {}).get(COMPONENT) for each in objects[first:]]
    waiting = [stage for stage in stages if stage in WAITING]
    if waiting != sorted(waiting, key=WAITING.index):
        yield f"{', '.join(waiting)}: needed: {', '.join(WAITING)}"
    if "export" in stages and stages.index("export") > min(
        stages.index(each) for each in stages if each in WAITING[1:]
    ):
        yield "the export comes after who waits for it"


@pytest.mark.parametrize("name", outputs())
def test_pods_come_last_and_who_waits_comes_after_what_it_waits_for(name: str) -> None:
    assert list(misordered(outputs()[name])) == []


def test_each_kind_of_wrong_order_is_found() -> None:
    objects = plain()

    def said(*order: str) -> str:
        """With these at the end."""
        last = [next(each for each in objects if named(each) == name) for name in order]
        return "; ".join(misordered([*(each for each in objects if each not in last), *last]))

    assert "comes before a Namespace" in said("Namespace jaxport")
    assert "Job jaxport-train comes before NetworkPolicy default-deny" in said("NetworkPolicy default-deny")
    assert "warm, serve, train: needed: train" in said("Job jaxport-train")
    assert "serve, warm" in said("Job jaxport-warm")
    assert "the export comes after" in said("Job jaxport-export")


def test_kustomize_left_to_itself_puts_servers_first_and_policies_last(tmp_path: Path) -> None:
    """Why each topmost kustomization says its order: none further down is asked."""
    (tmp_path / "base").symlink_to(BASE)
    (tmp_path / "kustomization.yaml").write_text("resources: [base]\n")
    found = "; ".join(misordered(parsed(kustomized(tmp_path))))
    assert "Deployment jaxport-serve comes before NetworkPolicy default-deny" in found
    assert "serve, train, warm" in found


@pytest.mark.parametrize("folder", [BASE, *overlays()], ids=lambda folder: folder.name)
def test_every_kustomization_that_is_applied_says_its_order(folder: Path) -> None:
    wanted = parsed((BASE / "kustomization.yaml").read_text())[0]["sortOptions"]
    file = folder / "kustomization.yaml"
    said = parsed(file.read_text())[0].get("sortOptions")
    assert said == wanted, (
        f"{file.relative_to(DEPLOY)}: sortOptions: needed: {wanted}, or servers come before Jobs"
    )

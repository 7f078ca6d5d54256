"""Every object that deploy/ can apply: read as kubectl and kustomize read it, checked by schemas and by our own policies.

Nothing here asks a cluster. What a schema and a rule cannot know (quotas, admission of others, the volume's class) is not
checked.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.deploy import kubectl as kubectl_module
from tests.deploy.kubectl import kubectl, kustomized
from tests.deploy.objects import (
    BASE,
    DEPLOY,
    components,
    fits,
    named,
    of_kind,
    outputs,
    overlays,
    parsed,
    plain,
    plain_files,
)
from tests.deploy.policies import POLICIES, Policy
from tests.deploy.policies.references import _series
from tests.deploy.policies.server import fronted
from tests.deploy.schemas import OTHERS, VERSIONS, problems

FILES = sorted(DEPLOY.rglob("*.yaml"))
OUTPUTS = [
    "deploy/",
    "base",
    *(f"overlays/{folder.name}" for folder in overlays()),
    *(f"gke-l4 with {component.relative_to(DEPLOY)}" for component in components()),
]


def none_of(problems: list[str]) -> None:
    """Fails with the problems alone: no line of a test says more."""
    if problems:
        pytest.fail("\n".join(problems), pytrace=False)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_object_is_what_kubernetes_knows(version: str) -> None:
    every = {json.dumps(each, sort_keys=True): each for objects in outputs().values() for each in objects}
    none_of(sorted({said for each in every.values() for said in problems(each, version)}))


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.__name__)
def test_every_output_keeps_the_policy(policy: Policy) -> None:
    found: dict[str, list[str]] = {}
    for name, objects in outputs().items():
        for said in policy(objects):
            found.setdefault(said, []).append(name)
    none_of([f"{said}   (in {', '.join(names)})" for said, names in found.items()])


def test_every_folder_is_among_the_outputs() -> None:
    assert list(outputs()) == OUTPUTS
    kustomized = {file.parent for file in DEPLOY.rglob("kustomization.yaml")}
    assert len(outputs()) == 1 + len(kustomized), "a kustomization that no output is made of"


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(DEPLOY)))
def test_a_file_gives_no_key_twice(file: Path) -> None:
    assert parsed(file.read_text())


def test_a_key_that_is_given_twice_is_refused() -> None:
    with pytest.raises(yaml.YAMLError, match="replicas is given twice"):
        parsed("spec: {replicas: 1, replicas: 2}")


@pytest.mark.parametrize("component", components(), ids=lambda folder: folder.name)
def test_a_component_can_be_laid_over_every_overlay(component: Path) -> None:
    """A patch by path breaks where the path is not, so every pair is tried."""
    laid = [kustomized(folder, component) for folder in overlays() if fits(component, folder)]
    assert all(laid) and laid


def test_the_plain_folder_and_the_base_are_the_same_files() -> None:
    listed = parsed((BASE / "kustomization.yaml").read_text())[0]["resources"]
    assert [file.name for file in plain_files()] == listed
    for file in plain_files():
        assert file.is_symlink() and file.resolve() == BASE / file.name, (
            f"deploy/{file.name} has to be a link to base/{file.name}, which is the file to change"
        )
    assert sorted(map(named, outputs()["base"])) == sorted(map(named, plain()))


def test_kubectl_reads_the_folder_with_the_namespace_first_and_the_stages_in_their_order() -> None:
    read = kubectl("label", "--local", "-f", DEPLOY, "read=yes", "-o", "name").split()
    assert len(read) == len(plain()) and read[0] == "namespace/jaxport"
    stages = [f"job.batch/jaxport-{stage}" for stage in ("train", "export", "warm")]
    assert read[-4:] == [*stages, "deployment.apps/jaxport-serve"]


def test_the_plain_folder_has_kinds_of_kubernetes_only() -> None:
    assert {each["apiVersion"] for each in plain()} <= {
        "v1", "apps/v1", "batch/v1", "policy/v1", "autoscaling/v2", "networking.k8s.io/v1"
    }  # fmt: skip


def test_kinds_of_others_are_in_optional_alone() -> None:
    """What is elsewhere can be applied to a cluster as it comes."""
    for file in FILES:
        objects = [
            each for each in parsed(file.read_text()) if isinstance(each, dict)
        ]  # a JSON patch is a list
        found = [named(each) for each in objects if (each.get("apiVersion"), each.get("kind")) in OTHERS]
        assert not found or file.is_relative_to(DEPLOY / "optional"), f"{file}: {found}"


def test_envoy_takes_the_arguments_of_each_output(tmp_path: Path) -> None:
    (tmp_path / "tls").mkdir()
    tried: set[tuple[str, ...]] = set()
    for objects in outputs().values():
        for pod, _, envoy, _ in fronted(objects):
            if tuple(envoy.args) in tried:
                continue
            tried.add(tuple(envoy.args))
            data = next(c for c in of_kind(objects, "ConfigMap") if c["metadata"]["name"] == "jaxport-envoy")[
                "data"
            ]
            for name, text in data.items():
                (tmp_path / name).write_text(text.replace("/etc/envoy", str(tmp_path)))
            arguments = [word.replace("/etc/envoy", str(tmp_path)) for word in envoy.args]
            command = [Path(sys.executable).with_name("envoy"), *arguments, "--mode", "validate"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60)
            assert done.returncode == 0, f"{pod}: {done.stderr[-500:]}"
    assert tried


def test_the_route_names_services_that_the_server_has() -> None:
    from serve_grpc.protocol import jaxport_v1, open_inference, tensorflow_serving

    known = {
        jaxport_v1.SERVICE,
        open_inference.SERVICE,
        tensorflow_serving.PREDICTION,
        tensorflow_serving.MODEL,
    }
    [route] = of_kind(outputs()["gke-l4 with optional/gateway"], "GRPCRoute")
    named_there = {match["method"]["service"] for rule in route["spec"]["rules"] for match in rule["matches"]}
    assert named_there == known | {"grpc.health.v1.Health"}


def test_the_series_of_the_server_are_found() -> None:
    assert {"jaxport_queue_seconds_sum", "jaxport_request_seconds_count"} <= _series()


def test_without_kubectl_the_cure_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(kubectl_module.sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RuntimeError, match="make setup"):
        kubectl("version")

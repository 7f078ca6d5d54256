"""What docs/operations.md tells people to add for clusters that need more: it can be laid over an overlay, and does it."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.deploy.kubectl import kustomized
from tests.deploy.objects import DEPLOY, Objects, of_kind, parsed, pods
from tests.deploy.operations import OPERATIONS

PATCHES = re.findall(r"^```yaml\n(patches:\n.*?)^```", OPERATIONS, re.MULTILINE | re.DOTALL)


@pytest.fixture(params=["gke-l4", "cpu"])
def patched(request: pytest.FixtureRequest, tmp_path: Path) -> Objects:
    """An overlay with every patch of the document, as one list."""
    below = os.path.relpath(DEPLOY / "overlays" / request.param, tmp_path.resolve())
    lines = "".join(text.removeprefix("patches:\n") for text in PATCHES)
    (tmp_path / "kustomization.yaml").write_text(f"resources: [{below}]\npatches:\n{lines}")
    return parsed(kustomized(tmp_path))


def test_every_account_of_a_stage_names_the_secret_that_is_made(patched: Objects) -> None:
    accounts = {each["metadata"]["name"]: each for each in of_kind(patched, "ServiceAccount")}
    used = {pod.spec["serviceAccountName"] for pod in pods(patched)}
    assert used and all(accounts[name]["imagePullSecrets"] == [{"name": "jaxport-registry"}] for name in used)
    assert "create secret docker-registry jaxport-registry " in OPERATIONS


def test_who_uses_a_gpu_has_the_runtime_and_nobody_else(patched: Objects) -> None:
    with_runtime = {str(pod) for pod in pods(patched) if pod.spec.get("runtimeClassName") == "nvidia"}
    assert with_runtime == {"Job jaxport-train", "Job jaxport-warm", "Deployment jaxport-serve"}


def test_the_claim_is_filled_from_the_snapshots_that_are_shown(patched: Objects) -> None:
    """Of the claim, and in another cluster of what stands for the backup there: each names the other."""
    [claim] = of_kind(patched, "PersistentVolumeClaim")
    shown = [each for text in re.findall(r"^```yaml\n(.*?)^```", OPERATIONS, re.MULTILINE | re.DOTALL)
             for each in parsed(text) if "kind" in each]  # fmt: skip
    taken, restored = of_kind(shown, "VolumeSnapshot")
    source = claim["spec"]["dataSource"]
    for snapshot in (taken, restored):
        assert (source["kind"], source["name"]) == (snapshot["kind"], snapshot["metadata"]["name"])
    assert taken["spec"]["source"] == {"persistentVolumeClaimName": claim["metadata"]["name"]}
    [content] = of_kind(shown, "VolumeSnapshotContent")
    assert restored["spec"]["source"] == {"volumeSnapshotContentName": content["metadata"]["name"]}
    assert content["spec"]["volumeSnapshotRef"] == {
        key: restored["metadata"][key] for key in ("name", "namespace")
    }
    [kind] = of_kind(shown, "VolumeSnapshotClass")
    assert {each["spec"]["volumeSnapshotClassName"] for each in (taken, restored, content)} == {
        kind["metadata"]["name"]
    }
    assert content["spec"]["driver"] == kind["driver"]


def test_the_autoscaler_has_the_bounds_that_are_shown_where_there_is_one(patched: Objects) -> None:
    bounds = [(each["spec"]["minReplicas"], each["spec"]["maxReplicas"])
              for each in of_kind(patched, "HorizontalPodAutoscaler")]  # fmt: skip
    assert bounds in ([(1, 3)], [])


@pytest.mark.parametrize(
    ("conditions", "ends"),
    [("SuccessCriteriaMet Complete", True), ("FailureTarget Failed", True), ("FailureTarget", False), ("", False)],
)  # fmt: skip
def test_the_line_that_waits_returns_when_a_job_fails_too(
    tmp_path: Path, conditions: str, ends: bool
) -> None:
    [line] = re.findall(r"^until .*done$", OPERATIONS, re.MULTILINE)
    for name, does in {"kubectl": f"echo '{conditions}'", "sleep": "kill $PPID"}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / name).chmod(0o755)
    path = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["/bin/sh", "-c", line], env=path, capture_output=True, text=True, timeout=20)
    assert (done.returncode == 0) is ends
    assert done.stdout.strip() == (conditions if ends else "")

"""scripts/gke_leftovers.py against a gcloud that answers from a folder."""

import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.objects import outputs

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "gke_leftovers.py"
GCLOUD = """#!/bin/sh
[ "$4" = "--project=my-project" ] || { echo "ERROR: project $4" >&2; exit 1; }
file="$(dirname "$0")/$1-$2.json"
if [ -f "$file" ]; then cat "$file"; elif [ "$3" = list ]; then echo '[]'; else exit 2; fi
[ ! -f "$file.refused" ] || { echo "ERROR: (gcloud.$1.$2.list) API has not been used" >&2; exit 1; }
"""


def run(
    folder: Path, answers: dict[str, list[dict[str, Any]]], refused: str = ""
) -> subprocess.CompletedProcess[str]:
    gcloud = folder / "gcloud"
    gcloud.write_text(GCLOUD)
    gcloud.chmod(0o755)
    for name, answer in answers.items():
        (folder / f"{name}.json").write_text(json.dumps(answer))
    if refused:
        (folder / f"{refused}.json.refused").touch()
    return subprocess.run(
        [sys.executable, str(SCRIPT), "my-project"],
        capture_output=True,
        text=True,
        env={"PATH": f"{folder}{os.pathsep}/usr/bin{os.pathsep}/bin"},
        check=False,
    )


def test_nothing_is_left_of_a_project_with_other_things_in_it(tmp_path: Path) -> None:
    others = {
        "container-clusters": [{"name": "other", "network": "default"}],
        "compute-disks": [{"name": "pvc-1", "labels": {"goog-k8s-cluster-name": "other"}}],
        "filestore-instances": [
            {"name": "projects/p/locations/z/instances/theirs", "networks": [{"network": "default"}]}
        ],
    }
    done = run(tmp_path, others)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "nothing is left of cluster jaxport and network jaxport in my-project\n"


@pytest.mark.parametrize(
    ("kind", "found", "said"),
    [
        (
            "filestore-instances",
            {"name": "projects/p/locations/europe-west4-a/instances/pvc-7", "networks": [{"network": "jaxport"}]},
            "left: Filestore instance pvc-7 in europe-west4-a, costs by its size, used or not\n",
        ),
        (
            "compute-disks",
            {"name": "pvc-8", "zone": "https://x/zones/europe-west4-b", "labels": {"goog-k8s-cluster-name": "jaxport"}},
            "left: disk pvc-8 in europe-west4-b, costs by its size\n",
        ),
        (
            "compute-forwarding-rules",
            {"name": "a1b2", "network": "https://www.example.com/projects/my-project/global/networks/jaxport"},
            "left: forwarding rule a1b2, costs by the hour\n",
        ),
        (
            "compute-instances",
            {"name": "gke-jaxport-serve-l4-1", "zone": "europe-west4-a"},
            "left: instance gke-jaxport-serve-l4-1 in europe-west4-a, costs by the second, GPUs too\n",
        ),
        (
            "artifacts-repositories",
            {"name": "projects/p/locations/europe-west4/repositories/jaxport-dockerhub"},
            "left: registry jaxport-dockerhub in europe-west4, costs by what it holds\n",
        ),
        (
            "filestore-instances",
            {"name": "projects/p/locations/europe-west4-a/instances/pvc-9",
             "labels": {"storage_gke_io_cluster_name": "jaxport"}, "networks": [{"network": "elsewhere"}]},
            "left: Filestore instance pvc-9 in europe-west4-a, costs by its size, used or not\n",
        ),
        (
            "filestore-backups",
            {"name": "projects/p/locations/europe-west4/backups/snapshot-1", "state": "READY", "storageBytes": "1073741824",
             "sourceInstance": "projects/p/locations/europe-west4-a/instances/pvc-7", "sourceFileShare": "vol1"},
            "perhaps: Filestore backup snapshot-1 of pvc-7 in europe-west4, costs by what it holds\n",
        ),
        (
            "compute-snapshots",
            {"name": "snapshot-2", "diskSizeGb": "20", "storageBytes": "1048576",
             "sourceDisk": "https://www.example.com/projects/p/zones/europe-west4-a/disks/pvc-8"},
            "perhaps: snapshot snapshot-2 of pvc-8, costs by what it holds\n",
        ),
        (
            "compute-forwarding-rules",
            {"name": "a0123456789abcdef0123456789abcde", "IPAddress": "192.0.2.1", "loadBalancingScheme": "EXTERNAL",
             "description": '{"kubernetes.io/service-name":"jaxport/jaxport"}', "region": "https://x/regions/europe-west4"},
            "perhaps: forwarding rule a0123456789abcdef0123456789abcde in europe-west4, costs by the hour\n",
        ),
        (
            "compute-forwarding-rules",
            {"name": "gkegw1-abcd-jaxport-jaxport-xyz", "IPAddress": "192.0.2.1", "loadBalancingScheme": "EXTERNAL_MANAGED"},
            "perhaps: forwarding rule gkegw1-abcd-jaxport-jaxport-xyz, costs by the hour\n",
        ),
        (
            "compute-addresses",
            {"name": "k8s2-fr-1-jaxport-jaxport", "address": "192.0.2.1", "status": "RESERVED"},
            "perhaps: address k8s2-fr-1-jaxport-jaxport, costs by the hour while it is in no use\n",
        ),
        (
            "compute-addresses",
            {"name": "jaxport-nat-auto-ip-1", "status": "IN_USE", "network": "https://x/global/networks/jaxport",
             "region": "https://x/regions/europe-west4"},
            "left: address jaxport-nat-auto-ip-1 in europe-west4, costs by the hour while it is in no use\n",
        ),
        (
            "compute-routers",
            {"name": "jaxport-nat", "network": "https://x/global/networks/jaxport", "nats": [{"name": "jaxport-nat"}],
             "region": "https://x/regions/europe-west4"},
            "left: router jaxport-nat in europe-west4, costs by the hour, if it has a NAT\n",
        ),
        (
            "compute-firewall-rules",
            {"name": "k8s-fw-l7--1", "network": "https://x/global/networks/jaxport"},
            "left: firewall rule k8s-fw-l7--1, costs nothing, but Terraform could not delete the network\n",
        ),
        (
            "compute-network-endpoint-groups",
            {"name": "k8s1-1-jaxport-8500", "network": "https://x/global/networks/jaxport", "zone": "https://x/zones/europe-west4-a"},
            "left: endpoint group k8s1-1-jaxport-8500 in europe-west4-a, costs nothing, but Terraform could not delete the network\n",
        ),
        ("compute-networks", {"name": "jaxport"}, "left: network jaxport, costs nothing, but Terraform could not delete it\n"),
        ("container-clusters", {"name": "jaxport", "location": "europe-west4"}, "left: cluster jaxport in europe-west4, costs by the hour\n"),
    ],
)  # fmt: skip
def test_what_is_left_is_named_with_what_it_costs(
    tmp_path: Path, kind: str, found: dict[str, Any], said: str
) -> None:
    done = run(tmp_path, {kind: [found, {"name": "another", "network": "default"}]})
    assert (done.returncode, done.stdout) == (3, said)


def test_a_backup_of_a_volume_that_is_there_is_of_who_has_that(tmp_path: Path) -> None:
    theirs = "projects/p/locations/z/instances/pvc-7"
    answers = {
        "filestore-instances": [{"name": theirs, "networks": [{"network": "default"}]}],
        "filestore-backups": [
            {"name": "projects/p/locations/r/backups/snapshot-1", "sourceInstance": theirs},
            {
                "name": "projects/p/locations/r/backups/by-hand",
                "sourceInstance": "projects/p/locations/z/instances/nas",
            },
        ],
        "compute-forwarding-rules": [
            {"name": "shop", "description": "made by hand", "IPAddress": "192.0.2.1"}
        ],
    }
    done = run(tmp_path, answers)
    assert (done.returncode, done.stderr) == (0, "")


# What a resource of terraform/ is in the check; the others cost nothing by themselves, and go with what they are of.
LISTED_AS = {
    "google_artifact_registry_repository": "registry",
    "google_compute_network": "network",
    "google_compute_router": "router",
    "google_compute_router_nat": "router",
    "google_container_cluster": "cluster",
    "google_container_node_pool": "instance",
}
FREE = {
    "google_artifact_registry_repository_iam_member",
    "google_compute_subnetwork",
    "google_project_iam_member",
    "google_project_service",
    "google_service_account",
    "google_service_account_iam_member",
    "google_storage_bucket_iam_member",
}
# What an object of deploy/ lets a cluster make outside of itself.
MADE_FOR = {
    "PersistentVolumeClaim": {"Filestore instance", "disk"},
    "Gateway": {"forwarding rule", "address", "endpoint group"},
}


def test_all_that_terraform_and_deploy_can_leave_behind_is_looked_for() -> None:
    text = "".join(file.read_text() for file in (SCRIPT.parents[1] / "terraform").glob("*.tf"))
    assert set(re.findall(r'^resource "(google_\w+)"', text, re.MULTILINE)) == LISTED_AS.keys() | FREE
    kinds = runpy.run_path(str(SCRIPT))["KINDS"].keys()
    assert set(LISTED_AS.values()) <= kinds
    objects = [each for name in outputs() for each in outputs()[name]]
    assert all(
        each["spec"].get("type", "ClusterIP") == "ClusterIP" for each in objects if each["kind"] == "Service"
    )
    assert {each["kind"] for each in objects} & {"Ingress", "PersistentVolume", "VolumeSnapshot"} == set()
    for kind, outside in MADE_FOR.items():
        assert any(each["kind"] == kind for each in objects) and outside <= kinds


def test_what_could_not_be_listed_is_not_taken_for_nothing(tmp_path: Path) -> None:
    done = run(tmp_path, {"filestore-instances": []}, refused="filestore-instances")
    assert done.returncode == 4
    assert "unknown: Filestore instance: gcloud filestore instances list" in done.stderr
    assert "API has not been used" in done.stderr and "nothing is left" not in done.stdout


def test_without_gcloud_nobody_knows(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "my-project"], capture_output=True, text=True, env={"PATH": str(tmp_path)}, check=False
    )  # fmt: skip
    assert done.returncode == 4 and "no gcloud on PATH" in done.stderr

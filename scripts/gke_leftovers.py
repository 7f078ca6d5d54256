"""What is left of a cluster in a project, and goes on costing: python3 scripts/gke_leftovers.py MY-PROJECT

To be run after `terraform destroy`. Terraform takes down what it made; the Filestore instance behind a claim, disks and
load balancers were made by the cluster. Needs gcloud and nothing else, only lists, and deletes nothing.

Backups, snapshots, and load balancers with an address of their own say nothing of the cluster that they were made for. Of those that
some cluster has made, and no cluster that is there can be seen to own, it says "perhaps": look before you delete one.

Buckets are not among it: terraform/ and deploy/ make none. The one of Terraform's state is yours, and so are those of bucket_access.

Exit codes: 0 nothing is left, 3 something is, or may be; 4 gcloud is missing or was refused, so nobody knows.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

# What can be left -> how gcloud lists it, and what it costs while nobody uses it.
KINDS = {
    "cluster": (("container", "clusters"), "by the hour"),
    "instance": (("compute", "instances"), "by the second, GPUs too"),
    "disk": (("compute", "disks"), "by its size"),
    "Filestore instance": (("filestore", "instances"), "by its size, used or not"),
    "Filestore backup": (("filestore", "backups"), "by what it holds"),
    "snapshot": (("compute", "snapshots"), "by what it holds"),
    "address": (("compute", "addresses"), "by the hour while it is in no use"),
    "forwarding rule": (("compute", "forwarding-rules"), "by the hour"),
    "router": (("compute", "routers"), "by the hour, if it has a NAT"),
    "endpoint group": (
        ("compute", "network-endpoint-groups"),
        "nothing, but Terraform could not delete the network",
    ),
    "firewall rule": (("compute", "firewall-rules"), "nothing, but Terraform could not delete the network"),
    "network": (("compute", "networks"), "nothing, but Terraform could not delete it"),
    "registry": (("artifacts", "repositories"), "by what it holds"),
}


# On disks by GKE, on Filestore instances by their driver.
CLUSTER_LABELS = ("goog-k8s-cluster-name", "storage_gke_io_cluster_name")
# As Services (a and the uid), Ingresses (k8s-, k8s2-) and Gateways (gkegw1-) call what they make.
BY_KUBERNETES = re.compile(r"a[0-9a-f]{31}$|k8s2?-|gkegw1-")


@dataclass(frozen=True)
class Names:
    """Those of terraform/variables.tf."""

    cluster: str
    network: str
    registry: str


class Unfit(Exception):
    """gcloud could not tell."""


def listed(project: str, words: tuple[str, ...]) -> list[dict[str, Any]]:
    """What `gcloud ... list` has of one kind. Raises Unfit."""
    command = ["gcloud", *words, "list", f"--project={project}", "--format=json", "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    if done.returncode:
        reason = done.stderr.strip().splitlines()
        raise Unfit(f"{' '.join(command[:-2])}: {reason[0] if reason else f'exit code {done.returncode}'}")
    return json.loads(done.stdout or "[]")


def leaves(value: object, key: str = "") -> Iterator[tuple[str, str]]:
    """Every (key, string) in it, at any depth."""
    if isinstance(value, dict):
        for name, below in value.items():
            yield from leaves(below, name)
    elif isinstance(value, list):
        for below in value:
            yield from leaves(below, key)
    elif isinstance(value, str):
        yield key, value


def named(found: dict[str, Any]) -> str:
    return str(found.get("name", "")).rpartition("/")[2]


def belongs(found: dict[str, Any], names: Names) -> bool:
    """Whether it is of this cluster: it is one of the names, lies in the network, or carries the cluster's label."""
    own = named(found)
    if own in (names.cluster, names.network, names.registry, f"{names.registry}-dockerhub"):
        return True
    if own.startswith(f"gke-{names.cluster}-"):
        return True
    return any(
        (key == "network" and value.rpartition("/")[2] == names.network)
        or (key in CLUSTER_LABELS and value == names.cluster)
        for key, value in leaves(found)
    )


def of_some_cluster(kind: str, found: dict[str, Any], there: frozenset[str]) -> bool:
    """Whether a cluster has made it, and nothing says which. there: the names of the volumes that are there."""
    if kind in ("Filestore backup", "snapshot"):
        # Drivers call a volume pvc- and the claim's uid. One that is there tells by itself whose it is.
        source = str(found.get("sourceInstance") or found.get("sourceDisk") or "").rpartition("/")[2]
        return source.startswith("pvc-") and source not in there
    if kind in ("forwarding rule", "address"):
        # In no network: reached from the internet.
        free = "network" not in found and not any(key in CLUSTER_LABELS for key, _ in leaves(found))
        return free and (
            "kubernetes.io/" in str(found.get("description", ""))
            or BY_KUBERNETES.match(named(found)) is not None
        )
    return False


def said(kind: str, found: dict[str, Any]) -> str:
    where = str(found.get("zone") or found.get("region") or found.get("location") or "").rpartition("/")[2]
    parts = str(found.get("name", "")).split("/")
    if not where and "locations" in parts[:-1]:
        where = parts[parts.index("locations") + 1]
    source = str(found.get("sourceInstance") or found.get("sourceDisk") or "").rpartition("/")[2]
    of = f" of {source}" if source else ""
    return f"{kind} {named(found)}{of}{f' in {where}' if where else ''}, costs {KINDS[kind][1]}"


def main() -> int:
    parser = argparse.ArgumentParser(
        description="What is left of a cluster in a project, after terraform destroy."
    )
    parser.add_argument("project", help="the ID of the project")
    parser.add_argument("--cluster", default="jaxport", help="cluster_name of terraform.tfvars")
    parser.add_argument("--network", default="jaxport", help="network_name of terraform.tfvars")
    parser.add_argument("--registry", default="jaxport", help="registry_name of terraform.tfvars")
    given = parser.parse_args()
    if shutil.which("gcloud") is None:
        print("no gcloud on PATH: install the Google Cloud CLI, and gcloud auth login", file=sys.stderr)
        return 4
    names = Names(given.cluster, given.network, given.registry)
    left = unknown = 0
    volumes: set[str] = set()
    for kind, (words, _) in KINDS.items():
        try:
            found = listed(given.project, words)
        except Unfit as refusal:
            unknown += 1
            print(f"unknown: {kind}: {refusal}", file=sys.stderr)
            continue
        if kind in ("disk", "Filestore instance"):
            volumes.update(map(named, found))
        for each in found:
            if belongs(each, names):
                left += 1
                print(f"left: {said(kind, each)}")
            elif of_some_cluster(kind, each, frozenset(volumes)):
                left += 1
                print(f"perhaps: {said(kind, each)}")
    if unknown:
        print(
            f"{unknown} of {len(KINDS)} kinds could not be listed: nobody knows what is left of them",
            file=sys.stderr,
        )
    if not left and not unknown:
        print(f"nothing is left of cluster {names.cluster} and network {names.network} in {given.project}")
    return 3 if left else 4 if unknown else 0


if __name__ == "__main__":
    sys.exit(main())

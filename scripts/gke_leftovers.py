"""What is left of a cluster in a project, and goes on costing: python3 scripts/gke_leftovers.py MY-PROJECT

To be run after `terraform destroy`. Terraform takes down what it made; the Filestore instance behind a claim, disks and
load balancers were made by the cluster. Needs gcloud and nothing else, only lists, and deletes nothing.

Exit codes: 0 nothing is left, 3 something is, 4 gcloud is missing or was refused, so nobody knows.
"""

import argparse
import json
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
    "address": (("compute", "addresses"), "by the hour while it is in no use"),
    "forwarding rule": (("compute", "forwarding-rules"), "by the hour"),
    "router": (("compute", "routers"), "by the hour, if it has a NAT"),
    "network": (("compute", "networks"), "nothing, but Terraform could not delete it"),
    "registry": (("artifacts", "repositories"), "by what it holds"),
}


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


def belongs(found: dict[str, Any], names: Names) -> bool:
    """Whether it is of this cluster: it is one of the names, lies in the network, or carries the cluster's label."""
    own = str(found.get("name", "")).rpartition("/")[2]
    if own in (names.cluster, names.network, names.registry, f"{names.registry}-dockerhub"):
        return True
    if own.startswith(f"gke-{names.cluster}-"):
        return True
    return any(
        (key == "network" and value.rpartition("/")[2] == names.network)
        or (key == "goog-k8s-cluster-name" and value == names.cluster)
        for key, value in leaves(found)
    )


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
    left = 0
    unknown = 0
    for kind, (words, cost) in KINDS.items():
        try:
            found = listed(given.project, words)
        except Unfit as refusal:
            unknown += 1
            print(f"unknown: {kind}: {refusal}", file=sys.stderr)
            continue
        for each in found:
            if belongs(each, names):
                left += 1
                where = str(each.get("zone") or each.get("region") or each.get("location") or "").rpartition(
                    "/"
                )[2]
                name = str(each.get("name", "")).rpartition("/")[2]
                print(f"left: {kind} {name}{f' in {where}' if where else ''}, costs {cost}")
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

"""scripts/gke_leftovers.py against a gcloud that answers from a folder."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

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
            "left: Filestore instance pvc-7, costs by its size, used or not\n",
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
            "left: registry jaxport-dockerhub, costs by what it holds\n",
        ),
        ("container-clusters", {"name": "jaxport", "location": "europe-west4"}, "left: cluster jaxport in europe-west4, costs by the hour\n"),
    ],
)  # fmt: skip
def test_what_is_left_is_named_with_what_it_costs(
    tmp_path: Path, kind: str, found: dict[str, Any], said: str
) -> None:
    done = run(tmp_path, {kind: [found, {"name": "another", "network": "default"}]})
    assert (done.returncode, done.stdout) == (3, said)


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

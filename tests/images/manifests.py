"""deploy/*.yaml as `kubectl apply -f deploy/` reads it, and the few changes for a machine without a GPU."""

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

Object = dict[str, Any]
GPU = "nvidia.com/gpu"
# Added to the arguments of these containers: a training of seconds, that saves often enough to be interrupted.
SHORTER = {"train": ["--steps", "40", "--set", "batch_size=8", "--set", "checkpoint_every=10"]}
# The variables that something in the images reads.
KNOWN_VARIABLES = {
    "JAX_PLATFORMS",
    "JAX_COMPILATION_CACHE_DIR",
    "JAX_COORDINATOR_ADDRESS",
    "JAX_NUM_PROCESSES",
    "JAX_PROCESS_ID",
    "XLA_FLAGS",
}


@dataclass(frozen=True)
class Manifests:
    objects: dict[tuple[str, str], Object]  # by kind and name

    def pod_spec(self, kind: str, name: str) -> Object:
        """The pod's spec of a Job, Deployment or Pod, changed `on_cpu`."""
        found = self.objects[kind, name]["spec"]
        spec = copy.deepcopy(found if kind == "Pod" else found["template"]["spec"])
        for container in spec.get("initContainers", []) + spec["containers"]:
            on_cpu(container)
        return spec

    def files(self, config_map: str) -> dict[str, str]:
        return self.objects["ConfigMap", config_map]["data"]

    def claim(self, name: str) -> Object:
        return self.objects["PersistentVolumeClaim", name]


def read_manifests(folder: Path) -> Manifests:
    """The files of the folder itself: what lies in folders below is not applied."""
    objects = [
        each for path in sorted(folder.glob("*.yaml")) for each in yaml.safe_load_all(path.read_text())
    ]
    return Manifests({(each["kind"], each["metadata"]["name"]): each for each in objects})


def on_cpu(container: Object) -> None:
    """Everything that a rehearsal changes; the rest of a container is as it is written."""
    variables = {each["name"]: each for each in container.get("env", [])}
    unknown = set(variables) - KNOWN_VARIABLES
    assert not unknown, f"container {container['name']}: nothing reads the variables {sorted(unknown)}"
    resources = container["resources"]
    if GPU in resources["limits"]:
        assert resources["requests"].pop(GPU) == resources["limits"].pop(GPU)
        assert variables["JAX_PLATFORMS"]["value"] == "cuda,cpu"
        variables["JAX_PLATFORMS"]["value"] = "cpu"
    container["image"] = container["image"].replace("-cuda12", "-cpu")
    if "args" in container:
        container["args"] = [*container["args"], *SHORTER.get(container["name"], [])]

"""A pod's volumes as folders of this machine and memory."""

import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.images.containers import quantity
from tests.images.manifests import Manifests

# Memory of this machine, as a folder that several containers can share.
IN_MEMORY = Path("/dev/shm")  # noqa: S108


@dataclass(frozen=True)
class Volumes:
    """What a pod declares, and where it lies. An emptyDir that one container alone mounts is a tmpfs of its own size."""

    spec: Mapping[str, Any]
    manifests: Manifests
    claims: Mapping[str, Path]  # of PersistentVolumeClaims, by name
    folder: Path

    @staticmethod
    def of(spec: Mapping[str, Any], manifests: Manifests, claims: Mapping[str, Path]) -> "Volumes":
        folder = Path(tempfile.mkdtemp(prefix="jaxport-pod-", dir=IN_MEMORY))
        folder.chmod(0o755)
        return Volumes(spec, manifests, claims, folder)

    def arguments(self, container: Mapping[str, Any]) -> list[str]:
        """For podman run, outer folders first; what the manifest has read-only is mounted so."""
        found = []
        for mount in sorted(container["volumeMounts"], key=lambda mount: mount["mountPath"]):
            unknown = set(mount) - {"name", "mountPath", "readOnly"}
            assert not unknown, f"volumeMounts with {sorted(unknown)} cannot be rehearsed"
            volume = next(each for each in self.spec["volumes"] if each["name"] == mount["name"])
            found += self._mount(volume, mount)
        return found

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def _mount(self, volume: Mapping[str, Any], mount: Mapping[str, Any]) -> list[str]:
        path, read_only = mount["mountPath"], mount.get("readOnly", False)
        if "emptyDir" in volume and self._mounted(volume["name"]) == 1:
            size = int(quantity(volume["emptyDir"]["sizeLimit"]))
            return ["--tmpfs", f"{path}:rw,exec,mode=1777,size={size}"]
        if "persistentVolumeClaim" in volume:
            claim = volume["persistentVolumeClaim"]
            read_only = read_only or claim.get("readOnly", False)
            source = self.claims[claim["claimName"]]
        else:
            source = self._folder(volume)
        return ["--volume", f"{source}:{path}:{'ro' if read_only else 'rw'}"]

    def _mounted(self, name: str) -> int:
        """The number of containers that mount it."""
        containers = self.spec.get("initContainers", []) + self.spec["containers"]
        return Counter(mount["name"] for each in containers for mount in each["volumeMounts"])[name]

    def _folder(self, volume: Mapping[str, Any]) -> Path:
        """Made the first time that a container mounts it."""
        folder = self.folder / volume["name"]
        if folder.exists():
            return folder
        folder.mkdir()
        if "configMap" in volume:
            for name, text in self.manifests.files(volume["configMap"]["name"]).items():
                (folder / name).write_text(text)
            self._inner_folders(volume["name"])
        elif "secret" in volume:
            assert volume["secret"]["optional"], "there are no Secrets in a rehearsal"
        else:
            assert "emptyDir" in volume, f"{volume} cannot be rehearsed"
            belongs_to_group(folder, self.spec["securityContext"]["fsGroup"])
        return folder

    def _inner_folders(self, name: str) -> None:
        """Where another volume is mounted inside this one: kubelet makes the folder, read-only or not."""
        for container in self.spec.get("initContainers", []) + self.spec["containers"]:
            paths = [Path(mount["mountPath"]) for mount in container["volumeMounts"]]
            outer = [Path(mount["mountPath"]) for mount in container["volumeMounts"] if mount["name"] == name]
            for inner in (path.relative_to(o) for o in outer for path in paths if o in path.parents):
                (self.folder / name / inner).mkdir(parents=True, exist_ok=True)


def belongs_to_group(folder: Path, group: int) -> None:
    """As kubelet does for fsGroup; who is not root here can only open it to all."""
    if os.geteuid() == 0:
        os.chown(folder, 0, group)
        folder.chmod(0o2775)
    else:
        folder.chmod(0o2777)

"""Pods of the manifests, side by side on one volume."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deploy.images.engine import Engine
from tests.images.manifests import Manifests
from tests.images.pods import Pod
from tests.images.volumes import Volumes

CLAIM = "jaxport-work"


@dataclass
class Cluster:
    """Starts pods of the manifests on one volume."""

    engine: Engine
    manifests: Manifests
    volume: Path
    stand_ins: dict[str, str]  # image of a manifest -> the one that is run
    pods: list[Pod] = field(default_factory=list)

    def start(self, kind: str, name: str, args: list[str] | None = None, **where: Any) -> Pod:
        """A pod of a Job or Deployment, started; `args` in place of those of its container; see Pod for `where`."""
        spec = self.manifests.pod_spec(kind, name)
        if args is not None:
            spec["containers"][0]["args"] = args
        volumes = Volumes.of(spec, self.manifests, {CLAIM: self.volume})
        number = f"{os.getpid()}-{len(self.pods)}"
        pod = Pod(self.engine, f"{name}-{number}", spec, volumes, self.stand_ins, **where)
        self.pods.append(pod)
        return pod.start()

"""The objects of deploy/: as `kubectl apply -f` reads them, and as kustomize writes them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.deploy.kubectl import kustomized

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
BASE = DEPLOY / "base"
# The overlay that components are laid over: the one that most of them are for.
UNDER = DEPLOY / "overlays" / "gke-l4"

Object = dict[str, Any]
Objects = Sequence[Object]


class UniqueKeys(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
    """YAML lets a key be given twice, and the second one wins without a word."""


def _mapping(loader: UniqueKeys, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: set[str] = set()
    for key, _ in node.value:
        if key.value in seen:
            raise yaml.constructor.ConstructorError(None, None, f"{key.value} is given twice", key.start_mark)
        seen.add(key.value)
    return yaml.constructor.SafeConstructor.construct_mapping(loader, node, deep=True)


UniqueKeys.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def parsed(text: str) -> list[Object]:
    """The documents of a YAML text. Raises yaml.YAMLError, for a key that is given twice too."""
    return [each for each in yaml.load_all(text, Loader=UniqueKeys) if each is not None]


def plain_files() -> list[Path]:
    """What `kubectl apply -f deploy/` reads, in its order."""
    return sorted(DEPLOY.glob("*.yaml"))


@cache
def plain() -> list[Object]:
    return [each for file in plain_files() for each in parsed(file.read_text())]


def components(deploy: Path = DEPLOY) -> list[Path]:
    return sorted(file.parent for kind in ("components", "optional") for file in (deploy / kind).glob("*/*n.yaml")
                  if file.name == "kustomization.yaml")  # fmt: skip


def overlays(deploy: Path = DEPLOY) -> list[Path]:
    return sorted(file.parent for file in deploy.glob("overlays/*/kustomization.yaml"))


def reached(folder: Path) -> set[str]:
    """What a kustomization is made of: the names of its folder and of every folder below it, at any depth."""
    [said] = parsed((folder / "kustomization.yaml").read_text())
    below = [folder / each for key in ("resources", "components") for each in said.get(key, [])]
    return {folder.resolve().name}.union(*(reached(each) for each in below if each.is_dir()))


# Of each at most one: what both would change, or bring, is there once.
EXCLUSIVE = (
    {"tls", "mtls"},
    {"jobset", "multi-host"},
    {"priority", "training-first"},
    {"kueue", "kueue-provisioning"},
)


def fits(component: Path, overlay: Path) -> bool:
    """Whether a component may be laid over an overlay: not where it is part of it already, by whatever way."""
    there, brought = reached(overlay), reached(component)
    return not there & brought and not any(pair & there and pair & brought for pair in EXCLUSIVE)


@cache
def outputs() -> Mapping[str, list[Object]]:
    """What is applied in one go -> its objects: deploy/, each overlay, and an overlay with each component."""
    found = {"deploy/": plain()}
    for folder in (BASE, *overlays()):
        found[str(folder.relative_to(DEPLOY))] = parsed(kustomized(folder))
    for component in components():
        name = f"{UNDER.name} with {component.relative_to(DEPLOY)}"
        found[name] = parsed(kustomized(UNDER, component))
    return found


def named(each: Object) -> str:
    """Deployment jaxport-serve"""
    return f"{each.get('kind')} {each.get('metadata', {}).get('name')}"


def of_kind(objects: Objects, *kinds: str) -> list[Object]:
    return [each for each in objects if each["kind"] in kinds]


def namespace(each: Object) -> str:
    return each["metadata"].get("namespace", "")


@dataclass(frozen=True)
class Container:
    """sidecar: one of the init containers that goes on beside the others."""

    of: str
    spec: Object
    sidecar: bool = False

    @property
    def name(self) -> str:
        return self.spec["name"]

    @property
    def args(self) -> list[str]:
        return self.spec.get("args", [])

    @property
    def ours(self) -> bool:
        return "/jaxport/" in self.spec["image"]

    @property
    def ports(self) -> list[Object]:
        return self.spec.get("ports", [])

    def __str__(self) -> str:
        return f"{self.of}: container {self.name}"


@dataclass(frozen=True)
class Pod:
    """A pod template and what makes pods of it. owner: the object; job: the spec of a Job, if it is one."""

    owner: Object
    template: Object
    job: Object | None = None

    @property
    def spec(self) -> Object:
        return self.template["spec"]

    @property
    def labels(self) -> Mapping[str, str]:
        return self.template["metadata"].get("labels", {})

    @property
    def namespace(self) -> str:
        return namespace(self.owner)

    @property
    def gpus(self) -> bool:
        return any("nvidia.com/gpu" in c.spec["resources"].get("limits", {}) for c in self.containers)

    @property
    def containers(self) -> list[Container]:
        of = str(self)
        inits = [Container(of, each, each.get("restartPolicy") == "Always")
                 for each in self.spec.get("initContainers", [])]  # fmt: skip
        return inits + [Container(of, each) for each in self.spec["containers"]]

    def container(self, name: str) -> Container | None:
        return next((each for each in self.containers if each.name == name), None)

    def volume(self, name: str) -> Object | None:
        return next((each for each in self.spec.get("volumes", []) if each["name"] == name), None)

    def __str__(self) -> str:
        return named(self.owner)


def pods(objects: Objects) -> Iterator[Pod]:
    for each in objects:
        if each["kind"] == "JobSet":
            for replicated in each["spec"]["replicatedJobs"]:
                job = replicated["template"]["spec"]
                yield Pod(each, job["template"], job)
        elif "template" in each.get("spec", {}):
            yield Pod(each, each["spec"]["template"], each["spec"] if each["kind"] == "Job" else None)


def selected(objects: Objects, selector: Mapping[str, str], where: str) -> list[Pod]:
    """The pods of a namespace whose labels a selector asks for."""
    return [pod for pod in pods(objects) if pod.namespace == where and selector.items() <= pod.labels.items()]


def walked(value: object) -> Iterator[tuple[str, object]]:
    """Every (key, value) below, at any depth."""
    if isinstance(value, Mapping):
        for key, below in value.items():
            yield key, below
            yield from walked(below)
    elif isinstance(value, Iterable) and not isinstance(value, str):
        for below in value:
            yield from walked(below)

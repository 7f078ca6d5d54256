"""What a person changes between runs, put into the manifests: the run's name, what is trained, which images."""

import copy
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jaxport.cluster.api import Object
from jaxport.cluster.errors import UsageError
from jaxport.cluster.stages import (
    ALL,
    INSTANCE,
    container_of,
    is_job,
    run_of,
    stage_of,
    with_value,
    without,
)

# A run's name becomes part of a Job's, and that the host name of a pod.
RUN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
# An index and five letters follow it in the name of a pod, which has 63.
LONGEST_JOB = 50
# ours: registry/any/path/jaxport/train:0.1.0-cpu
IMAGE = re.compile(r"(?P<registry>.+/jaxport)/(?P<name>train|export|serve)(:(?P<tag>[\w.-]+))?")
# HOST[:PORT][/PART...], as names of images are made of.
REGISTRY = re.compile(
    r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*(:[0-9]{1,5})?"
    r"(/[a-z0-9]+((\.|__?|-+)[a-z0-9]+)*)*"
)
TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")


@dataclass(frozen=True)
class Changes:
    """None, or empty: as the manifests have it. settings: of the training, as --set takes them."""

    run: str | None = None
    preset: str | None = None
    steps: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    registry: str | None = None
    tag: str | None = None

    @property
    def trains(self) -> bool:
        return bool(self.preset or self.steps is not None or self.settings)

    def check(self, stage: str) -> None:
        """Raises UsageError: a value that cannot be, or one that does not concern `stage`.

        Settings are read by the trainer's own rules, so that a misspelt one is found here and not by a Job.
        """
        from train_job.presets import BUILT_IN
        from train_job.settings import check_value, parse_overrides

        if self.trains and stage not in ("train", ALL):
            raise UsageError(f"--preset, --steps and --set are of train; {stage} takes what it finds")
        if self.run is not None and stage == "warm":
            raise UsageError("--run: warm compiles for every bundle there is, of whatever run")
        if self.preset is not None and self.preset not in BUILT_IN:
            raise UsageError(
                f"--preset {self.preset}: one of {', '.join(BUILT_IN)} is needed; a model of your own is --model in "
                "the args of a manifest of yours"
            )
        parse_overrides(self.settings)
        if self.steps is not None:
            check_value("steps", self.steps)
        for flag, value, pattern, needed in (
            ("--run", self.run, RUN, "lower-case letters, digits and -, as names of Kubernetes are made of"),
            (
                "--registry",
                self.registry,
                REGISTRY,
                "HOST[:PORT][/PART...] in lower case, such as ghcr.io/me",
            ),
            (
                "--tag",
                self.tag,
                TAG,
                "at most 128 letters, digits, _, . and -, beginning with none of the last two",
            ),
        ):
            if value is not None and not pattern.fullmatch(value):
                raise UsageError(f"{flag} {value!r}: needed: {needed}")


def changed(objects: Iterable[Object], changes: Changes) -> list[Object]:
    """Copies of the objects with the changes in them.

    A run of another name than the manifests' own gets Jobs of its own, <name>-<run>, so that several live side by side.

    Raises:
        UsageError: a Job's name that becomes too long.
    """
    made = [_with_images(each, changes) for each in copy.deepcopy(list(objects))]
    run = changes.run or changes.preset
    return [_with_run(each, changes, run) if is_job(each) else each for each in made]


def _with_run(job: Object, changes: Changes, run: str | None) -> Object:
    stage, before = stage_of(job), run_of(job)
    if stage not in ("train", "export"):
        return job
    container = container_of(job)
    container["args"] = list(container.get("args") or [])
    if stage == "train":
        container["args"] = _trained(container["args"], changes)
    if run is not None and run_of(job) != run:
        container["args"] = with_value(container["args"], "--run", run)
    if run is not None and run != before:
        _rename(job, run)
    return job


def _trained(args: Sequence[str], changes: Changes) -> list[str]:
    args = list(args)
    if changes.preset is not None:
        args = with_value(without(args, "--model"), "--preset", changes.preset)
    if changes.steps is not None:
        args = with_value(args, "--steps", changes.steps)
    for key, value in changes.settings.items():
        args = [*_unset(args, key), "--set", f"{key}={value}"]
    return args


def _unset(args: Sequence[str], key: str) -> list[str]:
    kept: list[str] = []
    words = iter(args)
    for word in words:
        pair = [word, next(words, "")] if word == "--set" else [word]
        if pair[-1].removeprefix("--set=").partition("=")[0] != key or not word.startswith("--set"):
            kept += pair
    return kept


def _rename(job: Object, run: str) -> None:
    old = job["metadata"]["name"]
    new = f"{old}-{run}"
    if len(new) > LONGEST_JOB:
        raise UsageError(
            f"--run {run}: the Job would be called {new}, which is {len(new)} letters; {LONGEST_JOB} at most are possible"
        )
    job["metadata"]["name"] = new
    template = job["spec"]["template"]
    for each in (job["metadata"], template.setdefault("metadata", {})):
        each.setdefault("labels", {})[INSTANCE] = run
    # Processes find the first one by its pod's host name, which is the Job's with its index.
    for container in template["spec"]["containers"]:
        for variable in container.get("env") or []:
            if str(variable.get("value", "")).startswith(f"{old}-0."):
                variable["value"] = new + variable["value"].removeprefix(old)


def _with_images(each: Object, changes: Changes) -> Object:
    for container in _containers(each):
        found = IMAGE.fullmatch(str(container.get("image")))
        if found:
            tag = changes.tag or found["tag"]
            container["image"] = f"{changes.registry or found['registry']}/{found['name']}" + (
                f":{tag}" if tag else ""
            )
    return each


def _containers(each: Object) -> list[Object]:
    """Of a pod template. Kinds of which nothing is known here may have something else of these names."""
    found: Any = each
    for name in ("spec", "template", "spec", "containers"):
        found = found.get(name) if isinstance(found, dict) else None
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []

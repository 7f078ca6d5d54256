"""Of the stages together: one run, one folder, images that are to be had, and what each step of bringing them up needs."""

from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

from tests.deploy.objects import Container, Object, Objects, Pod, named, namespace, of_kind, pods
from tests.deploy.policies.commands import options, options_or_none

COMPONENT = "app.kubernetes.io/component"
# The steps of docs/operations.md where GPUs are few: everything else, the warm Job, the servers. A later one holds GPUs
# while it waits for those before it.
LATER = {"warm": 1, "serve": 2}


def stages_use_one_run(objects: Objects) -> Iterator[str]:
    """Each waits for what the one before it writes: under another name or in another folder it would wait for ever."""
    trainers = list(_told(objects, "train"))
    exporters = list(_told(objects, "export"))
    for each, export in exporters:
        for trainer, train in trainers:
            if export.run != (train.run or train.preset):
                yield f"{each}: --run {export.run}; {trainer} writes the run {train.run or train.preset}"
            if export.root != train.root:
                yield f"{each}: --root {export.root}; {trainer} has --root {train.root}"
    for each, serve in _told(objects, "serve"):
        for exporter, export in exporters:
            if PurePosixPath(serve.models) != PurePosixPath(export.root) / "models":
                yield f"{each}: --models {serve.models}; {exporter} writes to {export.root}/models"


def _told(objects: Objects, command: str) -> Iterator[tuple[Container, object]]:
    for pod in pods(objects):
        for each in pod.containers:
            if each.ours and each.args[:1] == [command]:
                try:
                    yield each, options(each.args)
                except ValueError:  # arguments_parse tells
                    continue


def waiters_wait(objects: Objects) -> Iterator[str]:
    """All stages are applied together: one that does not wait fails at once; one that is tried again repeats nothing."""
    for pod in pods(objects):
        for each in pod.containers:
            given = options_or_none(each) if each.ours and pod.job is not None else None
            if given is None or given.command not in ("export", "serve"):
                continue
            if not given.wait:
                yield f"{each}: without --wait: what it works on is not there yet"
            if given.command == "export" and not given.skip_existing:
                yield f"{each}: without --skip-existing: a Job that is started again would write the same once more"
            if given.command == "serve" and not given.warm_only:
                yield f"{each}: without --warm-only: a Job that serves has no end"


def no_rename_passes_an_image_by(objects: Objects) -> Iterator[str]:
    """No registry can offer localhost/: beside images that were renamed, nodes would find it nowhere."""
    found = [(each, each.spec["image"]) for pod in pods(objects) for each in pod.containers if each.ours]
    left = [(each, image) for each, image in found if image.startswith("localhost/")]
    if len(left) < len(found):
        yield from (f"{each}: image {image}; the others are from a registry" for each, image in left)


def step(each: Object) -> int:
    return LATER.get(each["metadata"].get("labels", {}).get(COMPONENT, ""), 0)


def steps_bring_what_they_need(objects: Objects) -> Iterator[str]:
    """Whoever applies by label (component) has each pod's account, volume, files and policies no later than the pod."""
    for pod in pods(objects):
        label = pod.owner["metadata"].get("labels", {}).get(COMPONENT)
        if label != pod.labels.get(COMPONENT):
            yield f"{pod}: label {COMPONENT} {label}; its pods have {pod.labels.get(COMPONENT)}"
        for each in _needed(objects, pod):
            if step(each) > step(pod.owner):
                yield f"{named(each)}: label {COMPONENT}: {pod} needs it, and is applied before it"


def _needed(objects: Objects, pod: Pod) -> Iterator[Object]:
    """Of what is made here; that a name is there at all is what_pods_name_is_there's."""
    volumes: Sequence[Object] = pod.spec.get("volumes", [])
    wanted = {
        ("ServiceAccount", pod.spec.get("serviceAccountName")),
        ("PriorityClass", pod.spec.get("priorityClassName")),
        ("Namespace", pod.namespace),
        *(("PersistentVolumeClaim", v.get("persistentVolumeClaim", {}).get("claimName")) for v in volumes),
        *(("ConfigMap", v.get("configMap", {}).get("name")) for v in volumes),
    }
    yield from (each for each in objects if (each["kind"], each["metadata"]["name"]) in wanted)
    yield from of_kind(objects, "StorageClass")
    for each in of_kind(objects, "NetworkPolicy"):
        labels = each["spec"]["podSelector"].get("matchLabels", {})
        if namespace(each) == pod.namespace and labels.items() <= pod.labels.items():
            yield each


POLICIES = (stages_use_one_run, waiters_wait, no_rename_passes_an_image_by, steps_bring_what_they_need)

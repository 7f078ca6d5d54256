"""Which of the objects are the stages, and what their commands say."""

from collections.abc import Iterable, Sequence

from jaxport.cluster.api import Object

COMPONENT, INSTANCE = "app.kubernetes.io/component", "app.kubernetes.io/instance"
JOBS = ("train", "export", "warm")
SERVE = "serve"
ALL = "all"
STAGES = f"{COMPONENT} in ({','.join(JOBS)})"
NAMESPACE = "jaxport"
INDEX = "batch.kubernetes.io/job-completion-index"


def stage_of(each: Object) -> str:
    """train, export, warm, serve, or nothing."""
    return (each["metadata"].get("labels") or {}).get(COMPONENT, "")


def is_job(each: Object) -> bool:
    return each["kind"] == "Job" and each["apiVersion"] == "batch/v1"


def jobs_of(objects: Iterable[Object], stage: str = ALL) -> list[Object]:
    """The Jobs of a stage, or of all of them, in the order of the stages."""
    wanted = JOBS if stage == ALL else (stage,)
    found = [each for each in objects if is_job(each) and stage_of(each) in wanted]
    return sorted(found, key=lambda each: JOBS.index(stage_of(each)))


def container_of(job: Object) -> Object:
    """The container that is the stage: the one of its name, else the first."""
    stage, containers = stage_of(job), job["spec"]["template"]["spec"]["containers"]
    return next((each for each in containers if each["name"] == stage), containers[0])


def run_of(job: Object) -> str:
    """The run that a training or export Job is about, as its command says; nothing for others."""
    args = container_of(job).get("args") or []
    if stage_of(job) not in ("train", "export"):
        return ""
    # A model of one's own names its run by itself; without --run nothing here knows how.
    return value_of(args, "--run") or value_of(args, "--preset") or ""


def value_of(args: Sequence[str], flag: str) -> str | None:
    """The value of `--flag VALUE` or `--flag=VALUE`."""
    for at, word in enumerate(args):
        if word == flag and at + 1 < len(args):
            return args[at + 1]
        if word.startswith(f"{flag}="):
            return word.partition("=")[2]
    return None


def with_value(args: Sequence[str], flag: str, value: str) -> list[str]:
    """The same command with `--flag VALUE`, in its old place if it had one."""
    kept, place = _without(args, flag)
    return [*kept[:place], flag, value, *kept[place:]]


def without(args: Sequence[str], flag: str) -> list[str]:
    return _without(args, flag)[0]


def _without(args: Sequence[str], flag: str) -> tuple[list[str], int]:
    for at, word in enumerate(args):
        if word == flag:
            return [*args[:at], *args[at + 2 :]], at
        if word.startswith(f"{flag}="):
            return [*args[:at], *args[at + 1 :]], at
    return list(args), len(args)


def named(each: Object) -> str:
    """job/jaxport-train, as kubectl says it."""
    return f"{each['kind'].lower()}/{each['metadata']['name']}"


def namespace_of(each: Object) -> str:
    return each["metadata"].get("namespace", "default")

"""What containers are told to do: read by the very parsers that will read it in them."""

import argparse
import contextlib
import io
from collections.abc import Iterator, Sequence
from functools import cache

from jaxport.cli import COMMANDS, _parser
from tests.deploy.objects import Container, Objects, Pod, pods

# What is read of the environment: by jax, by our training, by the loader of CUDA's driver. A name that nobody reads is a misspelt one.
VARIABLES = {
    "JAX_PLATFORMS",
    "JAX_NUM_PROCESSES",
    "JAX_PROCESS_ID",
    "JAX_COORDINATOR_ADDRESS",
    "JAX_COMPILATION_CACHE_DIR",
    "XLA_FLAGS",
    "LD_LIBRARY_PATH",
    "OTEL_EXPORTER_OTLP_ENDPOINT",
}
# XLA ends the process at a flag that it does not know, before a device is looked for. By name, what each may be.
XLA_FLAGS = {"--xla_gpu_exclude_nondeterministic_ops": {"true", "false"}}


def options(args: Sequence[str]) -> argparse.Namespace:
    """Arguments of the `jaxport` command, parsed; not to be changed. Raises ValueError with what it would say."""
    return _options(tuple(args))


@cache
def _options(args: tuple[str, ...]) -> argparse.Namespace:
    if not args or args[0] not in COMMANDS:
        raise ValueError(f"no command of jaxport: {' '.join(args[:1])!r}")
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            return _parser(args[0]).parse_args(list(args))
    except SystemExit:
        raise ValueError(said.getvalue().strip().rpartition("\n")[2]) from None


def options_or_none(each: Container) -> argparse.Namespace | None:
    try:
        return options(each.args)
    except ValueError:  # arguments_parse tells
        return None


def hook(each: Container) -> list[str]:
    """The command of its preStop hook."""
    return each.spec.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", [])


def commands_are_the_images(objects: Objects) -> Iterator[str]:
    """An entrypoint that a manifest replaces is one that the tests of the images did not run."""
    for pod in pods(objects):
        for each in pod.containers:
            if "command" in each.spec:
                yield f"{each}: command; the image has an entrypoint: give args alone"
            if not all(isinstance(word, str) for word in [*each.args, *hook(each)]):
                yield f"{each}: args are text: quote the numbers"


def arguments_parse(objects: Objects) -> Iterator[str]:
    for pod in pods(objects):
        for each in pod.containers:
            if not each.ours:
                continue
            if pod.labels.get("app.kubernetes.io/component") not in (each.name, None):
                yield f"{each}: in a pod of component {pod.labels['app.kubernetes.io/component']}"
            yield from (f"{each}: args: {said}" for said in refused(each.args))
            command = hook(each)
            if command:
                said = refused(command[1:]) if command[0] == "jaxport" else [f"no jaxport: {command[0]}"]
                yield from (f"{each}: preStop: {found}" for found in said)


def refused(args: Sequence[str]) -> list[str]:
    """What the command would say of these arguments before it begins."""
    try:
        parsed = options(args)
        if parsed.command in ("serve", "train"):
            _settings(parsed)
        if parsed.command == "export":
            from jaxport.commands.export import check

            check(parsed)
    except Exception as error:
        if not isinstance(error, ValueError) and getattr(error, "exit_code", None) is None:
            raise
        return [str(error)]
    return []


def _settings(parsed: argparse.Namespace) -> None:
    """Beyond single flags: ranges, and flags that exclude each other."""
    if parsed.command == "serve":
        from serve_grpc.flags import settings_from
    else:
        from train_job.flags import settings_from
    settings_from(parsed)


def variables_are_read_by_something(objects: Objects) -> Iterator[str]:
    for pod in pods(objects):
        for each in pod.containers:
            for variable in each.spec.get("env", []):
                if variable["name"] not in VARIABLES:
                    yield f"{each}: env {variable['name']}: nothing reads it; known: {', '.join(sorted(VARIABLES))}"
                if variable["name"] == "XLA_FLAGS":
                    yield from (
                        f"{each}: env XLA_FLAGS: {said}" for said in _unknown(variable.get("value", ""))
                    )


def _unknown(flags: str) -> Iterator[str]:
    for name, _, value in (word.partition("=") for word in flags.split() or [""]):
        if value not in XLA_FLAGS.get(name, ()):
            yield f"{name}={value}: needed: one of {XLA_FLAGS}; a new one is added there, once it has run"


def environment(each: Container) -> dict[str, str]:
    return {v["name"]: v.get("value", "") for v in each.spec.get("env", [])}


def devices_are_named(objects: Objects) -> Iterator[str]:
    """JAX falls back to the CPU without a word where the GPU's driver is broken, unless it is told what there is."""
    for pod in pods(objects):
        for each in pod.containers:
            if not each.ours or each.args[:1] == ["export"]:
                continue
            wanted = "cuda,cpu" if "nvidia.com/gpu" in each.spec["resources"].get("limits", {}) else "cpu"
            found = environment(each).get("JAX_PLATFORMS")
            if found != wanted:
                yield f"{each}: env JAX_PLATFORMS {found}; its resources say {wanted}"


def processes_find_each_other(objects: Objects) -> Iterator[str]:
    """Of training: as many as the Job has pods, numbered by their index, around a coordinator that has a name."""
    for pod in pods(objects):
        for each in pod.containers:
            if pod.job is None or each.args[:1] != ["train"]:
                continue
            env = environment(each)
            completions = pod.job.get("completions", 1)
            if pod.job.get("completionMode") != "Indexed" or pod.job.get("parallelism") != completions:
                yield f"{pod}: needs completionMode Indexed and as much parallelism as completions"
            if env.get("JAX_NUM_PROCESSES") != str(completions):
                yield f"{each}: env JAX_NUM_PROCESSES {env.get('JAX_NUM_PROCESSES')}; completions: {completions}"
            if "job-completion-index" not in str(each.spec.get("env")):
                yield f"{each}: env JAX_PROCESS_ID is not the pod's completion index"
            if completions > 1:
                yield from _coordinator(objects, pod, each, env.get("JAX_COORDINATOR_ADDRESS", ""))


def _coordinator(objects: Objects, pod: Pod, each: Container, address: str) -> Iterator[str]:
    host, _, port = address.partition(":")
    spec = pod.owner["spec"]
    if pod.owner["kind"] == "JobSet":
        domain = spec["network"]["subdomain"]
        first = f"{pod.owner['metadata']['name']}-{spec['replicatedJobs'][0]['name']}-0-0"
    else:
        domain, first = pod.spec.get("subdomain", ""), f"{pod.owner['metadata']['name']}-0"
        if not any(s["kind"] == "Service" and s["metadata"]["name"] == domain and s["spec"].get("clusterIP") == "None"
                   and s["spec"].get("publishNotReadyAddresses") for s in objects):  # fmt: skip
            yield f"{pod}: subdomain {domain!r}: no headless Service that publishes pods before they are ready"
    if host != f"{first}.{domain}":
        yield f"{each}: env JAX_COORDINATOR_ADDRESS {address}: the first process is {first}.{domain}"
    if port not in {str(p["containerPort"]) for p in each.ports}:
        yield f"{each}: env JAX_COORDINATOR_ADDRESS {address}: the container has no such port"


POLICIES = (
    commands_are_the_images,
    arguments_parse,
    variables_are_read_by_something,
    devices_are_named,
    processes_find_each_other,
)

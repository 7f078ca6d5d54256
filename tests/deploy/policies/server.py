"""Of the server and the Envoy beside it, which are one thing in two containers; and of the volume between the stages."""

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import PurePosixPath

import yaml

from jaxport.message_size import message_size
from tests.deploy.objects import Container, Object, Objects, Pod, named, of_kind, pods, walked
from tests.deploy.policies.commands import environment, hook, options, options_or_none
from tests.deploy.policies.pods import quantity

# Of a message of gRPC: Envoy counts it, the server does not.
FRAME = 5
# What makes other executables, or looks for them elsewhere.
CACHE_KEY = ("models", "cache_dir", "max_batch")


def fronted(objects: Objects) -> Iterator[tuple[Pod, Container, Container, Mapping[str, object]]]:
    """Each server: its pod, its container, Envoy's container and configuration."""
    for pod in pods(objects):
        server = next(
            (c for c in pod.containers if c.args[:1] == ["serve"] and "--grpc-socket" in c.args), None
        )
        envoy = next((c for c in pod.containers if "envoy" in c.spec["image"]), None)
        if server and envoy:
            yield pod, server, envoy, _read(_configuration(objects, pod, envoy))


@cache
def _read(configuration: str) -> Mapping[str, object]:
    return yaml.load(configuration, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506


def _configuration(objects: Objects, pod: Pod, envoy: Container) -> str:
    """The text of the file that its --config-path names."""
    path = PurePosixPath(envoy.args[envoy.args.index("--config-path") + 1])
    for mount in envoy.spec["volumeMounts"]:
        source = (pod.volume(mount["name"]) or {}).get("configMap", {}).get("name")
        if PurePosixPath(mount["mountPath"]) == path.parent and source:
            for each in of_kind(objects, "ConfigMap"):
                if each["metadata"]["name"] == source:
                    return each["data"].get(path.name, "{}")
    return "{}"


def servers_have_a_front(objects: Objects) -> Iterator[str]:
    """A server on a socket is of use to nobody without Envoy, and the native transport must not be open without it."""
    known = {str(pod) for pod, _, envoy, _ in fronted(objects) if envoy.sidecar}
    for pod in pods(objects):
        if (
            pod.owner["kind"] == "Deployment"
            and any(c.ours for c in pod.containers)
            and str(pod) not in known
        ):
            yield f"{pod}: no server on a socket with Envoy as a sidecar (restartPolicy Always) before it"


def both_sides_agree(objects: Objects) -> Iterator[str]:
    """One message limit, one socket, one admin socket, the ports that are declared, and a heap that fits the memory."""
    for pod, server, envoy, config in fronted(objects):
        serve, drain = _parsed(server.args), _parsed(hook(server)[1:])
        found = list(walked(config))
        paths = {value["path"] for key, value in found if key == "pipe"}
        for said, path in (("--grpc-socket", serve.grpc_socket), ("--admin-socket", drain.admin_socket)):
            if str(path) not in paths:
                yield f"{server}: {said} {path}; Envoy's configuration has {sorted(paths)}"
            if not _shared(pod, server, envoy, path):
                yield f"{pod}: {path} is not on an emptyDir that both containers mount"
        limits = {value for key, value in found if key == "max_request_bytes"}
        if limits != {message_size(serve.max_message_bytes) + FRAME}:
            yield f"{server}: --max-message-bytes {serve.max_message_bytes}; Envoy's max_request_bytes: {limits}"
        listening = {value for key, value in found if key == "port_value"}
        declared = {port["containerPort"] for port in envoy.ports}
        if listening != declared:
            yield f"{envoy}: ports {sorted(declared)}; its configuration listens on {sorted(listening)}"
        memory = quantity(envoy.spec["resources"].get("limits", {}).get("memory", 0))
        for heap in (value for key, value in found if key == "max_heap_size_bytes"):
            if memory is None or heap >= memory:
                yield f"{envoy}: memory limit {memory} for a heap of {heap}: the kernel kills it before it sheds load"
        if not serve.no_http_predict:
            yield f"{server}: without --no-http-predict; its HTTP port answers past Envoy, also where Envoy asks for TLS"
        if serve.http_port not in {port["containerPort"] for port in server.ports}:
            yield f"{server}: --http-port {serve.http_port} is not among its ports"


def _parsed(args: list[str]) -> object:
    try:
        return options(args)
    except ValueError:  # arguments_parse tells
        return (
            options(["serve", "--models", "/"])
            if args[:1] == ["serve"]
            else options(["drain", "--admin-socket", "/"])
        )


def _shared(pod: Pod, server: Container, envoy: Container, path: object) -> bool:
    volumes = [{m["name"] for m in each.spec["volumeMounts"] if PurePosixPath(m["mountPath"]) == path.parent}
               for each in (server, envoy)]  # fmt: skip
    return any("emptyDir" in (pod.volume(name) or {}) for name in set.intersection(*volumes))


def warm_jobs_are_like_servers(objects: Objects) -> Iterator[str]:
    """What they compile is looked up under image, device and flags: a difference makes all of it useless."""
    servers = [(pod, c) for pod in pods(objects) for c in pod.containers if c.ours and pod.job is None]
    for pod in pods(objects):
        for each in pod.containers:
            if "--warm-only" not in each.args:
                continue
            for other_pod, other in servers:
                pairs = {
                    "image": (each.spec["image"], other.spec["image"]),
                    "env": (environment(each), environment(other)),
                    "device": (_device(pod), _device(other_pod)),
                    **{k: tuple(getattr(_parsed(c.args), k) for c in (each, other)) for k in CACHE_KEY},
                }
                for what, (here, there) in pairs.items():
                    if here != there:
                        yield f"{each}: {what} {here}; the server's is {there}, so it would not find what was compiled"


def _device(pod: Pod) -> tuple[bool, str]:
    return pod.gpus, pod.spec.get("nodeSelector", {}).get("cloud.google.com/gke-accelerator", "")


def the_volume_is_shared(objects: Objects) -> Iterator[str]:
    """ReadWriteMany; ReadWriteOnce is for one machine, which has no GPU."""
    gpus = any(pod.gpus for pod in pods(objects))
    for claim in of_kind(objects, "PersistentVolumeClaim"):
        modes = claim["spec"]["accessModes"]
        if modes != ["ReadWriteMany"] and (gpus or modes != ["ReadWriteOnce"]):
            yield f"{named(claim)}: accessModes {modes}; needed: ReadWriteMany, as several nodes mount it"
        if quantity(claim["spec"]["resources"]["requests"]["storage"]) is None:
            yield f"{named(claim)}: storage is no quantity"


def servers_only_read(objects: Objects) -> Iterator[str]:
    for pod in pods(objects):
        for volume in pod.spec.get("volumes", []):
            claim = volume.get("persistentVolumeClaim")
            if claim is None:
                continue
            for each in pod.containers:
                mounts = [m for m in each.spec.get("volumeMounts", []) if m["name"] == volume["name"]]
                if pod.job is None and not (claim.get("readOnly") and all(m.get("readOnly") for m in mounts)):
                    yield f"{each}: the volume is mounted to be written, in the claim or in the container"
                if pod.job is not None and (claim.get("readOnly") or any(m.get("readOnly") for m in mounts)):
                    yield f"{each}: the volume is read-only, and a Job writes to it"


def paths_are_on_the_volume(objects: Objects) -> Iterator[str]:
    for pod in pods(objects):
        for each in pod.containers:
            if not each.ours:
                continue
            for name in ("root", "models"):
                path = getattr(options_or_none(each), name, None)
                if path is not None and not _on_claim(pod, each, PurePosixPath(path)):
                    yield f"{each}: --{name} {path} is not on the volume"


def _on_claim(pod: Pod, each: Container, path: PurePosixPath) -> bool:
    def claims(mount: Object) -> bool:
        return "persistentVolumeClaim" in (pod.volume(mount["name"]) or {})

    return any(claims(m) and path.is_relative_to(m["mountPath"]) for m in each.spec.get("volumeMounts", []))


POLICIES = (
    servers_have_a_front,
    both_sides_agree,
    warm_jobs_are_like_servers,
    the_volume_is_shared,
    servers_only_read,
    paths_are_on_the_volume,
)

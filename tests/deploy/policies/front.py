"""Of Envoy: what it is told by its container and by its configuration, which each know a part of the other."""

import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import PurePosixPath

import yaml

from tests.deploy.objects import DEPLOY, Container, Object, Objects, Pod, of_kind, walked
from tests.deploy.policies.commands import options_or_none
from tests.deploy.policies.pods import quantity
from tests.deploy.policies.server import fronted

EVERYWHERE = {"0.0.0.0", "::"}
SMALLEST = quantity("1Mi")
TLS_VERSIONS = {"TLSv1_2", "TLSv1_3"}
# What a connection may take of the proxy, where nothing that is quick to test shows it: the least and the most.
SECONDS = {
    "request_headers_timeout": (1, 30),
    "stream_flush_timeout": (10, 300),
    "drain_timeout": (1, 10),
    "delayed_close_timeout": (0.1, 5),
    "max_connection_duration": (60, 600),
    "connect_timeout": (0.1, 5),
}
# A client that has vanished without a word is found within a few minutes, and one that is slow is not taken for one.
KEEPALIVE = {"interval": (10, 120), "timeout": (5, 60)}
# Of a call by itself: it is over after so many seconds, or after so many in which nothing has come or gone.
CALL = {"max_stream_duration": (10, 600), "idle_timeout": (60, 3600)}
# Told of changes for as long as their connection lives.
ENDLESS = {"/grpc.health.v1.Health/Watch"}
STREAMS = (100, 1000)
CONNECTIONS = (100, 10_000)
HEAP = "envoy.resource_monitors.fixed_heap"
# What is done as the heap fills, in this order, and all of it before it is full.
SHEDDING = (
    "envoy.overload_actions.shrink_heap",
    "envoy.overload_actions.reset_high_memory_stream",
    "envoy.overload_actions.stop_accepting_requests",
)


def _of(config: Mapping[str, object], key: str) -> list[Object]:
    return [value for found, value in walked(config) if found == key]  # pyright: ignore[reportReturnType]


def _listeners(config: Mapping[str, object]) -> list[Object]:
    return next(iter(_of(config, "listeners")), [])  # pyright: ignore[reportReturnType]


def _managers(config: Mapping[str, object], listener: str) -> list[Object]:
    """The settings for HTTP of each way into a listener."""
    found = [filter["typed_config"] for each in _listeners(config) if each["name"] == listener
             for chain in each["filter_chains"] for filter in chain["filters"]]  # fmt: skip
    return [each for each in found if each["@type"].endswith(".HttpConnectionManager")]


def listeners_are_reached(objects: Objects) -> Iterator[str]:
    """kubelet, Services and collectors ask at the pod's address, behind which nothing at 127.0.0.1 is."""
    for _, server, envoy, config in fronted(objects):
        for each in _listeners(config):
            address = each["address"]["socket_address"]["address"]
            if address not in EVERYWHERE:
                yield f"{envoy}: listener {each['name']} at {address}; needed: one of {sorted(EVERYWHERE)}"
        host = getattr(options_or_none(server), "host", None)
        if host not in EVERYWHERE:
            yield f"{server}: --host {host}; needed: one of {sorted(EVERYWHERE)}"


def probes_ask_what_envoy_answers(objects: Objects) -> Iterator[str]:
    """/ready is 503 while a pod leaves, which must not get Envoy killed; an Envoy that has drained for good must be."""
    for _, _, envoy, config in fronted(objects):
        names = {port.get("name"): port["containerPort"] for port in envoy.ports}
        for name in ("startupProbe", "readinessProbe", "livenessProbe"):
            probe = envoy.spec.get(name, {})
            if (name == "livenessProbe") != ("tcpSocket" in probe):
                yield f"{envoy}: {name}: {'needs a tcpSocket' if name == 'livenessProbe' else 'needs an httpGet'}"
                continue
            asked = probe.get("httpGet", probe.get("tcpSocket"))
            number = names.get(asked["port"], asked["port"])
            found = [each["name"] for each in _listeners(config)
                     if each["address"]["socket_address"]["port_value"] == number]  # fmt: skip
            if found != ["front"]:
                yield f"{envoy}: {name}: asks the listener {found}; needed: front, which is there for probes"
            elif "httpGet" in probe and asked.get("path") not in _answered(config):
                yield f"{envoy}: {name}: asks {asked.get('path')}; Envoy answers {sorted(_answered(config))} with 200"


def _answered(config: Mapping[str, object]) -> set[str]:
    """Paths to which the listener for probes says 200 by itself."""
    routes = [r for manager in _managers(config, "front") for value in _of(manager, "routes") for r in value]
    return {r["match"]["path"] for r in routes if r.get("direct_response", {}).get("status") == 200}


def envoy_has_threads(objects: Objects) -> Iterator[str]:
    """Without the flag it has as many as the node has cores; with 0 none that works."""
    for _, _, envoy, _ in fronted(objects):
        given = (
            envoy.args[envoy.args.index("--concurrency") + 1] if "--concurrency" in envoy.args[:-1] else None
        )
        if given is None or not given.isdigit() or int(given) < 1:
            yield f"{envoy}: --concurrency {given}; needed: 1 or more"


def sockets_are_in_memory(objects: Objects) -> Iterator[str]:
    """A node whose disk is full must not keep the two from each other."""
    for pod, server, _, _ in fronted(objects):
        path = getattr(options_or_none(server), "grpc_socket", None)
        for mount in server.spec["volumeMounts"]:
            scratch = (pod.volume(mount["name"]) or {}).get("emptyDir")
            if path is None or scratch is None or PurePosixPath(mount["mountPath"]) != path.parent:
                continue
            size = quantity(scratch.get("sizeLimit"))
            if scratch.get("medium") != "Memory" or size is None or SMALLEST is None or size < SMALLEST:
                yield f"{pod}: volume {mount['name']}: {scratch}; needed for sockets: Memory, of 1Mi or more"


def certificates_are_where_envoy_reads_them(objects: Objects) -> Iterator[str]:
    """The configuration names files that name files, and the Secret has to be mounted over the last ones."""
    for pod, _, envoy, config in fronted(objects):
        data = _data(objects, pod)
        for path in {PurePosixPath(each["path"]) for each in _of(config, "path_config_source")}:
            text = data.get(path.name)
            if text is None or "configMap" not in _volume_at(pod, envoy, path.parent):
                yield f"{envoy}: {path}: its configuration reads it, and no ConfigMap is mounted there with it"
                continue
            for name in _of(yaml.safe_load(text), "filename"):
                if "secret" not in _volume_at(pod, envoy, PurePosixPath(str(name)).parent):
                    yield f"{envoy}: {name}: {path.name} names it, and no Secret is mounted there"
        for volume in pod.spec.get("volumes", []):
            secret = volume.get("secret", {}).get("secretName")
            if secret is not None and secret != documented_secret():
                yield f"{pod}: volume {volume['name']}: Secret {secret}; deploy/ tells people to make {documented_secret()}"
        wanted = any("jaxport.tls" in word for word in envoy.args)
        if wanted and any(
            v["secret"].get("optional") is not False for v in pod.spec["volumes"] if "secret" in v
        ):
            yield f"{pod}: the Secret is optional, and Envoy speaks TLS: pods would run that serve nobody"


def _data(objects: Objects, pod: Pod) -> Mapping[str, str]:
    names = {v["configMap"]["name"] for v in pod.spec.get("volumes", []) if "configMap" in v}
    found = [each["data"] for each in of_kind(objects, "ConfigMap") if each["metadata"]["name"] in names]
    return {name: text for data in found for name, text in data.items()}


def _volume_at(pod: Pod, each: Container, folder: PurePosixPath) -> Object:
    """The volume whose mount is this folder; {} if there is none."""
    return next((pod.volume(m["name"]) or {} for m in each.spec.get("volumeMounts", [])
                 if PurePosixPath(m["mountPath"]) == folder), {})  # fmt: skip


@cache
def documented_secret() -> str:
    """The one that the commands in components/tls and components/mtls make, and deploy/README.md names."""
    texts = [(DEPLOY / "components" / name / "kustomization.yaml").read_text() for name in ("tls", "mtls")]
    made = {found for text in texts for found in re.findall(r"create secret (?:tls|generic) (\S+)", text)}
    made |= set(re.findall(r"by the Secret `(\S+)`", (DEPLOY / "README.md").read_text()))
    assert len(made) == 1, f"deploy/ names several Secrets for certificates: {made}"
    return made.pop()


def tls_is_not_old(objects: Objects) -> Iterator[str]:
    for _, _, envoy, config in fronted(objects):
        for listener in _listeners(config):
            for chain in (each for each in listener["filter_chains"] if "transport_socket" in each):
                found = _of(chain["transport_socket"], "tls_params")
                oldest = found[0].get("tls_minimum_protocol_version") if found else None
                if oldest not in TLS_VERSIONS:
                    yield f"{envoy}: {chain['name']}: tls_minimum_protocol_version {oldest}; needed: {sorted(TLS_VERSIONS)}"


def connections_are_bounded(objects: Objects) -> Iterator[str]:
    """Each stream and each connection costs memory, and one that is forgotten costs it for ever."""
    for _, _, envoy, config in fronted(objects):
        for key, bounds in SECONDS.items():
            values = _of(config, key)
            yield from (f"{envoy}: {said}" for said in _outside(key, values, bounds))
        for manager in _managers(config, "grpc"):
            protocol = manager.get("http2_protocol_options", {})
            if not _within(protocol.get("max_concurrent_streams"), STREAMS):
                yield f"{envoy}: max_concurrent_streams {protocol.get('max_concurrent_streams')}; needed: {STREAMS}"
            for key, bounds in KEEPALIVE.items():
                value = protocol.get("connection_keepalive", {}).get(key)
                yield from (
                    f"{envoy}: {said}" for said in _outside(f"connection_keepalive.{key}", [value], bounds)
                )
            if "stream_flush_timeout" not in manager:
                yield f"{envoy}: stream_flush_timeout: none for gRPC"
        most = _of(config, "max_active_downstream_connections")
        if not most or not all(_within(value, CONNECTIONS) for value in most):
            yield f"{envoy}: max_active_downstream_connections {most}; needed: {CONNECTIONS}"


def calls_end(objects: Objects) -> Iterator[str]:
    """The manager's own timer for idle calls is off, so each route to the server says when a call ends by itself."""
    for _, _, envoy, config in fronted(objects):
        for manager in _managers(config, "grpc"):
            for route in (each for value in _of(manager, "routes") for each in value if "route" in each):
                path = route["match"].get("path") or route["match"]["prefix"]
                limits = {
                    "max_stream_duration": route["route"]
                    .get("max_stream_duration", {})
                    .get("max_stream_duration"),
                    "idle_timeout": route["route"].get("idle_timeout"),
                }
                if path not in ENDLESS and not any(
                    value is not None and not [*_outside(key, [value], CALL[key])]
                    for key, value in limits.items()
                ):
                    yield f"{envoy}: {path}: {limits}; needed: one of {CALL}"


def _outside(key: str, values: list[object], bounds: tuple[float, float]) -> Iterator[str]:
    """values: texts such as 60s."""
    for value in values or [None]:
        found = re.fullmatch(r"(\d+(?:\.\d+)?)s", str(value))
        if not _within(float(found[1]) if found else None, bounds):
            yield f"{key} {value}; needed: {bounds[0]}s to {bounds[1]}s"


def _within(value: object, bounds: tuple[float, float]) -> bool:
    return isinstance(value, int | float) and bounds[0] <= value <= bounds[1]


def load_is_shed_before_the_heap_is_full(objects: Objects) -> Iterator[str]:
    """First what is free is given back, then the largest requests are ended, then none is taken."""
    for _, _, envoy, config in fronted(objects):
        actions = {each["name"]: each for value in _of(config, "actions") for each in value}
        reached = 0.0
        for name in SHEDDING:
            [trigger] = [t for t in actions.get(name, {}).get("triggers", []) if t["name"] == HEAP] or [{}]
            levels = trigger.get("scaled") or {"value": trigger.get("threshold", {}).get("value")}
            for level in (
                levels.get(key)
                for key in ("scaling_threshold", "saturation_threshold", "value")
                if key in levels
            ):
                if not isinstance(level, float) or not reached < level < 1:
                    yield f"{envoy}: {name.rpartition('.')[2]} at {level} of the heap; needed: above {reached}, below 1"
                else:
                    reached = level


POLICIES = (
    listeners_are_reached,
    probes_ask_what_envoy_answers,
    envoy_has_threads,
    sockets_are_in_memory,
    certificates_are_where_envoy_reads_them,
    tls_is_not_old,
    connections_are_bounded,
    calls_end,
    load_is_shed_before_the_heap_is_full,
)

"""Faults in what Envoy is told."""

from typing import Any

from tests.deploy.faults.planted import TLS, Fault, Planted, cut, put, replaced
from tests.deploy.policies import front


def data(planted: Planted) -> Any:
    return planted.of("ConfigMap", "jaxport-envoy")["data"]


def said(old: str, new: str, file: str = "envoy.yaml") -> Any:
    """Text of Envoy's configuration, and what stands in its place."""
    return replaced(data, file, old, new)


def volume(planted: Planted, name: str) -> Any:
    return next(each for each in planted.serve["volumes"] if each["name"] == name)


FAULTS = (
    Fault(
        front.listeners_are_reached,
        "listener grpc at 127.0.0.1",
        said("{address: 0.0.0.0, port_value: 8500}", "{address: 127.0.0.1, port_value: 8500}"),
    ),
    Fault(
        front.listeners_are_reached,
        "listener front at localhost",
        said("{address: 0.0.0.0, port_value: 8502}", "{address: localhost, port_value: 8502}"),
    ),
    Fault(
        front.listeners_are_reached,
        "--host 127.0.0.1",
        lambda p: p.argument(p.server, "--host", "127.0.0.1"),
    ),
    Fault(
        front.probes_ask_what_envoy_answers,
        "startupProbe: asks /readyz; Envoy answers ['/ready']",
        lambda p: p.envoy["startupProbe"]["httpGet"].update(path="/readyz"),
    ),
    Fault(
        front.probes_ask_what_envoy_answers,
        "readinessProbe: asks /ready; Envoy answers ['/live']",
        said("match: {path: /ready}", "match: {path: /live}"),
    ),
    Fault(
        front.probes_ask_what_envoy_answers,
        "readinessProbe: asks the listener ['grpc']",
        lambda p: p.envoy["readinessProbe"]["httpGet"].update(port="grpc"),
    ),
    Fault(
        front.probes_ask_what_envoy_answers,
        "livenessProbe: needs a tcpSocket",
        lambda p: p.envoy.update(livenessProbe=p.envoy["readinessProbe"]),
    ),
    Fault(front.envoy_has_threads, "--concurrency 0", lambda p: p.argument(p.envoy, "--concurrency", "0")),
    Fault(front.envoy_has_threads, "--concurrency None", lambda p: p.envoy["args"].remove("--concurrency")),
    Fault(
        front.sockets_are_in_memory, "'16Mi'}; needed", cut(lambda p: volume(p, "run")["emptyDir"], "medium")
    ),
    Fault(
        front.sockets_are_in_memory,
        "'1Ki'}; needed",
        put(lambda p: volume(p, "run")["emptyDir"], sizeLimit="1Ki"),
    ),
    Fault(
        front.certificates_are_where_envoy_reads_them,
        "/etc/envoy/tls/tls.key: certificate.yaml names it, and no Secret",
        lambda p: p.envoy["volumeMounts"][1].update(mountPath="/etc/envoy/certs"),
    ),
    Fault(
        front.certificates_are_where_envoy_reads_them,
        "/etc/tls/ca.crt: clients.yaml names it, and no Secret",
        said("/etc/envoy/tls/ca.crt", "/etc/tls/ca.crt", "clients.yaml"),
    ),
    Fault(
        front.certificates_are_where_envoy_reads_them,
        "/etc/envoy/certificate.yaml: its configuration reads it",
        cut(data, "certificate.yaml"),
    ),
    Fault(
        front.certificates_are_where_envoy_reads_them,
        "Secret jaxport-cert; deploy/ tells people to make jaxport-tls",
        lambda p: volume(p, "envoy-tls")["secret"].update(secretName="jaxport-cert"),
    ),
    Fault(
        front.certificates_are_where_envoy_reads_them,
        "the Secret is optional, and Envoy speaks TLS",
        lambda p: volume(p, "envoy-tls")["secret"].update(optional=True),
        TLS,
    ),
    Fault(front.tls_is_not_old, "tls: tls_minimum_protocol_version TLSv1_0", said("TLSv1_2", "TLSv1_0")),
    Fault(
        front.tls_is_not_old,
        "mtls: tls_minimum_protocol_version None",
        said("tls_params: {tls_minimum_protocol_version: TLSv1_2}", "tls_params: {}"),
    ),
    Fault(
        front.connections_are_bounded,
        "max_concurrent_streams 100000",
        said("max_concurrent_streams: 256", "max_concurrent_streams: 100000"),
    ),
    Fault(
        front.connections_are_bounded,
        "connection_keepalive.interval None",
        said("connection_keepalive: {interval: 60s, timeout: 20s}", ""),
    ),
    Fault(
        front.connections_are_bounded,
        "stream_flush_timeout 30000s",
        said("stream_flush_timeout: 60s", "stream_flush_timeout: 30000s"),
    ),
    Fault(front.connections_are_bounded, "stream_flush_timeout None", said("stream_flush_timeout: 60s", "")),
    Fault(
        front.calls_end,
        "/: {'max_stream_duration': None, 'idle_timeout': None}",
        said("max_stream_duration: 60s, grpc", "grpc"),
    ),
    Fault(
        front.calls_end,
        "/inference.GRPCInferenceService/ModelStreamInfer: {'max_stream_duration': None, 'idle_timeout': '0s'}",
        said("idle_timeout: 3600s, host", "idle_timeout: 0s, host"),
    ),
    Fault(
        front.calls_end,
        "/grpc.reflection.: {'max_stream_duration': None, 'idle_timeout': None}",
        said("idle_timeout: 300s, host", "host"),
    ),
    Fault(
        front.connections_are_bounded,
        "max_active_downstream_connections []",
        said("max_active_downstream_connections: 1000", ""),
    ),
    Fault(
        front.load_is_shed_before_the_heap_is_full,
        "stop_accepting_requests at 1.0 of the heap",
        said("threshold: {value: 0.9}", "threshold: {value: 1.0}"),
    ),
    Fault(
        front.load_is_shed_before_the_heap_is_full,
        "reset_high_memory_stream at 0.5 of the heap; needed: above 0.6",
        said("scaling_threshold: 0.65", "scaling_threshold: 0.5"),
    ),
    Fault(
        front.load_is_shed_before_the_heap_is_full,
        "shrink_heap at None",
        said("envoy.overload_actions.shrink_heap", "envoy.overload_actions.disable_http_keepalive"),
    ),
)

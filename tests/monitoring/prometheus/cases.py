"""Series as a Prometheus would have recorded them, and which alerts they make.

Values are in promtool's notation: 'a+bxn' is a, a+b, ... for n more samples, '_' a sample that is missing, 'stale' the end of
a series. Each alert is met firing and silent, most of them on both sides of their threshold.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Fires:
    """labels: all of the alert but its name and severity. summary: as it is shown."""

    labels: Mapping[str, str]
    summary: str


@dataclass(frozen=True)
class Case:
    """One world. every: between two samples. expect: (at, alert, what fires then)."""

    title: str
    series: Mapping[str, str]
    expect: Sequence[tuple[str, str, Sequence[Fires]]]
    every: str = "30s"


def on(pod: str, job: str = "jaxport-metrics", **labels: str) -> str:
    """The labels of a series of a server, as the operator's collector makes them."""
    every = {
        "namespace": "jaxport",
        "job": job,
        "pod": pod,
        "instance": f"{pod}:8501",
        "container": "serve",
        **labels,
    }
    return "{" + ",".join(f'{name}="{value}"' for name, value in every.items()) + "}"


def state(pod: str, which: str, version: str = "1") -> str:
    return "jaxport_version_state" + on(pod, model="mlp", version=version, state=which)


def proxy(name: str, pod: str = "a", **labels: str) -> str:
    """A series of the Envoy in a server's pod."""
    return "envoy_" + name + on(pod, container="envoy", instance=f"{pod}:8502", **labels)


def phase(pod: str, which: str) -> str:
    return f'kube_pod_status_phase{{namespace="jaxport",pod="{pod}",phase="{which}",uid="1"}}'


def train(pod: str, name: str, run: str = "tiny") -> str:
    """A series of process 0 of a run, as a PodMonitor's job has it."""
    labels = {"job": "jaxport/jaxport-train", "instance": f"{pod}:8503", "container": "train", "run": run}
    return f"jaxport_train_{name}" + on(pod, **labels)


def requests(status: str, model: str = "mlp") -> str:
    labels = {"model": model, "version": "1", "protocol": "jaxport.v1", "status": status}
    return "jaxport_request_seconds_count" + on("a", **labels)


TARGET = {"namespace": "jaxport", "pod": "a", "instance": "a:8501"}
WHOLE = {**TARGET, "job": "jaxport-metrics", "container": "serve"}
MLP = {"namespace": "jaxport", "model": "mlp"}
UNSEEN = (
    "No server in jaxport is seen Ready; either no request is answered, or no server's metrics can be read"
)

SERVING = (
    Case(
        "the last server that is ready goes; another one serves a model, and --ready all keeps it from being asked",
        {
            "jaxport_ready" + on("a"): "1x19 stale", "jaxport_ready" + on("b"): "1x29 stale", "jaxport_ready" + on("c"): "_x25 0x100",
            state("c", "SERVING"): "_x25 1x100", state("c", "FAILED", "2"): "_x25 1x100",
        },
        (
            ("14m", "JaxportNoServer", ()),  # b is ready until 14m30s
            ("16m30s", "JaxportNoServer", ()),
            ("17m30s", "JaxportNoServer", (Fires({"namespace": "jaxport"}, UNSEEN),)),
            ("60m", "JaxportNoServer", (Fires({"namespace": "jaxport"}, UNSEEN),)),
        ),
    ),
    Case(
        "every server answers requests, and none can be scraped any more: the alert cannot tell, and says so",
        {"jaxport_ready" + on("a"): "1x19 stale", "up" + on("a"): "1x19 0x100"},
        (
            ("11m", "JaxportNoServer", ()),
            ("12m30s", "JaxportNoServer", (Fires({"namespace": "jaxport"}, UNSEEN),)),
            ("12m30s", "JaxportScrapeFailing", ()),
            ("21m", "JaxportScrapeFailing", (Fires(WHOLE, "The metrics of a:8501 cannot be read, so no other alert can tell of it"),)),
        ),
    ),
    Case(
        "nothing was ever served: the first training is under way",
        {"jaxport_ready" + on("a"): "0x200", "up" + on("a"): "1x200"},
        (("1h", "JaxportNoServer", ()), ("1h", "JaxportServerNotReady", ()), ("1h", "JaxportScrapeFailing", ())),
    ),
    Case(
        "one of two servers compiles, and compiles, and a third finds no models",
        {
            "jaxport_ready" + on("a"): "1x100", "jaxport_ready" + on("b"): "0x100", "jaxport_ready" + on("c"): "_x20 0x100",
            state("a", "SERVING"): "1x100", state("b", "LOADING"): "1x100",
        },
        (
            ("14m", "JaxportServerNotReady", ()),
            ("16m", "JaxportServerNotReady", (Fires({**TARGET, "pod": "b", "instance": "b:8501"}, "b is not Ready, and there are models to serve"),)),
            ("26m", "JaxportServerNotReady", (
                Fires({**TARGET, "pod": "b", "instance": "b:8501"}, "b is not Ready, and there are models to serve"),
                Fires({**TARGET, "pod": "c", "instance": "c:8501"}, "c is not Ready, and there are models to serve"),
            )),
            ("26m", "JaxportNoServer", ()),
        ),
    ),
    Case(
        "targets that cannot be read, by the names of both kinds of collectors",
        {"up" + on("a"): "0x100", "up" + on("b", "jaxport-serve"): "1x10 0x100", "up" + on("c", "another"): "0x100"},
        (
            ("9m", "JaxportScrapeFailing", ()),
            ("11m", "JaxportScrapeFailing", (Fires(WHOLE, "The metrics of a:8501 cannot be read, so no other alert can tell of it"),)),
            ("30m", "JaxportScrapeFailing", (
                Fires(WHOLE, "The metrics of a:8501 cannot be read, so no other alert can tell of it"),
                Fires({**WHOLE, "job": "jaxport-serve", "pod": "b", "instance": "b:8501"}, "The metrics of b:8501 cannot be read, so no other alert can tell of it"),
            )),
        ),
    ),
    Case(
        "two requests in a hundred fail on the device; what the caller did wrong does not count",
        {requests("OK"): "0+97x100", requests("INTERNAL"): "0+1x100", requests("UNAVAILABLE"): "0+1x100", requests("INVALID_ARGUMENT"): "0+1x100"},
        (
            ("4m", "JaxportErrors", ()),
            ("15m", "JaxportErrors", (Fires(MLP, "2% of the requests to model 'mlp' fail for a reason that is the server's"),)),
        ),
    ),
    Case(
        "one request in two hundred fails on the device, and every third is the caller's fault",
        {requests("OK"): "0+133x100", requests("INTERNAL"): "0+1x100", requests("INVALID_ARGUMENT"): "0+66x100"},
        (("20m", "JaxportErrors", ()),),
    ),
    Case(
        "a queue that is full",
        {requests("OK"): "0+96x100", requests("RESOURCE_EXHAUSTED"): "0+4x100", "jaxport_shed_total" + on("a", model="mlp", reason="queue_full"): "0+4x100"},
        (
            ("4m", "JaxportShedding", ()),
            ("15m", "JaxportShedding", (Fires(MLP, "4% of the requests to model 'mlp' are answered without a run"),)),
            ("15m", "JaxportErrors", ()),
        ),
    ),
    Case(
        "callers that go away, and one request in two hundred that is late",
        {
            requests("OK"): "0+189x100", requests("CANCELLED"): "0+10x100", requests("DEADLINE_EXCEEDED"): "0+1x100",
            "jaxport_shed_total" + on("a", model="mlp", reason="cancelled"): "0+10x100",
            "jaxport_shed_total" + on("a", model="mlp", reason="deadline"): "0+1x100",
        },
        (("15m", "JaxportShedding", ()),),
    ),
    Case(
        "3 of 100 requests wait for a third of a second",
        {"jaxport_queue_seconds_bucket" + on("a", model="mlp", version="1", le=le): f"0+{count}x100"
         for le, count in (("0.1", 97), ("0.2", 97), ("0.5", 100), ("+Inf", 100))},
        (
            ("9m", "JaxportQueueSlow", ()),
            ("15m", "JaxportQueueSlow", (Fires(MLP, "One request in a hundred to model 'mlp' waits for more than 400ms"),)),
        ),
    ),
    Case(
        "1 of 200 requests waits for a third of a second",
        {"jaxport_queue_seconds_bucket" + on("a", model="mlp", version="1", le=le): f"0+{count}x100"
         for le, count in (("0.1", 199), ("0.2", 199), ("0.5", 200), ("+Inf", 200))},
        (("20m", "JaxportQueueSlow", ()),),
    ),
    Case(
        "a request compiles, once",
        {"jaxport_compiles_after_ready_total" + on("a"): "0x20 1x200"},
        (
            ("10m", "JaxportCompilesAfterReady", ()),
            ("11m", "JaxportCompilesAfterReady", (Fires(WHOLE, "A request made a trace or compile, which none may"),)),
            ("45m", "JaxportCompilesAfterReady", ()),
        ),
    ),
    Case(
        "a start without a cache, and one with",
        {
            # promtool's clock begins at 0.
            "process_start_time_seconds" + on("a"): "0x200", "jaxport_compile_cache_misses_total" + on("a"): "6x200",
            "process_start_time_seconds" + on("b"): "0x200", "jaxport_compile_cache_misses_total" + on("b"): "0x200",
        },
        (
            ("10m", "JaxportColdStart", (Fires(WHOLE, "a compiled 6 executables that the compile cache should have had"),)),
            ("61m", "JaxportColdStart", ()),
        ),
    ),
    Case(
        "wrong answers: a series that begins with its first event, and one that goes on",
        {
            "jaxport_load_failures_total" + on("a", model="mlp", reason="goldens"): "_x20 1x200",
            "jaxport_load_failures_total" + on("b", model="mlp", reason="goldens"): "3x120 4x200",
            "jaxport_load_failures_total" + on("c", model="mlp", reason="bundle"): "_x20 1x200",
        },
        (
            ("9m", "JaxportGoldensFailed", (Fires({**MLP, "pod": "b"}, "A version of model 'mlp' gave wrong answers on the device of b, and was refused"),)),
            ("11m", "JaxportGoldensFailed", (
                Fires({**MLP, "pod": "a"}, "A version of model 'mlp' gave wrong answers on the device of a, and was refused"),
                Fires({**MLP, "pod": "b"}, "A version of model 'mlp' gave wrong answers on the device of b, and was refused"),
            )),
            ("50m", "JaxportGoldensFailed", ()),
            ("61m", "JaxportGoldensFailed", (Fires({**MLP, "pod": "b"}, "A version of model 'mlp' gave wrong answers on the device of b, and was refused"),)),
        ),
    ),
    Case(
        "a version that does not load, on two servers, and one that is put right",
        {
            state("a", "FAILED", "2"): "1x100", state("b", "FAILED", "2"): "1x100", state("a", "SERVING"): "1x100",
            state("a", "FAILED", "3"): "1x10 stale", state("a", "SERVING", "3"): "_x11 1x100",
        },
        (
            ("9m", "JaxportVersionFailed", ()),
            ("11m", "JaxportVersionFailed", (Fires({**MLP, "version": "2"}, "Version 2 of model 'mlp' does not load; what served before serves on"),)),
        ),
    ),
    Case(
        "a version that one server never has done with, while it serves another, and a rollout of three that each take 20 minutes",
        {
            state("a", "LOADING", "2"): "1x100", state("a", "SERVING"): "1x100",
            **{state(pod, "LOADING", "3"): f"_x{40 * number + 1} 1x39 stale" for number, pod in enumerate("xyz")},
        },
        (
            ("29m", "JaxportVersionLoading", ()),
            ("31m", "JaxportVersionLoading", (Fires({**TARGET, "model": "mlp", "version": "2"}, "a has been loading version 2 of model 'mlp' for half an hour"),)),
            ("50m", "JaxportVersionLoading", (Fires({**TARGET, "model": "mlp", "version": "2"}, "a has been loading version 2 of model 'mlp' for half an hour"),)),
        ),
    ),
    Case(
        "a label that cannot be followed",
        {"jaxport_policy_problems_total" + on("a", model="mlp"): "_x20 1x100"},
        (
            ("9m", "JaxportPolicyProblem", ()),
            ("11m", "JaxportPolicyProblem", (Fires(MLP, "The policy, a label or the folder of model 'mlp' cannot be followed"),)),
            ("45m", "JaxportPolicyProblem", ()),
        ),
    ),
    Case(
        "a server that restarts twice, one that does once, and another's process that does",
        {
            "process_start_time_seconds" + on("a"): "100x20 700x20 1300x200", "jaxport_compiles_total" + on("a"): "40x240",
            "process_start_time_seconds" + on("b"): "100x20 700x220", "jaxport_compiles_total" + on("b"): "40x240",
            "process_start_time_seconds" + on("c", "another"): "100x20 700x20 1300x200",
        },
        (
            ("15m", "JaxportServerRestarting", ()),
            ("25m", "JaxportServerRestarting", (Fires(WHOLE, "The server of a was started again 2 times within an hour"),)),
            ("1h50m", "JaxportServerRestarting", ()),
        ),
    ),
    Case(
        "a device that fills up",
        {
            "jaxport_device_memory_bytes" + on("a", kind="in_use"): "85x20 95x100",
            "jaxport_device_memory_bytes" + on("a", kind="peak"): "99x120",
            "jaxport_device_memory_bytes" + on("a", kind="limit"): "100x120",
        },
        (
            ("15m", "JaxportDeviceMemoryNearlyFull", ()),
            ("25m", "JaxportDeviceMemoryNearlyFull", (Fires(TARGET, "95% of the device memory of a is in use"),)),
        ),
    ),
    Case(
        "a server near its own limit, one that is not, and a process that is no server",
        {
            "process_resident_memory_bytes" + on("a"): "95x60", "jaxport_memory_limit_bytes" + on("a"): "100x60",
            "process_resident_memory_bytes" + on("b"): "85x60", "jaxport_memory_limit_bytes" + on("b"): "100x60",
            "process_resident_memory_bytes" + on("c", "another"): "95x60",
        },
        (
            ("9m", "JaxportHostMemoryNearlyFull", ()),
            ("15m", "JaxportHostMemoryNearlyFull", (Fires(WHOLE, "The server of a takes 95% of the memory it may have before it is killed"),)),
        ),
    ),
    Case(
        "a volume that fills up, as two servers and a run see it, and another run that has room",
        {
            **{f"jaxport_volume_{kind}_bytes" + on(pod): values for pod in ("a", "b") for kind, values in (("free", "30x20 8x60"), ("size", "100x80"))},
            train("c", "volume_free_bytes"): "30x20 7x60", train("c", "volume_size_bytes"): "100x80",
            train("d", "volume_free_bytes", "other"): "90x80", train("d", "volume_size_bytes", "other"): "100x80",
        },
        (
            ("15m", "JaxportVolumeNearlyFull", ()),
            ("25m", "JaxportVolumeNearlyFull", (Fires({"namespace": "jaxport"}, "7% of a volume in jaxport is free; full, it ends trainings and exports"),)),
        ),
    ),
    Case(
        "a disk that takes no lines",
        {
            "jaxport_access_log_lost_total" + on("a"): "0x10 0+5x10 50x100", "jaxport_traces_lost_total" + on("a"): "0x120",
            "jaxport_access_log_lost_total" + on("b"): "0x120", "jaxport_traces_lost_total" + on("b"): "0x120",
        },
        (
            ("4m", "JaxportRecordsLost", ()),
            ("10m", "JaxportRecordsLost", (Fires(WHOLE, "a loses lines of its access log, or traces"),)),
            ("50m", "JaxportRecordsLost", ()),
        ),
    ),
)  # fmt: skip

PROXY = (
    Case(
        "a proxy whose server is away for 2 of 100 requests, and one that reaches its own",
        {
            proxy("cluster_upstream_cx_connect_fail", "a", envoy_cluster_name="model"): "0+2x100",
            proxy("cluster_upstream_cx_connect_fail", "b", envoy_cluster_name="model"): "5x100",
            proxy("http_downstream_rq_total", "a", envoy_http_conn_manager_prefix="grpc"): "0+100x100",
            proxy("http_downstream_rq_total", "b", envoy_http_conn_manager_prefix="grpc"): "0+100x100",
        },
        (
            ("4m", "JaxportProxyUnconnected", ()),
            ("15m", "JaxportProxyUnconnected", (Fires({"namespace": "jaxport", "pod": "a"}, "Envoy in a does not reach its server with 2% of the requests"),)),
        ),
    ),
    Case(
        "a proxy without memory and connections, and one that has both",
        {
            **{proxy(f"overload_envoy_overload_actions_{which}_active", pod): f"{value}x60"
               for pod, which, value in (("a", "reset_high_memory_stream", 1), ("a", "stop_accepting_requests", 0), ("b", "reset_high_memory_stream", 0), ("b", "stop_accepting_requests", 0))},
            **{proxy(f"listener_downstream_{which}", pod, envoy_listener_address="0.0.0.0_8500"): values
               for pod, which, values in (("a", "global_cx_overflow", "0x10 3x50"), ("a", "cx_overload_reject", "0x60"), ("b", "global_cx_overflow", "7x60"), ("b", "cx_overload_reject", "0x60"))},
        },
        (
            ("1m", "JaxportProxyMemoryFull", ()),
            ("3m", "JaxportProxyMemoryFull", (Fires({"namespace": "jaxport", "job": "jaxport-metrics", "pod": "a", "instance": "a:8502", "container": "envoy"}, "Envoy in a has little memory left, and ends requests for it"),)),
            ("5m", "JaxportProxyConnectionsRefused", ()),
            ("6m", "JaxportProxyConnectionsRefused", (Fires({"namespace": "jaxport", "pod": "a"}, "Envoy in a refuses connections, as it has as many as it may"),)),
        ),
    ),
    Case(
        "a certificate that nobody renews",
        {proxy("server_days_until_first_cert_expiring", "a"): "14x10 13x10", proxy("server_days_until_first_cert_expiring", "b"): "4294967295x20"},
        (
            ("5m", "JaxportCertificateEnding", ()),
            ("6m", "JaxportCertificateEnding", (Fires({"namespace": "jaxport"}, "In 13 days a certificate of the servers in jaxport expires"),)),
        ),
    ),
)  # fmt: skip

BUNDLES = (
    Case(
        "a bundle of half a year: a day before, within the last 30 days, and after its window",
        {
            # 31 days and an hour left at first; an hour a sample.
            "jaxport_bundle_window_seconds" + on("a", model="mlp", version="1"): "2682000-3600x800",
            "jaxport_bundle_window_seconds" + on("b", model="mlp", version="1"): "2682000-3600x800",
            "jaxport_bundle_window_seconds" + on("a", model="new", version="1"): "15552000-3600x800",
        },
        (
            ("24h", "JaxportBundleWindowEnding", ()),
            ("26h", "JaxportBundleWindowEnding", (Fires({**MLP, "version": "1"}, "In 29d 23h 0m 0s a new JAX may refuse version 1 of model 'mlp'"),)),
            ("744h", "JaxportBundleWindowEnded", ()),
            ("746h", "JaxportBundleWindowEnding", ()),
            ("746h", "JaxportBundleWindowEnded", (Fires({**MLP, "version": "1"}, "Before the next image - JAX of today need not load version 1 of model 'mlp'; this image goes on serving it"),)),
        ),
        every="1h",
    ),
)  # fmt: skip


STOOD = Fires(
    {"namespace": "jaxport", "run": "tiny"}, "Run 'tiny' has a process and has done no step for half an hour"
)
AGAIN = Fires(
    {"namespace": "jaxport", "run": "tiny"}, "Run 'tiny' was started again 3 times within six hours"
)
TRAINING = (
    Case(
        "a run that stops to step, one that goes on, and one whose last process ended",
        {
            train("a", "step"): "0+10x60 600x120",
            train("b", "step", "other"): "0+10x180",
            train("c", "step", "done"): "0+10x30 300x1 stale",
        },
        (
            ("45m", "JaxportTrainStalled", ()),
            ("58m", "JaxportTrainStalled", ()),
            ("62m", "JaxportTrainStalled", (STOOD,)),
        ),
    ),
    Case(
        "a run that never gets to its first step: it compiles, or waits",
        {train("a", "step"): "NaN _ 0x120"},
        (("20m", "JaxportTrainStalled", ()), ("40m", "JaxportTrainStalled", (STOOD,))),
    ),
    Case(
        "a run that is preempted, and goes on in another pod within half an hour",
        {train("a", "step"): "0+10x60 stale", train("b", "step"): "_x100 NaN 600 600+10x100"},
        (("29m", "JaxportTrainStalled", ()), ("49m", "JaxportTrainStalled", ()), ("60m", "JaxportTrainStalled", ())),
    ),
    Case(
        "a run on Spot: four pods within six hours, and one that was started five times last week",
        {
            train("a", "starts"): "1x60 stale", train("b", "starts"): "_x70 2x60 stale",
            train("c", "starts"): "_x140 3x60 stale", train("d", "starts"): "_x210 4x700",
            train("x", "starts", "other"): "5x900",
        },
        (
            ("90m", "JaxportTrainRestartedOften", ()),
            ("106m", "JaxportTrainRestartedOften", (AGAIN,)),
            ("440m", "JaxportTrainRestartedOften", ()),
        ),
    ),
)  # fmt: skip

CLUSTER = (
    Case(
        "an export Job that failed, one that did not, and another's",
        {
            'kube_job_failed{namespace="jaxport",job_name="jaxport-export",condition="true"}': "0x10 1x20",
            'kube_job_failed{namespace="jaxport",job_name="jaxport-export",condition="false"}': "1x10 0x20",
            'kube_job_failed{namespace="jaxport",job_name="jaxport-warm",condition="false"}': "1x30",
            'kube_job_failed{namespace="shop",job_name="mail",condition="true"}': "1x30",
        },
        (
            ("4m", "JaxportJobFailed", ()),
            ("6m", "JaxportJobFailed", (Fires({"namespace": "jaxport", "job_name": "jaxport-export"}, "Job jaxport-export failed and is not tried again"),)),
        ),
    ),
    Case(
        "a pod without a node, and one that got its own",
        {
            'kube_pod_status_phase{namespace="jaxport",pod="jaxport-train-0-x",phase="Pending",uid="1"}': "1x200",
            'kube_pod_status_phase{namespace="jaxport",pod="jaxport-serve-y",phase="Pending",uid="2"}': "1x10 0x190",
            'kube_pod_status_phase{namespace="shop",pod="mail",phase="Pending",uid="3"}': "1x200",
        },
        (
            ("29m", "JaxportPodPending", ()),
            ("31m", "JaxportPodPending", (Fires({"namespace": "jaxport", "pod": "jaxport-train-0-x"}, "jaxport-train-0-x finds no node, or no image"),)),
        ),
    ),
    Case(
        "a Job whose pods failed, where Jobs have no series; one that is tried again, and one that succeeded",
        {
            phase("jaxport-train-0-aaaaa", "Failed"): "0x9 1x100", phase("jaxport-train-0-aaaaa", "Running"): "1x9 0x100",
            phase("jaxport-export-aaaaa", "Failed"): "1x100", phase("jaxport-export-bbbbb", "Pending"): "1x100",
            phase("jaxport-warm-aaaaa", "Failed"): "1x100", phase("jaxport-warm-bbbbb", "Succeeded"): "1x100",
            phase("jaxport-serve-a", "Failed"): "1x100",
        },
        (
            ("19m", "JaxportJobPodsFailed", ()),
            ("21m", "JaxportJobPodsFailed", (Fires({"namespace": "jaxport", "job_name": "jaxport-train"}, "A pod of Job jaxport-train failed, and no other was made within a quarter of an hour"),)),
        ),
    ),
    Case(
        "runs that each have Jobs of their own: what succeeded before, or is under way, hides no other's failure",
        {
            phase("jaxport-train-0-aaaaa", "Succeeded"): "1x100", phase("jaxport-train-bard-0-bbbbb", "Failed"): "1x100",
            phase("jaxport-train-7-0-ccccc", "Failed"): "1x100", phase("jaxport-train-7-1-ddddd", "Running"): "1x100",
            phase("jaxport-export-7-aaaaa", "Succeeded"): "1x100", phase("jaxport-export-2-bbbbb", "Failed"): "1x100",
            phase("jaxport-warm-aaaaa", "Succeeded"): "1x100", phase("jaxport-warm-bard-bbbbb", "Failed"): "1x100",
        },
        (
            ("14m", "JaxportJobPodsFailed", ()),
            ("16m", "JaxportJobPodsFailed", tuple(
                Fires({"namespace": "jaxport", "job_name": job}, f"A pod of Job {job} failed, and no other was made within a quarter of an hour")
                for job in ("jaxport-train-bard", "jaxport-export-2", "jaxport-warm-bard")
            )),
        ),
    ),
    Case(
        "what is scraped, read or not, and what others scrape",
        {"up" + on("a"): "1x20 stale", "up" + on("b"): "0x20 stale", "up" + on("m", job="mail"): "1x60"},
        (
            ("1m", "JaxportWatchdog", (Fires({"namespace": "jaxport"}, "Nothing is wrong: 2 places in jaxport are scraped, and alerts are sent"),)),
            ("20m", "JaxportWatchdog", ()),
        ),
    ),
)  # fmt: skip

CASES = (*SERVING, *PROXY, *BUNDLES, *TRAINING, *CLUSTER)

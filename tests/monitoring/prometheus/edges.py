"""Each alert on both sides of each of its numbers: thresholds, windows and how long it waits.

A world has series in promtool's notation (as in cases.py) and says when the alert fires and when it does not. From these the
worlds of promtool are made, and those against rules with one number changed: see test_edges.py.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tests.monitoring.prometheus.cases import on, phase, proxy, requests, state, train


@dataclass(frozen=True)
class Edge:
    """firing, silent: times. every: between two samples and two evaluations."""

    alert: str
    series: Mapping[str, str]
    firing: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()
    every: str = "30s"


def failed_job(condition: str) -> str:
    return f'kube_job_failed{{namespace="jaxport",job_name="jaxport-train",condition="{condition}"}}'


def ready(pod: str) -> str:
    return "jaxport_ready" + on(pod)


def of_mlp(name: str, **labels: str) -> str:
    return name + on("a", model="mlp", **labels)


# Ten thousand requests in every half minute, and from 20m on a thousand.
FEWER = "0+10000x40 401000+1000x100"


def of_proxy_requests(failed: int, stop: str = "x200", every: str = "0+1000x200") -> dict[str, str]:
    """`failed` of a thousand in every half minute do not reach the server."""
    return {
        proxy("cluster_upstream_cx_connect_fail", envoy_cluster_name="model"): f"0+{failed}{stop}",
        proxy("http_downstream_rq_total", envoy_http_conn_manager_prefix="grpc"): every,
    }


def waits(slow: int) -> dict[str, str]:
    """Of a thousand requests in every half minute, `slow` wait for more than 0.2 s."""
    counts = (("0.1", 0), ("0.2", 1000 - slow), ("0.5", 1000), ("+Inf", 1000))
    return {
        of_mlp("jaxport_queue_seconds_bucket", version="1", le=le): f"0+{count}x200" for le, count in counts
    }


def of_device(in_use: int) -> dict[str, str]:
    return {
        "jaxport_device_memory_bytes" + on("a", kind="in_use"): f"500x9 {in_use}x100",
        "jaxport_device_memory_bytes" + on("a", kind="limit"): "1000x120",
    }


def of_process(resident: int) -> dict[str, str]:
    return {
        "process_resident_memory_bytes" + on("a"): f"500x9 {resident}x100",
        "jaxport_memory_limit_bytes" + on("a"): "1000x120",
    }


def of_volume(free: int, before: int = 500) -> Iterator[dict[str, str]]:
    """Of 1000 bytes `free`, from 5m on: as a server sees it, as a run does, and either beside one that has room."""
    for about, series in (("", on), ("train_", lambda pod: on(pod, run="tiny"))):
        name = f"jaxport_{about}volume"
        one = {
            f"{name}_free_bytes" + series("a"): f"{before}x9 {free}x100",
            f"{name}_size_bytes" + series("a"): "1000x120",
        }
        yield one
        yield {
            **one,
            f"{name}_free_bytes" + series("b"): "900x120",
            f"{name}_size_bytes" + series("b"): "1000x120",
        }


def shed(rows: int, stop: str = "x200", every: str = "0+1000x200") -> dict[str, str]:
    """`rows` of a thousand requests in every half minute are shed."""
    return {
        requests("OK"): every,
        of_mlp("jaxport_shed_total", reason="queue_full"): f"0+{rows}{stop}",
    }


def errors(failed: int, stop: str = "x200") -> dict[str, str]:
    """`failed` of a thousand requests in every half minute fail."""
    return {requests("OK"): f"0+{1000 - failed}x200", requests("INTERNAL"): f"0+{failed}{stop}"}


def starting_again(alive: int, gone: int, failed: int) -> dict[str, str]:
    """A server that begins anew with other pods, each with 1000 requests of which `failed` fail before its first scrape."""
    series: dict[str, str] = {}
    for number in range(8):
        before = f"_x{number * (alive + gone)} " if number else ""
        for status, count in (("OK", 1000 - failed), ("INTERNAL", failed)):
            labels = {"model": "mlp", "version": "1", "protocol": "jaxport.v1", "status": status}
            name = "jaxport_request_seconds_count" + on(f"p{number}", **labels)
            series[name] = f"{before}{count}x{alive - 1} stale"
    return series


def read_once(count: int, status: str = "INTERNAL") -> dict[str, str]:
    """Servers that were read once, one in every half minute, with `count` requests that ended so."""
    series = {}
    for number in range(40):
        labels = {"model": "mlp", "version": "1", "protocol": "jaxport.v1", "status": status}
        name = "jaxport_request_seconds_count" + on(f"p{number}", **labels)
        series[name] = f"_x{number + 1} {count} stale"
    return series


def edges() -> Iterator[Edge]:
    """Every world."""
    yield from of_serving()
    yield from of_requests()
    yield from of_events()
    yield from of_proxies()
    yield from of_bundles()
    yield from of_training()
    yield from of_cluster()
    yield from of_watchdog()


def of_serving() -> Iterator[Edge]:
    name = "JaxportNoServer"
    # The last ready server ends: from then on for two minutes, and for three days.
    yield Edge(name, {ready("a"): "1x20 stale"}, firing=("5m30s",), silent=("3m20s", "5m20s"), every="10s")
    yield Edge(name, {ready("a"): "1x2 stale", ready("b"): "_x2 0x1000"}, ("72h",), ("73h30m",), every="30m")
    # One that was never ready: the models have to be there for a quarter of an hour.
    bad = {ready("a"): "0x100", state("a", "FAILED"): "_x10 1x90"}
    yield Edge(name, bad, firing=("22m",), silent=("19m", "21m30s"))
    # It ends, and starts again only after nine minutes and a half; it goes for good; its models go.
    again = "0 " + "_x18 0 " * 9
    yield Edge(
        name, {ready("a"): again, state("a", "FAILED"): again.replace("0", "1")}, firing=("40m", "49m", "60m")
    )
    yield Edge(name, {**bad, ready("a"): "0x60 stale"}, firing=("40m",), silent=("40m30s",))
    yield Edge(name, {**bad, state("a", "FAILED"): "_x10 1x50 stale"}, firing=("55m",), silent=("55m30s",))
    # Before the first bundle; and where another one is ready.
    yield Edge(name, {ready("a"): "0x500"}, silent=("2h",))
    yield Edge(
        name, {ready("a"): "0x100", ready("b"): "1x100", state("a", "FAILED"): "1x100"}, silent=("30m",)
    )
    yield Edge(name, {ready("a"): "1x5 stale", ready("b"): "_x8 1x100"}, silent=("4m30s", "20m"))
    name = "JaxportServerNotReady"
    late = {ready("a"): "0x100", ready("b"): "1x100", state("b", "SERVING"): "1x100"}
    yield Edge(name, late, firing=("15m",), silent=("14m30s",))
    yield Edge(name, {ready("a"): "1x100", state("a", "SERVING"): "1x100"}, silent=("30m",))
    yield Edge(name, {ready("a"): "0x100"}, silent=("30m",))
    name = "JaxportScrapeFailing"
    yield Edge(name, {"up" + on("a"): "0x100"}, firing=("10m",), silent=("9m30s",))
    yield Edge(name, {"up" + on("a"): "1x100"}, silent=("20m",))
    name = "JaxportVersionFailed"
    yield Edge(name, {state("a", "FAILED"): "1x100"}, firing=("10m",), silent=("9m30s",))
    yield Edge(name, {state("a", "LOADING"): "1x100"}, silent=("20m",))
    name = "JaxportVersionLoading"
    yield Edge(name, {state("a", "LOADING"): "1x100"}, firing=("30m",), silent=("29m30s",))
    yield Edge(name, {state("a", "SERVING"): "1x100"}, silent=("40m",))
    yield Edge(name, {state("a", "LOADING"): "0x100"}, silent=("40m",))
    name = "JaxportDeviceMemoryNearlyFull"
    yield Edge(name, of_device(905), firing=("15m",), silent=("14m30s",))
    yield Edge(name, of_device(895), silent=("20m",))
    name = "JaxportVolumeNearlyFull"
    for low, high in zip(of_volume(95), of_volume(105), strict=True):
        yield Edge(name, low, firing=("15m",), silent=("14m30s",))
        yield Edge(name, high, silent=("20m",))
    name = "JaxportHostMemoryNearlyFull"
    yield Edge(name, of_process(905), firing=("15m",), silent=("14m30s",))
    yield Edge(name, of_process(895), silent=("20m",))


def of_requests() -> Iterator[Edge]:
    # True from the first evaluation on which there is a rate, at 30s.
    name = "JaxportErrors"
    yield Edge(name, errors(11), firing=("5m30s",), silent=("4m30s",))
    yield Edge(name, errors(9), silent=("5m30s", "20m"))
    # They stop at 20m; of the five minutes before 24m they are 1.2 %, of those before 24m30s 0.6 %.
    yield Edge(name, errors(60, "x40 2400x100"), firing=("24m",), silent=("24m30s",))
    yield Edge(
        name, {requests("OK"): FEWER, requests("INTERNAL"): "0+11x200"}, firing=("30m",), silent=("29m30s",)
    )
    # No series lives for more than a minute and a half, and none of them ever increases.
    yield Edge(name, starting_again(3, 1, 11), firing=("6m", "10m"))
    yield Edge(name, starting_again(3, 1, 9), silent=("6m", "10m"))
    # 1000 requests in every half minute, and beside them every half minute another pod that is read once.
    yield Edge(name, {requests("OK"): "0+1000x200", **read_once(11)}, firing=("10m30s", "20m"))
    yield Edge(name, {requests("OK"): "0+1000x200", **read_once(9)}, silent=("10m30s", "20m"))
    yield Edge(name, {**read_once(1981, "OK"), **read_once(19)}, silent=("10m30s", "20m"))
    name = "JaxportShedding"
    yield Edge(name, shed(11), firing=("5m30s",), silent=("5m",))
    yield Edge(name, shed(9), silent=("5m30s", "20m"))
    yield Edge(name, shed(60, "x40 2400x100"), firing=("24m",), silent=("24m30s",))
    yield Edge(name, shed(11, every=FEWER), firing=("30m",), silent=("29m30s",))
    name = "JaxportQueueSlow"
    yield Edge(name, waits(11), firing=("10m30s",), silent=("10m",))
    yield Edge(name, waits(9), silent=("10m30s", "20m"))
    stops = {
        series: values.replace("x200", "x60") + " " + _standing(values)
        for series, values in waits(11).items()
    }
    yield Edge(name, stops, firing=("34m30s",), silent=("35m30s",))


def _standing(values: str) -> str:
    return f"{int(values.partition('+')[2].partition('x')[0]) * 60}x140"


def of_events() -> Iterator[Edge]:
    name = "JaxportCompilesAfterReady"
    once = {"jaxport_compiles_after_ready_total" + on("a"): "0x19 1x200"}
    yield Edge(name, once, firing=("10m", "39m30s"), silent=("9m30s", "40m30s"))
    yield Edge(name, {"jaxport_compiles_after_ready_total" + on("a"): "0x200"}, silent=("30m",))
    name = "JaxportColdStart"
    cold = {
        "process_start_time_seconds" + on("a"): "0x200",
        "jaxport_compile_cache_misses_total" + on("a"): "1x200",
    }
    yield Edge(name, cold, firing=("30s", "59m30s"), silent=("60m",))
    warm = {series: values.replace("1x", "0x") for series, values in cold.items()}
    yield Edge(name, warm, silent=("30s",))
    for name, series in (
        ("JaxportGoldensFailed", of_mlp("jaxport_load_failures_total", reason="goldens")),
        ("JaxportPolicyProblem", of_mlp("jaxport_policy_problems_total")),
    ):
        yield Edge(name, {series: "0x19 1x200"}, firing=("10m", "39m30s"), silent=("9m30s", "40m30s"))
        # A series that begins with 1: what the server was too early with for Prometheus.
        yield Edge(name, {series: "_x20 1x200"}, firing=("10m", "39m30s"), silent=("9m30s", "45m"))
        yield Edge(name, {series: "0x200"}, silent=("10m", "40m"))
    name = "JaxportServerRestarting"
    compiles = {"jaxport_compiles_total" + on("a"): "40x300"}
    twice = {**compiles, "process_start_time_seconds" + on("a"): "100x20 700x20 1300x240"}
    yield Edge(name, twice, firing=("21m", "70m"), silent=("20m", "71m"))
    yield Edge(name, {**compiles, "process_start_time_seconds" + on("a"): "100x20 700x260"}, silent=("21m",))
    name = "JaxportRecordsLost"
    for lost, other in (("access_log", "traces"), ("traces", "access_log")):
        series = {
            f"jaxport_{lost}_lost_total" + on("a"): "0x19 1x200",
            f"jaxport_{other}_lost_total" + on("a"): "0x220",
        }
        yield Edge(name, series, firing=("10m", "24m30s"), silent=("9m30s", "25m30s"))
        yield Edge(name, dict.fromkeys(series, "0x200"), silent=("10m",))


def of_proxies() -> Iterator[Edge]:
    name = "JaxportProxyUnconnected"
    yield Edge(name, of_proxy_requests(11), firing=("5m30s",), silent=("5m",))
    yield Edge(name, of_proxy_requests(9), silent=("5m30s", "20m"))
    yield Edge(name, of_proxy_requests(60, "x40 2400x100"), firing=("24m",), silent=("24m30s",))
    yield Edge(name, of_proxy_requests(11, every=FEWER), firing=("30m",), silent=("29m30s",))
    name = "JaxportProxyMemoryFull"
    resets, refuses = (
        proxy(f"overload_envoy_overload_actions_{each}_active")
        for each in ("reset_high_memory_stream", "stop_accepting_requests")
    )
    yield Edge(name, {resets: "1x20", refuses: "0x20"}, firing=("2m",), silent=("1m50s",), every="10s")
    yield Edge(name, {resets: "0x20", refuses: "1x20"}, firing=("2m",), silent=("1m50s",), every="10s")
    yield Edge(name, {resets: "0x20", refuses: "0x20"}, silent=("5m",))
    name = "JaxportProxyConnectionsRefused"
    full, overloaded = (
        proxy(f"listener_downstream_{each}", envoy_listener_address="0.0.0.0_8500")
        for each in ("global_cx_overflow", "cx_overload_reject")
    )
    for one, other in ((full, overloaded), (overloaded, full)):
        series = {one: "0x19 1x200", other: "0x220"}
        yield Edge(name, series, firing=("10m", "19m30s"), silent=("9m30s", "20m30s"))
    yield Edge(name, {full: "0x100", overloaded: "0x100"}, silent=("10m",))
    name = "JaxportCertificateEnding"
    days = "server_days_until_first_cert_expiring"
    yield Edge(name, {proxy(days): "13x10", proxy(days, "b"): "60x10"}, firing=("0s",))
    yield Edge(name, {proxy(days): "14x10", proxy(days, "b"): "4294967295x10"}, silent=("0s", "5m"))


def of_bundles() -> Iterator[Edge]:
    window, day = of_mlp("jaxport_bundle_window_seconds", version="1"), 86400
    name = "JaxportBundleWindowEnding"
    yield Edge(
        name, {window: f"{30 * day}x2 {30 * day - 1}x2 1x2 0x5"}, ("1h30m", "3h"), ("1h", "4h30m"), "30m"
    )
    name = "JaxportBundleWindowEnded"
    yield Edge(name, {window: "1x2 0x2 -1000000x5"}, firing=("1h30m", "4h"), silent=("1h",), every="30m")


def of_training() -> Iterator[Edge]:
    name = "JaxportTrainStalled"
    # The last step is at 30m; the quarter of an hour without one is over at 45m, and then it waits for as long again.
    yield Edge(name, {train("a", "step"): "0+10x60 600x200"}, firing=("60m",), silent=("59m30s",))
    yield Edge(name, {train("a", "step"): _once_in(28)}, silent=("60m", "90m"))
    name = "JaxportTrainRestartedOften"
    four = {train("a", "starts"): "1x2 stale", train("b", "starts"): "_x3 2x2 3x2 4x400"}
    yield Edge(name, four, firing=("10m", "361m"), silent=("6m", "370m"), every="1m")
    yield Edge(name, {train("a", "starts"): "1x5 3x400"}, silent=("10m",), every="1m")


def _once_in(samples: int) -> str:
    """A step in so many samples, which is within the quarter of an hour."""
    return " ".join(f"{10 * number}x{samples - 1}" for number in range(8))


def of_cluster() -> Iterator[Edge]:
    name = "JaxportJobFailed"
    yield Edge(name, {failed_job("true"): "0x9 1x20"}, firing=("5m",), silent=("4m30s",))
    yield Edge(name, {failed_job("false"): "1x20"}, silent=("10m",))
    name = "JaxportJobPodsFailed"
    gone = {
        phase("jaxport-train-0-aaaaa", "Failed"): "0x9 1x100",
        phase("jaxport-train-0-aaaaa", "Running"): "1x9 0x100",
    }
    yield Edge(name, gone, firing=("20m",), silent=("19m30s",))
    for other in ("Pending", "Running", "Succeeded"):
        yield Edge(name, {**gone, phase("jaxport-train-0-bbbbb", other): "1x110"}, silent=("20m", "50m"))
    # That of another Job, or of a Job of another run, does not help; and where Jobs have series, these tell.
    yield Edge(name, {**gone, phase("jaxport-export-bbbbb", "Running"): "1x110"}, firing=("20m",))
    yield Edge(name, {**gone, phase("jaxport-train-bard-0-bbbbb", "Succeeded"): "1x110"}, firing=("20m",))
    yield Edge(name, {**gone, failed_job("true"): "1x110"}, silent=("50m",))
    yield Edge(name, {**gone, failed_job("true"): "0x110"}, firing=("20m",))
    yield Edge(name, {phase("mail-0-aaaaa", "Failed"): "1x110"}, silent=("50m",))
    name = "JaxportPodPending"
    yield Edge(name, {phase("jaxport-serve-a", "Pending"): "1x100"}, firing=("30m",), silent=("29m30s",))
    yield Edge(name, {phase("jaxport-serve-a", "Pending"): "0x100"}, silent=("40m",))


def of_watchdog() -> Iterator[Edge]:
    """From the first look on, also of what cannot be read; not of what others scrape."""
    name = "JaxportWatchdog"
    yield Edge(name, {"up" + on("a"): "_x9 0x9 1x9 stale"}, firing=("5m", "9m30s"), silent=("4m", "20m"))
    yield Edge(name, {"up" + on("a", job="mail"): "1x100"}, silent=("10m",))


EDGES = tuple(edges())

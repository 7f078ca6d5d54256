"""Two servers are replaced, one after the other, while a client of the headless Service keeps asking."""

import json
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from jaxport.scrape import scrape
from tests.images.cluster import Cluster
from tests.images.headless import HeadlessService
from tests.images.pods import Pod
from tests.images.probes import until
from tests.images.stages import Ended

SECONDS_TO_READY = 120


def test_a_rolling_replacement_loses_no_request(
    cluster: Cluster, warmed: Ended, said: Callable[[str], None]
) -> None:
    # The order below is the one that the Deployment asks for.
    strategy = cluster.manifests.objects["Deployment", "jaxport-serve"]["spec"]["strategy"]
    assert strategy == {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}}
    port = free_port()
    ready = [serving(cluster, number, port) for number in (1, 2)]
    with HeadlessService() as service:
        service.addresses = {pod.host for pod in ready}
        with load(service.target(port)) as outcome:
            for number in (3, 4):
                ready.append(serving(cluster, number, port))
                leaving = ready.pop(0)
                until_asked(leaving)
                service.addresses = {pod.host for pod in ready}
                assert leaving.stop() == {"serve": 0, "envoy": 0}
            for pod in ready:
                until_asked(pod)
    said(f"rolling replacement of two servers: {json.dumps(outcome)}")
    assert outcome["failed"] == []
    assert outcome["answered"] > 100


def serving(cluster: Cluster, number: int, port: int) -> Pod:
    """A server that is Ready, its gRPC port at an address of its own."""
    pod = cluster.start("Deployment", "jaxport-serve", host=f"127.0.0.{10 + number}", fixed={8500: port})
    pod.until_ready(SECONDS_TO_READY)
    return pod


def until_asked(pod: Pod) -> None:
    """Until the client has found it."""

    def unasked() -> str:
        figures = scrape(pod.address("http"))
        return "" if figures and figures.total("jaxport_request_seconds_count") else "no request came"

    until(unasked, 60, f"{pod.name} is not found", pod.lives)


@contextmanager
def load(target: str) -> Iterator[dict[str, Any]]:
    """Requests to `target` for as long as it lasts; how it went is filled in at the end."""
    outcome: dict[str, Any] = {}
    command = [sys.executable, "-m", "tests.images.load", target, "tiny"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as client:
        try:
            yield outcome
        finally:
            printed, _ = client.communicate(timeout=60)
    outcome.update(json.loads(printed))


def free_port() -> int:
    """Taken by nobody a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as held:
        return held.getsockname()[1]

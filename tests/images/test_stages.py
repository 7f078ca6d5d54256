"""train -> export -> warm -> serve -> Predict, every container started from deploy/*.yaml, on one volume.

Everything but the training is started first, as one `kubectl apply` may have it.
"""

import json
from collections.abc import Callable

import pytest

from converters.bundle import Bundle
from jaxport import Client
from jaxport.scrape import scrape
from tests.images.cluster import Cluster
from tests.images.pods import Pod
from tests.images.stages import STAGE_SECONDS, Early, Ended, Trained

# The aim is 6 s on 2 cores; this is for a machine that does other things besides.
MOST_SECONDS_TO_READY = 15


@pytest.fixture(scope="module")
def served(cluster: Cluster, early: Early, warmed: Ended) -> Pod:
    """Started when all is there; the one that waited is gone by then."""
    early.serve.until_ready(STAGE_SECONDS)
    assert early.serve.stop() == {"serve": 0, "envoy": 0}
    return cluster.start("Deployment", "jaxport-serve")


def test_without_a_bundle_the_server_lives_and_is_not_ready(early: Early) -> None:
    assert early.not_ready == "GET /readyz answers 503"


def test_a_stopped_training_ends_with_75_and_the_next_resumes_it(trained: Trained) -> None:
    stopped, resumed, again = trained.stopped, trained.resumed, trained.again
    assert stopped.code == 75, stopped.log
    assert "preempted: saved step " in stopped.log
    assert resumed.code == 0, resumed.log
    assert "resumed" in resumed.log
    assert "after 40 steps" in resumed.log
    assert again.code == 0, again.log
    assert again.seconds < 20


def test_the_export_that_waited_wrote_a_bundle_for_both_platforms(exported: Bundle) -> None:
    assert set(exported.manifest.platforms) == {"cpu", "cuda"}
    assert exported.manifest.provenance["step"] == 40


def test_the_bundle_passes_its_goldens_in_the_export_image(cluster: Cluster, exported: Bundle) -> None:
    pod = cluster.start("Job", "jaxport-export", args=["verify", "/work/models/tiny/1"])
    assert pod.wait(60) == 0, pod.log()


def test_an_export_that_is_started_again_writes_nothing(cluster: Cluster, exported: Bundle) -> None:
    pod = cluster.start("Job", "jaxport-export")
    assert pod.wait(60) == 0, pod.log()
    assert sorted(path.name for path in (cluster.volume / "models" / "tiny").glob("[0-9]*")) == ["1"]


def test_the_warm_job_publishes_a_cache(cluster: Cluster, warmed: Ended) -> None:
    assert warmed.code == 0, warmed.log
    assert list((cluster.volume / "cache").glob("*/*.executables"))


def test_the_server_that_waited_becomes_ready_by_itself(early: Early, warmed: Ended) -> None:
    early.serve.until_ready(STAGE_SECONDS)
    early.serve.lives()


def test_a_warm_server_is_soon_ready(served: Pod, said: Callable[[str], None]) -> None:
    seconds = served.until_ready(60)
    said(f"start to Ready with a warm cache: {seconds:.1f} s (aim: under 6 on 2 cores)")
    figures = scrape(served.address("http"))
    assert figures is not None
    assert figures.total("jaxport_compile_cache_misses_total") == 0, served.log()
    assert seconds < MOST_SECONDS_TO_READY, served.log()


def test_the_transformer_answers_through_envoy(served: Pod, exported: Bundle) -> None:
    served.until_ready(60)
    with Client(served.address("grpc")) as client:
        for golden in exported.goldens():
            answer = client.predict("tiny", dict(golden.inputs))
            exported.check_golden("predict", golden, answer, "cpu")


def test_the_server_sees_the_volume_and_cannot_write_it(served: Pod) -> None:
    container = served.container("serve")
    assert container.execute(["test", "-r", "/work/models/tiny/1/manifest.json"], 10)[0] == 0
    code, complaint = container.execute(["touch", "/work/models/x"], 10)
    assert code != 0
    assert "Read-only file system" in complaint


def test_envoy_and_the_server_have_one_user_and_one_secret_less_folder(served: Pod) -> None:
    users = {name: served.container(name).inspect("{{.Config.User}}") for name in ("serve", "envoy")}
    assert users == {"serve": "10001:10001", "envoy": "10001:10001"}
    assert json.loads(served.container("serve").inspect("{{json .HostConfig.ReadonlyRootfs}}")) is True


def test_sigterm_ends_the_pod_in_order_with_0(served: Pod) -> None:
    served.until_ready(60)
    assert served.stop() == {"serve": 0, "envoy": 0}

"""The images, built from this checkout, and the folder that stands for the cluster's volume."""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import envoy
import pytest

from converters.bundle import Bundle, open_bundle
from deploy.images.base import base_image
from deploy.images.build import TARGETS, Build, build
from deploy.images.engine import Engine, NotPossible, find_engine
from deploy.images.labels import labels, version
from tests.images.cluster import Cluster
from tests.images.envoy_image import envoy_image
from tests.images.manifests import Manifests, read_manifests
from tests.images.stages import STAGE_SECONDS, Early, Ended, Trained, train_three_times
from tests.images.volumes import belongs_to_group

ROOT = Path(__file__).resolve().parents[2]
ENVOY = Path(envoy.__file__).parent / "_bin" / "envoy"
GROUP = 10001


@pytest.fixture(scope="session")
def engine() -> Engine:
    try:
        return find_engine(ROOT / "build" / "images")
    except NotPossible as refused:
        pytest.exit(f"images: {refused}", returncode=4)


@pytest.fixture(scope="session")
def said(pytestconfig: pytest.Config) -> Callable[[str], None]:
    """Prints a line that is seen whatever the outcome."""
    capture: Any = pytestconfig.pluginmanager.getplugin("capturemanager")

    def say(line: str) -> None:
        with capture.global_and_fixture_disabled():
            print(f"\n{line}", flush=True)

    return say


@pytest.fixture(scope="session")
def base(engine: Engine, said: Callable[[str], None]) -> str:
    return possible(lambda: base_image(engine, None, said))


@pytest.fixture(scope="session")
def images(engine: Engine, base: str, said: Callable[[str], None]) -> dict[str, str]:
    """The three for the CPU: target -> tag."""
    built = {}
    for target in TARGETS:
        wanted = Build(target, "cpu", base, version(ROOT))
        size = possible(lambda: build(engine, ROOT, wanted, labels(ROOT, "unknown")))  # noqa: B023
        said(f"{wanted.tag}: {size / 1e6:.0f} MB")
        built[target] = wanted.tag
    return built


@pytest.fixture(scope="session")
def manifests() -> Manifests:
    return read_manifests(ROOT / "deploy")


@pytest.fixture(scope="session")
def cluster(
    engine: Engine, manifests: Manifests, images: dict[str, str], base: str, said: Callable[[str], None]
) -> Iterator[Cluster]:
    proxy = manifests.pod_spec("Deployment", "jaxport-serve")["initContainers"][0]["image"]
    stand_in = possible(lambda: envoy_image(engine, proxy, base, ENVOY, said))
    with tempfile.TemporaryDirectory(prefix="jaxport-volume-") as folder:
        volume = Path(folder) / "volume"
        volume.mkdir()
        belongs_to_group(volume, GROUP)
        running = Cluster(engine, manifests, volume, {proxy: stand_in})
        Path(folder).chmod(0o711)
        yield running
        for pod in running.pods:
            pod.remove()


@pytest.fixture(scope="session")
def early(cluster: Cluster) -> Early:
    export, warm = (cluster.start("Job", name) for name in ("jaxport-export", "jaxport-warm"))
    serve = cluster.start("Deployment", "jaxport-serve")
    for pod in (export, warm, serve):
        pod.lives()
    return Early(export, warm, serve, serve.not_ready())


@pytest.fixture(scope="session")
def trained(cluster: Cluster, early: Early) -> Trained:
    return train_three_times(cluster)


@pytest.fixture(scope="session")
def exported(cluster: Cluster, early: Early, trained: Trained) -> Bundle:
    assert early.export.wait(STAGE_SECONDS) == 0, early.export.log()
    return open_bundle(cluster.volume / "models" / "tiny" / "1")


@pytest.fixture(scope="session")
def warmed(early: Early, exported: Bundle) -> Ended:
    return Ended(early.warm.wait(STAGE_SECONDS), early.warm.log(), 0)


def possible[T](attempt: Callable[[], T]) -> T:
    """What is missing on this machine ends the whole run: nothing is skipped in silence."""
    try:
        return attempt()
    except NotPossible as refused:
        pytest.exit(f"images: {refused}", returncode=4)

"""The pod of deploy/optional/maintenance in the image of the export: what docs/operations.md does in it, and that it ends."""

import time
from pathlib import Path

import pytest

from tests.images.cluster import Cluster
from tests.images.manifests import read_manifests
from tests.images.pods import Pod

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "optional" / "maintenance"


@pytest.fixture
def maintenance(cluster: Cluster) -> Pod:
    beside = Cluster(cluster.engine, read_manifests(FOLDER), cluster.volume, cluster.stand_ins, cluster.pods)
    return beside.start("Pod", "maintenance")


def test_it_waits_works_on_the_volume_and_ends_when_it_is_told_to(cluster: Cluster, maintenance: Pod) -> None:
    shell = maintenance.container("maintenance")
    shell.alive()
    code, said = shell.execute(["mkdir", "-p", "/work/removed/of-maintenance"], 30)
    assert code == 0 and (cluster.volume / "removed" / "of-maintenance").is_dir(), said
    code, said = shell.execute(["touch", "/etc/mine"], 30)
    assert code != 0 and "Read-only file system" in said
    code, said = shell.execute(["jaxport", "inspect", "/work/removed/of-maintenance"], 60)
    assert code == 2 and "error: " in said and "Traceback" not in said
    begun = time.monotonic()
    assert maintenance.stop() == {"maintenance": 0}
    assert time.monotonic() - begun < 10

"""Workspaces with a stand-in for the provider, laid once in a run for each of its major versions."""

import json
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.once import OncePerRun
from tests.terraform import workspace
from tests.terraform.stand_in import mirror
from tests.terraform.toolchain import MAJORS, PYTHON, Terraform
from tests.terraform.workspace import EXAMPLE, Json, Plan, Workspace

# The clusters that the plans are made of. `everything` is what GKE allows of Spot and queues: queued nodes are
# flex-start nodes, and these are never Spot, so servers are on Spot and training is queued.
VARIANTS: dict[str, dict[str, object]] = {
    "defaults": {},
    "cpu-only": {"serve_pool": {"enabled": False}, "train_pool": {"enabled": False}},
    "one-serving-pool": {"train_pool": {"enabled": False}, "serve_pool": {"max_nodes": 1}},
    "everything": {
        "serve_pool": {"spot": True, "shared_clients": 2},
        "train_pool": {"spot": False, "flex_start": True, "queued_provisioning": True, "max_run_hours": 24},
    },
}
# Pools of other sizes, for what the overlay makes of them. `example` is terraform.tfvars.example as it stands.
SIZES: dict[str, dict[str, object]] = {
    "example": {},
    "two-for-servers": {"serve_pool": {"max_nodes": 2}},
    "many-for-servers": {"serve_pool": {"max_nodes": 20}},
    "one-pool-of-two": {"train_pool": {"enabled": False}, "serve_pool": {"max_nodes": 2}},
    "one-pool-of-three": {"train_pool": {"enabled": False}, "serve_pool": {"max_nodes": 3}},
    "one-pool-shared": {
        "train_pool": {"enabled": False},
        "serve_pool": {"max_nodes": 1, "shared_clients": 4},
    },
    "one-pool-for-trainings": {"serve_pool": {"enabled": False}},
}

Makes = Callable[..., Workspace]


@pytest.fixture(scope="session")
def schema_of(once: OncePerRun) -> Callable[[str], Json]:
    """The schema of a major version, read from its bindings once in a run."""

    @cache
    def read(major: str) -> Json:
        def write(folder: Path) -> None:
            (folder / "schema.json").write_text(json.dumps(workspace.schema(major)))

        return json.loads((once.folder(f"schema-{major}", write) / "schema.json").read_text())

    return read


@pytest.fixture(scope="session")
def stand_in(
    schema_of: Callable[[str], Json], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Workspace]:
    """A workspace that is initialized with the stand-in of a major version, to be copied."""

    @cache
    def make(major: str) -> Workspace:
        root = tmp_path_factory.mktemp(f"google-{major}")
        config = mirror.lay(root / "mirror", schema_of(major), PYTHON)
        made = Workspace(workspace.copied(root / "terraform"), Terraform(config, root))
        done = made.init()
        assert done.code == 0, done
        return made

    return make


@pytest.fixture
def make_workspace(stand_in: Callable[[str], Workspace], tmp_path: Path) -> Makes:
    """Makes a workspace of one's own, to be edited, with the stand-in of the newest major version or of another."""

    def make(major: str = MAJORS[-1]) -> Workspace:
        made = stand_in(major)
        return Workspace(
            Path(shutil.copytree(made.folder, tmp_path / f"google-{major}", symlinks=True)), made.terraform
        )

    return make


@pytest.fixture(scope="session")
def planned(once: OncePerRun, stand_in: Callable[[str], Workspace]) -> Callable[[str, str], Plan]:
    """The plan of a variant or size with a major version of the provider, made once in a run."""

    @cache
    def plan(major: str, variant: str) -> Plan:
        def make(root: Path) -> None:
            made = stand_in(major)
            copied = Path(shutil.copytree(made.folder, root / "terraform", symlinks=True))
            if variant == "example":
                (copied / "terraform.tfvars").write_text(EXAMPLE.read_text())
            whole = Workspace(copied, made.terraform).plan(**{**VARIANTS, **SIZES}[variant]).whole
            (root / "plan.json").write_text(json.dumps(whole))

        return Plan(json.loads((once.folder(f"plan-{major}-{variant}", make) / "plan.json").read_text()))

    return plan

"""What would be made, as `terraform show -json` says of the plan, for each variant and either major version."""

from collections.abc import Callable

import pytest

from tests.terraform.conftest import VARIANTS
from tests.terraform.toolchain import MAJORS
from tests.terraform.workspace import Json, Plan, ignored, sources

GPU = ("nvidia.com/gpu", "present", "NO_SCHEDULE")
SPOT = ("cloud.google.com/gke-spot", "true", "NO_SCHEDULE")
FLEX_START = ("cloud.google.com/gke-flex-start", "true", "NO_SCHEDULE")

# machine type, GPUs, least and most nodes, taints of each pool.
POOLS: dict[str, dict[str, tuple[str, int, int, int, list[tuple[str, str, str]]]]] = {
    "defaults": {
        "cpu": ("e2-standard-4", 0, 1, 3, []),
        "serve-l4": ("g2-standard-8", 1, 0, 9, [GPU]),
        "train-l4": ("g2-standard-24", 2, 0, 2, [GPU, SPOT]),
    },
    "cpu-only": {"cpu": ("e2-standard-4", 0, 1, 3, [])},
    "one-serving-pool": {
        "cpu": ("e2-standard-4", 0, 1, 3, []),
        "serve-l4": ("g2-standard-8", 1, 0, 1, [GPU]),
    },
    "everything": {
        "cpu": ("e2-standard-4", 0, 1, 3, []),
        "serve-l4": ("g2-standard-8", 1, 0, 9, [GPU, SPOT]),
        "train-l4": ("g2-standard-24", 2, 0, 2, [GPU, FLEX_START]),
    },
}
# Besides the pools, the same for all variants.
ALWAYS = {
    "google_artifact_registry_repository": 2,
    "google_artifact_registry_repository_iam_member": 2,
    "google_compute_network": 1,
    "google_compute_router": 1,
    "google_compute_router_nat": 1,
    "google_compute_subnetwork": 1,
    "google_container_cluster": 1,
    "google_project_iam_member": 1,
    "google_project_service": 10,
    "google_service_account": 5,
    "google_service_account_iam_member": 4,
}


@pytest.fixture(params=MAJORS)
def major(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=VARIANTS)
def variant(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def plan(planned: Callable[[str, str], Plan], major: str, variant: str) -> Plan:
    return planned(major, variant)


def node(pool: Json) -> Json:
    (config,) = pool["node_config"]
    return config


def one(blocks: list[Json]) -> Json:
    (block,) = blocks
    return block


def test_so_many_of_each_are_made_and_nothing_else(plan: Plan, variant: str) -> None:
    assert plan.kinds() == {**ALWAYS, "google_container_node_pool": len(POOLS[variant])}
    assert plan.actions() == {("create",)}


def test_the_pools_are_of_these_machines_counts_and_taints(plan: Plan, variant: str) -> None:
    found = {}
    for name, pool in plan.pools().items():
        gpus = sum(each["count"] for each in node(pool)["guest_accelerator"])
        scale = one(pool["autoscaling"])
        taints = [(each["key"], each["value"], each["effect"]) for each in node(pool)["taint"]]
        least, most = scale["total_min_node_count"], scale["total_max_node_count"]
        found[name] = (node(pool)["machine_type"], gpus, least, most, taints)
        # Counts per zone would multiply by the zones, and a count of nodes would fight with the autoscaler.
        assert (scale["min_node_count"], scale["max_node_count"]) == (None, None)
        assert pool.get("node_count") is None
        # In each of three zones. GKE makes no node because of the least count alone.
        assert pool["initial_node_count"] == (1 if name == "cpu" else 0)
    assert found == POOLS[variant]


def test_nodes_that_can_be_taken_away_are_marked_so_and_no_others(plan: Plan) -> None:
    for pool in plan.pools().values():
        taints = {taint["key"] for taint in node(pool)["taint"]}
        assert bool(node(pool)["spot"]) == ("cloud.google.com/gke-spot" in taints)
        assert bool(node(pool)["flex_start"]) == ("cloud.google.com/gke-flex-start" in taints)
        assert not (node(pool)["spot"] and node(pool)["flex_start"])


def test_flex_start_and_queued_nodes_are_as_gke_asks_for(
    planned: Callable[[str, str], Plan], major: str
) -> None:
    pools = planned(major, "everything").pools()
    queued = pools["train-l4"]
    assert one(queued["queued_provisioning"])["enabled"] is True
    assert node(queued)["flex_start"] is True
    assert one(node(queued)["reservation_affinity"])["consume_reservation_type"] == "NO_RESERVATION"
    assert one(queued["management"])["auto_repair"] is False
    assert one(queued["autoscaling"])["location_policy"] == "ANY"
    assert one(queued["autoscaling"])["total_min_node_count"] == 0
    assert node(queued)["max_run_duration"] == "86400s"
    assert queued["upgrade_settings"] == []
    assert not any(pool["queued_provisioning"] for name, pool in pools.items() if name != "train-l4")


def test_a_gpu_is_shared_where_that_was_asked_for(planned: Callable[[str, str], Plan], major: str) -> None:
    def sharing(variant: str) -> list[Json]:
        pools = planned(major, variant).pools().items()
        return [
            each
            for name, pool in pools
            if name == "serve-l4"
            for each in one(node(pool)["guest_accelerator"])["gpu_sharing_config"]
        ]

    assert sharing("defaults") == []
    assert one(sharing("everything")) == {
        "gpu_sharing_strategy": "TIME_SHARING",
        "max_shared_clients_per_gpu": 2,
    }


def test_nothing_has_a_public_address(plan: Plan) -> None:
    cluster = plan.one("google_container_cluster")
    private = one(cluster["private_cluster_config"])
    assert private["enable_private_nodes"] is True and private["enable_private_endpoint"] is True
    endpoints = one(cluster["control_plane_endpoints_config"])
    assert one(endpoints["ip_endpoints_config"])["enabled"] is False
    for name, pool in plan.pools().items():
        assert one(pool["network_config"])["enable_private_nodes"] is True, name
    assert not any("address" in kind or "forwarding" in kind for kind in plan.kinds())
    assert plan.one("google_compute_router_nat")["nat_ip_allocate_option"] == "AUTO_ONLY"


def test_nodes_run_as_an_account_of_their_own_that_may_do_little(plan: Plan) -> None:
    pools = plan.of("google_container_node_pool")
    # Known after apply: what is written is a reference to the account.
    addresses = {address.partition("[")[0] for address in pools} | {"google_container_cluster.cluster"}
    for address in addresses:
        config = plan.expressions(address)["node_config"][0]
        assert "google_service_account.nodes.email" in config["service_account"].get("references", ()), (
            address
        )
    (role,) = plan.of("google_project_iam_member").values()
    assert role["role"] == "roles/container.defaultNodeServiceAccount"
    roles = {each["role"] for each in plan.of("google_artifact_registry_repository_iam_member").values()}
    assert roles == {"roles/artifactregistry.reader"}
    accounts = {each["account_id"] for each in plan.of("google_service_account").values()}
    assert accounts == {"jaxport-nodes", "jaxport-train", "jaxport-export", "jaxport-warm", "jaxport-serve"}


def test_each_stage_may_be_one_account_and_no_other(plan: Plan) -> None:
    bindings = plan.of("google_service_account_iam_member")
    assert {address.split('"')[1]: (each["role"], each["member"]) for address, each in bindings.items()} == {
        stage: (
            "roles/iam.workloadIdentityUser",
            f"serviceAccount:my-project.svc.id.goog[jaxport/jaxport-{stage}]",
        )
        for stage in ("train", "export", "warm", "serve")
    }
    written = plan.expressions("google_service_account_iam_member.workload_identity")
    assert {"google_service_account.stage", "each.key"} <= set(written["service_account_id"]["references"])


def test_every_node_is_hardened(plan: Plan) -> None:
    cluster = plan.one("google_container_cluster")
    assert cluster["enable_shielded_nodes"] is True and cluster["enable_legacy_abac"] is False
    for name, pool in plan.pools().items():
        shield = one(node(pool)["shielded_instance_config"])
        assert shield == {"enable_secure_boot": True, "enable_integrity_monitoring": True}, name
        assert one(node(pool)["workload_metadata_config"])["mode"] == "GKE_METADATA", name
        assert one(node(pool)["kubelet_config"])["insecure_kubelet_readonly_port_enabled"] == "FALSE", name
        assert one(node(pool)["gcfs_config"])["enabled"] is True, name


def test_gpu_nodes_have_googles_driver_and_l4(plan: Plan) -> None:
    for name, pool in plan.pools().items():
        for accelerator in node(pool)["guest_accelerator"]:
            assert accelerator["type"] == "nvidia-l4", name
            driver = one(accelerator["gpu_driver_installation_config"])
            assert driver["gpu_driver_version"] == "LATEST", name


def test_the_cluster_has_what_the_platform_is_built_on(plan: Plan) -> None:
    cluster = plan.one("google_container_cluster")
    assert cluster["location"] == "europe-west4"
    assert cluster["datapath_provider"] == "ADVANCED_DATAPATH"
    assert cluster["deletion_protection"] is True
    assert one(cluster["release_channel"])["channel"] == "REGULAR"
    assert one(cluster["workload_identity_config"])["workload_pool"] == "my-project.svc.id.goog"
    addons = one(cluster["addons_config"])
    assert one(addons["gcp_filestore_csi_driver_config"])["enabled"] is True
    assert one(addons["gcs_fuse_csi_driver_config"])["enabled"] is True
    monitoring = one(cluster["monitoring_config"])
    assert (
        "DCGM" in monitoring["enable_components"] and one(monitoring["managed_prometheus"])["enabled"] is True
    )
    window = one(one(cluster["maintenance_policy"])["recurring_window"])
    assert window["recurrence"] == "FREQ=WEEKLY;BYDAY=SA,SU"
    dns = one(one(cluster["control_plane_endpoints_config"])["dns_endpoint_config"])
    assert dns["allow_external_traffic"] is True


API = "google_project_service.api"
# What nothing in an argument says, and what an apply stumbles over when it is not so.
FIRST = {
    "google_container_cluster.cluster": {
        API,
        "google_project_iam_member.nodes",
        "google_artifact_registry_repository_iam_member.nodes",
    },
    "google_container_node_pool.gpu": {"google_container_node_pool.cpu"},
    "google_service_account_iam_member.workload_identity": {"google_container_cluster.cluster"},
}


def test_what_is_needed_is_made_first(plan: Plan) -> None:
    """The APIs before everything that is made by them; the nodes' roles before nodes; a pool of CPUs before GPUs."""
    assert [
        address for address in plan.configured() if address != API and API not in plan.after(address)
    ] == []
    for address, needed in FIRST.items():
        assert needed <= plan.after(address), address


# What GKE changes, and what would be made anew if Terraform changed it back.
IGNORED = {
    "google_container_cluster.cluster": {"node_config", "initial_node_count"},
    "google_container_node_pool.cpu": {"initial_node_count"},
    "google_container_node_pool.gpu": {"initial_node_count"},
}


def test_what_gke_changes_is_not_changed_back() -> None:
    assert ignored(sources()) == IGNORED


def test_old_images_go(plan: Plan) -> None:
    images = plan.of("google_artifact_registry_repository")["google_artifact_registry_repository.images"]
    policies = {each["id"]: each for each in images["cleanup_policies"]}
    assert {name: each["action"] for name, each in policies.items()} == {
        "keep-the-newest": "KEEP", "delete-untagged": "DELETE", "delete-old": "DELETE",
    }  # fmt: skip
    assert one(policies["keep-the-newest"]["most_recent_versions"])["keep_count"] == 10
    assert images["cleanup_policy_dry_run"] in (None, False)


def test_the_way_to_the_cluster_is_its_dns_endpoint(plan: Plan) -> None:
    assert plan.output("get_credentials_command") == (
        "gcloud container clusters get-credentials jaxport --location europe-west4 --project my-project --dns-endpoint"
    )
    assert plan.output("registry") == "europe-west4-docker.pkg.dev/my-project/jaxport"

"""The checks of terraform/, each shown to find what it is there for: a mistake is planted, and must not pass."""

import copy
import inspect
from collections.abc import Callable
from typing import Any

import pytest

from tests.terraform import test_plans
from tests.terraform.conftest import Makes
from tests.terraform.toolchain import MAJORS
from tests.terraform.workspace import SOURCE, Plan, Workspace, ignored, sources

# What terraform validate says of a mistake: file, what is written, what is written in its place, what is said.
MISTAKES = {
    "a misspelt attribute": (
        "cluster.tf", "enable_shielded_nodes = true", "enable_shielded_node = true", 'An argument named "enable_shielded_node" is not expected',
    ),
    "a misspelt block": (
        "cluster.tf", "gcs_fuse_csi_driver_config {", "gcs_fuse_csi_config {", 'Blocks of type "gcs_fuse_csi_config" are not expected',
    ),
    "a wrong type": (
        "cluster.tf", "deletion_protection = var.deletion_protection", "deletion_protection = [true]", "bool required, but have tuple",
    ),
    "a word for a number": (
        "node-pools.tf", "disk_size_gb    = var.cpu_pool.disk_gb", 'disk_size_gb    = "plenty"', "a number is required",
    ),
    "a required one missing": (
        "registry.tf", '  format        = "DOCKER"\n  description   = "Images of jaxport', '  description   = "Images of jaxport', 'The argument "format" is required',
    ),
    "one that the provider alone may set": (
        "cluster.tf", "  enable_legacy_abac    = false", '  enable_legacy_abac    = false\n  endpoint = "10.0.0.2"', "google_container_cluster.endpoint can be read alone",
    ),
    "an attribute in the wrong block": (
        "node-pools.tf", "    flex_start       = each.value.flex_start ? true : null", "    max_pods_per_node = 110", 'An argument named "max_pods_per_node" is not expected',
    ),
    "a resource that is not there": (
        "registry.tf", "repository = google_artifact_registry_repository.images.name", "repository = google_artifact_registry_repository.image.name", "has not been declared",
    ),
    "a kind of resource that is not there": (
        "network.tf", 'resource "google_compute_network" "vpc"', 'resource "google_compute_vpc" "vpc"', 'does not support resource type',
    ),
    "two of a block that is one": (
        "network.tf", "  log_config {\n    enable = true", "  log_config {\n    enable = true\n    filter = \"ALL\"\n  }\n\n  log_config {\n    enable = true", "No more than 1",
    ),
    "what the older major does not have": (
        "node-pools.tf", "  network_config {\n    enable_private_nodes = true\n  }\n\n  dynamic", "  best_effort_provisioning {\n    enabled = true\n  }\n\n  dynamic", 'Blocks of type "best_effort_provisioning" are not expected',
    ),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_validate_finds(make_workspace: Makes, mistake: str) -> None:
    file, old, new, said = MISTAKES[mistake]
    made = make_workspace(MAJORS[0])
    made.edited(file, old, new)
    done = made.validate()
    assert done.code == 1, done
    assert said in " ".join(done.complained.replace("│", " ").split()), done


# What the tests of terraform/tests say of a mistake that is valid: file, what is written, its place, the file of tests.
BROKEN = {
    "a precondition that lets everything through": (
        "network.tf", "condition     = length(local.overlaps) == 0", "condition     = length(local.overlaps) >= 0", "refusals.tftest.hcl", "ranges_that_overlap",
    ),
    "another one": (
        "network.tf", 'condition     = local.most_nodes <= pow(2, 24 - tonumber(split("/", var.pod_cidr)[1])) &&', "condition     = true ||", "refusals.tftest.hcl", "more_nodes_than_addresses",
    ),
    "a pool that begins with more nodes than it may have": (
        "node-pools.tf",
        "condition     = local.first_nodes.cpu * length(var.zones) <=",
        "condition     = local.first_nodes.cpu * 0 <=",
        "refusals.tftest.hcl",
        "fewer_cpu_nodes_than_zones",
    ),
    "another one of those": (
        "node-pools.tf",
        "condition     = local.first_nodes[each.key] * length(local.gpu_zones) <=",
        "condition     = local.first_nodes[each.key] * 0 <=",
        "refusals.tftest.hcl",
        "fewer_servers_than_zones",
    ),
    "public nodes": (
        "cluster.tf", "enable_private_nodes    = true", "enable_private_nodes    = false", "defaults.tftest.hcl", "nobody_outside_reaches",
    ),
}  # fmt: skip


@pytest.mark.parametrize("mistake", BROKEN)
def test_its_own_tests_find(make_workspace: Makes, mistake: str) -> None:
    file, old, new, tests, run = BROKEN[mistake]
    made = make_workspace()
    made.edited(file, old, new)
    done = made.test(tests)
    assert done.code == 1, done
    assert "fail" in next(line for line in done.printed.splitlines() if run in line), done


def test_a_version_of_the_provider_that_nobody_checked_is_refused(
    make_workspace: Makes, stand_in: Callable[[str], Workspace]
) -> None:
    made = make_workspace()
    (made.folder / ".terraform.lock.hcl").unlink()
    made.edited("versions.tf", '">= 7.46, < 9"', '">= 9"')
    done = made.init()
    assert done.code == 1 and "no available releases match" in done.complained, done


# A mistake in a plan: where in the planned values, what is there in its place, the checks that have to find it. On the plan as
# JSON, since what breaks it is not the point: each value that a check asserts is broken here once.
POOL = ("google_container_node_pool", 'google_container_node_pool.gpu["serve-l4"]')
CLUSTER = ("google_container_cluster", "google_container_cluster.cluster")
CONFIG = ("node_config", 0)
PLANTED_IN_PLANS: list[tuple[tuple[str, str], tuple[str | int, ...], object, Callable[..., None]]] = [
    (POOL, (*CONFIG, "machine_type"), "g2-standard-4", test_plans.test_the_pools_are_of_these_machines_counts_and_taints),
    (POOL, (*CONFIG, "guest_accelerator", 0, "count"), 2, test_plans.test_the_pools_are_of_these_machines_counts_and_taints),
    (POOL, ("autoscaling", 0, "total_min_node_count"), 1, test_plans.test_the_pools_are_of_these_machines_counts_and_taints),
    (POOL, ("autoscaling", 0, "total_max_node_count"), 99, test_plans.test_the_pools_are_of_these_machines_counts_and_taints),
    (POOL, ("autoscaling", 0, "min_node_count"), 0, test_plans.test_the_pools_are_of_these_machines_counts_and_taints),
    (POOL, ("node_count",), 1, test_plans.test_the_pools_are_of_these_machines_counts_and_taints),
    (POOL, ("initial_node_count",), 1, test_plans.test_the_pools_are_of_these_machines_counts_and_taints),
    (POOL, (*CONFIG, "taint"), [], test_plans.test_the_pools_are_of_these_machines_counts_and_taints),
    (POOL, (*CONFIG, "spot"), True, test_plans.test_nodes_that_can_be_taken_away_are_marked_so_and_no_others),
    (POOL, (*CONFIG, "flex_start"), True, test_plans.test_nodes_that_can_be_taken_away_are_marked_so_and_no_others),
    (POOL, ("network_config", 0, "enable_private_nodes"), False, test_plans.test_nothing_has_a_public_address),
    (CLUSTER, ("private_cluster_config", 0, "enable_private_nodes"), False, test_plans.test_nothing_has_a_public_address),
    (CLUSTER, ("private_cluster_config", 0, "enable_private_endpoint"), False, test_plans.test_nothing_has_a_public_address),
    (CLUSTER, ("control_plane_endpoints_config", 0, "ip_endpoints_config", 0, "enabled"), True, test_plans.test_nothing_has_a_public_address),
    (("google_compute_router_nat", "google_compute_router_nat.nat[0]"), ("nat_ip_allocate_option",), "MANUAL_ONLY", test_plans.test_nothing_has_a_public_address),
    (("google_project_iam_member", "google_project_iam_member.nodes"), ("role",), "roles/editor", test_plans.test_nodes_run_as_an_account_of_their_own_that_may_do_little),
    (("google_artifact_registry_repository_iam_member", 'google_artifact_registry_repository_iam_member.nodes["images"]'), ("role",),
     "roles/artifactregistry.admin", test_plans.test_nodes_run_as_an_account_of_their_own_that_may_do_little),
    (("google_service_account", "google_service_account.nodes"), ("account_id",), "default", test_plans.test_nodes_run_as_an_account_of_their_own_that_may_do_little),
    (("google_service_account_iam_member", 'google_service_account_iam_member.workload_identity["train"]'), ("role",),
     "roles/owner", test_plans.test_each_stage_may_be_one_account_and_no_other),
    (("google_service_account_iam_member", 'google_service_account_iam_member.workload_identity["train"]'), ("member",),
     "allUsers", test_plans.test_each_stage_may_be_one_account_and_no_other),
    (CLUSTER, ("enable_shielded_nodes",), False, test_plans.test_every_node_is_hardened),
    (CLUSTER, ("enable_legacy_abac",), True, test_plans.test_every_node_is_hardened),
    (POOL, (*CONFIG, "shielded_instance_config", 0, "enable_secure_boot"), False, test_plans.test_every_node_is_hardened),
    (POOL, (*CONFIG, "workload_metadata_config", 0, "mode"), "GCE_METADATA", test_plans.test_every_node_is_hardened),
    (POOL, (*CONFIG, "kubelet_config", 0, "insecure_kubelet_readonly_port_enabled"), "TRUE", test_plans.test_every_node_is_hardened),
    (POOL, (*CONFIG, "gcfs_config", 0, "enabled"), False, test_plans.test_every_node_is_hardened),
    (POOL, (*CONFIG, "guest_accelerator", 0, "type"), "nvidia-tesla-t4", test_plans.test_gpu_nodes_have_googles_driver_and_l4),
    (POOL, (*CONFIG, "guest_accelerator", 0, "gpu_driver_installation_config", 0, "gpu_driver_version"), "DEFAULT", test_plans.test_gpu_nodes_have_googles_driver_and_l4),
    (CLUSTER, ("location",), "europe-west4-a", test_plans.test_the_cluster_has_what_the_platform_is_built_on),
    (CLUSTER, ("datapath_provider",), "LEGACY_DATAPATH", test_plans.test_the_cluster_has_what_the_platform_is_built_on),
    (CLUSTER, ("deletion_protection",), False, test_plans.test_the_cluster_has_what_the_platform_is_built_on),
    (CLUSTER, ("release_channel", 0, "channel"), "RAPID", test_plans.test_the_cluster_has_what_the_platform_is_built_on),
    (CLUSTER, ("workload_identity_config", 0, "workload_pool"), "other.svc.id.goog", test_plans.test_the_cluster_has_what_the_platform_is_built_on),
    (CLUSTER, ("addons_config", 0, "gcp_filestore_csi_driver_config", 0, "enabled"), False, test_plans.test_the_cluster_has_what_the_platform_is_built_on),
    (CLUSTER, ("addons_config", 0, "gcs_fuse_csi_driver_config", 0, "enabled"), False, test_plans.test_the_cluster_has_what_the_platform_is_built_on),
    (CLUSTER, ("monitoring_config", 0, "enable_components"), ["SYSTEM_COMPONENTS"], test_plans.test_the_cluster_has_what_the_platform_is_built_on),
    (CLUSTER, ("monitoring_config", 0, "managed_prometheus", 0, "enabled"), False, test_plans.test_the_cluster_has_what_the_platform_is_built_on),
    (CLUSTER, ("maintenance_policy", 0, "recurring_window", 0, "recurrence"), "FREQ=DAILY", test_plans.test_the_cluster_has_what_the_platform_is_built_on),
    (CLUSTER, ("control_plane_endpoints_config", 0, "dns_endpoint_config", 0, "allow_external_traffic"), False, test_plans.test_the_cluster_has_what_the_platform_is_built_on),
    (("google_artifact_registry_repository", "google_artifact_registry_repository.images"), ("cleanup_policy_dry_run",), True, test_plans.test_old_images_go),
]  # fmt: skip


def broken(plan: Plan, kind: str, address: str, place: tuple[str | int, ...], value: object) -> Plan:
    """A copy of a plan with one planned value in place of another."""
    made = Plan(copy.deepcopy(plan.whole))
    inner: Any = made.of(kind)[address]
    for key in place[:-1]:
        inner = inner[key]
    assert inner.get(place[-1]) != value, "it is as it was"
    inner[place[-1]] = value
    return made


def holds(check: Callable[..., None], plan: Plan) -> bool:
    """Of a plan of the defaults."""
    wanted = {"plan": plan, "variant": "defaults"}
    try:
        check(**{name: wanted[name] for name in inspect.signature(check).parameters})
    except AssertionError:
        return False
    return True


def test_every_value_that_a_plan_is_held_to_is_looked_at(planned: Callable[[str, str], Plan]) -> None:
    plan = planned(MAJORS[-1], "defaults")
    passed = [
        (address, place)
        for (kind, address), place, value, check in PLANTED_IN_PLANS
        if holds(check, broken(plan, kind, address, place, value))
    ]
    assert passed == []
    assert all(holds(check, plan) for *_, check in PLANTED_IN_PLANS)


def test_a_resource_more_or_less_and_a_change_are_found(planned: Callable[[str, str], Plan]) -> None:
    plan = planned(MAJORS[-1], "defaults")
    check = test_plans.test_so_many_of_each_are_made_and_nothing_else
    assert holds(check, plan)
    for change in (
        lambda whole: whole["planned_values"]["root_module"]["resources"].pop(),
        lambda whole: whole["planned_values"]["root_module"]["resources"].append(
            {"type": "google_compute_address", "address": "google_compute_address.more", "values": {}}
        ),
        lambda whole: whole["resource_changes"][0]["change"].update(actions=["delete", "create"]),
    ):
        other = Plan(copy.deepcopy(plan.whole))
        change(other.whole)
        assert not holds(check, other)


# What is written after what: file, the line that goes.
ORDERS = {
    "the network before its API": ("network.tf", "  routing_mode            = \"REGIONAL\"\n\n  depends_on = [google_project_service.api]", "google_compute_network.vpc"),
    "the cluster before its nodes may write logs": ("cluster.tf", "    google_project_iam_member.nodes,\n", "google_container_cluster.cluster"),
    "the cluster before its nodes may pull images": ("cluster.tf", "    google_artifact_registry_repository_iam_member.nodes,\n", "google_container_cluster.cluster"),
    "GPUs before CPUs": ("node-pools.tf", "  depends_on = [google_container_node_pool.cpu]\n", "google_container_node_pool.gpu"),
    "identities before the cluster": ("identities.tf", "  depends_on = [google_container_cluster.cluster]\n", "google_service_account_iam_member.workload_identity"),
}  # fmt: skip


@pytest.mark.parametrize("order", ORDERS)
def test_an_order_that_is_lost_is_found(planned: Callable[[str, str], Plan], order: str) -> None:
    """What is written in the sources, taken out of the plan."""
    file, line, address = ORDERS[order]
    assert (SOURCE / file).read_text().count(line) == 1
    plan = planned(MAJORS[-1], "defaults")
    check = test_plans.test_what_is_needed_is_made_first
    assert holds(check, plan)
    other = Plan(copy.deepcopy(plan.whole))
    written = other.configured()[address]
    written["depends_on"] = [each for each in written["depends_on"] if each not in line]
    assert not holds(check, other)


@pytest.mark.parametrize("address", test_plans.IGNORED)
def test_a_change_that_is_no_longer_ignored_is_found(address: str) -> None:
    kind, name = address.split(".")
    body = sources().partition(f'resource "{kind}" "{name}"')[2]
    written = body.partition("ignore_changes = ")[2].partition("\n")[0]
    for other in ("[]", "[resource_labels]"):
        text = sources().replace(body, body.replace(written, other, 1))
        assert ignored(text) != test_plans.IGNORED
    assert ignored(sources()) == test_plans.IGNORED


QUEUED = ("google_container_node_pool", 'google_container_node_pool.gpu["train-l4"]')
PLANTED_IN_QUEUES: list[tuple[tuple[str | int, ...], object]] = [
    (("queued_provisioning", 0, "enabled"), False),
    ((*CONFIG, "flex_start"), False),
    ((*CONFIG, "reservation_affinity", 0, "consume_reservation_type"), "ANY_RESERVATION"),
    (("management", 0, "auto_repair"), True),
    (("autoscaling", 0, "location_policy"), "BALANCED"),
    (("autoscaling", 0, "total_min_node_count"), 1),
    ((*CONFIG, "max_run_duration"), "604800s"),
    (("upgrade_settings",), [{"max_surge": 1}]),
]  # fmt: skip


def test_every_value_of_queued_nodes_is_looked_at(planned: Callable[[str, str], Plan]) -> None:
    plan = planned(MAJORS[-1], "everything")
    check = test_plans.test_flex_start_and_queued_nodes_are_as_gke_asks_for
    check(lambda *_: plan, MAJORS[-1])
    for place, value in PLANTED_IN_QUEUES:
        other = broken(plan, *QUEUED, place, value)
        with pytest.raises(AssertionError):
            check(lambda *_, other=other: other, MAJORS[-1])


def test_the_checks_of_plans_find(make_workspace: Makes) -> None:
    """Four mistakes at once, each of which terraform takes, and each of which a check of its own finds."""
    made = make_workspace()
    made.edited(
        "node-pools.tf",
        '    enable_private_nodes = true\n  }\n\n  dynamic "queued',
        '    enable_private_nodes = false\n  }\n\n  dynamic "queued',
    )
    made.edited(
        "node-pools.tf",
        "service_account = google_service_account.nodes.email\n    oauth",
        'service_account = "default"\n    oauth',
    )
    made.edited("node-pools.tf", 'value = "present" }', 'value = "there" }')
    made.edited("identities.tf", "[${local.namespace}/jaxport-${each.key}]", "[${local.namespace}/default]")
    plan = made.plan()
    for check in (
        test_plans.test_nothing_has_a_public_address,
        test_plans.test_nodes_run_as_an_account_of_their_own_that_may_do_little,
        test_plans.test_each_stage_may_be_one_account_and_no_other,
    ):
        with pytest.raises(AssertionError):
            check(plan)
    with pytest.raises(AssertionError):
        test_plans.test_the_pools_are_of_these_machines_counts_and_taints(plan, "defaults")
    test_plans.test_old_images_go(plan)  # which is as it was

"""The checks of terraform/, each shown to find what it is there for: a mistake is planted, and must not pass."""

from collections.abc import Callable

import pytest

from tests.terraform import test_plans
from tests.terraform.conftest import Makes
from tests.terraform.toolchain import MAJORS
from tests.terraform.workspace import Workspace

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

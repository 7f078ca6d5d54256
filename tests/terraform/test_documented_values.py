"""Values that terraform/ writes, against those that the provider's documentation lists for the attribute.

The schema knows a string from a number and no more: a misspelt ADVANCED_DATAPATH would be found by the API alone, twenty
minutes into an apply. The documentation comes with the schema, and names the values of some attributes: of these a wrong
one is found here. Which attributes those are is written down below, so that nobody takes the rest for checked.
"""

import re
from collections.abc import Callable, Iterator

import pytest

from tests.terraform.conftest import VARIANTS
from tests.terraform.toolchain import MAJORS
from tests.terraform.workspace import Json, Plan

# A word in capitals, as the API writes its values.
VALUE = re.compile(r"[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)*")
# The attributes of which the documentation lists the values.
LISTED = {
    "google_artifact_registry_repository.cleanup_policies.action",
    "google_artifact_registry_repository.cleanup_policies.condition.tag_state",
    "google_artifact_registry_repository.mode",
    "google_compute_network.routing_mode",
    "google_compute_router_nat.log_config.filter",
    "google_compute_router_nat.nat_ip_allocate_option",
    "google_compute_router_nat.source_subnetwork_ip_ranges_to_nat",
    "google_compute_router_nat.subnetwork.source_ip_ranges_to_nat",
    "google_container_cluster.anonymous_authentication_config.mode",
    "google_container_cluster.cluster_autoscaling.autoscaling_profile",
    "google_container_cluster.logging_config.enable_components",
    "google_container_cluster.monitoring_config.enable_components",
    "google_container_cluster.node_pool_defaults.node_config_defaults.insecure_kubelet_readonly_port_enabled",
    "google_container_cluster.release_channel.channel",
    "google_container_cluster.security_posture_config.mode",
    "google_container_cluster.security_posture_config.vulnerability_mode",
    "google_container_node_pool.autoscaling.location_policy",
    "google_container_node_pool.node_config.kubelet_config.insecure_kubelet_readonly_port_enabled",
}
# Those of which it does not, with what was read elsewhere: in the provider's code and in the pages of Google Cloud.
READ_ELSEWHERE = {
    "google_artifact_registry_repository.format": {"DOCKER"},
    "google_artifact_registry_repository.remote_repository_config.docker_repository.public_repository": {"DOCKER_HUB"},
    "google_container_cluster.datapath_provider": {"ADVANCED_DATAPATH"},
    "google_container_cluster.gateway_api_config.channel": {"CHANNEL_STANDARD"},
    "google_container_cluster.networking_mode": {"VPC_NATIVE"},
    "google_container_cluster.node_config.workload_metadata_config.mode": {"GKE_METADATA"},
    "google_container_node_pool.node_config.guest_accelerator.gpu_driver_installation_config.gpu_driver_version": {"LATEST"},
    "google_container_node_pool.node_config.guest_accelerator.gpu_sharing_config.gpu_sharing_strategy": {"TIME_SHARING"},
    "google_container_node_pool.node_config.image_type": {"COS_CONTAINERD"},
    "google_container_node_pool.node_config.reservation_affinity.consume_reservation_type": {"NO_RESERVATION"},
    "google_container_node_pool.node_config.taint.effect": {"NO_SCHEDULE"},
    "google_container_node_pool.node_config.workload_metadata_config.mode": {"GKE_METADATA"},
}  # fmt: skip


def written(values: Json, block: Json, path: str) -> Iterator[tuple[str, str, str]]:
    """Every string of planned values: its path, itself, and what the documentation says of the attribute."""
    for name, attribute in block["attributes"].items():
        value = values.get(name)
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, str):
                yield f"{path}.{name}", each, attribute["description"]
    for name, nested in block["block_types"].items():
        for each in values.get(name) or []:
            if isinstance(each, dict):
                yield from written(each, nested["block"], f"{path}.{name}")


def constants(plan: Plan, schema: Json) -> Iterator[tuple[str, str, str]]:
    """Every value in capitals of a plan, with its path and what the documentation says of the attribute."""
    for kind in plan.kinds():
        block = schema["resource_schemas"][kind]["block"]
        for values in plan.of(kind).values():
            yield from (each for each in written(values, block, kind) if VALUE.fullmatch(each[1]))


@pytest.mark.parametrize("major", MAJORS)
def test_a_value_is_one_that_is_documented(
    planned: Callable[[str, str], Plan], schema_of: Callable[[str], Json], major: str
) -> None:
    found: dict[str, set[str]] = {}
    for variant in VARIANTS:
        for path, value, said in constants(planned(major, variant), schema_of(major)):
            found.setdefault(path, set()).add(value)
            if path in LISTED:
                listed = set(VALUE.findall(said))
                assert value in listed, (
                    f"{path} is {value}; the documentation of the provider has {sorted(listed)}"
                )
    assert {path: values for path, values in found.items() if path not in LISTED} == READ_ELSEWHERE
    assert found.keys() >= LISTED

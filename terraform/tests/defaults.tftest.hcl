# What a cluster is when nothing but the project is given. No provider is asked for anything: mock_provider answers.
mock_provider "google" {}

variables {
  project_id = "my-project"
}

run "nobody_outside_reaches_nodes_or_control_plane" {
  command = plan

  assert {
    condition     = google_container_cluster.cluster.private_cluster_config[0].enable_private_nodes && google_container_cluster.cluster.private_cluster_config[0].enable_private_endpoint
    error_message = "The cluster has public nodes or a public endpoint."
  }

  assert {
    condition     = !google_container_cluster.cluster.control_plane_endpoints_config[0].ip_endpoints_config[0].enabled
    error_message = "The control plane has an IP endpoint beside its DNS endpoint."
  }

  assert {
    condition     = alltrue([for pool in concat([google_container_node_pool.cpu], values(google_container_node_pool.gpu)) : pool.network_config[0].enable_private_nodes])
    error_message = "A pool has public nodes."
  }

  assert {
    condition     = endswith(output.get_credentials_command, "--dns-endpoint")
    error_message = "kubectl is not sent to the DNS endpoint: ${output.get_credentials_command}"
  }
}

run "the_cluster_is_what_the_manifests_take_for_granted" {
  command = plan

  assert {
    condition     = google_container_cluster.cluster.datapath_provider == "ADVANCED_DATAPATH"
    error_message = "NetworkPolicies have no effect without Dataplane V2."
  }

  assert {
    condition     = google_container_cluster.cluster.addons_config[0].gcp_filestore_csi_driver_config[0].enabled && google_container_cluster.cluster.addons_config[0].gcs_fuse_csi_driver_config[0].enabled
    error_message = "A driver of volumes is missing."
  }

  assert {
    condition     = google_container_cluster.cluster.workload_identity_config[0].workload_pool == "my-project.svc.id.goog"
    error_message = "No Workload Identity."
  }

  assert {
    condition     = google_container_cluster.cluster.monitoring_config[0].managed_prometheus[0].enabled && contains(google_container_cluster.cluster.monitoring_config[0].enable_components, "DCGM")
    error_message = "No managed Prometheus, or no metrics of the GPUs."
  }

  assert {
    condition     = google_container_cluster.cluster.deletion_protection && google_container_cluster.cluster.enable_shielded_nodes
    error_message = "The cluster is not protected from deletion, or its nodes are not shielded."
  }
}

run "gpus_cost_nothing_while_nothing_asks_for_them" {
  command = plan

  assert {
    condition     = { for name, pool in google_container_node_pool.gpu : name => pool.autoscaling[0].total_min_node_count } == { serve-l4 = 0, train-l4 = 0 }
    error_message = "A GPU pool does not scale to zero."
  }

  assert {
    condition     = { for name, pool in google_container_node_pool.gpu : name => [pool.node_config[0].machine_type, pool.node_config[0].guest_accelerator[0].count] } == { serve-l4 = ["g2-standard-8", 1], train-l4 = ["g2-standard-24", 2] }
    error_message = "Not the machines that the manifests are for."
  }

  assert {
    condition     = google_container_node_pool.gpu["train-l4"].node_config[0].spot && !google_container_node_pool.gpu["serve-l4"].node_config[0].spot
    error_message = "Training should be on Spot, servers on nodes that last."
  }
}

run "each_stage_is_someone_and_may_do_nothing" {
  command = plan

  assert {
    condition = toset([for binding in google_service_account_iam_member.workload_identity : binding.member]) == toset([
      for stage in ["train", "export", "warm", "serve"] : "serviceAccount:my-project.svc.id.goog[jaxport/jaxport-${stage}]"
    ])
    error_message = "The ServiceAccounts of deploy/base/accounts.yaml are bound to no account of Google's, or others are."
  }

  assert {
    condition     = length(google_storage_bucket_iam_member.stage) == 0
    error_message = "A stage has a bucket that nobody gave it."
  }

  assert {
    condition     = google_project_iam_member.nodes.role == "roles/container.defaultNodeServiceAccount"
    error_message = "Nodes may do more in the project than write logs and metrics."
  }
}

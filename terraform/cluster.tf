# GKE Standard, regional: the control plane outlives a zone, and pools are ours to choose. Autopilot would choose them.
resource "google_container_cluster" "cluster" {
  #checkov:skip=CKV_GCP_12:Dataplane V2 enforces NetworkPolicy by itself; the block that is asked for means Calico and is refused beside it.
  #checkov:skip=CKV_GCP_20:There is no IP endpoint that networks could be authorized for; IAM guards the DNS endpoint.
  #checkov:skip=CKV_GCP_61:Visibility between pods of a node is charged by volume with the flow logs; flow_logs is the switch for these.
  #checkov:skip=CKV_GCP_66:Binary Authorization wants attestations from the pipeline that builds the images, which is yours; without any it would stop every pod.
  name                = var.cluster_name
  project             = var.project_id
  location            = var.region
  node_locations      = var.zones
  deletion_protection = var.deletion_protection
  resource_labels     = local.labels

  network         = google_compute_network.vpc.id
  subnetwork      = google_compute_subnetwork.nodes.id
  networking_mode = "VPC_NATIVE"
  # Dataplane V2 enforces NetworkPolicy by itself: without it, or Calico, deploy/base/network.yaml has no effect.
  datapath_provider = "ADVANCED_DATAPATH"

  ip_allocation_policy {
    cluster_secondary_range_name  = "pods"
    services_secondary_range_name = "services"
  }

  # A cluster cannot be made without a pool. This one is gone once the cluster is there; as long as it is there, its nodes
  # are held to what ours are. From 8.9 on the provider calls this deprecated, in favour of what 7 does not know.
  remove_default_node_pool = true
  initial_node_count       = 1

  node_config {
    service_account = google_service_account.nodes.email
    oauth_scopes    = ["https://www.googleapis.com/auth/cloud-platform"]
    disk_size_gb    = 30
    disk_type       = "pd-standard"

    shielded_instance_config {
      enable_secure_boot          = true
      enable_integrity_monitoring = true
    }

    workload_metadata_config {
      mode = "GKE_METADATA"
    }
  }

  release_channel {
    channel = var.release_channel
  }

  maintenance_policy {
    recurring_window {
      start_time = var.maintenance_window.start
      end_time   = var.maintenance_window.end
      recurrence = var.maintenance_window.recurrence
    }
  }

  # Nodes have no public address, and the control plane has no address at all that one could reach: it is asked by its
  # DNS name, through Google's front end, by who has container.clusters.connect in IAM.
  private_cluster_config {
    enable_private_nodes    = true
    enable_private_endpoint = true
  }

  control_plane_endpoints_config {
    dns_endpoint_config {
      allow_external_traffic = var.external_access
    }
    ip_endpoints_config {
      enabled = false
    }
  }

  workload_identity_config {
    workload_pool = "${var.project_id}.svc.id.goog"
  }

  enable_shielded_nodes = true
  enable_legacy_abac    = false

  master_auth {
    client_certificate_config {
      issue_client_certificate = false
    }
  }

  # Without credentials one learns that the control plane lives, and nothing else; and no role can be given to everybody.
  anonymous_authentication_config {
    mode = "LIMITED"
  }

  rbac_binding_config {
    enable_insecure_binding_system_authenticated   = false
    enable_insecure_binding_system_unauthenticated = false
  }

  dynamic "authenticator_groups_config" {
    for_each = var.security_group == null ? [] : [var.security_group]
    content {
      security_group = authenticator_groups_config.value
    }
  }

  security_posture_config {
    mode               = "BASIC"
    vulnerability_mode = "VULNERABILITY_DISABLED"
  }

  addons_config {
    # The volume of deploy/overlays/gke-l4.
    gcp_filestore_csi_driver_config {
      enabled = true
    }
    # Data in buckets, read only: not a target of bundles, see docs/operations.md.
    gcs_fuse_csi_driver_config {
      enabled = true
    }
    gce_persistent_disk_csi_driver_config {
      enabled = true
    }
    dns_cache_config {
      enabled = true
    }
    horizontal_pod_autoscaling {
      disabled = false
    }
    http_load_balancing {
      disabled = false
    }
  }

  gateway_api_config {
    channel = "CHANNEL_STANDARD"
  }

  logging_config {
    enable_components = ["SYSTEM_COMPONENTS", "WORKLOADS"]
  }

  # DCGM tells what the GPUs do, POD, DEPLOYMENT and HPA how pods and replicas fare. None of them has series of Jobs. The order is
  # one in which GKE has been seen to give them back: major version 7 of the provider takes them for a list, and GKE for a set,
  # so that there a plan may say that it changes them, which changes nothing. From 8 on it is a set.
  monitoring_config {
    enable_components = ["SYSTEM_COMPONENTS", "STORAGE", "HPA", "POD", "DEPLOYMENT", "DCGM"]
    managed_prometheus {
      enabled = true
    }
  }

  # Costs per namespace and label in the billing export.
  cost_management_config {
    enabled = true
  }

  # An empty GPU node goes as soon as it can. No pools are made besides those of node-pools.tf.
  cluster_autoscaling {
    enabled             = false
    autoscaling_profile = "OPTIMIZE_UTILIZATION"
  }

  node_pool_defaults {
    node_config_defaults {
      insecure_kubelet_readonly_port_enabled = "FALSE"
      gcfs_config {
        enabled = true
      }
    }
  }

  lifecycle {
    # Of the pool that is gone.
    ignore_changes = [node_config, initial_node_count]
  }

  depends_on = [
    google_project_service.api,
    # Nodes that may not pull images or write logs never become Ready.
    google_project_iam_member.nodes,
    google_artifact_registry_repository_iam_member.nodes,
  ]
}

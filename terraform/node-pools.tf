locals {
  gpu_pools = {
    for name, pool in {
      serve-l4 = {
        enabled             = var.serve_pool.enabled
        machine_type        = var.serve_pool.machine_type
        min_nodes           = var.serve_pool.min_nodes
        max_nodes           = var.serve_pool.max_nodes
        disk_gb             = var.serve_pool.disk_gb
        spot                = var.serve_pool.spot
        flex_start          = false
        queued_provisioning = false
        max_run_seconds     = null
        reservation         = var.serve_pool.reservation
        shared_clients      = var.serve_pool.shared_clients
      }
      train-l4 = {
        enabled             = var.train_pool.enabled
        machine_type        = var.train_pool.machine_type
        min_nodes           = 0
        max_nodes           = var.train_pool.max_nodes
        disk_gb             = var.train_pool.disk_gb
        spot                = var.train_pool.spot
        flex_start          = var.train_pool.flex_start
        queued_provisioning = var.train_pool.queued_provisioning
        max_run_seconds     = var.train_pool.flex_start ? var.train_pool.max_run_hours * 3600 : null
        reservation         = var.train_pool.reservation
        shared_clients      = 1
      }
    } : name => pool if pool.enabled
  }

  # How many nodes of each pool to begin with in each zone.
  first_nodes = merge(
    { cpu = ceil(var.cpu_pool.min_nodes / length(var.zones)) },
    { for name, pool in local.gpu_pools : name => ceil(pool.min_nodes / length(local.gpu_zones)) },
  )

  # Who does not say that it can do with such a node is not put on one. GKE taints GPU nodes by itself, but not where the
  # first pool of a cluster has GPUs, which a pool that is made while the default one goes may well be.
  gpu_taint = { key = "nvidia.com/gpu", value = "present" }
  taints = {
    for name, pool in local.gpu_pools : name => concat(
      [local.gpu_taint],
      pool.spot ? [{ key = "cloud.google.com/gke-spot", value = "true" }] : [],
      pool.flex_start ? [{ key = "cloud.google.com/gke-flex-start", value = "true" }] : [],
    )
  }
}

# GKE's own pods, the export, and whatever else needs no GPU.
resource "google_container_node_pool" "cpu" {
  name     = "cpu"
  project  = var.project_id
  location = var.region
  cluster  = google_container_cluster.cluster.name
  # Per zone. The autoscaler keeps to its least count only when it takes nodes away: without this there would be none.
  initial_node_count = local.first_nodes.cpu

  autoscaling {
    total_min_node_count = var.cpu_pool.min_nodes
    total_max_node_count = var.cpu_pool.max_nodes
    location_policy      = "BALANCED"
  }

  management {
    auto_repair  = true
    auto_upgrade = true
  }

  upgrade_settings {
    max_surge       = 1
    max_unavailable = 0
  }

  network_config {
    enable_private_nodes = true
  }

  node_config {
    machine_type    = var.cpu_pool.machine_type
    image_type      = "COS_CONTAINERD"
    disk_size_gb    = var.cpu_pool.disk_gb
    disk_type       = "pd-balanced"
    service_account = google_service_account.nodes.email
    # What the account may do is a matter of IAM; narrower scopes would be a second, older place for the same.
    oauth_scopes    = ["https://www.googleapis.com/auth/cloud-platform"]
    resource_labels = local.labels
    metadata        = { disable-legacy-endpoints = "true" }

    gcfs_config {
      enabled = true
    }

    gvnic {
      enabled = true
    }

    shielded_instance_config {
      enable_secure_boot          = true
      enable_integrity_monitoring = true
    }

    workload_metadata_config {
      mode = "GKE_METADATA"
    }

    kubelet_config {
      insecure_kubelet_readonly_port_enabled = "FALSE"
    }
  }

  lifecycle {
    # Another count would make the pool anew.
    ignore_changes = [initial_node_count]

    precondition {
      condition     = local.first_nodes.cpu * length(var.zones) <= var.cpu_pool.max_nodes
      error_message = "cpu_pool has max_nodes = ${var.cpu_pool.max_nodes}, but the pool begins with ${local.first_nodes.cpu} in each of ${length(var.zones)} zones: raise max_nodes, or name fewer zones."
    }
  }
}

resource "google_container_node_pool" "gpu" {
  #checkov:skip=CKV_GCP_9:Nodes are repaired but for flex-start ones, for which GKE wants it off.
  for_each = local.gpu_pools

  name           = each.key
  project        = var.project_id
  location       = var.region
  cluster        = google_container_cluster.cluster.name
  node_locations = local.gpu_zones
  # Per zone; none, unless some are to be there at all times.
  initial_node_count = local.first_nodes[each.key]

  # ANY: in whichever zone there is a GPU, reserved ones first.
  autoscaling {
    total_min_node_count = each.value.min_nodes
    total_max_node_count = each.value.max_nodes
    location_policy      = "ANY"
  }

  # A flex-start node is not repaired but asked for again.
  management {
    auto_repair  = !each.value.flex_start
    auto_upgrade = true
  }

  # One node after another, without a spare one: where GPUs are few, there is none. GKE itself chooses how flex-start
  # nodes are renewed.
  dynamic "upgrade_settings" {
    for_each = each.value.flex_start ? [] : [true]
    content {
      max_surge       = 0
      max_unavailable = 1
    }
  }

  network_config {
    enable_private_nodes = true
  }

  dynamic "queued_provisioning" {
    for_each = each.value.queued_provisioning ? [true] : []
    content {
      enabled = true
    }
  }

  node_config {
    machine_type    = each.value.machine_type
    image_type      = "COS_CONTAINERD"
    disk_size_gb    = each.value.disk_gb
    disk_type       = "pd-balanced"
    service_account = google_service_account.nodes.email
    oauth_scopes    = ["https://www.googleapis.com/auth/cloud-platform"]
    resource_labels = local.labels
    metadata        = { disable-legacy-endpoints = "true" }

    spot             = each.value.spot
    flex_start       = each.value.flex_start ? true : null
    max_run_duration = each.value.max_run_seconds == null ? null : "${each.value.max_run_seconds}s"

    guest_accelerator {
      type  = "nvidia-l4"
      count = local.l4_per_machine[each.value.machine_type]

      # GKE's newest driver for the node's version: CUDA 12 and 13 run on it.
      gpu_driver_installation_config {
        gpu_driver_version = "LATEST"
      }

      dynamic "gpu_sharing_config" {
        for_each = each.value.shared_clients > 1 ? [each.value.shared_clients] : []
        content {
          gpu_sharing_strategy       = "TIME_SHARING"
          max_shared_clients_per_gpu = gpu_sharing_config.value
        }
      }
    }

    # Named: from that one alone. Flex-start nodes may come from none; others take what an open reservation has.
    dynamic "reservation_affinity" {
      for_each = each.value.reservation == null && !each.value.flex_start ? [] : [each.value.reservation]
      content {
        consume_reservation_type = each.value.flex_start ? "NO_RESERVATION" : "SPECIFIC_RESERVATION"
        key                      = each.value.flex_start ? null : "compute.googleapis.com/reservation-name"
        values                   = each.value.flex_start ? null : [each.value.reservation]
      }
    }

    dynamic "taint" {
      for_each = local.taints[each.key]
      content {
        key    = taint.value.key
        value  = taint.value.value
        effect = "NO_SCHEDULE"
      }
    }

    gcfs_config {
      enabled = true
    }

    gvnic {
      enabled = true
    }

    shielded_instance_config {
      enable_secure_boot          = true
      enable_integrity_monitoring = true
    }

    workload_metadata_config {
      mode = "GKE_METADATA"
    }

    kubelet_config {
      insecure_kubelet_readonly_port_enabled = "FALSE"
    }
  }

  lifecycle {
    ignore_changes = [initial_node_count]

    precondition {
      condition     = local.first_nodes[each.key] * length(local.gpu_zones) <= each.value.max_nodes
      error_message = "The pool ${each.key} has max_nodes = ${each.value.max_nodes}, but begins with ${local.first_nodes[each.key]} in each of ${length(local.gpu_zones)} zones: raise max_nodes, or name fewer gpu_zones."
    }
  }

  # A pool with GPUs is never the first of a cluster.
  depends_on = [google_container_node_pool.cpu]
}

# A VPC of its own: nothing else of the project can reach the nodes, and nothing here has a public address.
resource "google_compute_network" "vpc" {
  #checkov:skip=CKV2_GCP_18:A VPC lets nothing in from outside unless a rule says so, and the rules that GKE needs are made and kept by GKE.
  name                    = var.network_name
  project                 = var.project_id
  auto_create_subnetworks = false
  routing_mode            = "REGIONAL"

  depends_on = [google_project_service.api]
}

locals {
  cidrs = { node_cidr = var.node_cidr, pod_cidr = var.pod_cidr, service_cidr = var.service_cidr }

  # Two ranges overlap if and only if they are one, both cut to the shorter of their prefixes.
  overlaps = [
    for pair in [["node_cidr", "pod_cidr"], ["node_cidr", "service_cidr"], ["pod_cidr", "service_cidr"]] : join(" and ", pair)
    if length(distinct([
      for name in pair : cidrsubnet("${split("/", local.cidrs[name])[0]}/${min([for other in pair : tonumber(split("/", local.cidrs[other])[1])]...)}", 0, 0)
    ])) == 1
  ]
}

resource "google_compute_subnetwork" "nodes" {
  name          = "${var.network_name}-nodes"
  project       = var.project_id
  region        = var.region
  network       = google_compute_network.vpc.id
  ip_cidr_range = var.node_cidr
  # Artifact Registry, Cloud Logging, Filestore's API: Google's services without an address of one's own.
  private_ip_google_access = true

  secondary_ip_range {
    range_name    = "pods"
    ip_cidr_range = var.pod_cidr
  }

  secondary_ip_range {
    range_name    = "services"
    ip_cidr_range = var.service_cidr
  }

  dynamic "log_config" {
    for_each = var.flow_logs ? [true] : []
    content {
      aggregation_interval = "INTERVAL_5_MIN"
      flow_sampling        = 0.1
      metadata             = "INCLUDE_ALL_METADATA"
    }
  }

  lifecycle {
    precondition {
      condition     = length(local.overlaps) == 0
      error_message = "${join(", ", local.overlaps)} overlap (${join(", ", [for name, cidr in local.cidrs : "${name} = ${cidr}"])}); nodes, pods and Services need ranges apart: change one of the variables."
    }

    precondition {
      # A /24 for each node: twice its 110 pods, GKE's default. And 4 addresses of a subnet are Google's.
      condition     = local.most_nodes <= pow(2, 24 - tonumber(split("/", var.pod_cidr)[1])) && local.most_nodes <= pow(2, 32 - tonumber(split("/", var.node_cidr)[1])) - 4
      error_message = "The pools may grow to ${local.most_nodes} nodes, for which pod_cidr = ${var.pod_cidr} (a /24 for each) or node_cidr = ${var.node_cidr} is too small: take larger ranges or smaller max_nodes."
    }
  }
}

resource "google_compute_router" "nat" {
  count = var.cloud_nat ? 1 : 0

  name    = "${var.network_name}-nat"
  project = var.project_id
  region  = var.region
  network = google_compute_network.vpc.id
}

# The way out for nodes and pods that have no public address; nothing comes in by it.
resource "google_compute_router_nat" "nat" {
  count = var.cloud_nat ? 1 : 0

  name                               = "${var.network_name}-nat"
  project                            = var.project_id
  region                             = var.region
  router                             = google_compute_router.nat[0].name
  nat_ip_allocate_option             = "AUTO_ONLY"
  source_subnetwork_ip_ranges_to_nat = "LIST_OF_SUBNETWORKS"

  subnetwork {
    name                    = google_compute_subnetwork.nodes.id
    source_ip_ranges_to_nat = ["ALL_IP_RANGES"]
  }

  log_config {
    enable = true
    filter = "ERRORS_ONLY"
  }
}

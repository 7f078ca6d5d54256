# Names and figures that several files share. The order of making: apis, network, identities and registry, cluster, pools.
locals {
  labels = { app = "jaxport" }

  gpu_zones = coalesce(var.gpu_zones, var.zones)

  # What deploy/base/accounts.yaml calls the namespace and its ServiceAccounts.
  namespace = "jaxport"
  stages    = toset(["train", "export", "warm", "serve"])

  l4_per_machine = {
    "g2-standard-4"  = 1
    "g2-standard-8"  = 1
    "g2-standard-12" = 1
    "g2-standard-16" = 1
    "g2-standard-24" = 2
    "g2-standard-32" = 1
    "g2-standard-48" = 4
    "g2-standard-96" = 8
  }

  # A node more per pool, for the time of an upgrade.
  most_nodes = sum([
    var.cpu_pool.max_nodes + 1,
    var.serve_pool.enabled ? var.serve_pool.max_nodes + 1 : 0,
    var.train_pool.enabled ? var.train_pool.max_nodes + 1 : 0,
  ])

  # Nothing here can be made before its API is on.
  apis = toset([
    "artifactregistry.googleapis.com",
    "cloudresourcemanager.googleapis.com", # who may do what in the project
    "compute.googleapis.com",
    "container.googleapis.com",
    "containerfilesystem.googleapis.com", # image streaming
    "file.googleapis.com",                # the Filestore instance that the StorageClass makes
    "iam.googleapis.com",
    "iamcredentials.googleapis.com", # Workload Identity
    "logging.googleapis.com",
    "monitoring.googleapis.com",
  ])
}

# Never switched off again: something else in the project may use them.
resource "google_project_service" "api" {
  for_each = local.apis

  project            = var.project_id
  service            = each.value
  disable_on_destroy = false
}

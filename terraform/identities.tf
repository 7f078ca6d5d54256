# Nodes are no one in particular: an account of their own with what a node needs, in place of Compute Engine's default
# account, which may edit the whole project.
resource "google_service_account" "nodes" {
  account_id   = "${var.cluster_name}-nodes"
  project      = var.project_id
  display_name = "Nodes of the GKE cluster ${var.cluster_name}"

  depends_on = [google_project_service.api]
}

# Writes logs and metrics, and no more.
resource "google_project_iam_member" "nodes" {
  project = var.project_id
  role    = "roles/container.defaultNodeServiceAccount"
  member  = "serviceAccount:${google_service_account.nodes.email}"
}

# One identity per stage, taken by the ServiceAccount of the same name in deploy/base/accounts.yaml and by no other. None
# may do anything in the project by itself: bucket_access gives what is asked for.
resource "google_service_account" "stage" {
  for_each = local.stages

  account_id   = "${var.cluster_name}-${each.key}"
  project      = var.project_id
  display_name = "jaxport-${each.key} in the GKE cluster ${var.cluster_name}"

  depends_on = [google_project_service.api]
}

resource "google_service_account_iam_member" "workload_identity" {
  for_each = local.stages

  service_account_id = google_service_account.stage[each.key].name
  role               = "roles/iam.workloadIdentityUser"
  member             = "serviceAccount:${var.project_id}.svc.id.goog[${local.namespace}/jaxport-${each.key}]"

  # The first cluster of a project makes the pool of identities that the member is one of.
  depends_on = [google_container_cluster.cluster]
}

resource "google_storage_bucket_iam_member" "stage" {
  for_each = { for access in var.bucket_access : "${access.stage}-${access.bucket}" => access }

  bucket = each.value.bucket
  role   = each.value.write ? "roles/storage.objectUser" : "roles/storage.objectViewer"
  member = "serviceAccount:${google_service_account.stage[each.value.stage].email}"
}

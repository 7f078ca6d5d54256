output "cluster_name" {
  description = "The name of the cluster."
  value       = google_container_cluster.cluster.name
}

output "location" {
  description = "The region of the cluster."
  value       = google_container_cluster.cluster.location
}

output "get_credentials_command" {
  description = "Gives kubectl the way to the cluster: by its DNS name, with your Google account."
  value       = "gcloud container clusters get-credentials ${google_container_cluster.cluster.name} --location ${google_container_cluster.cluster.location} --project ${var.project_id} --dns-endpoint"
}

output "registry" {
  description = "Where the images go: <registry>/train, /export and /serve."
  value       = local.registry
}

output "registry_login_command" {
  description = "Lets docker push with your Google account; for podman see docs/cluster.md."
  value       = "gcloud auth configure-docker ${local.registry_host}"
}

output "network" {
  description = "The VPC, which the StorageClass of Filestore has to name."
  value       = google_compute_network.vpc.name
}

output "service_accounts" {
  description = "Stage -> the Google service account that its ServiceAccount stands for."
  value       = local.service_accounts
}

output "node_service_account" {
  description = "What the nodes run as."
  value       = google_service_account.nodes.email
}

output "kustomization" {
  description = "An overlay for this cluster, for deploy/overlays/mine/kustomization.yaml."
  value       = "# Made by: terraform output -raw kustomization\n${yamlencode(local.kustomization)}"
}

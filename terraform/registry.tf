locals {
  registry_host = "${var.region}-docker.pkg.dev"
  registry      = "${local.registry_host}/${var.project_id}/${var.registry_name}"
  mirror        = "${local.registry_host}/${var.project_id}/${var.registry_name}-dockerhub"

  seconds_per_day = 24 * 60 * 60
}

# What `make images` makes. A version is deleted if a DELETE policy finds it and no KEEP policy does.
resource "google_artifact_registry_repository" "images" {
  #checkov:skip=CKV_GCP_84:Encrypted with keys of Google; a key of your own is one more thing whose loss loses the images, which can be built again.
  repository_id = var.registry_name
  project       = var.project_id
  location      = var.region
  format        = "DOCKER"
  description   = "Images of jaxport: train, export, serve"
  labels        = local.labels

  cleanup_policies {
    id     = "keep-the-newest"
    action = "KEEP"
    most_recent_versions {
      keep_count = var.images_kept
    }
  }

  cleanup_policies {
    id     = "delete-untagged"
    action = "DELETE"
    condition {
      tag_state  = "UNTAGGED"
      older_than = "${7 * local.seconds_per_day}s"
    }
  }

  cleanup_policies {
    id     = "delete-old"
    action = "DELETE"
    condition {
      tag_state  = "ANY"
      older_than = "${90 * local.seconds_per_day}s"
    }
  }

  depends_on = [google_project_service.api]
}

# Envoy's image lies on Docker Hub, which counts pulls per address: a cluster behind one NAT address that scales out would
# be told to wait. Through this mirror an image is asked for once, and streamed to the nodes like our own.
resource "google_artifact_registry_repository" "dockerhub" {
  #checkov:skip=CKV_GCP_84:Encrypted with keys of Google; what lies here is public.
  repository_id = "${var.registry_name}-dockerhub"
  project       = var.project_id
  location      = var.region
  format        = "DOCKER"
  mode          = "REMOTE_REPOSITORY"
  description   = "Images of Docker Hub, kept while they are used"
  labels        = local.labels

  remote_repository_config {
    description = "Docker Hub"
    docker_repository {
      public_repository = "DOCKER_HUB"
    }
  }

  cleanup_policies {
    id     = "delete-old"
    action = "DELETE"
    condition {
      tag_state  = "ANY"
      older_than = "${90 * local.seconds_per_day}s"
    }
  }

  depends_on = [google_project_service.api]
}

# The nodes read these two repositories, and no other of the project.
resource "google_artifact_registry_repository_iam_member" "nodes" {
  for_each = {
    images    = google_artifact_registry_repository.images.name
    dockerhub = google_artifact_registry_repository.dockerhub.name
  }

  project    = var.project_id
  location   = var.region
  repository = each.value
  role       = "roles/artifactregistry.reader"
  member     = "serviceAccount:${google_service_account.nodes.email}"
}

resource "google_artifact_registry_repository_iam_member" "pushers" {
  for_each = var.image_pushers

  project    = var.project_id
  location   = var.region
  repository = google_artifact_registry_repository.images.name
  role       = "roles/artifactregistry.writer"
  member     = each.value
}

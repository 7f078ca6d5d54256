# The other clusters that the variables offer.
mock_provider "google" {}

variables {
  project_id = "my-project"
}

run "cpu_only" {
  command = plan

  variables {
    serve_pool = { enabled = false }
    train_pool = { enabled = false }
  }

  assert {
    condition     = length(google_container_node_pool.gpu) == 0
    error_message = "There is a GPU pool."
  }

  assert {
    condition     = yamldecode(output.kustomization).resources == ["../cpu"]
    error_message = "The kustomization asks for GPUs that nothing has."
  }
}

run "one_serving_pool" {
  command = plan

  variables {
    serve_pool = { max_nodes = 1, shared_clients = 4 }
    train_pool = { enabled = false }
  }

  assert {
    condition     = keys(google_container_node_pool.gpu) == ["serve-l4"]
    error_message = "Not the one pool that was asked for."
  }

  assert {
    condition     = google_container_node_pool.gpu["serve-l4"].node_config[0].guest_accelerator[0].gpu_sharing_config[0].max_shared_clients_per_gpu == 4
    error_message = "The GPU is not shared."
  }

  assert {
    condition     = google_container_node_pool.gpu["serve-l4"].autoscaling[0].total_max_node_count == 1
    error_message = "The pool may grow past the one node."
  }

  assert {
    condition     = yamldecode(output.kustomization).components == []
    error_message = "Four pods share the GPU, so all that wait fit, and nobody has to give way."
  }
}

run "one_serving_pool_with_too_few_gpus" {
  command = plan

  variables {
    serve_pool = { max_nodes = 3 }
    train_pool = { enabled = false }
  }

  assert {
    condition     = yamldecode(output.kustomization).components == ["../../components/training-first"]
    error_message = "Two servers and the warm Job can hold the three GPUs while the training waits for one."
  }
}

run "one_serving_pool_with_a_gpu_for_everybody" {
  command = plan

  variables {
    serve_pool = { max_nodes = 4 }
    train_pool = { enabled = false }
  }

  assert {
    condition     = yamldecode(output.kustomization).components == []
    error_message = "A training would stop servers although there is a GPU for it."
  }
}

run "one_training_pool" {
  command = plan

  variables {
    serve_pool = { enabled = false }
    train_pool = { max_nodes = 1 }
  }

  assert {
    condition     = yamldecode(output.kustomization).components == ["../../components/training-first"]
    error_message = "Two GPUs are too few for a training, the warm Job and two servers."
  }
}

run "everything_with_spot_and_queued_provisioning" {
  command = plan

  variables {
    serve_pool = { spot = true }
    train_pool = { spot = false, flex_start = true, queued_provisioning = true, max_run_hours = 24 }
  }

  assert {
    condition     = google_container_node_pool.gpu["serve-l4"].node_config[0].spot
    error_message = "Servers are not on Spot."
  }

  assert {
    condition     = google_container_node_pool.gpu["train-l4"].queued_provisioning[0].enabled && google_container_node_pool.gpu["train-l4"].node_config[0].flex_start
    error_message = "Training is not queued."
  }

  assert {
    condition     = google_container_node_pool.gpu["train-l4"].node_config[0].max_run_duration == "86400s"
    error_message = "A node is not given back after a day."
  }

  assert {
    condition     = google_container_node_pool.gpu["train-l4"].node_config[0].reservation_affinity[0].consume_reservation_type == "NO_RESERVATION" && !google_container_node_pool.gpu["train-l4"].management[0].auto_repair
    error_message = "A flex-start pool may take from reservations, or is repaired: GKE wants neither."
  }

  assert {
    condition     = length(google_container_node_pool.gpu["train-l4"].upgrade_settings) == 0
    error_message = "GKE chooses by itself how flex-start nodes are renewed."
  }
}

run "servers_at_all_times" {
  command = plan

  variables {
    serve_pool = { min_nodes = 2 }
    gpu_zones  = ["europe-west4-a"]
  }

  assert {
    condition     = { for name, pool in google_container_node_pool.gpu : name => pool.initial_node_count } == { serve-l4 = 2, train-l4 = 0 }
    error_message = "The nodes that are to be there at all times are not made."
  }
}

run "reserved_nodes" {
  command = plan

  variables {
    train_pool = { spot = false, reservation = "l4-for-june" }
  }

  assert {
    condition     = google_container_node_pool.gpu["train-l4"].node_config[0].reservation_affinity[0].consume_reservation_type == "SPECIFIC_RESERVATION" && contains(google_container_node_pool.gpu["train-l4"].node_config[0].reservation_affinity[0].values, "l4-for-june")
    error_message = "Nodes do not come from the reservation."
  }
}

run "buckets_pushers_and_groups" {
  command = plan

  variables {
    bucket_access  = [{ stage = "train", bucket = "data" }, { stage = "export", bucket = "copies", write = true }]
    image_pushers  = ["serviceAccount:ci@my-project.iam.gserviceaccount.com"]
    security_group = "gke-security-groups@example.com"
    cloud_nat      = false
    flow_logs      = true
    gpu_zones      = ["europe-west4-a"]
  }

  assert {
    condition     = { for name, access in google_storage_bucket_iam_member.stage : name => access.role } == { train-data = "roles/storage.objectViewer", export-copies = "roles/storage.objectUser" }
    error_message = "Not the roles that were asked for."
  }

  assert {
    condition     = [for pusher in google_artifact_registry_repository_iam_member.pushers : pusher.role] == ["roles/artifactregistry.writer"]
    error_message = "Who pushes images may do something else."
  }

  assert {
    condition     = length(google_compute_router_nat.nat) == 0 && length(google_compute_subnetwork.nodes.log_config) == 1
    error_message = "NAT was to be off and flow logs on."
  }

  assert {
    condition     = alltrue([for pool in google_container_node_pool.gpu : pool.node_locations == toset(["europe-west4-a"])])
    error_message = "GPU nodes are asked for where there are none."
  }
}

# What is refused, at the time of the plan: each run breaks one rule, and fails if nothing says so.
mock_provider "google" {}

variables {
  project_id = "my-project"
}

run "a_project_name" {
  command = plan

  variables {
    project_id = "My Project"
  }

  expect_failures = [var.project_id]
}

run "a_zone_for_a_region" {
  command = plan

  variables {
    region = "europe-west4-a"
  }

  expect_failures = [var.region]
}

run "no_zones" {
  command = plan

  variables {
    zones = []
  }

  expect_failures = [var.zones]
}

run "a_zone_twice" {
  command = plan

  variables {
    zones = ["europe-west4-a", "europe-west4-a"]
  }

  expect_failures = [var.zones]
}

run "zones_of_another_region" {
  command = plan

  variables {
    region = "us-central1"
  }

  expect_failures = [var.zones]
}

run "gpu_zones_that_are_no_zones" {
  command = plan

  variables {
    gpu_zones = ["europe-west4-d"]
  }

  expect_failures = [var.gpu_zones]
}

run "no_gpu_zones" {
  command = plan

  variables {
    gpu_zones = []
  }

  expect_failures = [var.gpu_zones]
}

run "a_cluster_name_too_long" {
  command = plan

  variables {
    cluster_name = "a-cluster-with-a-long-name"
  }

  expect_failures = [var.cluster_name]
}

run "a_network_name_with_capitals" {
  command = plan

  variables {
    network_name = "Jaxport"
  }

  expect_failures = [var.network_name]
}

run "a_registry_name_with_slashes" {
  command = plan

  variables {
    registry_name = "my/jaxport"
  }

  expect_failures = [var.registry_name]
}

run "a_range_of_no_addresses" {
  command = plan

  variables {
    node_cidr = "10.0.0.0"
  }

  expect_failures = [var.node_cidr]
}

run "a_range_that_begins_within" {
  command = plan

  variables {
    node_cidr = "10.0.0.7/20"
  }

  expect_failures = [var.node_cidr]
}

run "pods_with_few_addresses" {
  command = plan

  variables {
    pod_cidr = "10.4.0.0/22"
  }

  expect_failures = [var.pod_cidr]
}

run "services_with_few_addresses" {
  command = plan

  variables {
    service_cidr = "10.8.0.0/28"
  }

  expect_failures = [var.service_cidr]
}

run "ranges_that_overlap" {
  command = plan

  variables {
    service_cidr = "10.5.0.0/20"
  }

  expect_failures = [google_compute_subnetwork.nodes]
}

run "more_nodes_than_addresses" {
  command = plan

  variables {
    pod_cidr = "10.4.0.0/21"
  }

  expect_failures = [google_compute_subnetwork.nodes]
}

run "fewer_cpu_nodes_than_zones" {
  command = plan

  variables {
    cpu_pool = { max_nodes = 2 }
  }

  expect_failures = [google_container_node_pool.cpu]
}

run "fewer_servers_than_zones" {
  command = plan

  variables {
    serve_pool = { min_nodes = 1, max_nodes = 2 }
  }

  expect_failures = [google_container_node_pool.gpu]
}

run "a_channel_that_is_none" {
  command = plan

  variables {
    release_channel = "FAST"
  }

  expect_failures = [var.release_channel]
}

run "a_window_of_an_hour" {
  command = plan

  variables {
    maintenance_window = { start = "2026-01-03T01:00:00Z", end = "2026-01-03T02:00:00Z", recurrence = "FREQ=DAILY" }
  }

  expect_failures = [var.maintenance_window]
}

run "a_window_once_a_month" {
  command = plan

  variables {
    maintenance_window = { start = "2026-01-03T01:00:00Z", end = "2026-01-03T09:00:00Z", recurrence = "FREQ=MONTHLY" }
  }

  expect_failures = [var.maintenance_window]
}

run "any_group" {
  command = plan

  variables {
    security_group = "admins@example.com"
  }

  expect_failures = [var.security_group]
}

run "no_cpu_nodes" {
  command = plan

  variables {
    cpu_pool = { min_nodes = 0 }
  }

  expect_failures = [var.cpu_pool]
}

run "servers_on_machines_without_l4" {
  command = plan

  variables {
    serve_pool = { machine_type = "n1-standard-8" }
  }

  expect_failures = [var.serve_pool]
}

run "more_servers_at_least_than_at_most" {
  command = plan

  variables {
    serve_pool = { min_nodes = 3, max_nodes = 2 }
  }

  expect_failures = [var.serve_pool]
}

run "servers_on_spot_from_a_reservation" {
  command = plan

  variables {
    serve_pool = { spot = true, reservation = "mine" }
  }

  expect_failures = [var.serve_pool]
}

run "too_many_on_one_gpu" {
  command = plan

  variables {
    serve_pool = { shared_clients = 49 }
  }

  expect_failures = [var.serve_pool]
}

run "a_pod_and_a_half_on_one_gpu" {
  command = plan

  variables {
    serve_pool = { shared_clients = 1.5 }
  }

  expect_failures = [var.serve_pool]
}

run "training_on_machines_without_l4" {
  command = plan

  variables {
    train_pool = { machine_type = "a2-highgpu-1g" }
  }

  expect_failures = [var.train_pool]
}

run "training_on_no_nodes" {
  command = plan

  variables {
    train_pool = { max_nodes = 0 }
  }

  expect_failures = [var.train_pool]
}

run "spot_and_flex_start" {
  command = plan

  variables {
    train_pool = { spot = true, flex_start = true }
  }

  expect_failures = [var.train_pool]
}

run "spot_from_a_reservation" {
  command = plan

  variables {
    train_pool = { spot = true, reservation = "mine" }
  }

  expect_failures = [var.train_pool]
}

run "flex_start_from_a_reservation" {
  command = plan

  variables {
    train_pool = { spot = false, flex_start = true, reservation = "mine" }
  }

  expect_failures = [var.train_pool]
}

run "a_queue_from_a_reservation" {
  command = plan

  variables {
    train_pool = { spot = false, queued_provisioning = true, reservation = "mine" }
  }

  expect_failures = [var.train_pool]
}

run "a_queue_without_flex_start" {
  command = plan

  variables {
    train_pool = { spot = false, queued_provisioning = true }
  }

  expect_failures = [var.train_pool]
}

run "a_queue_on_spot" {
  command = plan

  variables {
    train_pool = { spot = true, queued_provisioning = true }
  }

  expect_failures = [var.train_pool]
}

run "a_queue_that_servers_would_wait_for" {
  command = plan

  variables {
    serve_pool = { enabled = false }
    train_pool = { spot = false, flex_start = true, queued_provisioning = true }
  }

  expect_failures = [var.train_pool]
}

run "longer_than_a_week" {
  command = plan

  variables {
    train_pool = { spot = false, flex_start = true, max_run_hours = 169 }
  }

  expect_failures = [var.train_pool]
}

run "no_images_kept" {
  command = plan

  variables {
    images_kept = 0
  }

  expect_failures = [var.images_kept]
}

run "everybody_pushes_images" {
  command = plan

  variables {
    image_pushers = ["allUsers"]
  }

  expect_failures = [var.image_pushers]
}

run "a_stage_that_is_none" {
  command = plan

  variables {
    bucket_access = [{ stage = "test", bucket = "data" }]
  }

  expect_failures = [var.bucket_access]
}

run "a_bucket_twice" {
  command = plan

  variables {
    bucket_access = [{ stage = "train", bucket = "data" }, { stage = "train", bucket = "data", write = true }]
  }

  expect_failures = [var.bucket_access]
}

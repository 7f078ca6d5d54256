variable "project_id" {
  description = "The project that everything is made in. It has to exist, with billing."
  type        = string

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{4,28}[a-z0-9]$", var.project_id))
    error_message = "project_id is \"${var.project_id}\"; needed is the ID of a project, not its name or number: 6 to 30 lower-case letters, digits and hyphens."
  }
}

variable "region" {
  description = "The region of the cluster, its network and the registry."
  type        = string
  default     = "europe-west4"

  validation {
    condition     = can(regex("^[a-z]+-[a-z]+[0-9]+$", var.region))
    error_message = "region is \"${var.region}\"; needed is a region such as europe-west4, not a zone."
  }
}

variable "zones" {
  description = "The zones that nodes may be made in, all of them in the region."
  type        = list(string)
  default     = ["europe-west4-a", "europe-west4-b", "europe-west4-c"]

  validation {
    condition     = length(var.zones) > 0 && length(distinct(var.zones)) == length(var.zones)
    error_message = "zones is [${join(", ", var.zones)}]; needed is one zone or more, each named once."
  }

  validation {
    condition     = alltrue([for zone in var.zones : can(regex("^${var.region}-[a-z]$", zone))])
    error_message = "zones is [${join(", ", var.zones)}], but the region is ${var.region}: name zones of that region, such as ${var.region}-a."
  }
}

variable "gpu_zones" {
  description = "Those of the zones that have L4 GPUs, null for all of them: gcloud compute accelerator-types list --filter=name=nvidia-l4"
  type        = list(string)
  default     = null

  validation {
    condition     = var.gpu_zones == null ? true : length(var.gpu_zones) > 0 && length(setsubtract(var.gpu_zones, var.zones)) == 0
    error_message = "gpu_zones is [${join(", ", coalesce(var.gpu_zones, []))}]; needed is one or more of the zones [${join(", ", var.zones)}], or null."
  }
}

variable "cluster_name" {
  description = "The name of the cluster, and the beginning of the names of its service accounts."
  type        = string
  default     = "jaxport"

  validation {
    # A service account has at most 30 characters, and "-export" is put behind.
    condition     = can(regex("^[a-z][a-z0-9-]{1,20}[a-z0-9]$", var.cluster_name))
    error_message = "cluster_name is \"${var.cluster_name}\"; needed are 3 to 22 lower-case letters, digits and hyphens, a letter first and no hyphen last."
  }
}

variable "network_name" {
  description = "The name of the VPC. The StorageClass of Filestore has to name the same one: the output kustomization sees to it."
  type        = string
  default     = "jaxport"

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{0,50}[a-z0-9]$", var.network_name))
    error_message = "network_name is \"${var.network_name}\"; needed are 2 to 52 lower-case letters, digits and hyphens, a letter first and no hyphen last."
  }
}

variable "registry_name" {
  description = "The name of the Artifact Registry repository of the images."
  type        = string
  default     = "jaxport"

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{0,50}[a-z0-9]$", var.registry_name))
    error_message = "registry_name is \"${var.registry_name}\"; needed are 2 to 52 lower-case letters, digits and hyphens, a letter first and no hyphen last."
  }
}

variable "node_cidr" {
  description = "The addresses of the nodes."
  type        = string
  default     = "10.0.0.0/20"

  validation {
    condition     = try(cidrsubnet(var.node_cidr, 0, 0) == var.node_cidr && tonumber(split("/", var.node_cidr)[1]) <= 26, false)
    error_message = "node_cidr is \"${var.node_cidr}\"; needed is an IPv4 range of /26 or larger that begins at its first address, such as 10.0.0.0/20."
  }
}

variable "pod_cidr" {
  description = "The addresses of the pods: a secondary range, of which every node takes a /24."
  type        = string
  default     = "10.4.0.0/14"

  validation {
    condition     = try(cidrsubnet(var.pod_cidr, 0, 0) == var.pod_cidr && tonumber(split("/", var.pod_cidr)[1]) <= 21, false)
    error_message = "pod_cidr is \"${var.pod_cidr}\"; needed is an IPv4 range of /21 or larger that begins at its first address, such as 10.4.0.0/14."
  }
}

variable "service_cidr" {
  description = "The addresses of the Services: a secondary range."
  type        = string
  default     = "10.8.0.0/20"

  validation {
    condition     = try(cidrsubnet(var.service_cidr, 0, 0) == var.service_cidr && tonumber(split("/", var.service_cidr)[1]) <= 27, false)
    error_message = "service_cidr is \"${var.service_cidr}\"; needed is an IPv4 range of /27 or larger that begins at its first address, such as 10.8.0.0/20."
  }
}

variable "cloud_nat" {
  description = "Whether nodes and pods reach the internet. Nothing of jaxport's needs it: its images come from Artifact Registry, Envoy's through the mirror of Docker Hub. What else is installed often does (registry.k8s.io, ghcr.io)."
  type        = bool
  default     = true
}

variable "flow_logs" {
  description = "Whether the subnet's flows are logged; they are charged by volume."
  type        = bool
  default     = false
}

variable "release_channel" {
  description = "The pace of GKE's upgrades: RAPID, REGULAR, STABLE or EXTENDED."
  type        = string
  default     = "REGULAR"

  validation {
    condition     = contains(["RAPID", "REGULAR", "STABLE", "EXTENDED"], var.release_channel)
    error_message = "release_channel is \"${var.release_channel}\"; needed is RAPID, REGULAR, STABLE or EXTENDED."
  }
}

variable "maintenance_window" {
  description = "When GKE may upgrade the control plane and the nodes. start and end are those of the first window, in UTC; recurrence is an RFC 5545 RRULE."
  type = object({
    start      = string
    end        = string
    recurrence = string
  })
  default = {
    start      = "2026-01-03T01:00:00Z"
    end        = "2026-01-03T09:00:00Z"
    recurrence = "FREQ=WEEKLY;BYDAY=SA,SU"
  }

  validation {
    condition     = try(timecmp(timeadd(var.maintenance_window.start, "4h"), var.maintenance_window.end) <= 0, false)
    error_message = "maintenance_window is from ${var.maintenance_window.start} to ${var.maintenance_window.end}; needed are two times such as 2026-01-03T01:00:00Z, the end at least 4 hours after the start."
  }

  validation {
    condition     = can(regex("^FREQ=(DAILY|WEEKLY)(;[A-Z]+=[A-Z0-9,+-]+)*$", var.maintenance_window.recurrence))
    error_message = "maintenance_window.recurrence is \"${var.maintenance_window.recurrence}\"; needed is a daily or weekly RRULE such as FREQ=WEEKLY;BYDAY=SA,SU: GKE wants 48 hours in any 32 days."
  }
}

variable "deletion_protection" {
  description = "Whether terraform destroy is refused. Set it to false and apply before you destroy."
  type        = bool
  default     = true
}

variable "external_access" {
  description = "Whether the cluster's DNS endpoint answers from outside of Google Cloud. Who may ask is a matter of IAM either way; with false, kubectl works from inside a VPC alone."
  type        = bool
  default     = true
}

variable "security_group" {
  description = "The Google group whose nested groups can be named in RBAC (gke-security-groups@example.com), null for none."
  type        = string
  default     = null

  validation {
    condition     = var.security_group == null ? true : can(regex("^gke-security-groups@[a-z0-9.-]+$", var.security_group))
    error_message = "security_group is \"${coalesce(var.security_group, "null")}\"; GKE takes no other name than gke-security-groups@ and your domain."
  }
}

variable "cpu_pool" {
  description = "Nodes without a GPU: GKE's own pods, and the export. min_nodes and max_nodes are of all zones together."
  type = object({
    machine_type = optional(string, "e2-standard-4")
    min_nodes    = optional(number, 1)
    max_nodes    = optional(number, 3)
    disk_gb      = optional(number, 50)
  })
  default = {}

  validation {
    condition     = var.cpu_pool.min_nodes >= 1 && var.cpu_pool.min_nodes <= var.cpu_pool.max_nodes
    error_message = "cpu_pool has min_nodes = ${var.cpu_pool.min_nodes} and max_nodes = ${var.cpu_pool.max_nodes}; needed is 1 <= min_nodes <= max_nodes: GKE's own pods run nowhere else."
  }
}

variable "serve_pool" {
  description = <<-EOT
    Nodes with L4 GPUs for the servers. max_nodes is of all zones together: the output kustomization holds the autoscaler of the
    servers to the GPUs that these have, one of them kept for rollouts.
    spot: cheaper and taken away at 15 seconds' notice, servers too. reservation: the name of a reservation of yours to take nodes from.
    shared_clients: how many pods take turns on one GPU, 1 for none. Nothing divides its memory: the output kustomization tells each
    to take its share, and a model has to fit into that.
  EOT
  type = object({
    enabled        = optional(bool, true)
    machine_type   = optional(string, "g2-standard-8")
    min_nodes      = optional(number, 0)
    max_nodes      = optional(number, 9)
    disk_gb        = optional(number, 100)
    spot           = optional(bool, false)
    reservation    = optional(string)
    shared_clients = optional(number, 1)
  })
  default = {}

  validation {
    condition     = contains(["g2-standard-4", "g2-standard-8", "g2-standard-12", "g2-standard-16", "g2-standard-24", "g2-standard-32", "g2-standard-48", "g2-standard-96"], var.serve_pool.machine_type)
    error_message = "serve_pool.machine_type is \"${var.serve_pool.machine_type}\"; L4 GPUs come with g2-standard-4, -8, -12, -16, -24, -32, -48 and -96 alone."
  }

  validation {
    condition     = var.serve_pool.min_nodes >= 0 && var.serve_pool.min_nodes <= var.serve_pool.max_nodes && var.serve_pool.max_nodes >= 1
    error_message = "serve_pool has min_nodes = ${var.serve_pool.min_nodes} and max_nodes = ${var.serve_pool.max_nodes}; needed is 0 <= min_nodes <= max_nodes and max_nodes >= 1. For no such nodes at all: enabled = false."
  }

  validation {
    condition     = !(var.serve_pool.spot && var.serve_pool.reservation != null)
    error_message = "serve_pool has spot = true and the reservation \"${coalesce(var.serve_pool.reservation, "null")}\"; Spot nodes take nothing from a reservation: give up one of them."
  }

  validation {
    condition     = var.serve_pool.shared_clients >= 1 && var.serve_pool.shared_clients <= 48 && floor(var.serve_pool.shared_clients) == var.serve_pool.shared_clients
    error_message = "serve_pool.shared_clients is ${var.serve_pool.shared_clients}; needed is 1 for a GPU per pod, or 2 to 48 pods on one GPU."
  }
}

variable "train_pool" {
  description = <<-EOT
    Nodes with L4 GPUs for training, none when nothing is trained. max_nodes is of all zones together.
    One of these says how nodes are had, none of them means on demand:
    spot: cheaper and taken away at 15 seconds' notice; training saves and goes on later.
    flex_start: cheaper too, waits until there are any, and kept for max_run_hours (a week at most).
    reservation: the name of a reservation of yours to take nodes from.
    queued_provisioning: with flex_start, all nodes of a Job at once or none; Jobs need a ProvisioningRequest (Kueue makes it).
  EOT
  type = object({
    enabled             = optional(bool, true)
    machine_type        = optional(string, "g2-standard-24")
    max_nodes           = optional(number, 2)
    disk_gb             = optional(number, 100)
    spot                = optional(bool, true)
    flex_start          = optional(bool, false)
    queued_provisioning = optional(bool, false)
    max_run_hours       = optional(number, 168)
    reservation         = optional(string)
  })
  default = {}

  validation {
    condition     = contains(["g2-standard-4", "g2-standard-8", "g2-standard-12", "g2-standard-16", "g2-standard-24", "g2-standard-32", "g2-standard-48", "g2-standard-96"], var.train_pool.machine_type)
    error_message = "train_pool.machine_type is \"${var.train_pool.machine_type}\"; L4 GPUs come with g2-standard-4, -8, -12, -16, -24, -32, -48 and -96 alone."
  }

  validation {
    condition     = var.train_pool.max_nodes >= 1
    error_message = "train_pool.max_nodes is ${var.train_pool.max_nodes}; needed is 1 or more. For no such nodes at all: enabled = false."
  }

  validation {
    condition     = !(var.train_pool.spot && var.train_pool.flex_start)
    error_message = "train_pool has spot = true and flex_start = true; a node is had in one of these ways: set one to false."
  }

  validation {
    condition     = !(var.train_pool.reservation != null && (var.train_pool.spot || var.train_pool.flex_start))
    error_message = "train_pool has the reservation \"${coalesce(var.train_pool.reservation, "null")}\" and spot or flex_start; neither takes anything from a reservation: set both to false, or give up the reservation."
  }

  validation {
    condition     = !var.train_pool.queued_provisioning || var.train_pool.flex_start
    error_message = "train_pool has queued_provisioning = true without flex_start = true; queued nodes are flex-start nodes, neither Spot nor reserved."
  }

  validation {
    condition     = !(var.train_pool.enabled && var.train_pool.queued_provisioning && !var.serve_pool.enabled)
    error_message = "train_pool has queued_provisioning = true and serve_pool has enabled = false; the warm Job and the servers ask no queue for nodes and would wait for ever: enable serve_pool, or give up the queue."
  }

  validation {
    condition     = var.train_pool.max_run_hours > 0 && var.train_pool.max_run_hours <= 168
    error_message = "train_pool.max_run_hours is ${var.train_pool.max_run_hours}; needed is more than 0, and 168 (a week) at most."
  }
}

variable "images_kept" {
  description = "How many versions of each image the registry keeps whatever their age; others go after 90 days, those without a tag after 7."
  type        = number
  default     = 10

  validation {
    condition     = var.images_kept >= 1
    error_message = "images_kept is ${var.images_kept}; needed is 1 or more, or the image that runs could go."
  }
}

variable "image_pushers" {
  description = "Who may push images, besides the owners of the project: members such as user:you@example.com or serviceAccount:ci@..."
  type        = set(string)
  default     = []

  validation {
    condition     = alltrue([for member in var.image_pushers : can(regex("^(user|group|serviceAccount|principal|principalSet):.+$", member))])
    error_message = "image_pushers is [${join(", ", var.image_pushers)}]; needed are members with their kind: user:, group:, serviceAccount:, principal: or principalSet:. Everybody (allUsers) is not one."
  }
}

variable "bucket_access" {
  description = "What the stages may do with buckets that exist already, for data and copies; nothing by default. A stage that uses one also needs a NetworkPolicy that lets it out."
  type = list(object({
    stage  = string
    bucket = string
    write  = optional(bool, false)
  }))
  default = []

  validation {
    condition     = alltrue([for access in var.bucket_access : contains(["train", "export", "warm", "serve"], access.stage)])
    error_message = "bucket_access has the stages [${join(", ", var.bucket_access[*].stage)}]; needed is train, export, warm or serve."
  }

  validation {
    condition     = length(distinct([for access in var.bucket_access : "${access.stage} ${access.bucket}"])) == length(var.bucket_access)
    error_message = "bucket_access names a stage and a bucket twice: write = true includes reading."
  }
}

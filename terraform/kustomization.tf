# The other half of what deploy/ needs to know of this cluster, written as the overlay that says it:
#   terraform -chdir=terraform output -raw kustomization > deploy/overlays/mine/kustomization.yaml
locals {
  gpus = var.serve_pool.enabled || var.train_pool.enabled

  # Which pool each stage's pods go to. Where nodes are queued, only what asks the queue gets one.
  pool_of = !local.gpus ? {} : {
    train = var.train_pool.enabled ? "train-l4" : "serve-l4"
    warm  = var.train_pool.enabled && !var.train_pool.queued_provisioning ? "train-l4" : "serve-l4"
    serve = var.serve_pool.enabled ? "serve-l4" : "train-l4"
  }

  # How many pods want a GPU of each pool at the same time, before there is a bundle: the training, the warm Job and two servers.
  wanted_gpus = {
    for name, pool in local.gpu_pools : name => sum([
      for stage, of in local.pool_of : of == name ? (stage == "serve" ? 2 : 1) : 0
    ])
  }
  # How many pods with a GPU each pool has room for.
  room = { for name, pool in local.gpu_pools : name => pool.max_nodes * local.l4_per_machine[pool.machine_type] * pool.shared_clients }
  # Where they find too few, those that wait for a bundle would keep the training from its GPU.
  scarce = anytrue([for name, room in local.room : local.wanted_gpus[name] > room && local.pool_of.train == name])

  # How many servers their pool can carry: all but one, which a rollout takes, and all but those that the Jobs of the same pool take,
  # unless these take them from servers anyhow. Of a single GPU nothing can be kept: there the old server goes first.
  serving_room = local.gpus ? local.room[local.pool_of.serve] : 0
  jobs_beside  = length([for stage, of in local.pool_of : stage if stage != "serve" && of == try(local.pool_of.serve, null)])
  most_servers = max(1, local.serving_room - (local.scarce ? 1 : max(1, local.jobs_beside)))

  # Emails are made of names that are known before there is an account.
  service_accounts = { for stage in local.stages : stage => "${var.cluster_name}-${stage}@${var.project_id}.iam.gserviceaccount.com" }

  # overlays/cpu names the images as `make images` does, overlays/gke-l4 as a registry of somebody else's.
  image_names = local.gpus ? "europe-west4-docker.pkg.dev/my-project/jaxport" : "localhost/jaxport"

  # overlays/gke-l4 sends train and warm to Spot nodes, lets them bear the taint, and keeps servers off.
  placements = {
    for stage, pool in local.pool_of : stage => concat(
      stage != "serve" && !local.gpu_pools[pool].spot ? [
        { op = "remove", path = "/spec/template/spec/nodeSelector/cloud.google.com~1gke-spot" },
      ] : [],
      stage == "serve" && local.gpu_pools[pool].spot ? [{ op = "remove", path = "/spec/template/spec/affinity" }] : [],
      [{ op = "add", path = "/spec/template/spec/nodeSelector/cloud.google.com~1gke-nodepool", value = pool }],
      local.gpu_pools[pool].flex_start ? [
        { op = "add", path = "/spec/template/spec/nodeSelector/cloud.google.com~1gke-flex-start", value = "true" },
      ] : [],
      [
        for taint in local.taints[pool] : {
          op    = "add"
          path  = "/spec/template/spec/tolerations/-"
          value = { key = taint.key, operator = "Equal", value = taint.value, effect = "NoSchedule" }
        }
        if taint.key == "cloud.google.com/gke-flex-start" || (taint.key == "cloud.google.com/gke-spot" && stage == "serve")
      ],
      # JAX takes three quarters of a GPU's memory when it starts, so the second of two that share one would find too little.
      local.gpu_pools[pool].shared_clients == 1 ? [] : [
        {
          op    = "add"
          path  = "/spec/template/spec/containers/0/env/-"
          value = { name = "XLA_PYTHON_CLIENT_MEM_FRACTION", value = tostring(floor(90 / local.gpu_pools[pool].shared_clients) / 100) }
        }
      ],
    )
  }

  kustomization = {
    apiVersion = "kustomize.config.k8s.io/v1beta1"
    kind       = "Kustomization"
    # kustomize heeds the topmost kustomization's alone: policies before pods, servers after what they wait for.
    sortOptions = {
      order = "legacy"
      legacySortOptions = {
        orderFirst = ["Namespace", "StorageClass"]
        orderLast  = ["JobSet", "Job", "Deployment"]
      }
    }
    resources  = [local.gpus ? "../gke-l4" : "../cpu"]
    components = local.scarce ? ["../../components/training-first"] : []
    images = concat(
      [for image in ["train", "export", "serve"] : { name = "${local.image_names}/${image}", newName = "${local.registry}/${image}" }],
      [{ name = "docker.io/envoyproxy/envoy", newName = "${local.mirror}/envoyproxy/envoy" }],
    )
    patches = concat(
      [
        for stage, email in local.service_accounts : {
          target = { kind = "ServiceAccount", name = "jaxport-${stage}" }
          patch  = yamlencode([{ op = "add", path = "/metadata/annotations", value = { "iam.gke.io/gcp-service-account" = email } }])
        }
      ],
      [
        for stage, operations in local.placements : {
          target = { kind = "(Job|Deployment)", name = "jaxport-${stage}" }
          patch  = yamlencode(operations)
        }
      ],
      local.gpus ? [
        {
          target = { kind = "HorizontalPodAutoscaler", name = "jaxport-serve" }
          patch = yamlencode([
            { op = "replace", path = "/spec/minReplicas", value = min(2, local.most_servers) },
            { op = "replace", path = "/spec/maxReplicas", value = local.most_servers },
          ])
        },
        {
          target = { kind = "StorageClass", name = "jaxport-filestore" }
          patch  = yamlencode([{ op = "replace", path = "/parameters/network", value = google_compute_network.vpc.name }])
        }
      ] : [],
      local.serving_room == 1 ? [
        {
          target = { kind = "Deployment", name = "jaxport-serve" }
          patch = yamlencode([
            { op = "replace", path = "/spec/strategy/rollingUpdate/maxUnavailable", value = 1 },
            { op = "replace", path = "/spec/strategy/rollingUpdate/maxSurge", value = 0 },
          ])
        }
      ] : [],
    )
  }
}

"""Faults between the stages: they miss each other's names, folders, images or order."""

from tests.deploy.faults.planted import HOSTS, JOBSET, Fault, put
from tests.deploy.policies import stages

FAULTS = (
    Fault(
        stages.stages_use_one_run,
        "--run nano; Job jaxport-train: container train writes the run tiny",
        lambda p: p.argument(p.exporter, "--run", "nano"),
    ),
    Fault(
        stages.stages_use_one_run,
        "writes the run mine",
        lambda p: p.trainer["args"].extend(["--run", "mine"]),
    ),
    Fault(
        stages.stages_use_one_run,
        "--root /work/b",
        lambda p: p.argument(p.exporter, "--root", "/work/b"),
    ),
    Fault(
        stages.stages_use_one_run,
        "Deployment jaxport-serve: container serve: --models /work/bundles",
        lambda p: p.argument(p.server, "--models", "/work/bundles"),
    ),
    Fault(
        stages.stages_use_one_run,
        "Job jaxport-warm: container warm: --models /work",
        lambda p: p.argument(p.warmer, "--models", "/work"),
    ),
    Fault(stages.waiters_wait, "export: without --wait", lambda p: p.exporter["args"].remove("--wait")),
    Fault(stages.waiters_wait, "warm: without --wait", lambda p: p.warmer["args"].remove("--wait")),
    Fault(stages.waiters_wait, "--skip-existing", lambda p: p.exporter["args"].remove("--skip-existing")),
    Fault(stages.waiters_wait, "without --warm-only", lambda p: p.warmer["args"].remove("--warm-only")),
    Fault(
        stages.no_rename_passes_an_image_by,
        "JobSet jaxport-train: container train: image localhost/",
        put(lambda p: p.processes["containers"][0], image="localhost/jaxport/train:0.1.0-cuda12"),
        JOBSET,
    ),
    Fault(
        stages.no_rename_passes_an_image_by,
        "Deployment jaxport-serve: container serve: image localhost/",
        put(lambda p: p.server, image="localhost/jaxport/serve:0.1.0-cuda12"),
        HOSTS,
    ),
    Fault(
        stages.steps_bring_what_they_need,
        "ServiceAccount jaxport-serve",
        put(lambda p: p.warm, serviceAccountName="jaxport-serve"),
    ),
    Fault(
        stages.steps_bring_what_they_need,
        "PersistentVolumeClaim jaxport-work",
        put(
            lambda p: p.of("PersistentVolumeClaim", "jaxport-work")["metadata"]["labels"],
            **{stages.COMPONENT: "serve"},
        ),
    ),
    Fault(
        stages.steps_bring_what_they_need,
        "NetworkPolicy default-deny",
        put(
            lambda p: p.of("NetworkPolicy", "default-deny")["metadata"]["labels"],
            **{stages.COMPONENT: "warm"},
        ),
    ),
    Fault(
        stages.steps_bring_what_they_need,
        "its pods have warm",
        put(lambda p: p.of("Job", "jaxport-warm")["metadata"]["labels"], **{stages.COMPONENT: "export"}),
    ),
)

"""Faults in how Jobs and Deployments fail, end, roll and probe."""

from tests.deploy.faults.planted import CPU, JOBSET, KEDA, KUEUE, Fault, cut, put
from tests.deploy.policies import workloads

FAULTS = (
    Fault(workloads.jobs_end, "activeDeadlineSeconds", cut(lambda p: p.job, "activeDeadlineSeconds")),
    Fault(workloads.jobs_end, "restartPolicy", put(lambda p: p.train, restartPolicy="OnFailure")),
    Fault(workloads.jobs_end, "ttlSecondsAfterFinished", put(lambda p: p.job, ttlSecondsAfterFinished=60)),
    Fault(workloads.jobs_end, "podReplacementPolicy", cut(lambda p: p.job, "podReplacementPolicy")),
    Fault(
        workloads.failures_are_told_apart,
        "DisruptionTarget is missing",
        lambda p: p.job["podFailurePolicy"]["rules"].pop(0),
    ),
    Fault(
        workloads.failures_are_told_apart,
        "Ignore on {75}",
        lambda p: p.job["podFailurePolicy"]["rules"][1]["onExitCodes"].update(values=[75]),
    ),
    Fault(
        workloads.failures_are_told_apart, "FailJob on", lambda p: p.job["podFailurePolicy"]["rules"].pop(2)
    ),
    Fault(
        workloads.failures_are_told_apart,
        "no container 'trainer'",
        lambda p: p.job["podFailurePolicy"]["rules"][1]["onExitCodes"].update(containerName="trainer"),
    ),
    Fault(
        workloads.failures_are_told_apart,
        "JobSet jaxport-train: podFailurePolicy: Ignore on",
        lambda p: p.replicated["podFailurePolicy"]["rules"].pop(1),
        JOBSET,
    ),
    *(
        Fault(
            workloads.failures_are_told_apart,
            words,
            lambda p, rule=rule: p.job["podFailurePolicy"]["rules"][rule]["onExitCodes"].update(
                operator="NotIn"
            ),
        )
        for rule, words in ((1, "operator NotIn: Ignore"), (2, "operator NotIn: FailJob"))
    ),
    Fault(
        workloads.failures_are_told_apart,
        "DisruptionTarget is missing",
        lambda p: p.job["podFailurePolicy"]["rules"][0]["onPodConditions"][0].update(status="False"),
    ),
    Fault(
        workloads.job_sets_give_up,
        "DeadlineExceeded",
        lambda p: p.spec("JobSet", "jaxport-train")["failurePolicy"]["rules"][0]["onJobFailureReasons"].pop(),
        JOBSET,
    ),
    Fault(
        workloads.job_sets_give_up,
        "nothing would end them",
        lambda p: p.spec("JobSet", "jaxport-train")["failurePolicy"]["rules"].append(
            {"name": "preempted", "action": "RestartJobSetAndIgnoreMaxRestarts"}
        ),
        JOBSET,
    ),
    Fault(
        workloads.job_sets_give_up,
        "no maxRestarts",
        cut(lambda p: p.spec("JobSet", "jaxport-train")["failurePolicy"], "maxRestarts"),
        JOBSET,
    ),
    Fault(
        workloads.nothing_is_suspended,
        "Job jaxport-train: spec.suspend",
        put(lambda p: p.job, suspend=True),
        KUEUE,
    ),
    Fault(
        workloads.nothing_is_suspended,
        "JobSet jaxport-train: spec.suspend",
        put(lambda p: p.replicated, suspend=True),
        JOBSET,
    ),
    Fault(
        workloads.later_stages_wait_longer,
        "waits for train",
        put(lambda p: p.job, activeDeadlineSeconds=90000),
    ),
    Fault(
        workloads.later_stages_wait_longer,
        "train has 864 seconds",
        put(lambda p: p.job, activeDeadlineSeconds=864),
    ),
    Fault(
        workloads.later_stages_wait_longer,
        "warm has 90000 seconds and waits for export",
        put(lambda p: p.spec("Job", "jaxport-warm"), activeDeadlineSeconds=90000),
    ),
    Fault(
        workloads.nodes_can_be_emptied,
        "maxUnavailable 0",
        put(lambda p: p.spec("PodDisruptionBudget", "jaxport-serve"), maxUnavailable=0),
    ),
    Fault(
        workloads.nodes_can_be_emptied,
        "minAvailable 2, and there may be no more than 2",
        put(lambda p: p.spec("PodDisruptionBudget", "jaxport-serve"), minAvailable=2),
    ),
    Fault(
        workloads.nodes_can_be_emptied,
        "no more than 1",
        put(lambda p: p.spec("PodDisruptionBudget", "jaxport-serve"), minAvailable=1),
        CPU,
    ),
    Fault(
        workloads.scaling_has_a_target_that_can_be_met,
        "averageUtilization 700",
        lambda p: p.spec("HorizontalPodAutoscaler", "jaxport-serve")["metrics"][0]["containerResource"][
            "target"
        ].update(averageUtilization=700),
    ),
    Fault(
        workloads.scaling_has_a_target_that_can_be_met,
        "trigger cpu: value 0",
        lambda p: p.spec("ScaledObject", "jaxport-serve")["triggers"][1]["metadata"].update(value="0"),
        KEDA,
    ),
    Fault(
        workloads.rollouts_have_time_to_start,
        "progressDeadlineSeconds 600",
        cut(lambda p: p.spec("Deployment", "jaxport-serve"), "progressDeadlineSeconds"),
    ),
    Fault(
        workloads.pods_are_spread_from_their_like,
        "topology.kubernetes.io/zone: counts",
        lambda p: p.serve["topologySpreadConstraints"][1]["labelSelector"]["matchLabels"].update(
            {"app.kubernetes.io/component": "server"}
        ),
    ),
    Fault(workloads.probes_are_there, "no readinessProbe", cut(lambda p: p.server, "readinessProbe")),
    Fault(workloads.probes_are_there, "no startupProbe", cut(lambda p: p.envoy, "startupProbe")),
    Fault(
        workloads.probes_are_there,
        "asks port 'htpp'",
        lambda p: p.server["livenessProbe"]["httpGet"].update(port="htpp"),
    ),
    Fault(
        workloads.probes_are_there,
        "asks /readyz",
        lambda p: p.server["livenessProbe"]["httpGet"].update(path="/readyz"),
    ),
    Fault(
        workloads.probes_are_there,
        "gives up after 20",
        put(lambda p: p.server["startupProbe"], failureThreshold=10),
    ),
    Fault(workloads.stops_are_in_time, "need 55", put(lambda p: p.serve, terminationGracePeriodSeconds=54)),
    Fault(workloads.stops_are_in_time, "do not say", cut(lambda p: p.server, "lifecycle")),
    Fault(
        workloads.rollouts_lose_nobody,
        "maxUnavailable",
        cut(lambda p: p.spec("Deployment", "jaxport-serve"), "strategy"),
    ),
    Fault(
        workloads.rollouts_lose_nobody,
        "PodDisruptionBudget",
        lambda p: p.drop("PodDisruptionBudget", "jaxport-serve"),
    ),
    Fault(
        workloads.rollouts_lose_nobody, "topologySpread", cut(lambda p: p.serve, "topologySpreadConstraints")
    ),
    Fault(
        workloads.scaled_deployments_set_no_replicas,
        "undo",
        put(lambda p: p.spec("Deployment", "jaxport-serve"), replicas=2),
    ),
    Fault(
        workloads.scaling_outlasts_a_compile,
        "HorizontalPodAutoscaler jaxport-serve: scaleUp.stabilizationWindowSeconds 60",
        put(
            lambda p: p.spec("HorizontalPodAutoscaler", "jaxport-serve")["behavior"]["scaleUp"],
            stabilizationWindowSeconds=60,
        ),
    ),
    Fault(
        workloads.scaling_outlasts_a_compile,
        "ScaledObject jaxport-serve: scaleUp.stabilizationWindowSeconds 0",
        cut(
            lambda p: p.spec("ScaledObject", "jaxport-serve")["advanced"]["horizontalPodAutoscalerConfig"],
            "behavior",
        ),
        KEDA,
    ),
)

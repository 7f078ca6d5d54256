"""Of Jobs and Deployments: how they fail, end, roll and probe."""

from collections.abc import Iterator

from tests.deploy.objects import Container, Objects, Pod, named, of_kind, pods, walked
from tests.deploy.policies.commands import hook, options

# Exit codes of jaxport: never worth a retry; saved, or told to stop before it began.
HOPELESS, STOPPED = {2, 3}, {75, 143}
# After the server is gone, kubelet ends Envoy.
LEFT_FOR_SIDECARS = 5
# Seconds. A small model's buckets take one minute on two CPUs.
COMPILE = 120
# Seconds: the least that a training is given, and what a stage is given once the one before it is over.
TRAINING, WORK = 7200, 3600
# Seconds. A rollout loads the models and compiles what is not in the cache, after the process has started.
LOAD = 600


def jobs_end(objects: Objects) -> Iterator[str]:
    for pod in pods(objects):
        if pod.job is None:
            continue
        for name in ("activeDeadlineSeconds", "backoffLimit", "podFailurePolicy"):
            if name not in pod.job:
                yield f"{pod}: no {name}"
        if pod.spec.get("restartPolicy") != "Never":
            yield f"{pod}: restartPolicy is not Never, which podFailurePolicy needs"
        if pod.job.get("podReplacementPolicy") != "Failed":
            yield f"{pod}: podReplacementPolicy is not Failed: two pods may write to one run"
        if "ttlSecondsAfterFinished" in pod.job:
            yield f"{pod}: ttlSecondsAfterFinished: once it has vanished, the next apply starts it again"


def failures_are_told_apart(objects: Objects) -> Iterator[str]:
    for pod in pods(objects):
        if pod.job is None:
            continue
        codes: dict[str, set[int]] = {}
        disruption = False
        for rule in pod.job.get("podFailurePolicy", {}).get("rules", []):
            exits = rule.get("onExitCodes", {})
            if exits and exits.get("operator") != "In":
                yield f"{pod}: podFailurePolicy: operator {exits.get('operator')}: {rule['action']} on all codes but these"
                continue
            codes.setdefault(rule["action"], set()).update(exits.get("values", ()))
            # That of a pod that was not disrupted is False.
            conditions = {
                each["type"] for each in rule.get("onPodConditions", ()) if each.get("status") == "True"
            }
            disruption |= rule["action"] == "Ignore" and "DisruptionTarget" in conditions
            if exits and pod.container(exits.get("containerName", "")) is None:
                yield f"{pod}: podFailurePolicy: no container {exits.get('containerName')!r}"
        if codes.get("FailJob") != HOPELESS:
            yield f"{pod}: podFailurePolicy: FailJob on {codes.get('FailJob')}; needed: {HOPELESS}"
        if not disruption:
            yield f"{pod}: podFailurePolicy: Ignore on DisruptionTarget is missing"
        if codes.get("Ignore") != STOPPED:
            yield f"{pod}: podFailurePolicy: Ignore on {codes.get('Ignore')}; needed: {STOPPED}"


def job_sets_give_up(objects: Objects) -> Iterator[str]:
    """A JobSet makes failed Jobs anew, which sets their counts and their clocks back: it has to know when not to."""
    for each in of_kind(objects, "JobSet"):
        policy = each["spec"].get("failurePolicy", {})
        hopeless = {
            reason
            for rule in policy.get("rules", ())
            if rule["action"] == "FailJobSet"
            for reason in rule.get("onJobFailureReasons", ())
        }
        if missing := {"PodFailurePolicy", "DeadlineExceeded"} - hopeless:
            yield f"{named(each)}: failurePolicy: no FailJobSet on {sorted(missing)}"
        if any("IgnoreMaxRestarts" in rule["action"] for rule in policy.get("rules", ())):
            yield f"{named(each)}: failurePolicy: restarts that nothing counts: nothing would end them"
        if not policy.get("maxRestarts"):
            yield f"{named(each)}: failurePolicy: no maxRestarts: the first crash ends it"


def nothing_is_suspended(objects: Objects) -> Iterator[str]:
    """A queue suspends and resumes by itself; a manifest that does stops the running Job at every apply."""
    for each in objects:
        found = [each["spec"], *(pod.job for pod in pods([each]) if pod.job)] if "spec" in each else []
        if any("suspend" in spec for spec in found):
            yield f"{named(each)}: spec.suspend: every apply would stop what runs"


def later_stages_wait_longer(objects: Objects) -> Iterator[str]:
    """A stage waits for the one before it, so its deadline is that one's and what it needs itself."""
    deadlines = {pod.labels.get("app.kubernetes.io/component"): pod.job["activeDeadlineSeconds"]
                 for pod in pods(objects) if pod.job and "activeDeadlineSeconds" in pod.job}  # fmt: skip
    if deadlines.get("train", TRAINING) < TRAINING:
        yield f"train has {deadlines['train']} seconds; needed: {TRAINING} at least, for images, a node and one preemption"
    for before, after in (("train", "export"), ("export", "warm")):
        if before in deadlines and after in deadlines and deadlines[after] < deadlines[before] + WORK:
            yield (f"{after} has {deadlines[after]} seconds and waits for {before}, which has {deadlines[before]}; needed: "
                   f"{WORK} more")  # fmt: skip


def probes_are_there(objects: Objects) -> Iterator[str]:
    for pod in pods(objects):
        for each in pod.containers:
            if pod.job is None and (each.sidecar or each.spec in pod.spec["containers"]):
                for name in ("startupProbe", "livenessProbe", "readinessProbe"):
                    yield from _probe(each, name)


def _probe(each: Container, name: str) -> Iterator[str]:
    probe = each.spec.get(name)
    if probe is None:
        yield f"{each}: no {name}"
        return
    if "timeoutSeconds" not in probe or "failureThreshold" not in probe:
        yield f"{each}: {name}: timeoutSeconds and failureThreshold are left to chance"
    asked = probe.get("httpGet", probe.get("tcpSocket", {})).get("port")
    if asked not in {port.get("name") for port in each.ports} | {
        port["containerPort"] for port in each.ports
    }:
        yield f"{each}: {name}: asks port {asked!r}, which the container has not"
    path = probe.get("httpGet", {}).get("path")
    right = {"readinessProbe": "/readyz"}.get(name, "/healthz")
    if each.ours and path != right:
        yield f"{each}: {name}: asks {path}; needed: {right}"
    patience = probe.get("failureThreshold", 0) * probe.get("periodSeconds", 10)
    if name == "startupProbe" and patience < 60:
        yield f"{each}: startupProbe: gives up after {patience} seconds"
    if name == "livenessProbe" and patience < 30:
        yield f"{each}: livenessProbe: kills after {patience} seconds of silence"


def stops_are_in_time(objects: Objects) -> Iterator[str]:
    """preStop, then the server's own drain, then its sidecars: within the time that kubelet gives."""
    for pod in pods(objects):
        granted = pod.spec.get("terminationGracePeriodSeconds", 30)
        for each in pod.containers:
            if not each.ours or each.args[:1] != ["serve"] or pod.job is not None:
                continue
            try:
                serve, drain = options(each.args), options(hook(each)[1:])
            except ValueError:
                yield f"{each}: preStop and args do not say how long stopping takes"
                continue
            needed = drain.seconds + serve.grace_seconds + LEFT_FOR_SIDECARS
            if serve.drain_delay > serve.grace_seconds:
                yield f"{each}: --drain-delay {serve.drain_delay:g} is beyond --grace-seconds {serve.grace_seconds:g}"
            if needed > granted:
                yield (f"{pod}: terminationGracePeriodSeconds {granted}: preStop {drain.seconds:g}, --grace-seconds "
                       f"{serve.grace_seconds:g} and {LEFT_FOR_SIDECARS} for sidecars need {needed:g}")  # fmt: skip


def rollouts_lose_nobody(objects: Objects) -> Iterator[str]:
    for each in of_kind(objects, "Deployment"):
        if not _ours(each):
            continue
        rolling = each["spec"].get("strategy", {}).get("rollingUpdate", {})
        if rolling.get("maxUnavailable") != 0:
            yield f"{named(each)}: maxUnavailable {rolling.get('maxUnavailable')}; needed: 0"
        if not each["spec"]["template"]["spec"].get("topologySpreadConstraints"):
            yield f"{named(each)}: no topologySpreadConstraints"
        budgets = [b for b in of_kind(objects, "PodDisruptionBudget")
                   if b["spec"]["selector"] == each["spec"]["selector"]]  # fmt: skip
        if not budgets:
            yield f"{named(each)}: no PodDisruptionBudget with its selector"


def nodes_can_be_emptied(objects: Objects) -> Iterator[str]:
    """A budget that lets nobody go holds up each drain of a node, so each upgrade of a cluster."""
    for each in of_kind(objects, "PodDisruptionBudget"):
        spec, least = each["spec"], min(_least(objects, each["spec"]["selector"]), default=1)
        if str(spec.get("maxUnavailable")) in ("0", "0%"):
            yield f"{named(each)}: maxUnavailable {spec['maxUnavailable']}: no pod may ever go"
        kept = spec.get("minAvailable", 0)
        if kept == "100%" or (isinstance(kept, int) and kept >= least):
            yield f"{named(each)}: minAvailable {kept}, and there may be no more than {least}: no pod may ever go"


def _least(objects: Objects, selector: dict) -> Iterator[int]:
    """How few pods of the Deployments with this selector there may be."""
    for each in of_kind(objects, "Deployment"):
        if each["spec"]["selector"] == selector:
            scalers = [s["spec"] for s in of_kind(objects, "HorizontalPodAutoscaler", "ScaledObject")
                       if s["spec"]["scaleTargetRef"]["name"] == each["metadata"]["name"]]  # fmt: skip
            yield from (s.get("minReplicas", s.get("minReplicaCount", 1)) for s in scalers)
            if not scalers:
                # A single server has to be able to go as well.
                yield each["spec"].get("replicas", 1)


def scaling_has_a_target_that_can_be_met(objects: Objects) -> Iterator[str]:
    """Above 100 per cent of the request there is only the way to the limit; at 0 and below it would scale for ever."""
    for each in of_kind(objects, "HorizontalPodAutoscaler"):
        for key, value in walked(each["spec"].get("metrics", [])):
            if key == "averageUtilization" and not (isinstance(value, int) and 1 <= value <= 100):
                yield f"{named(each)}: averageUtilization {value}; needed: 1 to 100"
    for each in of_kind(objects, "ScaledObject"):
        for trigger in each["spec"]["triggers"]:
            value = str(trigger["metadata"].get("value"))
            if trigger.get("metricType") == "Utilization" and not (
                value.isdigit() and 1 <= int(value) <= 100
            ):
                yield f"{named(each)}: trigger {trigger['type']}: value {value}; needed: 1 to 100"


def rollouts_have_time_to_start(objects: Objects) -> Iterator[str]:
    for pod in pods(objects):
        if pod.owner["kind"] != "Deployment" or not _ours(pod.owner):
            continue
        given = pod.owner["spec"].get("progressDeadlineSeconds", 600)
        needed = LOAD + sum(p.get("failureThreshold", 3) * p.get("periodSeconds", 10)
                            for c in pod.containers if (p := c.spec.get("startupProbe")))  # fmt: skip
        if given < needed:
            yield f"{pod}: progressDeadlineSeconds {given}; startupProbes and {LOAD} for loading need {needed}"


def pods_are_spread_from_their_like(objects: Objects) -> Iterator[str]:
    """A constraint that counts other pods than its own spreads nothing."""
    for pod in pods(objects):
        for each in pod.spec.get("topologySpreadConstraints", []):
            labels = each.get("labelSelector", {}).get("matchLabels", {})
            if not labels or not labels.items() <= pod.labels.items():
                yield f"{pod}: topologySpreadConstraints {each['topologyKey']}: counts {labels}, not its own pods"


def _ours(each: dict) -> bool:
    return any(container.ours for container in Pod(each, each["spec"]["template"]).containers)


def scaled_deployments_set_no_replicas(objects: Objects) -> Iterator[str]:
    for scaler in of_kind(objects, "HorizontalPodAutoscaler", "ScaledObject"):
        name = scaler["spec"]["scaleTargetRef"]["name"]
        for each in of_kind(objects, "Deployment"):
            if each["metadata"]["name"] == name and "replicas" in each["spec"]:
                yield f"{named(each)}: replicas: every apply would undo what {named(scaler)} set"
    names = [
        s["spec"]["scaleTargetRef"]["name"]
        for s in of_kind(objects, "HorizontalPodAutoscaler", "ScaledObject")
    ]
    if len(names) != len(set(names)):
        yield f"two autoscalers for one target: {names}"


def scaling_outlasts_a_compile(objects: Objects) -> Iterator[str]:
    """A server that compiles is busy without being loaded; a server more for that would come when it is over."""
    for each in of_kind(objects, "HorizontalPodAutoscaler", "ScaledObject"):
        spec = each["spec"]
        if each["kind"] == "ScaledObject":
            spec = spec.get("advanced", {}).get("horizontalPodAutoscalerConfig", {})
        window = spec.get("behavior", {}).get("scaleUp", {}).get("stabilizationWindowSeconds", 0)
        if window < COMPILE:
            yield f"{named(each)}: scaleUp.stabilizationWindowSeconds {window}; needed: {COMPILE}, longer than a compile"


POLICIES = (
    jobs_end,
    failures_are_told_apart,
    job_sets_give_up,
    nothing_is_suspended,
    later_stages_wait_longer,
    probes_are_there,
    stops_are_in_time,
    rollouts_lose_nobody,
    nodes_can_be_emptied,
    scaling_has_a_target_that_can_be_met,
    rollouts_have_time_to_start,
    pods_are_spread_from_their_like,
    scaled_deployments_set_no_replicas,
    scaling_outlasts_a_compile,
)

"""Faults between the server, the Envoy beside it and the volume."""

from tests.deploy.faults.planted import CPU, HOSTS, Fault, cut, put
from tests.deploy.policies import server

FAULTS = (
    Fault(server.servers_have_a_front, "sidecar", cut(lambda p: p.envoy, "restartPolicy")),
    Fault(
        server.both_sides_agree,
        "--grpc-socket /run/jaxport/rpc.sock",
        lambda p: p.argument(p.server, "--grpc-socket", "/run/jaxport/rpc.sock"),
    ),
    Fault(
        server.both_sides_agree,
        "not on an emptyDir",
        put(lambda p: p.envoy["volumeMounts"][2], mountPath="/run"),
    ),
    Fault(
        server.both_sides_agree,
        "max_request_bytes",
        lambda p: p.argument(p.server, "--max-message-bytes", "64MiB"),
    ),
    Fault(
        server.both_sides_agree, "ports [8501, 8502]", put(lambda p: p.envoy["ports"][0], containerPort=8501)
    ),
    Fault(
        server.both_sides_agree,
        "the kernel kills it",
        put(lambda p: p.envoy["resources"]["limits"], memory="1Gi"),
    ),
    Fault(
        server.both_sides_agree,
        "--no-http-predict",
        lambda p: p.server["args"].remove("--no-http-predict"),
    ),
    Fault(server.both_sides_agree, "--http-port 8601", lambda p: p.argument(p.server, "--http-port", "8601")),
    Fault(
        server.warm_jobs_are_like_servers,
        "max_batch",
        lambda p: p.server["args"].extend(["--max-batch", "8"]),
    ),
    Fault(
        server.warm_jobs_are_like_servers,
        "env",
        lambda p: p.server["env"].append({"name": "XLA_FLAGS", "value": "--xla_a=1"}),
    ),
    Fault(server.warm_jobs_are_like_servers, "device", cut(lambda p: p.serve, "nodeSelector"), HOSTS),
    Fault(
        server.the_volume_is_shared,
        "ReadWriteMany",
        put(lambda p: p.spec("PersistentVolumeClaim", "jaxport-work"), accessModes=["ReadWriteOnce"]),
    ),
    Fault(
        server.the_volume_is_shared,
        "accessModes",
        put(lambda p: p.spec("PersistentVolumeClaim", "jaxport-work"), accessModes=["ReadOnlyMany"]),
        CPU,
    ),
    Fault(server.servers_only_read, "to be written", cut(lambda p: p.server["volumeMounts"][0], "readOnly")),
    Fault(
        server.servers_only_read, "a Job writes", put(lambda p: p.trainer["volumeMounts"][0], readOnly=True)
    ),
    Fault(
        server.paths_are_on_the_volume,
        "--models /models",
        lambda p: p.argument(p.server, "--models", "/models"),
    ),
)

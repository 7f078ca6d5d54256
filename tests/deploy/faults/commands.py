"""Faults in what containers are told to do."""

from tests.deploy.faults.planted import CPU, HOSTS, Fault, cut, put
from tests.deploy.policies import commands

FAULTS = (
    Fault(commands.commands_are_the_images, "entrypoint", put(lambda p: p.trainer, command=["python"])),
    Fault(commands.commands_are_the_images, "quote the numbers", lambda p: p.server["args"].append(8501)),
    Fault(
        commands.arguments_parse,
        "--preset --model is required",
        lambda p: p.trainer["args"].__setitem__(1, "--presett"),
    ),
    Fault(commands.arguments_parse, "version 'nxt'", lambda p: p.argument(p.exporter, "--version", "nxt")),
    Fault(
        commands.variables_are_read_by_something,
        "--xla_gpu_exclude_nondeterministic_opps=true: needed",
        lambda p: p.trainer["env"][1].update(value="--xla_gpu_exclude_nondeterministic_opps=true"),
    ),
    Fault(
        commands.variables_are_read_by_something,
        "--xla_gpu_exclude_nondeterministic_ops=yes: needed",
        lambda p: p.trainer["env"][1].update(value="--xla_gpu_exclude_nondeterministic_ops=yes"),
    ),
    Fault(commands.arguments_parse, "train ", lambda p: p.trainer["args"].__setitem__(0, "train ")),
    Fault(commands.arguments_parse, "tinny", lambda p: p.argument(p.trainer, "--preset", "tinny")),
    Fault(
        commands.arguments_parse,
        "--grpc-socket and --grpc-port exclude",
        lambda p: p.server["args"].extend(["--grpc-port", "8500"]),
    ),
    Fault(
        commands.arguments_parse,
        "--drain-delay 90 leaves no time",
        lambda p: p.argument(p.server, "--drain-delay", "90"),
    ),
    Fault(
        commands.arguments_parse,
        "preStop",
        lambda p: p.server["lifecycle"]["preStop"]["exec"]["command"].__setitem__(2, "--admin-sock"),
    ),
    Fault(commands.arguments_parse, "in a pod of component", put(lambda p: p.trainer, name="trainer")),
    Fault(
        commands.variables_are_read_by_something,
        "JAX_NUM_PROCESES",
        lambda p: p.trainer["env"][2].update(name="JAX_NUM_PROCESES"),
    ),
    Fault(
        commands.variables_are_read_by_something,
        "XLA_FLAGS",
        lambda p: p.trainer["env"][1].update(value="xla_gpu_exclude_nondeterministic_ops"),
    ),
    Fault(commands.devices_are_named, "JAX_PLATFORMS None", put(lambda p: p.server, env=[])),
    Fault(
        commands.devices_are_named,
        "JAX_PLATFORMS cuda,cpu",
        lambda p: p.server["env"][0].update(value="cuda,cpu"),
        CPU,
    ),
    Fault(
        commands.processes_find_each_other,
        "completions: 3",
        put(lambda p: p.job, completions=3, parallelism=3),
    ),
    Fault(commands.processes_find_each_other, "Indexed", cut(lambda p: p.job, "completionMode")),
    Fault(
        commands.processes_find_each_other,
        "no headless Service",
        put(lambda p: p.train, subdomain="trainers"),
        HOSTS,
    ),
    Fault(
        commands.processes_find_each_other,
        "the container has no such port",
        put(lambda p: p.trainer["ports"][0], containerPort=8477),
        HOSTS,
    ),
)

"""What machine code depends on besides the program: the folder of the compile cache that this process may use."""

import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path

import jax
from jax.experimental.topologies import TopologyDescription
from jaxlib import version as jaxlib

from serve_grpc.cache import CacheKey
from serve_grpc.device import Device

# Raised by hand when this package compiles, stores or calls executables in another way.
FORMAT = 1

# Flags that say where to report or look, not what code to make.
REPORTING_FLAGS = re.compile(
    r"--xla_(dump_|force_host_platform_device_count|gpu_cuda_data_dir|gpu_per_fusion_autotune_cache_dir)"
)
FLAG_VARIABLES = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")
# What JAX hands to the compiler besides the program, which was lowered when it was exported.
COMPILER_OPTIONS = (
    "jax_disable_most_optimizations",
    "jax_optimization_level",
    "jax_memory_fitting_level",
    "jax_xla_profile_version",
    "jax_enable_x64",
    "jax_default_matmul_precision",
)


def cache_key(device: Device, environment: Mapping[str, str]) -> CacheKey:
    """The key of this process on this device.

    Executables are read back by the jax that wrote them, so both versions count, and so does the runtime's own
    (for cuda it names the CUDA version). Code for a CPU is made for its features, and costs depend on its cores.
    """
    handle = device.handle
    facts = {
        "format": str(FORMAT),
        "jax": jax.__version__,
        "jaxlib": jaxlib.__version__,
        "platform": device.platform,
        "platform_version": handle.client.platform_version,
        "device_kind": handle.device_kind,
        **{name: " ".join(_flags(environment.get(name, ""))) for name in FLAG_VARIABLES},
        **{name: str(jax.config.values.get(name)) for name in COMPILER_OPTIONS},
    }
    if device.platform == "cpu":
        target = TopologyDescription([handle]).serialize()
        facts["cpu"] = hashlib.sha256(target).hexdigest()
        facts["cores"] = str(_cores())
    return CacheKey(facts)


def _cores() -> int | None:
    """Cores this process may run on; a container's quota shows nowhere."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def _flags(value: str) -> list[str]:
    """The flags of an XLA variable that change code, sorted. XLA reads a value without a dash as a file's name."""
    if value and not value.lstrip().startswith("-"):
        file = Path(value.strip())
        value = file.read_text() if file.is_file() else value
    return sorted(flag for flag in value.split() if not REPORTING_FLAGS.match(flag))

"""The device of a server process, or its devices, and JAX set up for serving on them."""

import logging
from dataclasses import dataclass
from typing import Any

import jax
from jax import export

from jaxport.devices import NoDevice, find_devices
from serve_grpc.errors import EnvironmentUnfit

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Device:
    """handles: every jax.Device of the process. A program for N devices runs on the first N, so that the first one has all
    that any other has, and more. platform: as jax.export names it ("cpu", "cuda"); jax.Device says "gpu" for cuda and rocm
    alike. overlap: whether a run goes on by itself while the host prepares the next one.
    """

    handles: tuple[Any, ...]
    platform: str
    overlap: bool

    @property
    def handle(self) -> Any:
        """The first, where programs for one device run."""
        return self.handles[0]


def open_device() -> Device:
    """The devices JAX finds; of a CPU as many as XLA_FLAGS or JAX_NUM_CPU_DEVICES simulates. Call before anything else uses JAX. Raises EnvironmentUnfit."""
    # A run on the CPU goes in the calling thread: handing it over costs more than a small model's run
    # (4-64-64-3 MLP, 2 cores: 65 -> 47 us a call at batch 1, 172 -> 76 at batch 64).
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    # A program has the dtypes it was exported with. Without this JAX makes int32 of its int64, and it does not load.
    jax.config.update("jax_enable_x64", True)
    try:
        handles = tuple(find_devices())
    except NoDevice as error:
        raise EnvironmentUnfit(str(error)) from error
    platform = export.default_export_platform()
    log.info(
        "device=%s kind=%r count=%d jax=%s", platform, handles[0].device_kind, len(handles), jax.__version__
    )
    return Device(handles, platform, overlap=platform != "cpu")

"""The one device of a server process, and JAX set up for serving on it."""

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
    """handle: a jax.Device. platform: as jax.export names it ("cpu", "cuda"); jax.Device says "gpu" for cuda and rocm alike.

    overlap: whether a run goes on by itself while the host prepares the next one.
    """

    handle: Any
    platform: str
    overlap: bool


def open_device() -> Device:
    """The first device JAX finds. Call before anything else uses JAX. Raises EnvironmentUnfit."""
    # A run on the CPU goes in the calling thread: handing it over costs more than a small model's run
    # (4-64-64-3 MLP, 2 cores: 65 -> 47 us a call at batch 1, 172 -> 76 at batch 64).
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    # A program has the dtypes it was exported with. Without this JAX makes int32 of its int64, and it does not load.
    jax.config.update("jax_enable_x64", True)
    try:
        handle = find_devices()[0]
    except NoDevice as error:
        raise EnvironmentUnfit(str(error)) from error
    platform = export.default_export_platform()
    log.info("device=%s kind=%r jax=%s", platform, handle.device_kind, jax.__version__)
    return Device(handle, platform, overlap=platform != "cpu")

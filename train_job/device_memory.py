"""What it leads to when a device's memory is full, which no shape tells beforehand."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import jax

from train_job.errors import EnvironmentUnfit

# XLA's allocators say this as they compile, as they load a program and as they run it.
_FULL = "RESOURCE_EXHAUSTED"
_LONGEST = 160  # characters: what follows is a table of every buffer


class DeviceMemoryFull(EnvironmentUnfit):
    """The run needs more memory than its devices have, or than others have left of it."""


@contextmanager
def device_memory() -> Iterator[None]:
    """Within, a device without the memory for what it is to do is DeviceMemoryFull, and says what takes less."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if _FULL not in str(error):
            raise
        first = str(error).strip().splitlines()[0][:_LONGEST]
        raise DeviceMemoryFull(
            f"the devices have not the memory for this run ({first}); take less of it by --set batch_size, --set "
            "accumulate=K, --set remat=true or --set compute_dtype=bfloat16, or spread it by --mesh fsdp=N; and see that "
            "nothing else is on these devices"
        ) from error

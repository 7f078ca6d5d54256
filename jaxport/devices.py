"""The devices that were asked for, or one line that says why there are none. For the server and the trainer alike."""

from typing import Any

import jax

# What JAX_PLATFORMS calls a platform -> what a jax.Device of it says it is.
NAMES = {"cuda": "gpu", "rocm": "gpu"}


class NoDevice(Exception):
    """JAX finds no device of the platform that is wanted; the message says what to change."""


def find_devices() -> list[Any]:
    """Every jax.Device of JAX's choice; where JAX_PLATFORMS names platforms, of the first of them.

    JAX leaves out a platform that is named and has no device, as a GPU whose driver is not there, and takes the next,
    so that a training would go on for days on a CPU. Raises NoDevice instead.
    """
    asked = jax.config.jax_platforms or ""  # JAX_PLATFORMS
    try:
        devices = jax.devices()
    except (RuntimeError, AssertionError) as error:  # the latter: no platform that is named has a device
        reason = " ".join(str(error).split()) or "none of the platforms has a device"
        raise NoDevice(f"JAX_PLATFORMS={asked}: {reason}; unset it, or fix the driver") from error
    first = asked.partition(",")[0]
    found = devices[0].platform
    if first and NAMES.get(first, first) != found:
        raise NoDevice(
            f"JAX_PLATFORMS={asked}: JAX finds no device of {first}, and would take {found}; fix the driver, or name "
            f"{found} first"
        )
    return devices

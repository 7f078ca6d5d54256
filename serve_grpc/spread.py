"""Runs of programs for several devices.

Inside a run the devices meet, to add up what each has computed. So they have to get runs in one order: where two threads
launch at once, one GPU may begin with the first run and another with the second, and both wait for ever. The executor, a
receiving thread, and a loader that proves and times beside requests take turns here. Programs of one device never do.
"""

import threading
from collections.abc import Mapping
from typing import Any

import jax

TURN = threading.Lock()


class SpreadExecutable:
    """A compiled program of several devices, called as any other.

    waits: until its outputs are there, in its turn. A CPU runs programs of several devices behind the caller's back, also
    with jax_cpu_enable_async_dispatch off, and this server takes a run there to be over when its launch returns: so two
    never share the cores, and the times are a run's own. Elsewhere runs are queued in the order of their launch.
    """

    def __init__(self, compiled: Any, *, waits: bool) -> None:
        self.compiled = compiled
        self._waits = waits

    def __call__(self, weights: Mapping[str, jax.Array], inputs: Mapping[str, Any]) -> dict[str, jax.Array]:
        with TURN:
            outputs = self.compiled(weights, inputs)
            return jax.block_until_ready(outputs) if self._waits else outputs

    def memory_analysis(self) -> Any:
        """As jax.stages.Compiled has it: of each device."""
        return self.compiled.memory_analysis()

"""The ways that are JAX's own, each as a function from host arrays to host arrays."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import jax
import numpy as np

from converters.golden import Golden
from converters.program import Program
from converters.run import to_host

Arrays = Mapping[str, np.ndarray]
Call = Callable[[Any, Any], Any]


class Way(Protocol):
    """One way to run the model. Batches are those of `first` and were given to it when it was made."""

    name: str
    what: str
    load_s: float | None

    def first(self, batch: int) -> float:
        """Seconds to the first answer at this batch, with whatever that needs."""
        ...

    def burst(self, batch: int, calls: int) -> list[float]:
        """Seconds of each of `calls` calls, one after the other; after `first`."""
        ...

    def answer(self, golden: Golden) -> dict[str, np.ndarray]:
        """The outputs for a golden's inputs."""
        ...

    def close(self) -> None:
        """Ends what it has started."""
        ...


@dataclass
class InProcess:
    """prepare: (weights on the device, inputs) -> what to call with both at that shape; compiles, if it is to."""

    name: str
    what: str
    prepare: Callable[[Any, Arrays], Call]
    weights: Any
    batches: Mapping[int, Arrays]
    load_s: float | None = None
    prepared: dict[Any, Call] = field(default_factory=dict)

    def first(self, batch: int) -> float:
        start = time.perf_counter()
        self._run(self._call(self.batches[batch]), self.batches[batch])
        return time.perf_counter() - start

    def burst(self, batch: int, calls: int) -> list[float]:
        inputs, seconds = self.batches[batch], []
        call = self._call(inputs)
        for _ in range(calls):
            start = time.perf_counter()
            self._run(call, inputs)
            seconds.append(time.perf_counter() - start)
        return seconds

    def answer(self, golden: Golden) -> dict[str, np.ndarray]:
        return self._run(self._call(golden.inputs), golden.inputs)

    def close(self) -> None:
        self.prepared.clear()

    def _call(self, inputs: Arrays) -> Call:
        shapes = tuple((name, array.shape) for name, array in sorted(inputs.items()))
        if shapes not in self.prepared:
            self.prepared[shapes] = self.prepare(self.weights, inputs)
        return self.prepared[shapes]

    def _run(self, call: Call, inputs: Arrays) -> dict[str, np.ndarray]:
        return to_host(jax.block_until_ready(call(self.weights, inputs)))


def jax_ways(
    function: Program,
    named: str,
    exported: Program,
    load_s: float,
    weights: Any,
    batches: Mapping[int, Arrays],
) -> Iterator[Way]:
    """function: what jit and AOT compile, and what a table calls it. load_s: what it took to deserialize `exported`."""
    jitted = _fresh(function)
    yield InProcess("jit", f"jax.jit of {named}", lambda _w, _i: jitted, weights, batches)
    yield InProcess("AOT", f"lower().compile() of {named}", _compiled(_fresh(function)), weights, batches)
    program = _compiled(_fresh(exported))
    yield InProcess("export", "the deserialized program, compiled", program, weights, batches, load_s)
    eager = "Exported.call of the deserialized program, which nobody has compiled"
    yield InProcess("eager", eager, lambda _w, _i: exported, weights, batches, load_s)


def _fresh(function: Call) -> Any:
    """A jit of its own: JAX keeps what it has traced and compiled by the function it was given."""
    return jax.jit(lambda weights, inputs: function(weights, inputs))


def _compiled(jitted: Any) -> Callable[[Any, Arrays], Call]:
    return lambda weights, inputs: jitted.lower(weights, inputs).compile()

"""Which axes of the mesh an array of a run is cut over: the rules that lead from what it is to where it lies.

data    copies of the model, each with rows of its own
fsdp    rows of their own too, and of every large weight a part (ZeRO stage 3: Rajbhandari et al., 2020)
tensor  a part of every product, by rules of the model's own (Megatron-LM: Shoeybi et al., 2019); the same rows
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jax.sharding import PartitionSpec as P

from jaxport.weight_patterns import first_matches, unused
from train_job.errors import UsageError

type Cut = list[str | None]  # for each dimension the axis that it is cut over


@dataclass(frozen=True)
class PartitionRules:
    """tensor: the model's own, by patterns of its weights' names; the first that matches counts (docs/sharded.md).

    rows: what the rows of a batch are spread over. whole_below: of fewer elements a weight is not cut over fsdp, as to
    gather it would take longer than it saves.
    """

    tensor: Mapping[str, Sequence[str | None]] = field(default_factory=dict)
    rows: tuple[str, ...] = ("data", "fsdp")
    whole_below: int = 1024

    @classmethod
    def of(cls, model: Any) -> PartitionRules:
        """Those of a model's configuration: its `tensor_parallel`, where it has one."""
        return cls(getattr(model, "tensor_parallel", {}))

    def weights(
        self, shapes: Mapping[str, Any], trainable: Collection[str], axes: Mapping[str, int]
    ) -> dict[str, P]:
        """For each weight, of which `shapes` has the `shape`, how it is cut over a mesh of `axes`, sizes by name.

        Raises:
            UsageError: the axis tensor has more than one device, and the model's rules are none or do not fit it.
        """
        cuts = self._over_tensor(shapes, axes["tensor"]) if axes["tensor"] > 1 else {}
        found = {}
        for name, leaf in shapes.items():
            cut = cuts.get(name, [None] * len(leaf.shape))
            if name in trainable and axes["fsdp"] > 1:
                self._over_fsdp(cut, leaf.shape, axes["fsdp"])
            found[name] = P(*cut) if any(cut) else P()
        return found

    def _over_tensor(self, shapes: Mapping[str, Any], size: int) -> dict[str, Cut]:
        if not self.tensor:
            raise UsageError(
                f"--mesh tensor={size}: the model does not say how its weights are cut; leave the axis out, or give its "
                "configuration a tensor_parallel, as train_job/models/transformer.py has"
            )
        matches, cuts = first_matches(self.tensor, shapes), {}
        for name, pattern in matches.items():
            shape, rule = shapes[name].shape, list(self.tensor[pattern])
            if why := _misfit(rule, shape, size):
                raise UsageError(f"--mesh tensor={size}: rule {pattern!r} of the model for {name!r}: {why}")
            cuts[name] = rule + [None] * (len(shape) - len(rule))
        if why := unused(self.tensor, matches, shapes):
            raise UsageError(f"--mesh tensor={size}: tensor_parallel of the model: {why}")
        return cuts

    def _over_fsdp(self, cut: Cut, shape: Sequence[int], size: int) -> None:
        """Cuts the largest dimension that is whole and can be, of a matrix that is large enough."""
        if len(shape) < 2 or math.prod(shape) < self.whole_below:
            return
        whole = [place for place, axis in enumerate(cut) if axis is None and shape[place] % size == 0]
        if whole:
            cut[max(whole, key=lambda place: shape[place])] = "fsdp"


def _misfit(rule: Sequence[str | None], shape: Sequence[int], size: int) -> str:
    if len(rule) > len(shape):
        return f"has {len(rule)} entries, the shape is {list(shape)}"
    if not set(rule) <= {"tensor", None} or rule.count("tensor") > 1:
        return f"is {rule}; None and, once, 'tensor' are what it may hold"
    for elements, axis in zip(shape, rule, strict=False):
        if axis is not None and elements % size:
            return f"{elements} elements do not go into {size} equal pieces; take another number of devices"
    return ""

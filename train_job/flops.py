"""How much of what a device can do a run makes use of: the operations its model needs, against the device's peak.

Model FLOPs utilisation (Chowdhery et al., 2022, "PaLM", appendix B): the matrix products of the forward pass, and twice
those for the backward one, over the time of a step. What is computed a second time to save memory does not count, nor
do additions, norms and softmax; attention counts whole, though half of it is masked.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import jax

from train_job.compute import FLOAT32

_TERA = 10**12
_SXM_HOPPER = {"bfloat16": 989.4, "tensorfloat32": 494.7, FLOAT32: 67.0}
_SXM_AMPERE = {"bfloat16": 312.0, "tensorfloat32": 156.0, FLOAT32: 19.5}

# 10^12 per second of one device, by the name JAX gives it, without sparsity (the data sheets print twice these for
# tensor cores, "with sparsity"). Only whole devices: a slice of one (MIG) has another name, as have the NVL variants of
# H100 and H200, which are slower. NVIDIA's own sheets were not at hand when these were checked, others' copies were:
#   A100  TF32, BF16 and FP32, all variants alike
#   H100  SXM: TF32 989, BF16 1,979 with sparsity, and FP32 67; PCIe: 756, 1,513 and 51
#   H200  BF16 989 dense, as of the H100 SXM, whose die it has; TF32 and FP32 are taken from that
#   L4    TF32 120 with sparsity; BF16 (twice TF32) and FP32 were found in no copy. Computed from its boost clock all
#         three come out 3 to 4 % higher
PEAKS: dict[str, dict[str, float]] = {
    "NVIDIA L4": {"bfloat16": 121.0, "tensorfloat32": 60.0, FLOAT32: 30.3},
    "NVIDIA A100-SXM4-40GB": _SXM_AMPERE,
    "NVIDIA A100-SXM4-80GB": _SXM_AMPERE,
    "NVIDIA A100-PCIE-40GB": _SXM_AMPERE,
    "NVIDIA A100 80GB PCIe": _SXM_AMPERE,
    "NVIDIA H100 80GB HBM3": _SXM_HOPPER,
    "NVIDIA H100 PCIe": {"bfloat16": 756.0, "tensorfloat32": 378.0, FLOAT32: 51.0},
    "NVIDIA H200": _SXM_HOPPER,
}

# What makes XLA multiply float32 as such on an NVIDIA device. Else it takes TensorFloat-32 where the device has it.
_EXACT = ("highest", "float32")


def peak_flops(device_kind: str, compute_dtype: str, matmul_precision: str | None) -> float | None:
    """Operations per second that one device could do at most; None for a device that is not in the table.

    matmul_precision: of `jax_default_matmul_precision`. What of the table was checked: above it.
    """
    if compute_dtype == FLOAT32 and matmul_precision not in _EXACT:
        compute_dtype = "tensorfloat32"
    peaks = PEAKS.get(device_kind)
    return None if peaks is None else peaks[compute_dtype] * _TERA


def training_flops(forward: Any) -> int:
    """Of a step whose forward pass is this jaxpr: a product has two of its own size in the backward pass."""
    return 3 * _products(forward)


def _products(jaxpr: Any) -> int:
    """Floating-point operations of all matrix products and convolutions. A `while` counts once: its length is not known."""
    total = 0
    for equation in jaxpr.eqns:
        if equation.primitive is jax.lax.dot_general_p:
            total += 2 * math.prod(equation.outvars[0].aval.shape) * _contracted(equation)
        elif equation.primitive is jax.lax.conv_general_dilated_p:
            total += 2 * math.prod(equation.outvars[0].aval.shape) * _window(equation)
        else:
            inner = [_products(within) for within in _inner(equation.params)]
            each = max(inner, default=0) if equation.primitive.name == "cond" else sum(inner)
            total += each * equation.params.get("length", 1)  # of a scan
    return total


def _contracted(product: Any) -> int:
    (axes, _), _ = product.params["dimension_numbers"]
    return math.prod(product.invars[0].aval.shape[axis] for axis in axes)


def _window(convolution: Any) -> int:
    """Products for each element of the output: a kernel without its output channels."""
    kernel = convolution.invars[1].aval.shape
    return math.prod(kernel) // kernel[convolution.params["dimension_numbers"].rhs_spec[0]]


def _inner(parameters: dict[str, Any]) -> Iterator[Any]:
    for value in parameters.values():
        for one in value if isinstance(value, tuple | list) else (value,):
            jaxpr = getattr(one, "jaxpr", one)
            if hasattr(jaxpr, "eqns"):
                yield jaxpr

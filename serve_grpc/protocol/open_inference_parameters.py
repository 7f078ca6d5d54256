"""What parameters of an Open Inference request ask for."""

from collections.abc import Mapping
from typing import NamedTuple

from jaxport.wire import open_inference_pb2 as pb
from serve_grpc.errors import InvalidRequest, NotOffered

Parameters = Mapping[str, pb.InferParameter]


class Asked(NamedTuple):
    """signature "": predict. priority and timeout: as serve_grpc.protocol.Inference has them."""

    signature: str = ""
    priority: int = 0
    timeout: float | None = None


NOTHING = Asked()
# The others of Triton's own say what these models do anyway, or concern HTTP. Sequences have no state here.
TRITONS_OWN = "triton_"
ALLOWED = frozenset({"triton_enable_empty_final_response"})


def asked(parameters: Parameters) -> Asked:
    """Raises InvalidRequest for a parameter of the wrong type or range, or one that Triton keeps for itself.

    Names that say nothing to this server are left alone, as Triton does with what a model does not read.
    """
    if not parameters:
        return NOTHING
    signature, priority, timeout = NOTHING
    for name, value in parameters.items():
        if name == "signature":
            signature = _text(name, value)
        elif name == "priority":
            # Triton's 1 is the highest of its levels and 0 asks for the default, which is the lower of our two.
            priority = 1 if _number(name, value) == 1 else 0
        elif name == "timeout":
            timeout = _number(name, value) / 1e6 or None
        elif name.startswith(TRITONS_OWN) and name not in ALLOWED:
            raise InvalidRequest(
                f"parameter {name!r} is none that a request may have; of those that begin with triton_ "
                f"needed: {', '.join(sorted(ALLOWED))}"
            )
    return Asked(signature, priority, timeout)


def refuse_tensor_options(what: str, parameters: Parameters) -> None:
    """Raises NotOffered for shared memory and classification: an answer without them would not be what was asked."""
    for name in parameters:
        if name.startswith("shared_memory"):
            raise NotOffered(
                f"{what} is in shared memory, which this server does not read; send raw contents"
            )
        if name == "classification":
            raise NotOffered(
                f"{what} asks for classification, which this server does not do; take the output"
            )


def _number(name: str, value: pb.InferParameter) -> int:
    kind = value.WhichOneof("parameter_choice")
    if kind not in ("uint64_param", "int64_param"):
        raise InvalidRequest(f"parameter {name!r} came as {kind}; needed: uint64_param or int64_param")
    number = getattr(value, kind)
    if number < 0:
        raise InvalidRequest(f"parameter {name!r} is {number}; needed: at least 0")
    return number


def _text(name: str, value: pb.InferParameter) -> str:
    kind = value.WhichOneof("parameter_choice")
    if kind != "string_param":
        raise InvalidRequest(f"parameter {name!r} came as {kind}; needed: string_param")
    return value.string_param

"""Valid requests of every protocol, from which wrong ones are made."""

import json

import jax.numpy as jnp
import numpy as np

from jaxport.wire import open_inference_pb2 as oip
from jaxport.wire import prediction_pb2 as pb
from jaxport.wire import tensorflow_serving_pb2 as tfs
from tests.server_process import request

PREDICT = "/jaxport.v1.PredictionService/Predict"
GET_MODEL = "/jaxport.v1.PredictionService/GetModel"
INFER = "/inference.GRPCInferenceService/ModelInfer"
STREAM_INFER = "/inference.GRPCInferenceService/ModelStreamInfer"
METADATA = "/inference.GRPCInferenceService/ModelMetadata"
TF_PREDICT = "/tensorflow.serving.PredictionService/Predict"
TF_METADATA = "/tensorflow.serving.PredictionService/GetModelMetadata"

ARRAYS: dict[str, dict[str, np.ndarray]] = {
    "echo": {"x": np.array([[1.5, -2.0], [3.25, 0.1]], np.float32)},
    "tokens": {"tokens": np.arange(8, dtype=np.int32)[None]},
    "mixed": {"h": np.arange(6).reshape(2, 3).astype(jnp.bfloat16), "keep": np.array([True, False])},
    "bytes": {"u": np.arange(10, dtype=np.uint8).reshape(2, 5)},
    "flags": {"b": np.ones((1, 3), bool)},
    "wide": {"n": np.array([[2**40, -1]], np.int64)},
    "words": {"w": np.array([[7, 8, 9], [1, 2, 3]], np.int32)},
    "pairs": {"p": np.array([[[1, 2], [3, 4], [5, 6]]], np.float32), "q": np.array([[True, False, True]])},
}
DATATYPES = {
    "float32": "FP32", "int32": "INT32", "bfloat16": "BF16", "uint8": "UINT8", "bool": "BOOL", "int64": "INT64",
}  # fmt: skip
CONTENTS = {"float32": "fp32", "int32": "int", "uint8": "uint", "bool": "bool", "int64": "int64"}
TF_TYPES = {
    "float32": tfs.DT_FLOAT, "int32": tfs.DT_INT32, "bfloat16": tfs.DT_BFLOAT16, "uint8": tfs.DT_UINT8,
    "bool": tfs.DT_BOOL, "int64": tfs.DT_INT64,
}  # fmt: skip
TF_VALUES = {"float32": "float_val", "bool": "bool_val"}


def open_inference(model: str, raw: bool, **fields: object) -> bytes:
    message = oip.ModelInferRequest(model_name=model, **fields)  # type: ignore[arg-type]
    for name, array in ARRAYS[model].items():
        dtype = array.dtype.name
        tensor = message.inputs.add(name=name, datatype=DATATYPES[dtype], shape=array.shape)
        if raw:
            message.raw_input_contents.append(array.tobytes())
        else:
            getattr(tensor.contents, f"{CONTENTS[dtype]}_contents").extend(array.ravel().tolist())
    return message.SerializeToString()


def tensorflow(model: str, content: bool, **spec: object) -> bytes:
    message = tfs.PredictRequest(model_spec=tfs.ModelSpec(name=model, **spec))  # type: ignore[arg-type]
    for name, array in ARRAYS[model].items():
        tensor = message.inputs[name]
        tensor.dtype = TF_TYPES[array.dtype.name]
        tensor.tensor_shape.dim.extend([tfs.TensorShape.Dim(size=size) for size in array.shape])
        if content or array.dtype.name not in TF_VALUES:
            tensor.tensor_content = array.tobytes()
        else:
            getattr(tensor, TF_VALUES[array.dtype.name]).append(array.tobytes())
    return message.SerializeToString()


def grpc_requests(*models: str) -> list[tuple[str, bytes]]:
    """(method, payload): of each kind of call to each model, with and without the fields that matter."""
    found: list[tuple[str, bytes]] = []
    for model in models:
        arrays = ARRAYS[model]
        wide = {
            n: a.astype(np.int64) if a.dtype == np.int32 else np.concatenate([a, a])
            for n, a in arrays.items()
        }
        messages = [
            request(model, arrays),
            request(model, wide),
            request(model, arrays, version=1, signature="predict", outputs=["y"]),
            request(model, arrays, label="stable", priority=1, queue_timeout_ms=9000),
        ]
        found += [(PREDICT, message.SerializeToString()) for message in messages]
        first = next(iter(arrays.values()))
        for method in (INFER, STREAM_INFER):
            found.append((method, open_inference(model, True, id="a1", model_version="1")))
            if first.dtype.name in CONTENTS:
                found.append((method, open_inference(model, False)))
        options = {
            "priority": oip.InferParameter(uint64_param=1),
            "timeout": oip.InferParameter(int64_param=9),
        }
        options["timeout"].int64_param = 9_000_000
        found.append((INFER, open_inference(model, True, parameters=options)))
        found += [
            (TF_PREDICT, tensorflow(model, True, signature_name="serving_default")),
            (TF_PREDICT, tensorflow(model, False, version_label="stable")),
            (GET_MODEL, pb.GetModelRequest(model=model, version=1).SerializeToString()),
            (METADATA, oip.ModelRequest(name=model, version="1").SerializeToString()),
            (
                TF_METADATA,
                tfs.GetModelMetadataRequest(
                    model_spec=tfs.ModelSpec(name=model), metadata_field=["signature_def"]
                ).SerializeToString(),
            ),
        ]
    return found


def json_requests(model: str) -> list[bytes]:
    """Bodies for :predict, by rows and by columns."""
    arrays = {name: array.tolist() for name, array in ARRAYS[model].items()}
    rows = [dict(zip(arrays, row, strict=True)) for row in zip(*arrays.values(), strict=True)]
    documents = [{"inputs": arrays}, {"instances": rows}, {"instances": rows, "signature_name": "predict"}]
    if len(arrays) == 1:
        [only] = arrays.values()
        documents += [{"instances": only}, {"inputs": only, "signature_name": "serving_default"}]
    return [json.dumps(document).encode() for document in documents]

"""What a user of tensorflow-serving-api does, in a venv that has it: {"addresses", "model", "inputs"} on stdin.

Prints a JSON list, for each address what came back; arrays are [dtype, shape, hex].
"""

import json
import sys

import grpc
import numpy as np
import tensorflow as tf
from tensorflow_serving.apis import (
    classification_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
    model_management_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
)

SECONDS = 30


def request(model, inputs, **spec):
    made = predict_pb2.PredictRequest()
    made.model_spec.name = model
    for field, value in spec.items():
        if field == "version":
            made.model_spec.version.value = value
        else:
            setattr(made.model_spec, field, value)
    for name, array in inputs.items():
        made.inputs[name].CopyFrom(tf.make_tensor_proto(array))
    return made


def in_values(message):
    """The same request as clients without numpy send it: values in the field of the dtype, no content."""
    for tensor in message.inputs.values():
        array = tf.make_ndarray(tensor)
        name = array.dtype.name
        field = {
            "float32": "float_val", "float64": "double_val", "bool": "bool_val", "int64": "int64_val",
            "uint32": "uint32_val", "uint64": "uint64_val", "float16": "half_val", "bfloat16": "half_val",
        }.get(name, "int_val")  # fmt: skip
        tensor.ClearField("tensor_content")
        tensor.ClearField(field)
        flat = array.ravel().view(np.uint16) if field == "half_val" else array.ravel()
        getattr(tensor, field).extend(flat.tolist())
    return message


def arrays(response):
    found = {}
    for name, tensor in response.outputs.items():
        array = tf.make_ndarray(tensor)
        found[name.removeprefix("same_")] = [array.dtype.name, list(array.shape), array.tobytes().hex()]
    return found


def spec_of(response):
    spec = response.model_spec
    return [spec.name, spec.version.value, spec.signature_name]


def refusal(call, message):
    try:
        call(message, SECONDS)
    except grpc.RpcError as error:
        return [error.code().name, error.details()]
    return ["OK", ""]


def predicted(stub, model, inputs):
    answer = stub.Predict(request(model, inputs), SECONDS)
    some = request(model, inputs, version=1, signature_name="serving_default")
    some.output_filter.append("same_float32")
    one_row = {name: array[:1, :1].repeat(3, axis=1) for name, array in inputs.items()}
    filled = request(model, {})
    for name, array in one_row.items():  # one value fills the whole tensor
        filled.inputs[name].CopyFrom(tf.make_tensor_proto(array[0, 0]))
        filled.inputs[name].tensor_shape.CopyFrom(tf.TensorShape([1, 3]).as_proto())
    return {
        "all": arrays(answer),
        "spec": spec_of(answer),
        "in_values": arrays(stub.Predict(in_values(request(model, inputs)), SECONDS)),
        "by_label": arrays(stub.Predict(request(model, inputs, version_label="stable"), SECONDS)),
        "future": arrays(stub.Predict.future(request(model, inputs), SECONDS).result()),
        "some": sorted(arrays(stub.Predict(some, SECONDS))),
        "filled": arrays(stub.Predict(filled, SECONDS)),
        "one_row": arrays(stub.Predict(request(model, one_row), SECONDS)),
        "float_val": list(answer.outputs["same_float32"].float_val),
        "int64_val": list(answer.outputs["same_int64"].int64_val),
    }


def metadata(stub, model):
    asked = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
    asked.model_spec.name = model
    answer = stub.GetModelMetadata(asked, SECONDS)
    signatures = get_model_metadata_pb2.SignatureDefMap()
    assert answer.metadata["signature_def"].Unpack(signatures)
    return {
        name: {
            "method": each.method_name,
            **{
                key: [tf.as_dtype(info.dtype).name, tf.TensorShape(info.tensor_shape).as_list()]
                for key, info in (*each.inputs.items(), *each.outputs.items())
            },
        }
        for name, each in signatures.signature_def.items()
    }


def status(stub, model):
    asked = get_model_status_pb2.GetModelStatusRequest()
    asked.model_spec.name = model
    states = get_model_status_pb2.ModelVersionStatus.State
    return [
        [each.version, states.Name(each.state), each.status.error_code]
        for each in stub.GetModelStatus(asked, SECONDS).model_version_status
    ]


def refused(stub, models, model, inputs):
    unnamed = get_model_metadata_pb2.GetModelMetadataRequest()
    unnamed.model_spec.name = model
    text = request(model, {"int8": np.array([[b"a", b"b", b"c"]], object)})
    absent = get_model_status_pb2.GetModelStatusRequest()
    absent.model_spec.name = "nope"
    return {
        "model": refusal(stub.Predict, request("nope", inputs)),
        "version": refusal(stub.Predict, request(model, inputs, version=9)),
        "signature": refusal(stub.Predict, request(model, inputs, signature_name="train")),
        "missing": refusal(stub.Predict, request(model, {})),
        "strings": refusal(stub.Predict, text),
        "metadata": refusal(stub.GetModelMetadata, unnamed),
        "status": refusal(models.GetModelStatus, absent),
        "classify": refusal(stub.Classify, classification_pb2.ClassificationRequest()),
        "reload": refusal(models.HandleReloadConfigRequest, model_management_pb2.ReloadConfigRequest()),
    }


def main():
    asked = json.load(sys.stdin)
    inputs = {
        name: np.frombuffer(bytes.fromhex(data), tf.as_dtype(dtype).as_numpy_dtype).reshape(shape)
        for name, (dtype, shape, data) in asked["inputs"].items()
    }
    said = []
    for address in asked["addresses"]:
        with grpc.insecure_channel(address) as channel:
            stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
            models = model_service_pb2_grpc.ModelServiceStub(channel)
            said.append(
                {
                    "predict": predicted(stub, asked["model"], inputs),
                    "metadata": metadata(stub, asked["model"]),
                    "status": status(models, asked["model"]),
                    "refused": refused(stub, models, asked["model"], inputs),
                }
            )
    json.dump(said, sys.stdout)


if __name__ == "__main__":
    main()

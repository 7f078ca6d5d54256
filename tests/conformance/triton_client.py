"""What a user of tritonclient does, in a venv that has it: {"addresses", "model", "inputs"} on stdin.

Prints a JSON list, for each address what came back; arrays are [dtype, shape, hex].
"""

import asyncio
import json
import queue
import sys
import time
from functools import partial

import ml_dtypes  # noqa: F401  (bfloat16)
import numpy as np
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

CALLS = 24
# infer 5, async_infer, the two thirds of a stream that are not refused, asyncio 4
ANSWERED = 5 + CALLS + CALLS * 2 // 3 + 4


def tensors(inputs, of=triton):
    made = []
    for name, array in inputs.items():
        tensor = of.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
        tensor.set_data_from_numpy(array)
        made.append(tensor)
    return made


def outputs(result, inputs):
    found = {}
    for name in inputs:
        array = result.as_numpy(f"same_{name}")
        found[name] = [array.dtype.name, list(array.shape), array.tobytes().hex()]
    return found


def refusal(call):
    try:
        call()
    except InferenceServerException as error:
        return [error.status(), error.message()]
    return ["OK", ""]


def strings():
    tensor = triton.InferInput("int8", [1, 3], "BYTES")
    tensor.set_data_from_numpy(np.array([[b"a", b"b", b"c"]], object))
    return [tensor]


def described(client, model):
    return {
        "live": client.is_server_live(),
        "ready": client.is_server_ready(),
        "model_ready": [client.is_model_ready(model), client.is_model_ready(model, "1")],
        "absent_ready": client.is_model_ready("nope"),
        "server": client.get_server_metadata(as_json=True),
        "metadata": client.get_model_metadata(model, as_json=True),
        "config": client.get_model_config(model, as_json=True)["config"],
        "index": client.get_model_repository_index(as_json=True),
    }


def inferred(client, model, inputs):
    one = next(iter(inputs))
    ask = partial(client.infer, model, tensors(inputs))
    some = ask(outputs=[triton.InferRequestedOutput(f"same_{one}")], request_id="r1", model_version="1")
    options = ask(priority=1, timeout=5_000_000, parameters={"signature": "predict"})
    return {
        "all": outputs(ask(), inputs),
        "with_options": outputs(options, inputs),
        "by_label": outputs(ask(model_version="stable"), inputs),
        "gzip": outputs(ask(compression_algorithm="gzip"), inputs),
        "some": [[o.name for o in some.get_response().outputs], some.get_response().id],
    }


def at_once(client, model, inputs):
    """async_infer, many at once."""
    results = queue.Queue()
    for at in range(CALLS):
        client.async_infer(
            model, tensors(inputs), lambda result, error: results.put((result, error)), request_id=str(at)
        )
    got = [results.get(timeout=30) for _ in range(CALLS)]
    return {
        "errors": [str(error) for _, error in got if error],
        "ids": sorted(int(result.get_response().id) for result, _ in got),
        "distinct": [outputs(got[0][0], inputs)]
        + [each for result, _ in got if (each := outputs(result, inputs)) != outputs(got[0][0], inputs)],
    }


def streamed(client, model, inputs):
    """A stream in which every third request is refused."""
    results = queue.Queue()
    client.start_stream(lambda result, error: results.put((result, error)))
    for at in range(CALLS):
        client.async_stream_infer(
            "nope" if at % 3 == 1 else model,
            tensors(inputs),
            request_id=str(at),
            enable_empty_final_response=True,
        )
    got = [results.get(timeout=30) for _ in range(CALLS)]
    client.stop_stream()
    ids, finals, errors, wrong = [], [], [], 0
    for at, (result, error) in enumerate(got):
        if error is not None:
            errors.append([at, error.message()])
            continue
        response = result.get_response()
        ids.append(int(response.id))
        finals.append(response.parameters["triton_final_response"].bool_param)
        wrong += outputs(result, inputs) != outputs(got[0][0], inputs)
    return {
        "ids": ids,
        "finals": finals,
        "errors": errors,
        "first": outputs(got[0][0], inputs),
        "wrong": wrong,
    }


async def with_asyncio(address, model, inputs):
    async with triton_aio.InferenceServerClient(address) as client:
        asked = [client.infer(model, tensors(inputs, triton_aio)) for _ in range(4)]
        return [outputs(result, inputs) for result in await asyncio.gather(*asked)]


def refused(client, model, inputs):
    others = tensors(inputs)[1:]
    wide = {name: np.concatenate([array, array], axis=1) for name, array in inputs.items()}
    return {
        "model": refusal(lambda: client.infer("nope", tensors(inputs))),
        "version": refusal(lambda: client.infer(model, tensors(inputs), model_version="9")),
        "missing": refusal(lambda: client.infer(model, others)),
        "shape": refusal(lambda: client.infer(model, tensors(wide))),
        "strings": refusal(lambda: client.infer(model, strings())),
        "metadata": refusal(lambda: client.get_model_metadata("nope")),
        "load": refusal(lambda: client.load_model(model)),
        "shared_memory": refusal(client.get_system_shared_memory_status),
        "trace": refusal(client.get_trace_settings),
    }


def statistics(client, model):
    (entry,) = client.get_inference_statistics(model, "1", as_json=True)["model_stats"]
    return entry


def settled(client, model, before):
    """Statistics once the last answers, which are on their way before they are counted, are in them."""
    for _ in range(50):
        after = statistics(client, model)
        if count(after) - count(before) >= ANSWERED:
            break
        time.sleep(0.1)
    return after


def count(entry):
    return int(entry["inference_stats"]["success"].get("count", 0))


def everything(address, model, inputs):
    with triton.InferenceServerClient(address) as client:
        before = statistics(client, model)
        return {
            "before": before,
            "described": described(client, model),
            "infer": inferred(client, model, inputs),
            "async": at_once(client, model, inputs),
            "stream": streamed(client, model, inputs),
            "aio": asyncio.run(with_asyncio(address, model, inputs)),
            "refused": refused(client, model, inputs),
            "after": settled(client, model, before),
        }


def main():
    asked = json.load(sys.stdin)
    inputs = {
        name: np.frombuffer(bytes.fromhex(data), np.dtype(dtype)).reshape(shape)
        for name, (dtype, shape, data) in asked["inputs"].items()
    }
    json.dump([everything(address, asked["model"], inputs) for address in asked["addresses"]], sys.stdout)


if __name__ == "__main__":
    main()

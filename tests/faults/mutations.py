"""Mutations of valid requests, each answer held against a whole, fresh parse of the same bytes.

    python -m tests.faults.mutations --count 1000000 --seed 1                       in this process
    python -m tests.faults.mutations --count 100000 --seed 1 --transport native     to a server, over the wire

Prints what it did; ends with 1 and the request, in hexadecimal, that was answered wrongly.
"""

import argparse
import json
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

import numpy as np

from serve_grpc.errors import Code
from serve_grpc.protocol import rest
from serve_grpc.transport import Status
from tests.faults import corpus
from tests.faults.in_process import EchoServer
from tests.faults.mutate import by_fields, json_values, mutated, other_tail

# What a request of whatever bytes may be told. Neither INTERNAL nor UNKNOWN: those are faults of the server.
ALLOWED = {
    Code.OK,
    Code.INVALID_ARGUMENT,
    Code.NOT_FOUND,
    Code.RESOURCE_EXHAUSTED,
    Code.UNIMPLEMENTED,
    Code.UNAVAILABLE,  # an Open Inference timeout of a microsecond
}
TOGETHER = 64
JSON_SHARE = 8  # of as many requests one is JSON
# Bytes that the process may grow by, after the first tenth.
MOST_GROWTH = 64 * 2**20

Request = tuple[str, bytes]


class Wrong(AssertionError):
    """An answer that is not the right one, and its request."""


def sequences(seed: int) -> Iterator[list[Request]]:
    """Requests for one batch of calls each. What was changed comes again, and again with another end: that is what a
    remembered head takes for the same request.
    """
    random = Random(seed)
    valid = corpus.grpc_requests(*corpus.ARRAYS)
    while True:
        batch: list[Request] = []
        while len(batch) < TOGETHER:
            method, payload = random.choice(valid)
            if random.random() < 0.8:
                payload = mutated(random, payload, random.choice(valid)[1], by_fields)
            batch += [(method, payload)] * random.choice((1, 1, 2, 3))
            batch += [(method, other_tail(random, payload)) for _ in range(random.choice((0, 1, 3)))]
            if random.random() < 0.1:
                batch.append((random.choice(valid)[0], payload))
        yield batch


def code_of(answer: bytes | Status) -> Code:
    return answer.code if isinstance(answer, Status) else Code.OK


def same(method: str, answer: bytes | Status, fresh: bytes | Status) -> bool:
    """Several wrong inputs of a map are named in any order, hence no comparison of messages there."""
    if method == corpus.TF_PREDICT and isinstance(answer, Status) and isinstance(fresh, Status):
        return answer.code == fresh.code
    return answer == fresh


def check(server: EchoServer, batch: Sequence[Request], codes: Counter[str]) -> None:
    for (method, payload), answer in zip(batch, server.ask(batch), strict=True):
        code = code_of(answer)
        codes[code.name] += 1
        fresh = server.fresh(method, payload)
        expired = code is Code.UNAVAILABLE and not isinstance(fresh, Status)
        if code not in ALLOWED or not (expired or same(method, answer, fresh)):
            raise Wrong(f"{method} {payload.hex()}\nanswered: {answer!r}\nright is: {fresh!r}")


def check_json(server: EchoServer, bodies: Sequence[tuple[str, bytes]], codes: Counter[str]) -> None:
    predictions = [rest.Prediction(model, 0, "", body) for model, body in bodies]
    answers = server.admit([each.read for each in predictions])
    for (model, body), prediction, answer in zip(bodies, predictions, answers, strict=True):
        code = code_of(answer)
        codes[f"JSON {code.name}"] += 1
        if code not in ALLOWED:
            raise Wrong(f"{model} {body!r}\nanswered: {answer!r}")
        if code is Code.OK and not echoes(model, json.loads(body), json.loads(prediction.body())):
            raise Wrong(f"{model} {body!r}\nanswered: {prediction.body()!r}")


def echoes(model: str, asked: dict, answered: dict) -> bool:
    """Whether a JSON answer is the first input of its request, by the rules of JSON and numpy alone."""
    [first, *_] = corpus.ARRAYS[model]
    dtype = corpus.ARRAYS[model][first].dtype
    if "instances" in asked:
        rows, given = asked["instances"], answered["predictions"]
        if isinstance(rows[0], dict):
            rows = [row[first] for row in rows]
    else:
        rows, given = asked["inputs"], answered["outputs"]
        if isinstance(rows, dict):
            rows = rows[first]
    with np.errstate(over="ignore"):
        return np.array(rows, dtype).tobytes() == np.array(given, dtype).tobytes()


def resident() -> int:
    """Bytes of this process in memory now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def in_process(count: int, seed: int) -> Counter[str]:
    """`count` mutations through parsers, router, queue and executor. Raises Wrong."""
    codes: Counter[str] = Counter()
    random = Random(seed)
    bodies = [(model, body) for model in corpus.ARRAYS for body in corpus.json_requests(model)]
    before = None
    with EchoServer() as server:
        for batch in sequences(seed):
            check(server, batch, codes)
            check_json(server, [_json(random, bodies) for _ in range(TOGETHER // JSON_SHARE)], codes)
            done = codes.total()
            if before is None and done >= count / 10:
                before = resident()
            if done >= count:
                break
    grown = resident() - (before or 0)
    if grown > MOST_GROWTH:
        raise Wrong(f"the process grew by {grown} bytes over {count} requests")
    return codes


def _json(random: Random, bodies: Sequence[tuple[str, bytes]]) -> tuple[str, bytes]:
    model, body = random.choice(bodies)
    return model, mutated(random, body, random.choice(bodies)[1], json_values)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--transport", choices=("native", "grpcio"), help="to a real server on this transport"
    )
    asked = parser.parse_args()
    started = time.monotonic()
    try:
        if asked.transport is None:
            codes = in_process(asked.count, asked.seed)
        else:
            from tests.faults.over_the_wire import run

            with tempfile.TemporaryDirectory() as folder:
                codes = run(Path(folder), asked.transport, asked.count, asked.seed)
    except AssertionError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{codes.total()} requests in {time.monotonic() - started:.0f} s, seed {asked.seed}: {dict(codes)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""What comes through the proxy, what it refuses, and with which words."""

import queue
import re
from collections.abc import Iterator

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2

from jaxport.message_size import DEFAULT_BYTES
from jaxport.wire import open_inference_pb2 as oip
from tests.front.proxy import Proxy
from tests.http2 import RawClient, message
from tests.monitoring.known import OF_ENVOY
from tests.server_process import SERVICE, ServerProcess, connect, outputs_of, predict_call, request

OK, UNIMPLEMENTED, EXHAUSTED, INVALID = 0, 12, 8, 3
PREDICT = f"{SERVICE}Predict"
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
ROW = request("echo", {"x": np.ones((1, 2), np.float32)})
SMALL = message(ROW.SerializeToString())


@pytest.fixture
def raw(proxy: Proxy) -> Iterator[RawClient]:
    with RawClient(proxy.grpc) as client:
        yield client


@pytest.fixture(scope="module")
def channel(proxy: Proxy) -> grpc.Channel:
    return proxy.channel()


def refusal(call, *arguments, **settings) -> tuple[grpc.StatusCode, str]:
    """Code and message of a call that must fail."""
    with pytest.raises(grpc.RpcError) as caught:
        call(*arguments, timeout=20, **settings)
    assert isinstance(caught.value, grpc.Call)
    return caught.value.code(), caught.value.details() or ""


def test_an_answer_comes_back_as_the_server_gave_it(channel: grpc.Channel) -> None:
    x = np.random.default_rng(0).normal(size=(5, 2)).astype(np.float32)
    assert np.array_equal(outputs_of(predict_call(channel)(request("echo", {"x": x}), timeout=20))["y"], x)


def test_the_answer_does_not_say_what_stands_in_front(raw: RawClient) -> None:
    stream = raw.begin(PREDICT)
    raw.send(stream, SMALL, end=True)
    assert raw.status(stream) == OK
    assert sorted(raw.headers(stream)) == [":status", "content-type", "date", "grpc-status"]


def test_the_server_s_own_refusals_pass(channel: grpc.Channel) -> None:
    code, said = refusal(predict_call(channel), request("nope", {"x": np.ones((1, 2), np.float32)}))
    assert code == grpc.StatusCode.NOT_FOUND and "nope" in said
    assert refusal(channel.unary_unary("/no.Service/Method"), b"")[0] == grpc.StatusCode.UNIMPLEMENTED


# One limit for both: what the proxy lets through is exactly what the server takes.


def test_a_message_at_the_limit_reaches_the_server(channel: grpc.Channel) -> None:
    code, _ = refusal(channel.unary_unary(PREDICT), b"\xff" * DEFAULT_BYTES)
    assert code == grpc.StatusCode.INVALID_ARGUMENT  # it was read, and is no request


def test_a_byte_more_is_refused_by_the_proxy_and_by_the_server(
    channel: grpc.Channel, server: ServerProcess
) -> None:
    too_large = b"\xff" * (DEFAULT_BYTES + 1)
    code, said = refusal(channel.unary_unary(PREDICT), too_large)
    assert code == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert f"over {DEFAULT_BYTES} bytes" in said and "proxy" in said
    with connect(server.grpc) as direct:
        code, said = refusal(direct.unary_unary(PREDICT), too_large)
    assert code == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert f"--max-message-bytes {DEFAULT_BYTES}" in said


@pytest.mark.parametrize("headers", [(), (("content-length", str(512 << 20)),)], ids=["framed", "declared"])
def test_half_a_gigabyte_is_cut_at_the_limit_and_never_reaches_the_server(
    proxy: Proxy, server: ServerProcess, headers: tuple[tuple[str, str], ...]
) -> None:
    before = proxy.stat("http.grpc.downstream_rq_too_large")
    with RawClient(proxy.grpc) as client:
        stream = client.begin(PREDICT, *headers)
        sent = client.send(stream, message(b"")[:1] + (512 << 20).to_bytes(4, "big"), end=False)
        while sent < 64 << 20 and not client.ended(stream):
            sent += client.send(stream, bytes(1 << 20), end=False)
        assert client.status(stream) == EXHAUSTED
        assert DEFAULT_BYTES < sent < DEFAULT_BYTES + (2 << 20)
    assert proxy.stat("http.grpc.downstream_rq_too_large") == before + 1


def test_a_message_of_a_stream_is_refused_by_the_server(proxy: Proxy) -> None:
    with RawClient(proxy.grpc) as client:
        stream = client.begin(STREAM)
        client.send(stream, message(bytes(DEFAULT_BYTES + 1)), end=True)
        assert client.status(stream) == EXHAUSTED


def test_an_answer_over_the_limit_is_refused_by_the_server(channel: grpc.Channel) -> None:
    """512 bytes for each row of 32: the request is small."""
    rows = DEFAULT_BYTES // 512 + 1
    code, said = refusal(predict_call(channel), request("tokens", {"tokens": np.zeros((rows, 8), np.int32)}))
    assert code == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert f"--max-message-bytes {DEFAULT_BYTES}" in said


def test_an_answer_just_below_the_limit_comes_whole(channel: grpc.Channel) -> None:
    rows = DEFAULT_BYTES // 512 - 1
    tokens = np.zeros((rows, 8), np.int32)
    logits = outputs_of(predict_call(channel)(request("tokens", {"tokens": tokens}), timeout=30))["logits"]
    assert logits.shape == (rows, 8, 16) and np.array_equal(logits[0], logits[-1])


# Compression.


@pytest.mark.parametrize("path", [PREDICT, STREAM])
def test_a_compressed_request_is_refused(raw: RawClient, path: str) -> None:
    stream = raw.begin(path, ("grpc-encoding", "gzip"))
    raw.send(stream, message(b"\x1f\x8b" + bytes(100), compressed=True), end=True)
    assert raw.status(stream) == UNIMPLEMENTED
    headers = raw.headers(stream)
    assert headers["grpc-message"].startswith("the request is compressed, by its grpc-encoding")
    assert headers["grpc-accept-encoding"] == "identity"


def test_a_client_that_compresses_is_told(channel: grpc.Channel) -> None:
    code, said = refusal(predict_call(channel), ROW, compression=grpc.Compression.Gzip)
    assert code == grpc.StatusCode.UNIMPLEMENTED and "send it uncompressed" in said


def test_a_message_that_says_it_is_compressed_and_not_how_is_refused(raw: RawClient) -> None:
    stream = raw.begin(PREDICT)
    raw.send(stream, message(b"\x1f\x8b" + bytes(100), compressed=True), end=True)
    assert raw.status(stream) in (UNIMPLEMENTED, 13)


def test_no_compression_may_be_named(raw: RawClient) -> None:
    stream = raw.begin(PREDICT, ("grpc-encoding", "identity"))
    raw.send(stream, SMALL, end=True)
    assert raw.status(stream) == OK


# Names.


@pytest.mark.parametrize(
    "authority",
    [
        "jaxport.jaxport.svc.cluster.local:8500",
        "127.0.0.1:8500,127.0.0.1:8501",
        "ipv4:127.0.0.1:8500,127.0.0.1:8501",
        "%2Frun%2Fgrpc.sock",
        "[::1]:8500",
    ],
)
def test_every_name_that_clients_use_is_taken(raw: RawClient, authority: str) -> None:
    stream = raw.begin(PREDICT, authority=authority)
    raw.send(stream, SMALL, end=True)
    assert raw.status(stream) == OK


@pytest.mark.parametrize("authority", [None, "", "a b", "a/b\\c"])
def test_no_name_or_a_wrong_one_ends_its_own_call_alone(raw: RawClient, authority: str | None) -> None:
    wrong, right = raw.begin(PREDICT, authority=authority), raw.begin(PREDICT)
    raw.send(right, SMALL, end=True)
    assert raw.status(right) == OK
    assert raw.status(wrong) is None and raw.ended(wrong)


def test_a_client_of_several_addresses_is_served(proxy: Proxy) -> None:
    with connect(f"ipv4:{proxy.grpc},127.0.0.1:1") as several:
        assert outputs_of(predict_call(several)(ROW, timeout=20))["y"].tolist() == [[1, 1]]


def test_strangers_do_not_steer_the_proxy_by_its_own_headers(raw: RawClient) -> None:
    stream = raw.begin(
        PREDICT,
        ("x-envoy-upstream-rq-timeout-ms", "1"),
        ("x-envoy-max-retries", "9"),
        ("x-forwarded-for", "10.0.0.1"),
    )
    raw.send(
        stream, message(request("slow", {"x": np.ones((1, 1), np.float32)}).SerializeToString()), end=True
    )
    assert raw.status(stream) == OK


def test_metadata_beyond_the_limit_ends_its_own_call_alone(raw: RawClient) -> None:
    large, right = raw.begin(PREDICT, ("x-large", "a" * 14_000)), raw.begin(PREDICT, ("x-fits", "a" * 10_000))
    raw.send(right, SMALL, end=True)
    assert raw.status(right) == OK
    assert raw.status(large) is None and raw.ended(large)


def test_what_is_no_grpc_is_not_passed_on(proxy: Proxy, server: ServerProcess) -> None:
    with RawClient(proxy.grpc) as client:
        stream = client.begin(PREDICT, ("content-type", "text/plain"))
        client.send(stream, SMALL, end=True)
        assert client.status(stream) is None
        assert client.headers(stream)[":status"] in ("404", "400")


# Streams, health and reflection.


def test_a_stream_answers_each_message_before_the_next_is_sent(channel: grpc.Channel) -> None:
    call = channel.stream_stream(
        STREAM,
        request_serializer=oip.ModelInferRequest.SerializeToString,
        response_deserializer=oip.ModelStreamInferResponse.FromString,
    )
    to_send: queue.SimpleQueue[oip.ModelInferRequest | None] = queue.SimpleQueue()
    answers = call(iter(to_send.get, None), timeout=20)
    for at in range(5):
        x = np.full((1, 2), at, np.float32)
        asked = oip.ModelInferRequest(model_name="echo", raw_input_contents=[x.tobytes()])
        asked.inputs.add(name="x", datatype="FP32", shape=x.shape)
        to_send.put(asked)
        assert list(next(answers).infer_response.raw_output_contents) == [x.tobytes()]
    to_send.put(None)
    assert list(answers) == []


def test_health_is_checked_and_watched(channel: grpc.Channel) -> None:
    stub = health_pb2_grpc.HealthStub(channel)
    for service in ("", "mlp"):
        asked = health_pb2.HealthCheckRequest(service=service)
        assert stub.Check(asked, timeout=10).status == health_pb2.HealthCheckResponse.SERVING
        watched = stub.Watch(asked, timeout=10)
        assert next(watched).status == health_pb2.HealthCheckResponse.SERVING
        watched.cancel()
    assert refusal(stub.Check, health_pb2.HealthCheckRequest(service="nope"))[0] == grpc.StatusCode.NOT_FOUND


def test_the_server_describes_itself(channel: grpc.Channel) -> None:
    call = channel.stream_stream(
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
        request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
        response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
    )
    asked = iter([reflection_pb2.ServerReflectionRequest(list_services="")])
    named = {s.name for reply in call(asked, timeout=10) for s in reply.list_services_response.service}
    assert "jaxport.v1.PredictionService" in named


# The port of probes.


def test_the_probe_and_the_series_of_the_proxy(proxy: Proxy) -> None:
    assert proxy.probe() == (200, "ok\n")
    health_pb2_grpc.HealthStub(proxy.channel()).Check(health_pb2.HealthCheckRequest(), timeout=10)
    status, series = proxy.probe("/metrics")
    assert status == 200 and re.search(r"envoy_http_downstream_rq_total\{[^}]*grpc[^}]*\} [1-9]", series)
    # Those that alerts and dashboards ask for.
    for name, labels in OF_ENVOY.items():
        recorded = re.search(rf"^{name}\{{([^}}]*)\}} \d", series, re.MULTILINE)
        assert recorded and set(re.findall(r'(\w+)="', recorded[1])) == labels, name
    assert proxy.probe("/stats")[0] == proxy.probe("/quitquitquit")[0] == 404


def test_the_admin_is_for_this_user_alone(proxy: Proxy) -> None:
    assert proxy.admin_socket.stat().st_mode & 0o777 == 0o600

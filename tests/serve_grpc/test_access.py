"""Who may ask: tokens and allow lists, over gRPC and HTTP, on a real server."""

import http.client
import json
import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from jaxport.client import Client
from jaxport.errors import ServerError
from serve_grpc.access import Access, Caller, read_grants
from serve_grpc.changes import Changes
from serve_grpc.errors import ConfigError, PermissionDenied, Unauthenticated
from serve_grpc.metrics import Metrics
from serve_grpc.protocol.jaxport_v1 import JaxportV1
from serve_grpc.protocol.open_inference import OpenInference
from serve_grpc.protocol.tensorflow_serving import TensorflowServing
from tests.server_process import ServerProcess, eventually, predict_call, publish, request

ALL, ONE, OTHER = "all-models-0123456789", "only-echo-abcdef+/012345==", "revoked~later-0123456789"
X = np.array([[1, 2]], np.float32)
LINES = f"""
# for the tests
{ALL}
{ONE} models=echo,soon   # and one that is not here yet
{OTHER} models=mlp
"""


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As Kubernetes mounts a Secret: a link to a link into a folder that is swapped."""
    folder = tmp_path_factory.mktemp("secret")
    (folder / "first").mkdir()
    (folder / "first" / "tokens").write_text(LINES)
    (folder / "data").symlink_to("first")
    (folder / "tokens").symlink_to("data/tokens")
    return folder / "tokens"


@pytest.fixture(scope="module")
def guarded(
    models: Path, cache: Path, tokens: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("two")
    for name in ("echo", "mlp"):
        (folder / name).mkdir()
        publish(models / name / "1", folder / name / "1")
    flags = ("--token-file", str(tokens), "--max-batch", "1", "--cache-dir", str(cache))
    with ServerProcess(folder, *flags) as process:
        yield process.ready()
        log = "".join(process.lines)
        assert [token for token in (ALL, ONE, OTHER) if token in log] == []


def by_grpc(server: ServerProcess, model: str, *authorization: str) -> grpc.StatusCode:
    x = X if model == "echo" else np.ones((1, 4), np.float32)
    metadata = [("authorization", value) for value in authorization]
    try:
        predict_call(server.channel)(request(model, {"x": x}), timeout=20, metadata=metadata)
    except grpc.RpcError as error:
        assert ALL not in str(error.details())  # pyright: ignore[reportAttributeAccessIssue]
        return error.code()  # pyright: ignore[reportAttributeAccessIssue]
    return grpc.StatusCode.OK


def by_http(server: ServerProcess, method: str, path: str, *authorization: str, body: bytes = b"") -> Any:
    """(status, headers, JSON)"""
    with closing(http.client.HTTPConnection(server.http, timeout=20)) as connection:
        connection.putrequest(method, path)
        for value in authorization:
            connection.putheader("Authorization", value)
        if method == "POST":
            connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body)
        reply = connection.getresponse()
        return reply.status, reply.headers, json.loads(reply.read())


ECHO = b'{"instances": [[1, 2]]}'
MLP = b'{"instances": [[1, 2, 3, 4]]}'
OK, NO_ONE, NOT_YOURS = (
    grpc.StatusCode.OK,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED,
)

WHO = {
    "nobody": ((), "echo", NO_ONE, 401),
    "a token for all": ([f"Bearer {ALL}"], "mlp", OK, 200),
    "the scheme in lower case": ([f"bearer {ALL}"], "echo", OK, 200),
    "a token for this model": ([f"Bearer {ONE}"], "echo", OK, 200),
    "a token for another model": ([f"Bearer {ONE}"], "mlp", NOT_YOURS, 403),
    "a token for another model than one that is not here": ([f"Bearer {ONE}"], "nope", NOT_YOURS, 403),
    "a model allowed that is not here": ([f"Bearer {ONE}"], "soon", grpc.StatusCode.NOT_FOUND, 404),
    "a wrong token": (["Bearer wrong-token-0123456789"], "echo", NO_ONE, 401),
    "the start of a token": ([f"Bearer {ALL[:-1]}"], "echo", NO_ONE, 401),
    "no token": (["Bearer"], "echo", NO_ONE, 401),
    "an empty token": (["Bearer "], "echo", NO_ONE, 401),
    "another scheme": ([f"Basic {ALL}"], "echo", NO_ONE, 401),
    "the token alone": ([ALL], "echo", NO_ONE, 401),
    "two tokens": ([f"Bearer {ALL}", f"Bearer {ONE}"], "echo", NO_ONE, 401),
}


@pytest.mark.parametrize("who", WHO)
def test_who_may_predict(guarded: ServerProcess, who: str) -> None:
    authorization, model, code, status = WHO[who]
    assert by_grpc(guarded, model, *authorization) is code
    body = MLP if model == "mlp" else ECHO
    found, headers, answer = by_http(
        guarded, "POST", f"/v1/models/{model}:predict", *authorization, body=body
    )
    assert found == status, answer
    assert headers["WWW-Authenticate"] == ("Bearer" if status == 401 else None)
    assert ALL not in json.dumps(answer)


def test_a_listing_has_only_the_models_that_the_caller_may_use(guarded: ServerProcess) -> None:
    with Client(guarded.grpc, token=ALL) as everyone, Client(guarded.grpc, token=ONE) as one:
        assert list(everyone.models()) == ["echo", "mlp"]
        assert list(one.models()) == ["echo"]
        assert one.model("echo").state == "SERVING"
        with pytest.raises(ServerError) as refused:
            one.model("mlp")
        assert (refused.value.code, refused.value.exit_code) == (NOT_YOURS, 2)
        with pytest.raises(ServerError) as refused:
            one.predict("soon", {"x": X})
        assert "mlp" not in refused.value.message  # nor does a message name the others
        assert one.predict("echo", {"x": X})["y"].tolist() == X.tolist()
    with Client(guarded.grpc) as nobody, pytest.raises(ServerError, match="UNAUTHENTICATED"):
        nobody.models()
    for path in ("/v1/models/mlp", "/v1/models/mlp/metadata"):
        assert by_http(guarded, "GET", path)[0] == 401
        assert by_http(guarded, "GET", path, f"Bearer {ONE}")[0] == 403
        assert by_http(guarded, "GET", path, f"Bearer {ALL}")[0] == 200


def test_every_method_of_every_protocol_asks_who_it_is(guarded: ServerProcess) -> None:
    protocols = [JaxportV1(), OpenInference(lambda: True, Metrics()), TensorflowServing(2**20)]
    paths = [path for protocol in protocols for path in protocol.methods]
    assert len(paths) > 15
    for path in paths:
        with pytest.raises(grpc.RpcError) as refused:
            guarded.channel.unary_unary(path)(b"", timeout=20)
        assert (path, refused.value.code()) == (path, NO_ONE)
    streams = [path for protocol in protocols for path in protocol.streams]
    assert streams
    for path in streams:
        answers = guarded.channel.stream_stream(path)(iter([b""]), timeout=20)
        assert b"has no token" in next(answers)


def test_metadata_has_a_limit(guarded: ServerProcess) -> None:
    """On the native transport, whose 431 a client calls UNKNOWN; test_tls.py has it on grpcio."""
    assert guarded.line("transport=native")
    call = predict_call(guarded.channel)
    bearer = ("authorization", f"Bearer {ALL}")
    with pytest.raises(grpc.RpcError) as refused:
        call(request("echo", {"x": X}), timeout=20, metadata=[bearer, ("padding", "x" * 20_000)])
    assert refused.value.code() is grpc.StatusCode.UNKNOWN
    assert "431" in str(refused.value.details())  # pyright: ignore[reportAttributeAccessIssue]
    call(request("echo", {"x": X}), timeout=20, metadata=[bearer, ("padding", "x" * 10_000)])


def test_probes_and_metrics_stay_open(guarded: ServerProcess) -> None:
    assert [guarded.get(path)[0] for path in ("/healthz", "/readyz", "/metrics", "/")] == [200] * 4
    assert guarded.health() == guarded.health("echo") == "SERVING"
    metrics = guarded.get("/metrics")[1] + guarded.get("/")[1]
    assert [token for token in (ALL, ONE, OTHER) if token in metrics] == []


def test_a_refused_caller_is_counted_and_its_body_is_not_read(guarded: ServerProcess) -> None:
    counted = {"protocol": "rest", "status": "UNAUTHENTICATED"}
    before = guarded.metric("jaxport_request_seconds_count", **counted)
    with closing(http.client.HTTPConnection(guarded.http, timeout=20)) as connection:
        connection.putrequest("POST", "/v1/models/echo:predict")
        connection.putheader("Content-Length", str(2**20))
        connection.endheaders()  # no body: it would wait for it if it wanted one
        assert connection.getresponse().status == 401
    assert guarded.metric("jaxport_request_seconds_count", **counted) == before + 1


def test_a_secret_that_is_swapped_is_read_and_a_broken_one_is_not(
    guarded: ServerProcess, tokens: Path
) -> None:
    """Last in this file: the token it takes away is not used again."""
    folder = tokens.parent

    def swap(name: str, content: str) -> None:
        (folder / name).mkdir()
        (folder / name / "tokens").write_text(content)
        (folder / "data_tmp").symlink_to(name)
        (folder / "data_tmp").rename(folder / "data")

    assert by_grpc(guarded, "mlp", f"Bearer {OTHER}") is OK
    new = "brand-new-token-0123456789"
    swap("second", f"{ALL}\n{ONE} models=echo,soon\n{new} models=mlp\n")
    eventually(lambda: by_grpc(guarded, "mlp", f"Bearer {new}") is OK, "the new token is known")
    assert by_grpc(guarded, "mlp", f"Bearer {OTHER}") is NO_ONE
    assert by_http(guarded, "POST", "/v1/models/mlp:predict", f"Bearer {OTHER}", body=MLP)[0] == 401
    swap("third", f"{ALL}\ntoo-short-{ONE[:3]}\n")
    guarded.line(
        r"ERROR --token-file \S+ line 2: the token has 13 characters.*last good reading stays: tokens=3"
    )
    assert by_grpc(guarded, "mlp", f"Bearer {new}") is OK


# The file


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "names nobody"),
        ("# nothing\n\n", "names nobody"),
        ("short", "line 1: the token has 5 characters; needed: at least 16"),
        (f"\n{ALL}, models=a", "line 2: a token has letters"),
        (f"{ALL} model=a", "line 1: after the caller"),
        (f"{ALL} models=", "line 1: after the caller"),
        (f"{ALL} models=a b", "line 1: after the caller"),
        (f"{ALL} {ONE}", "line 1: after the caller"),
        (f"{ALL}\n{ALL} models=a", "line 2: this caller stands in a line above"),
        ("cn:a\ncn:a", "line 2: this caller"),
        ("cn: models=a", "line 1: cn: has no name"),
        (b"\xff\xfe", "no text"),
        ("x" * (2**20 + 1), "more than 1048576 bytes"),
    ],
)
def test_a_file_that_is_not_right_names_its_line_and_never_its_token(
    tmp_path: Path, content: str | bytes, says: str
) -> None:
    path = tmp_path / "tokens"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ConfigError) as refused:
        read_grants(path)
    assert says in str(refused.value)
    assert str(path) in str(refused.value)
    assert ALL not in str(refused.value)


def test_a_file_that_is_not_there_is_a_wrong_flag(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--token-file .*nowhere cannot be read: No such file"):
        Access(tmp_path / "nowhere")


def test_a_file_that_goes_for_a_moment_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text(f"{ALL}\ncn:batch-job models=a\n")
    access = Access(path)
    bearer = [("authorization", f"Bearer {ALL}")]
    path.unlink()
    access.look()
    assert access.caller(bearer, "") == Caller()
    path.write_text(f"{ONE}\n")
    access.look()
    with pytest.raises(Unauthenticated):
        access.caller(bearer, "")


def test_a_certificate_speaks_for_a_caller_without_a_token(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text(f"{ALL}\ncn:batch-job models=a\n")
    access = Access(path)
    found = access.caller([], "batch-job")
    found.may("a")
    with pytest.raises(PermissionDenied, match="'b'"):
        found.may("b")
    with pytest.raises(Unauthenticated):
        access.caller([], "another")
    with pytest.raises(
        Unauthenticated
    ):  # what was sent counts: a wrong token is not made good by a certificate
        access.caller([("authorization", "Bearer wrong-token-0123456789")], "batch-job")
    assert access.caller([("authorization", f"Bearer {ALL}")], "batch-job") == Caller()


def test_rights_that_are_put_right_count_as_a_change(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text(LINES)
    changes = Changes([path])
    assert not changes.since_last()
    path.chmod(0o640)
    assert changes.since_last()
    assert not changes.since_last()


def test_a_file_that_could_not_be_read_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A token that was revoked must not stay because of an hour in which the file could not be read."""
    path = tmp_path / "tokens"
    path.write_text(LINES)
    access = Access(path)
    bearer = (("authorization", f"Bearer {OTHER}"),)
    access.caller(bearer, "")
    path.write_text(LINES.replace(OTHER, "another-0123456789"))
    with monkeypatch.context() as patch:

        def denied(*_: object) -> None:
            raise PermissionError(13, "Permission denied")

        patch.setattr(Path, "open", denied)
        for _ in range(3):
            access.look()
    access.caller(bearer, "")
    assert caplog.text.count("the last good reading stays") == 1
    access.look()
    with pytest.raises(Unauthenticated):
        access.caller(bearer, "")


def test_a_pipe_is_refused_rather_than_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="is a pipe"):
        read_grants(tmp_path / "pipe")

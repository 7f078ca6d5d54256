"""TLS and mTLS on the grpcio transport: a real server, real certificates, and what must not get through."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from jaxport.client import Client
from jaxport.errors import ServerError
from serve_grpc.errors import ConfigError
from serve_grpc.settings import TlsSettings
from serve_grpc.transport.tls import Certificates
from tests.certificates import Authority
from tests.server_process import ServerProcess, connect, eventually, predict_call, publish, request
from tests.servers import jaxport

X = np.array([[1, 2]], np.float32)
ANYONE = "token-0123456789-abcdef"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def echo(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("one")
    (folder / "echo").mkdir()
    publish(models / "echo" / "1", folder / "echo" / "1")
    return folder


def flags(cache: Path, cert: Path, key: Path, *more: str) -> list[str]:
    return [
        "--tls-cert",
        str(cert),
        "--tls-key",
        str(key),
        "--max-batch",
        "1",
        "--cache-dir",
        str(cache),
        *more,
    ]


@pytest.fixture(scope="module")
def tls(authority: Authority, echo: Path, cache: Path) -> Iterator[ServerProcess]:
    """The client shows nothing."""
    with ServerProcess(echo, *flags(cache, *authority.sign("server"))) as process:
        yield process.ready()


@pytest.fixture(scope="module")
def mtls(
    authority: Authority, echo: Path, cache: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    """The client shows a certificate, and a file says who may use what."""
    tokens = tmp_path_factory.mktemp("tokens") / "tokens"
    tokens.write_text(f"{ANYONE}\ncn:reader models=echo\ncn:stranger models=another\n")
    pair = authority.sign("mtls-server")
    more = ("--tls-client-ca", str(authority.ca), "--token-file", str(tokens))
    with ServerProcess(echo, *flags(cache, *pair, *more)) as process:
        yield process.ready()


def predicts(client: Client) -> bool:
    return client.predict("echo", {"x": X})["y"].tolist() == X.tolist()


def test_a_client_that_knows_the_authority(tls: ServerProcess, authority: Authority) -> None:
    assert tls.line("transport=grpcio because='TLS is asked for'")
    with Client(tls.grpc, tls_ca=authority.ca) as client:
        assert predicts(client)
        assert list(client.models()) == ["echo"]


def test_the_command_with_its_flags(tls: ServerProcess, authority: Authority) -> None:
    told = ("predict", "echo", "--input", "x=[[1, 2]]", "--json", "--address", tls.grpc)
    done = jaxport(*told, "--tls-ca", str(authority.ca))
    assert (done.returncode, json.loads(done.stdout)) == (0, {"y": [[1.0, 2.0]]}), done.stderr
    refused = jaxport(*told, "--tls-ca", str(authority.folder / "nowhere.pem"))
    assert refused.returncode == 2
    assert "nowhere.pem cannot be read" in refused.stderr


def test_load_goes_through_tls_too(tls: ServerProcess, authority: Authority) -> None:
    told = ("bench", "echo", "--address", tls.grpc, "--http-address", tls.http, "--seconds", "0.2")
    done = jaxport(*told, "--concurrency", "2", "--processes", "1", "--json", "--tls-ca", str(authority.ca))
    assert done.returncode == 0, done.stderr
    (result,) = json.loads(done.stdout)
    assert (result["errors"], result["requests"] > 0) == (0, True)


def test_without_tls_or_with_another_authority_nothing_is_answered(
    tls: ServerProcess, tmp_path: Path
) -> None:
    with connect(tls.grpc) as channel, pytest.raises(grpc.RpcError) as refused:
        predict_call(channel)(request("echo", {"x": X}), timeout=5)
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    other = Authority(tmp_path, "another authority")
    with Client(tls.grpc, tls_ca=other.ca, timeout=5) as client, pytest.raises(ServerError) as failed:
        predicts(client)
    assert failed.value.code is grpc.StatusCode.UNAVAILABLE


def test_metadata_has_a_limit(tls: ServerProcess, authority: Authority) -> None:
    credentials = grpc.ssl_channel_credentials((authority.ca).read_bytes())
    with grpc.secure_channel(tls.grpc, credentials) as channel:
        call = predict_call(channel)
        with pytest.raises(grpc.RpcError) as refused:
            call(request("echo", {"x": X}), timeout=20, metadata=[("padding", "x" * 20_000)])
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        call(request("echo", {"x": X}), timeout=20, metadata=[("padding", "x" * 10_000)])


def test_a_client_at_the_wrong_port_is_told_what_it_may_be(tls: ServerProcess) -> None:
    for address, says in ((tls.grpc, "add --tls-ca"), (tls.http, "a port for HTTP")):
        with Client(address, timeout=5) as client, pytest.raises(ServerError, match=says):
            client.models()


def test_what_could_not_be_read_is_read_once_it_can_be(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a change of the file: as where a volume, or the rights above it, come back."""
    cert, key = authority.sign("read-again")
    certificates = Certificates(TlsSettings(cert, key, None))
    next_pair = cert.read_bytes() + b"# another\n", key.read_bytes(), None
    readings: list[Any] = [ConfigError("not now"), ConfigError("not now"), next_pair]

    def read(_: TlsSettings) -> Any:
        reading = readings.pop(0)
        if isinstance(reading, ConfigError):
            raise reading
        return reading

    monkeypatch.setattr("serve_grpc.transport.tls._read", read)
    assert certificates._newer() is None
    cert.touch()
    assert [certificates._newer() is None for _ in range(4)] == [True, True, False, True]
    assert not readings


def test_the_http_port_is_plain_and_takes_no_requests(tls: ServerProcess) -> None:
    assert [tls.get(path)[0] for path in ("/healthz", "/readyz", "/metrics")] == [200] * 3
    for path in ("/v1/models/echo", "/v1/models/echo/metadata"):
        status, body = tls.get(path)
        assert (status, "TLS" in json.loads(body)["error"]) == (403, True)
    host, _, port = tls.http.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=10) as sock:
        sock.sendall(b"POST /v1/models/echo:predict HTTP/1.1\r\nContent-Length: 100\r\n\r\n")
        assert sock.recv(4096).startswith(b"HTTP/1.1 403 ")


def test_a_certificate_that_is_renewed_is_shown_to_the_next_connection(
    tls: ServerProcess, authority: Authority, tmp_path: Path
) -> None:
    with Client(tls.grpc, tls_ca=authority.ca) as before:
        assert predicts(before)
        renewed = Authority(tmp_path, "next authority")
        pair = renewed.sign("server")
        served = authority.folder / "server.pem", authority.folder / "server.key"
        pair[0].replace(served[0])  # the key is still the old one's

        def meets(ca: Path) -> bool:
            try:
                with Client(tls.grpc, tls_ca=ca, timeout=5) as client:
                    return predicts(client)
            except ServerError:
                return False

        assert meets(authority.ca)
        tls.line("ERROR --tls-key .*is not that of --tls-cert.*; the certificate before it stays")
        pair[1].replace(served[1])
        eventually(lambda: meets(renewed.ca), "the renewed certificate is shown")
        assert not meets(authority.ca)
        assert predicts(before)  # a connection that is open goes on
        authority.sign("server")  # as it was, for the other tests
        assert meets(authority.ca)


# With certificates on both sides


def test_a_client_needs_a_certificate(mtls: ServerProcess, authority: Authority, tmp_path: Path) -> None:
    with Client(mtls.grpc, tls_ca=authority.ca, token=ANYONE, timeout=5) as none, pytest.raises(ServerError):
        predicts(none)
    cert, key = Authority(tmp_path).sign("reader")
    with (
        Client(mtls.grpc, tls_ca=authority.ca, tls_cert=cert, tls_key=key, timeout=5) as forged,
        pytest.raises(ServerError),
    ):
        predicts(forged)


def test_the_name_in_a_certificate_says_what_it_may_use(mtls: ServerProcess, authority: Authority) -> None:
    def client(name: str, token: str = "") -> Client:
        cert, key = authority.sign(name)
        return Client(mtls.grpc, tls_ca=authority.ca, tls_cert=cert, tls_key=key, token=token)

    with client("reader") as reader:
        assert predicts(reader)
    with client("stranger") as stranger, pytest.raises(ServerError, match="PERMISSION_DENIED"):
        predicts(stranger)
    with client("nobody") as nobody, pytest.raises(ServerError, match="UNAUTHENTICATED"):
        predicts(nobody)
    with client("nobody", ANYONE) as with_token:
        assert predicts(with_token)


# Files that are not right


def test_wrong_files_name_their_flag(authority: Authority, tmp_path: Path) -> None:
    cert, key = authority.sign("right")
    other = authority.sign("other")[1]
    garbage = tmp_path / "garbage.pem"
    garbage.write_text("-----BEGIN CERTIFICATE-----\nnonsense\n-----END CERTIFICATE-----\n")
    nowhere = tmp_path / "nowhere.pem"
    wrong = [
        (TlsSettings(nowhere, key), "--tls-cert .*nowhere.pem cannot be read"),
        (TlsSettings(cert, nowhere), "--tls-key .*nowhere.pem cannot be read"),
        (TlsSettings(garbage, key), "--tls-cert .*garbage.pem has no certificate"),
        (TlsSettings(key, key), "--tls-cert .*right.key has no certificate"),
        (TlsSettings(cert, cert), "--tls-key .*right.pem is no private key"),
        (TlsSettings(cert, other), "--tls-key .*other.key is not that of --tls-cert .*right.pem"),
        (TlsSettings(cert, key, nowhere), "--tls-client-ca .*nowhere.pem cannot be read"),
        (TlsSettings(cert, key, garbage), "--tls-client-ca .*garbage.pem has no certificate"),
    ]
    for settings, says in wrong:
        with pytest.raises(ConfigError, match=says):
            Certificates(settings)


def test_a_wrong_file_ends_the_start_with_2_and_one_line(echo: Path, authority: Authority) -> None:
    key = str(authority.sign("again")[1])
    done = jaxport("serve", "--models", str(echo), "--tls-cert", key, "--tls-key", key)
    assert done.returncode == 2
    assert "--tls-cert" in done.stderr.strip().splitlines()[-1]

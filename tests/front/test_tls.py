"""TLS and certificates of clients, from files that change as kubelet changes those of a Secret."""

import contextlib
import re
import shutil
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from tests.certificates import Authority
from tests.front.conftest import NewProxy
from tests.front.load import ROW
from tests.front.proxy import MTLS, TLS, Proxy
from tests.server_process import connect, eventually, outputs_of, predict_call
from tests.servers import jaxport


class Secret:
    """The volume of a Secret, below `folder`: links into a folder that is replaced by the rename of one link."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._written = 0

    def write(self, certificate: Path, key: Path, ca: Path) -> None:
        self._written += 1
        version = self._folder / f"..{self._written}"
        version.mkdir(parents=True)
        for name, source in (("tls.crt", certificate), ("tls.key", key), ("ca.crt", ca)):
            shutil.copy(source, version / name)
            with contextlib.suppress(FileExistsError):
                (self._folder / name).symlink_to(Path("..data") / name)
        new = self._folder / "..data_tmp"
        new.symlink_to(version.name)
        new.rename(self._folder / "..data")


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ours"))


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("other"))


@contextlib.contextmanager
def secured(new_proxy: NewProxy, mode: tuple[str, ...], authority: Authority) -> Iterator[Proxy]:
    envoy = new_proxy(*mode)
    Secret(envoy.folder / "tls").write(*authority.sign("server"), authority.ca)
    with envoy:
        yield envoy


@pytest.fixture(scope="module")
def tls(new_proxy: NewProxy, ours: Authority) -> Iterator[Proxy]:
    with secured(new_proxy, TLS, ours) as envoy:
        yield envoy


@pytest.fixture(scope="module")
def mtls(new_proxy: NewProxy, ours: Authority) -> Iterator[Proxy]:
    with secured(new_proxy, MTLS, ours) as envoy:
        yield envoy


def channel_to(proxy: Proxy, trusted: Authority, identity: tuple[Path, Path] | None = None) -> grpc.Channel:
    certificate, key = (path.read_bytes() for path in identity) if identity else (None, None)
    credentials = grpc.ssl_channel_credentials(trusted.ca.read_bytes(), key, certificate)
    options = [("grpc.use_local_subchannel_pool", 1)]
    return grpc.secure_channel(proxy.grpc.replace("127.0.0.1", "localhost"), credentials, options)


def served(channel: grpc.Channel) -> bool:
    """Whether a call on a new channel is answered; False: it cannot connect."""
    with channel:
        try:
            return outputs_of(predict_call(channel)(ROW, timeout=10))["y"].tolist() == [[1, 1]]
        except grpc.RpcError as error:
            assert isinstance(error, grpc.Call) and error.code() == grpc.StatusCode.UNAVAILABLE, error
            return False


def presented(proxy: Proxy, trusted: Authority, version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> str:
    """The name in the certificate of the proxy; raises ssl.SSLError. The client offers no version but this one."""
    context = ssl.create_default_context(cafile=str(trusted.ca))
    context.set_alpn_protocols(["h2"])
    # OpenSSL keeps the old versions to itself at its own level of security, and nothing would reach the proxy.
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = context.maximum_version = version
    host, _, port = proxy.grpc.rpartition(":")
    with (
        socket.create_connection((host, int(port)), timeout=10) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as wrapped,
    ):
        assert wrapped.selected_alpn_protocol() == "h2"
        certificate = wrapped.getpeercert()
    assert certificate is not None
    return str(dict(name for (name,) in certificate["subject"])["commonName"])  # type: ignore[misc]


def test_tls_is_spoken_and_cleartext_is_not(tls: Proxy, ours: Authority, other: Authority) -> None:
    assert served(channel_to(tls, ours))
    assert not served(channel_to(tls, other))
    assert not served(connect(tls.grpc))
    assert tls.probe()[0] == 200  # kubelet speaks no TLS


def test_the_days_that_a_certificate_has_left_are_a_series(tls: Proxy) -> None:
    """Its own lasts for a day. What the alert asks; without a certificate Envoy says 2 to the 32nd."""
    series = tls.probe("/metrics")[1]
    assert re.search(r"^envoy_server_days_until_first_cert_expiring\{\} [01]$", series, re.MULTILINE)


def test_the_oldest_tls_is_1_2(tls: Proxy, ours: Authority) -> None:
    """The proxy itself says no, and to the version: without a cipher in common it would say another thing."""
    assert presented(tls, ours, ssl.TLSVersion.TLSv1_2) == "server"
    for version in (ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1):
        with (
            pytest.raises(ssl.SSLError, match="alert protocol version"),
            pytest.warns(DeprecationWarning, match=version.name),
        ):
            presented(tls, ours, version)


def test_a_client_needs_a_certificate_that_ours_signed(
    mtls: Proxy, ours: Authority, other: Authority
) -> None:
    assert served(channel_to(mtls, ours, ours.sign("client")))
    assert not served(channel_to(mtls, ours))
    assert not served(channel_to(mtls, ours, other.sign("client")))
    assert not served(connect(mtls.grpc))


@pytest.mark.parametrize("mode", [TLS, MTLS], ids=["tls", "mtls"])
def test_without_certificates_nobody_is_served(
    new_proxy: NewProxy, ours: Authority, mode: tuple[str, ...]
) -> None:
    with new_proxy(*mode) as envoy:
        assert not served(connect(envoy.grpc))
        assert not served(channel_to(envoy, ours, ours.sign("client")))
        assert envoy.probe()[0] == 200
        Secret(envoy.folder / "tls").write(*ours.sign("server"), ours.ca)  # it may come late
        client = ours.sign("client")
        eventually(lambda: served(channel_to(envoy, ours, client)), "the certificate is found")
        drained = jaxport("drain", "--admin-socket", str(envoy.admin_socket), "--propagate", "0")
        assert drained.stdout.startswith("drain: no request is left")


def test_certificates_rotate_with_the_secret(new_proxy: NewProxy, ours: Authority, other: Authority) -> None:
    envoy = new_proxy(*MTLS)
    secret = Secret(envoy.folder / "tls")
    secret.write(*ours.sign("server", "first"), ours.ca)
    old = ours.sign("client")
    with envoy, channel_to(envoy, ours, old) as open_before:
        assert served_again(open_before)
        secret.write(*other.sign("server", "second"), other.ca)
        new = other.sign("client")
        eventually(lambda: served(channel_to(envoy, other, new)), "the new certificates are asked for")
        assert not served(channel_to(envoy, ours, old))
        assert served_again(open_before)  # a connection that is open goes on, to its age
        secret.write(other.sign("client")[0], other.sign("server", "third")[1], other.ca)
        eventually(
            lambda: "rejected" in envoy.log() or "Failed" in envoy.log(), "a pair that does not fit is named"
        )
        assert served(channel_to(envoy, other, new))


def served_again(channel: grpc.Channel) -> bool:
    """Whether a call on a channel that stays open is answered."""
    return outputs_of(predict_call(channel)(ROW, timeout=10))["y"].tolist() == [[1, 1]]

"""What a person types becomes settings, or one line that names the flag."""

import argparse
from dataclasses import replace
from pathlib import Path

import pytest

from serve_grpc.errors import STATUS, ConfigError, RequestError
from serve_grpc.flags import add_flags, message_bytes, settings_from
from serve_grpc.settings import BatchSettings, DrainSettings, ListenSettings, RepositorySettings, TlsSettings
from serve_grpc.transport.choose import choose

TLS = TlsSettings(Path("c"), Path("k"))


def settings(*flags: str):
    parser = argparse.ArgumentParser()
    add_flags(parser)
    return settings_from(parser.parse_args(["--models", "m", *flags]))


def test_defaults_bind_loopback_only() -> None:
    made = settings()
    assert made.listen == ListenSettings()
    assert (made.listen.host, made.listen.grpc_port, made.listen.http_port) == ("127.0.0.1", 8500, 8501)
    assert made.repository == RepositorySettings(Path("m"))
    assert (made.batch, made.drain) == (BatchSettings(), DrainSettings())


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("32MiB", 32 * 2**20),
        ("4MB", 4 * 10**6),
        ("1 GiB", 2**30),
        ("100000", 100000),
        ("1.5kib", 1536),
        ("7B", 7),
    ],
)
def test_sizes_have_units(text: str, size: int) -> None:
    assert message_bytes(text) == size


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--max-message-bytes", "lots"], "--max-message-bytes 'lots'"),
        (["--max-message-bytes", "4 parsecs"], "--max-message-bytes"),
        (["--max-message-bytes", "0"], "--max-message-bytes"),
        (["--max-message-bytes", "3GiB"], "2147483647"),
        (["--grpc-port", "70000"], "--grpc-port 70000"),
        (["--http-port", "-1"], "--http-port -1"),
        (["--max-queue", "0"], "--max-queue 0"),
        (["--max-batch", "0"], "--max-batch 0"),
        (["--poll-seconds", "0"], "--poll-seconds 0"),
        (["--poll-seconds", "nan"], "--poll-seconds nan"),
        (["--max-connection-age", "nan"], "--max-connection-age nan"),
        (["--max-connection-age", "-1"], "--max-connection-age -1"),
        (["--poll-seconds", "inf"], "--poll-seconds inf"),
        (["--max-latency", "1e12"], "--max-latency"),
        (["--max-connection-age", "9e8"], "--max-connection-age 9e+08"),
        (["--max-connection-age", "1e-6"], "--max-connection-age 1e-06"),
        (["--max-delay", "inf"], "--max-delay inf"),
        (["--grace-seconds", "-1"], "--grace-seconds -1"),
        (["--drain-delay", "30", "--grace-seconds", "10"], "--drain-delay 30"),
        (["--grpc-socket", "s", "--grpc-port", "1"], "--grpc-socket"),
        (["--tls-cert", "c"], "--tls-cert stands alone; add --tls-key"),
        (["--tls-key", "k"], "--tls-key stands alone; add --tls-cert"),
        (["--tls-client-ca", "a"], "--tls-client-ca needs TLS"),
    ],
)
def test_a_wrong_flag_is_named(flags: list[str], says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        settings(*flags)
    assert says in str(refused.value)
    assert refused.value.exit_code == 2


@pytest.mark.parametrize(
    ("listen", "name", "because"),
    [
        (ListenSettings(), "native", "loopback"),
        (ListenSettings(host="localhost"), "native", "loopback"),
        (ListenSettings(host="::1"), "native", "loopback"),
        (ListenSettings(host="0.0.0.0", grpc_socket=Path("s")), "native", "a unix socket"),
        (ListenSettings(host="0.0.0.0"), "grpcio", "0.0.0.0 is open"),
        (ListenSettings(host="::"), "grpcio", ":: is open"),
        (ListenSettings(host="model.example"), "grpcio", "model.example is open"),
        (ListenSettings(host="0.0.0.0", behind_proxy=True), "native", "behind a proxy"),
        (ListenSettings(host="0.0.0.0", behind_proxy=True, transport="native"), "native", "asked for"),
        (ListenSettings(transport="grpcio"), "grpcio", "asked for"),
        (ListenSettings(tls=TLS), "grpcio", "TLS is asked for"),
        (ListenSettings(tls=TLS, host="0.0.0.0", behind_proxy=True), "grpcio", "TLS is asked for"),
    ],
)
def test_native_is_chosen_only_where_this_machine_alone_can_connect(
    listen: ListenSettings, name: str, because: str
) -> None:
    choice = choose(listen)
    assert choice.name == name
    assert because in choice.reason


def test_native_on_an_open_address_is_refused_unless_something_is_in_front() -> None:
    with pytest.raises(ConfigError, match="--behind-proxy"):
        choose(ListenSettings(host="0.0.0.0", transport="native"))


def test_native_refuses_tls_and_says_what_has_it() -> None:
    for listen in (
        ListenSettings(),
        ListenSettings(grpc_socket=Path("s")),
        ListenSettings(behind_proxy=True),
    ):
        with pytest.raises(ConfigError, match="--transport grpcio, or an Envoy"):
            choose(replace(listen, transport="native", tls=TLS))


def test_an_empty_folder_name_is_not_this_folder(capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    add_flags(parser)
    with pytest.raises(SystemExit) as refused:
        parser.parse_args(["--models", ""])
    assert refused.value.code == 2
    assert "--models: '' is no folder" in capsys.readouterr().err


def test_every_request_error_has_a_status() -> None:
    assert set(RequestError.__subclasses__()) == set(STATUS)

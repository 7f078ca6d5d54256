"""What a person types becomes settings, or one line that names the flag."""

import argparse
from pathlib import Path

import pytest

from serve_grpc.errors import STATUS, ConfigError, RequestError
from serve_grpc.flags import add_flags, message_bytes, settings_from
from serve_grpc.server import check_transport
from serve_grpc.settings import BatchSettings, DrainSettings, ListenSettings, RepositorySettings


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
        (["--grace-seconds", "-1"], "--grace-seconds -1"),
        (["--drain-delay", "30", "--grace-seconds", "10"], "--drain-delay 30"),
        (["--grpc-socket", "s", "--grpc-port", "1"], "--grpc-socket"),
        (["--warm-only"], "--cache-dir"),
    ],
)
def test_a_wrong_flag_is_named(flags: list[str], says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        settings(*flags)
    assert says in str(refused.value)
    assert refused.value.exit_code == 2


def test_the_native_transport_is_refused_in_one_line() -> None:
    with pytest.raises(ConfigError, match="--transport native"):
        check_transport(ListenSettings(transport="native"))


def test_every_request_error_has_a_status() -> None:
    assert set(RequestError.__subclasses__()) == set(STATUS)

"""The configuration by itself: Envoy takes every variant, and nothing that is misspelt."""

from pathlib import Path

import pytest

from tests.front.proxy import MTLS, TLS, Proxy


@pytest.mark.parametrize("flags", [(), TLS, MTLS], ids=["cleartext", "tls", "mtls"])
def test_envoy_takes_every_variant(flags: tuple[str, ...], tmp_path: Path) -> None:
    assert Proxy(tmp_path, *flags).validated() == ""


def test_envoy_refuses_a_misspelt_option(tmp_path: Path) -> None:
    misspelt = {"connection_pool_per_downstream_connection: true": "connection_pool_per_downstream: true"}
    said = Proxy(tmp_path, changed=misspelt).validated()
    assert "connection_pool_per_downstream'" in said and "unknown fields" in said, said

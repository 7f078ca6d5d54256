"""A rule that may be allowed: with its reason it is recorded, shown and logged; any other is named."""

import json
import logging
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from converters import TensorSpec, export_bundle, open_bundle
from converters.describe import summary
from converters.errors import BadSpec, BundleError
from converters.lint import RULES, parse_allowed
from converters.manifest_json import parse_manifest
from jaxport.cli import main
from serve_grpc.device import open_device
from serve_grpc.loader import Loader
from serve_grpc.metrics import Metrics
from serve_grpc.settings import BatchSettings

TABLE = np.random.default_rng(0).normal(size=(4, 8192)).astype(np.float32)
WHY = "the table is a fixed vocabulary"


def looks_up(params: Any, x: jax.Array) -> jax.Array:
    return (x * params["scale"]) @ TABLE


def export(path: Path, **changes: Any) -> Path:
    arguments: dict[str, Any] = {
        "fn": looks_up,
        "params": {"scale": np.ones(4, np.float32)},
        "inputs": {"x": TensorSpec("float32", "b, 4")},
        "outputs": ("y",),
        "example": {"x": np.arange(8, dtype=np.float32).reshape(2, 4)},
        "platforms": ("cpu",),
    }
    return export_bundle(path, **(arguments | changes))


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export(tmp_path_factory.mktemp("models") / "table" / "1", allow={"JP103": WHY})


def test_what_was_allowed_is_in_the_manifest_and_shown(bundle: Path) -> None:
    found = open_bundle(bundle)
    assert found.manifest.allowed == {"JP103": WHY}
    assert f"allowed      JP103: {WHY}\n" in summary(found)


def test_a_server_logs_it_when_it_loads(bundle: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "serve_grpc"):
        Loader(open_device(), BatchSettings(max_batch=1), Metrics()).load("table", bundle, None)
    assert f"allowed model=table version=1 rule=JP103 reason='{WHY}'" in caplog.messages


def test_what_nothing_needed_is_said_and_not_recorded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = export(
        tmp_path / "m" / "1", fn=lambda params, x: x * params["scale"], allow={"JP103": WHY, "JP113": WHY}
    )
    assert "allowed" not in json.loads((path / "manifest.json").read_text())
    assert [message.partition(":")[0] for message in caplog.messages] == ["allow JP103", "allow JP113"]
    assert "nothing needed it (captured-constant); leave it out" in caplog.messages[0]


@pytest.mark.parametrize("allowed", [[], "JP103", {"JP103": 1}, {"JP103": "\ud800"}])
def test_an_allowance_that_is_no_text_is_no_manifest(bundle: Path, allowed: Any) -> None:
    manifest = json.loads((bundle / "manifest.json").read_text())
    manifest["allowed"] = allowed
    with pytest.raises(BundleError, match="a field is missing or malformed"):
        parse_manifest(json.dumps(manifest).encode(), "m")


MAY = ", ".join(code for code, rule in RULES.items() if rule.risk)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["JP999=x"], f"allow 'JP999': no such rule; those that may be allowed are {MAY}"),
        (["x"], f"allow 'x': no such rule; those that may be allowed are {MAY}"),
        (["JP107=x"], f"allow JP107: rows-mixed may never be allowed (.*); those that may be are {MAY}"),
        (["JP103"], "allow JP103: ''; the reason is needed"),
        (["JP103= "], "allow JP103: ' '; the reason is needed"),
        (["JP103=a\nb"], "the reason is needed, in one line"),
        (["JP103=a", "JP103=b"], "allow JP103: given twice"),
    ],
)
def test_what_may_not_be_allowed_is_bad_usage(
    flags: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(BadSpec, match=said):
        parse_allowed(flags)
    arguments = [argument for flag in flags for argument in ("--allow", flag)]
    assert main(["export", "--run", "none", *arguments]) == 2
    assert capsys.readouterr().err.startswith("error: allow ")


def test_a_reason_may_hold_any_sign() -> None:
    assert parse_allowed(["JP103=a=b, c"]) == {"JP103": "a=b, c"}

"""What checkov finds unsafe in terraform/: nothing, but for what is allowed with a reason written beside it."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.once import OncePerRun
from tests.terraform import workspace
from tests.terraform.toolchain import CHECKOV
from tests.terraform.workspace import SOURCE, Json

SKIP = re.compile(r"#checkov:skip=(\w+):(.*)")
# A finding that is planted: where, and the check that has to find it.
PLANTED = {
    ("cluster.tf", "enable_legacy_abac    = false", "enable_legacy_abac    = true"): "CKV_GCP_7",
    ("node-pools.tf", 'mode = "GKE_METADATA"', 'mode = "GCE_METADATA"'): "CKV_GCP_69",
    ("network.tf", "private_ip_google_access = true", "private_ip_google_access = false"): "CKV_GCP_74",
}


def scan(root: Path) -> None:
    """Writes root/found.json: what checkov says of terraform/ as it is, and of a copy with mistakes in it."""
    workspace.copied(root / "committed")
    planted = workspace.copied(root / "planted")
    for file, old, new in PLANTED:
        path = planted / file
        assert old in path.read_text(), f"{old!r} is not in {file}"
        path.write_text(path.read_text().replace(old, new))
    command = [
        str(CHECKOV),
        "--directory",
        str(root),
        "--framework",
        "terraform",
        "--skip-download",
        "--compact",
    ]
    done = subprocess.run(
        [*command, "--output", "json"],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "HOME": str(root)},
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    results = json.loads(done.stdout)
    assert results["summary"]["parsing_errors"] == 0
    (root / "found.json").write_text(json.dumps(results["results"]))


@pytest.fixture(scope="module")
def found(once: OncePerRun) -> Json:
    return json.loads((once.folder("checkov", scan) / "found.json").read_text())


def of(found: Json, outcome: str, folder: str) -> list[Json]:
    return [each for each in found[outcome] if each["file_path"].startswith(f"/{folder}/")]


def test_nothing_is_unsafe(found: Json) -> None:
    failed = of(found, "failed_checks", "committed")
    assert [(each["check_id"], each["resource"], each["check_name"]) for each in failed] == []
    assert len(of(found, "passed_checks", "committed")) >= 30


def test_what_is_planted_is_found(found: Json) -> None:
    assert set(PLANTED.values()) <= {each["check_id"] for each in of(found, "failed_checks", "planted")}


def test_what_is_allowed_has_a_reason_and_is_still_needed(found: Json) -> None:
    written = [
        (path.name, check, reason)
        for path in sorted(Path(SOURCE).glob("*.tf"))
        for check, reason in SKIP.findall(path.read_text())
    ]
    for file, check, reason in written:
        assert len(reason.split()) >= 6, f"{file}: {check} is skipped for {reason!r}"
    used = [
        (Path(each["file_path"]).name, each["check_id"], each["check_result"]["suppress_comment"])
        for each in of(found, "skipped_checks", "committed")
    ]
    assert sorted(used) == sorted(written)

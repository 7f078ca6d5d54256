"""promtool on files that a test makes. Missing, it fails the tests: nothing is left out in silence."""

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.monitoring.prometheus.cases import Case
from tests.monitoring.source import alerts

MISSING = "no {}: on Debian and Ubuntu it is in the package prometheus; .ci/run unpacks it, as apt install starts a service"


def found(command: str) -> str:
    """Its path. Raises RuntimeError with the cure."""
    path = shutil.which(command)
    if path is None:
        raise RuntimeError(MISSING.format(command))
    return path


def promtool(*arguments: str | Path) -> tuple[int, str]:
    """Exit code and what it says."""
    done = subprocess.run(
        [found("promtool"), *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False
    )
    return done.returncode, done.stdout + done.stderr


def check(folder: Path, groups: Sequence[dict[str, Any]]) -> tuple[int, str]:
    """promtool check rules, on a plain rules file."""
    file = folder / "checked.yaml"
    file.write_text(yaml.safe_dump({"groups": list(groups)}))
    return promtool("check", "rules", "--lint=all", "--lint-fatal", file)


def run(folder: Path, groups: Sequence[dict[str, Any]], cases: Sequence[Case]) -> tuple[int, str]:
    """promtool test rules: the cases against those rules of the groups that they name."""
    asked = {name for case in cases for _, name, _ in case.expect}
    some = [
        {**group, "rules": [rule for rule in group["rules"] if rule["alert"] in asked]} for group in groups
    ]
    (folder / "rules.yaml").write_text(yaml.safe_dump({"groups": some}))
    files = []
    for every in sorted({case.every for case in cases}):  # evaluated as often as there are samples
        tests = [_test(case) for case in cases if case.every == every]
        content = {"rule_files": ["rules.yaml"], "evaluation_interval": every, "tests": tests}
        files.append(folder / f"every-{every}.yaml")
        files[-1].write_text(yaml.safe_dump(content))
    return promtool("test", "rules", *files)


def _test(case: Case) -> dict[str, Any]:
    known = {alert.name: alert for alert in alerts()}
    checks = [
        {
            "eval_time": at,
            "alertname": name,
            "exp_alerts": [
                {
                    "exp_labels": {**each.labels, **known[name].labels},
                    "exp_annotations": {**known[name].annotations, "summary": each.summary},
                }
                for each in fires
            ],
        }
        for at, name, fires in case.expect
    ]
    series = [{"series": name, "values": values} for name, values in case.series.items()]
    return {"name": case.title, "interval": case.every, "input_series": series, "alert_rule_test": checks}

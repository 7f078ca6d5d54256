"""Each server's best setting: every one is tried for a short window; what was found is kept in work/peers/sweep.json."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from benchmarks.peers import candidates
from benchmarks.peers.candidates import Candidate, Setting
from benchmarks.peers.programs import Served
from benchmarks.peers.venvs import Venv
from benchmarks.peers.windows import FAULTS, await_ready, measure, reason


@dataclass(frozen=True)
class Trial:
    """What a setting gave: requests/s, 0 where it failed."""

    setting: Setting
    requests_per_s: float


class Sweep:
    """Finds and remembers. again: measures also what is remembered."""

    def __init__(self, root: Path, console: Console, *, again: bool) -> None:
        self._root, self._console, self._again = root, console, again
        self._file = root / "sweep.json"
        self._kept: dict[str, list[dict]] = json.loads(self._file.read_text()) if self._file.exists() else {}

    def trials(
        self, candidate: Candidate, model: Served, venv: Venv | None, seconds: Mapping[int, float]
    ) -> dict[int, list[Trial]]:
        """concurrency -> one trial per setting. seconds: of a window, per concurrency."""
        keys = {c: self._key(candidate, model, venv, c) for c in seconds}
        missing = {c: seconds[c] for c, key in keys.items() if self._again or key not in self._kept}
        found: dict[int, list[Trial]] = {c: [] for c in missing}
        for setting in candidate.settings if missing else ():
            for c, rate in self._rates(candidate, setting, model, venv, missing).items():
                found[c].append(Trial(setting, rate))
        for c, trials in found.items():
            self._kept[keys[c]] = [
                {"setting": dict(t.setting), "requests_per_s": t.requests_per_s} for t in trials
            ]
        self._file.write_text(json.dumps(self._kept, indent=1))
        return {c: [Trial(**trial) for trial in self._kept[keys[c]]] for c in seconds}

    def _rates(
        self,
        candidate: Candidate,
        setting: Setting,
        model: Served,
        venv: Venv | None,
        seconds: Mapping[int, float],
    ) -> dict[int, float]:
        rates = dict.fromkeys(seconds, 0.0)
        started = candidates.start(candidate, setting, model, venv and venv.python, self._root)
        try:
            await_ready(started, model)
            for concurrency, window in seconds.items():
                rates[concurrency] = measure(started, model, concurrency, window).requests_per_s
        except FAULTS as fault:
            self._console.print(f"  {candidate.name} {shown(setting)}: {reason(fault)}", markup=False)
        finally:
            started.stop()
        rounded = ", ".join(f"{rate:,.0f}/s at {c}" for c, rate in rates.items())
        self._console.print(f"  {candidate.name} {shown(setting)}: {rounded}", markup=False, highlight=False)
        return rates

    @staticmethod
    def _key(candidate: Candidate, model: Served, venv: Venv | None, concurrency: int) -> str:
        """Changes with the settings to try and with any version in the venv."""
        facts = [dict(setting) for setting in candidate.settings], venv and sorted(venv.versions.items())
        digest = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:12]
        return f"{model.name} {candidate.name} {concurrency} {digest}"


def best(trials: Sequence[Trial]) -> Setting:
    return max(trials, key=lambda trial: trial.requests_per_s).setting


def shown(setting: Setting) -> str:
    return " ".join(f"{key}={value:g}" for key, value in setting.items()) or "its defaults"

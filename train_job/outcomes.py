"""What the steps say of themselves, heard while later ones are under way; and what becomes of one that is no number."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

import jax

from train_job.errors import CheckFailed
from train_job.mesh import Votes
from train_job.settings import TrainSettings
from train_job.steps import Outcome


class Outcomes:
    """The outcomes of the steps, in their order. All processes hear the same ones, and so decide the same.

    say: takes a line for people. last_saved: gives the last step that is saved whole, None before the first.
    """

    def __init__(
        self,
        settings: TrainSettings,
        votes: Votes,
        say: Callable[[str], None],
        last_saved: Callable[[], int | None],
    ) -> None:
        self._settings, self._votes, self._say, self._last_saved = settings, votes, say, last_saved
        self._under_way: deque[tuple[int, Outcome]] = deque()
        self._skipped_in_a_row = 0
        self._begin()

    def add(self, done: int, outcome: Outcome) -> None:
        """The step that makes it `done` steps was started. Begins to fetch what it will say."""
        for value in jax.tree.leaves(outcome):
            value.copy_to_host_async()
        self._under_way.append((done, outcome))

    def settle(self, left: int = 0) -> None:
        """Hears of all steps but the last `left` that were started, waiting for them.

        Raises:
            CheckFailed: one more in a row than may be passed over has a loss or a gradient that is no number. The
            weights on the device may have been trained further by now; they must not be saved.
        """
        while len(self._under_way) > left:
            done, outcome = self._under_way.popleft()
            self._votes.settle(outcome.votes)
            self._hear(done, float(outcome.loss), float(outcome.grad_norm))

    def wait(self) -> None:
        """Returns when all steps that were started are done. Hears of none: another process may not be that far."""
        jax.block_until_ready([outcome for _, outcome in self._under_way])

    def means(self) -> dict[str, float]:
        """batch_loss and grad_norm: means over the steps since this was last asked that were not passed over."""
        count, (loss, norm) = self._count, self._sums
        self._begin()
        return {"batch_loss": loss / count, "grad_norm": norm / count} if count else {}

    def _begin(self) -> None:
        self._count, self._sums = 0, (0.0, 0.0)

    def _hear(self, done: int, loss: float, norm: float) -> None:
        if math.isfinite(loss) and math.isfinite(norm):
            self._skipped_in_a_row = 0
            self._count, self._sums = self._count + 1, (self._sums[0] + loss, self._sums[1] + norm)
            return
        self._skipped_in_a_row += 1
        allowed = self._settings.upkeep.skip_nonfinite
        found = f"loss is {loss}" if not math.isfinite(loss) else f"the gradient's norm is {norm}"
        if self._skipped_in_a_row > allowed:
            raise CheckFailed(f"{found} at step {done} {self._where(done)}; {self._cure(done)}")
        self._say(
            f"step {done}: {found} {self._where(done)}: passed over, {self._skipped_in_a_row} in a row of {allowed}"
        )

    def _where(self, done: int) -> str:
        """The batch's position: rows counted from 0 in the order that the seed draws, however often a run was stopped."""
        hyper = self._settings.hyper
        first = (done - 1) * hyper.batch_size
        return f"(rows {first} to {first + hyper.batch_size - 1} in the order of seed {hyper.seed})"

    def _cure(self, done: int) -> str:
        allowed, saved = self._settings.upkeep.skip_nonfinite, self._last_saved()
        good = "no checkpoint yet" if saved is None else f"checkpoint of step {saved}"
        if allowed:
            why = f"{self._skipped_in_a_row} in a row, and --skip-nonfinite is {allowed}"
        else:
            why = "--skip-nonfinite N passes over up to N in a row"
        if done == 1:
            return f"it came before any update: look at the loss and at those rows of the data; {why}"
        return (
            f"nothing of it is in the weights, nothing after it was saved (last good: {good}); {why}; where it comes "
            "again, start over under another --run with a smaller --set learning_rate"
        )

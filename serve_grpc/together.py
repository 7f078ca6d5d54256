"""Lanes that wait at the same time: a longer program takes shorter rows too, and one run may cost less than several."""

from collections.abc import Sequence

from serve_grpc.batcher import Batch, Batcher


def worth_joining(lanes: Sequence[Batcher], first: Batcher, brisk: bool) -> Sequence[Batcher]:
    """The lanes that should go in one run of the last of them, `first` among them; none where it should go alone.

    lanes: of one signature, ascending by length. brisk: another model waits. A lane that has more than a run to do is
    busy with its own.
    """
    best: Sequence[Batcher] = ()
    most_saved = 0.0
    for at in range(lanes.index(first), len(lanes)):
        lane = lanes[at]
        if lane is not first and not lane.waiting:
            continue
        choice = lane.choice
        most = choice.brisk if brisk else choice.largest
        rows = lane.rows
        if rows > most:
            continue
        joined, saved = [lane], 0.0
        for shorter in reversed(lanes[:at]):
            if not shorter.waiting or rows + shorter.rows > most:
                continue
            more = _seconds(lane, rows + shorter.rows) - _seconds(lane, rows)
            less = _seconds(shorter, shorter.rows)
            if more < less or shorter is first:
                joined.append(shorter)
                rows += shorter.rows
                saved += less - more
        if saved > most_saved and first in joined:
            best, most_saved = joined[::-1], saved
    return best


def taken_together(joined: Sequence[Batcher], now: float) -> Batch:
    """Everything that waits in these lanes, as a batch of the last."""
    batch = Batch(joined[-1], now)
    room = sum(lane.rows for lane in joined)
    for lane in reversed(joined):
        lane.join(batch, room)
    return batch


def _seconds(lane: Batcher, rows: int) -> float:
    """Of what waits in a lane; one that has more than a run to do is not told from one that has just that."""
    choice = lane.choice
    return choice.seconds[choice.covering[min(rows, choice.largest)]]

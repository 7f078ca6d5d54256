"""How rows become batches: the queue alone, without a device or a network."""

import threading
import time

import pytest

from serve_grpc.batcher import Account, Batch, Batcher, Work
from serve_grpc.buckets import BucketChoice, candidates, still_climbing, worth_using
from serve_grpc.scheduler import Refusal, Scheduler
from serve_grpc.transport import Call

# Every run costs the same: the largest bucket is always the best.
FLAT = BucketChoice.of({1: 1.0, 2: 1.0, 4: 1.0, 8: 1.0})
# A row costs the same in any bucket: padding is what costs.
LINEAR = BucketChoice.of({1: 1.0, 2: 1.99, 4: 3.97, 8: 7.9})


def work(
    rows: int, deadline: float | None = None, urgent: bool = False, expires: float | None = None
) -> Work:
    call = Call("/m", b"", deadline, time.monotonic(), None, None)  # type: ignore[arg-type]
    return Work(call, "test", [bytes(rows)], rows, (0,), lambda _: b"", urgent, expires)


def batcher(choice: BucketChoice = FLAT, max_rows: int = 100) -> tuple[Scheduler, Batcher]:
    return Scheduler(), Batcher(None, choice, max_rows)


def submit(scheduler: Scheduler, target: Batcher, *works: Work) -> list[Refusal]:
    return [refusal for _, _, refusal in scheduler.submit([(target, w) for w in works]).refused]


def take(scheduler: Scheduler) -> Batch:
    batch = scheduler.take(wait=False)
    assert batch is not None
    scheduler.done(batch)
    return batch


def sizes(batch: Batch) -> list[int]:
    return [stop - start for _, start, stop in batch.slices]


def test_everything_that_waits_goes_together() -> None:
    scheduler, queue = batcher()
    submit(scheduler, queue, work(1), work(2), work(3))
    assert sizes(take(scheduler)) == [1, 2, 3]
    assert scheduler.take(wait=False) is None


def test_a_request_goes_whole_and_in_turn() -> None:
    scheduler, queue = batcher()
    submit(scheduler, queue, work(5), work(5), work(1))
    assert [sizes(take(scheduler)) for _ in range(2)] == [[5], [5, 1]]


def test_a_request_larger_than_the_largest_bucket_goes_in_pieces_that_others_join() -> None:
    scheduler, queue = batcher()
    large, small = work(19), work(2)
    submit(scheduler, queue, large, small)
    assert take(scheduler).slices == [(large, 0, 8)]
    assert take(scheduler).slices == [(large, 8, 16)]
    assert take(scheduler).slices == [(large, 16, 19), (small, 0, 2)]
    assert queue.rows == 0


def test_where_rows_cost_the_same_no_padding_is_bought() -> None:
    scheduler, queue = batcher(LINEAR)
    submit(scheduler, queue, *[work(1) for _ in range(5)])
    assert [sizes(take(scheduler)) for _ in range(2)] == [[1] * 4, [1]]
    submit(scheduler, queue, work(3))
    assert sizes(take(scheduler)) == [3], "a request that fits a bucket is never split"


def test_a_full_queue_refuses_and_what_could_never_wait_is_refused_always() -> None:
    scheduler, queue = batcher(max_rows=4)
    assert submit(scheduler, queue, work(5), work(5, urgent=True)) == [Refusal.LARGE] * 2, "nothing waits"
    assert submit(scheduler, queue, work(4)) == []
    assert submit(scheduler, queue, work(1)) == [Refusal.FULL]
    assert submit(scheduler, queue, work(5)) == [Refusal.LARGE]
    while scheduler.take(wait=False):
        pass
    assert submit(scheduler, queue, work(3), work(1), work(1)) == [Refusal.FULL]


def test_a_request_that_takes_too_long_by_itself_is_refused_always_but_not_one_that_goes_in_one_run() -> None:
    scheduler = Scheduler(max_latency=5.0)
    queue = Batcher(None, FLAT, 1000)  # eight rows a second
    assert scheduler.most_rows(queue) == 40
    queue.slowdown = 0.1  # a pace that flatters changes nothing
    assert submit(scheduler, queue, work(41), work(41, urgent=True)) == [Refusal.LARGE] * 2
    assert submit(scheduler, queue, work(40)) == []
    slower = Batcher(None, BucketChoice.of({1: 50.0, 8: 50.0}), 1000)
    assert submit(scheduler, slower, work(9)) == [Refusal.LARGE]
    assert submit(scheduler, slower, work(8)) == []


def test_what_is_not_urgent_cannot_keep_the_urgent_out() -> None:
    scheduler, queue = batcher(max_rows=8)
    submit(scheduler, queue, work(8))
    assert submit(scheduler, queue, work(1)) == [Refusal.FULL]
    assert submit(scheduler, queue, work(6, urgent=True), work(2, urgent=True)) == []
    assert submit(scheduler, queue, work(1, urgent=True)) == [Refusal.FULL], "twice --max-queue at most"
    assert queue.rows == 16 and queue.urgent_rows == 8
    assert take(scheduler).rows == 8 and (queue.rows, queue.urgent_rows) == (8, 0)
    assert submit(scheduler, queue, work(8, urgent=True)) == []


def test_expired_and_cancelled_requests_leave_without_a_run() -> None:
    scheduler, queue = batcher()
    now = time.monotonic()
    late, gone, old, right = (
        work(1, deadline=now - 1),
        work(1),
        work(1, expires=now - 1),
        work(1, deadline=now + 60, expires=now + 60),
    )
    gone.call.cancelled = True
    submit(scheduler, queue, late, gone, old, right)
    batch = take(scheduler)
    assert (batch.late, batch.cancelled, batch.expired) == ([late], [gone], [old])
    assert [entry[0] for entry in batch.slices] == [right]
    assert queue.rows == 0


def test_a_failed_piece_takes_the_rest_of_its_request_along() -> None:
    scheduler, queue = batcher()
    large, small = work(20), work(1)
    submit(scheduler, queue, large, small)
    take(scheduler)
    large.answered = True
    assert [entry[0] for entry in take(scheduler).slices] == [small]
    assert queue.rows == 0


def test_models_take_turns() -> None:
    scheduler, first = batcher()
    second = Batcher(None, FLAT, 100)
    submit(scheduler, first, *[work(8) for _ in range(3)])
    submit(scheduler, second, work(1))
    assert [take(scheduler).batcher for _ in range(4)] == [first, second, first, first]


def test_each_model_gets_its_share_of_the_device_not_of_the_turns() -> None:
    scheduler = Scheduler()
    slow = Batcher(None, BucketChoice.of({1: 0.1}), 100)
    fast = Batcher(None, BucketChoice.of({1: 0.01}), 100)
    submit(scheduler, slow, *[work(1) for _ in range(3)])
    submit(scheduler, fast, *[work(1) for _ in range(12)])
    took = [take(scheduler).batcher for _ in range(15)]
    assert took.index(slow) == 0
    first = took.index(slow, 1)
    assert 10 <= first <= 12, "ten runs of the fast one cost what one of the slow one does"


def test_an_idle_model_saves_up_no_share() -> None:
    scheduler, busy = batcher()
    idle = Batcher(None, FLAT, 100)
    submit(scheduler, busy, *[work(8) for _ in range(10)])
    for _ in range(8):
        take(scheduler)
    submit(scheduler, idle, *[work(8) for _ in range(4)])
    assert [take(scheduler).batcher for _ in range(4)].count(busy) == 2


def test_a_batch_is_short_while_another_model_waits() -> None:
    scheduler = Scheduler()
    slow = Batcher(None, BucketChoice.of({1: 0.1, 2: 0.2, 4: 0.39, 8: 0.78}), 100)
    fast = Batcher(None, BucketChoice.of({1: 0.001}), 100)
    submit(scheduler, slow, *[work(1) for _ in range(9)])
    assert len(take(scheduler).slices) == 8, "alone it takes all it wants"
    submit(scheduler, fast, work(1))
    assert take(scheduler).batcher is fast
    submit(scheduler, slow, *[work(1) for _ in range(8)])
    assert len(take(scheduler).slices) == 1


def lanes(*choices: BucketChoice) -> list[Batcher]:
    """Queues that are one model's, ascending by length."""
    account = Account()
    account.lanes = [Batcher(None, choice, 100, account=account) for choice in choices]
    return list(account.lanes)


def test_the_lanes_of_a_model_have_one_share_together() -> None:
    scheduler = Scheduler()
    mine, other = lanes(FLAT, FLAT, FLAT), Batcher(None, FLAT, 100)
    for queue in (*mine, other):
        submit(scheduler, queue, *[work(8) for _ in range(6)])
    took = [take(scheduler).batcher for _ in range(8)]
    assert took.count(other) == 4, "half, not a quarter"


def test_the_lanes_of_a_model_do_not_shorten_each_others_batches() -> None:
    scheduler = Scheduler()
    slow = BucketChoice.of({1: 0.1, 2: 0.2, 4: 0.39, 8: 0.78})
    mine = lanes(slow, slow)
    for queue in mine:
        submit(scheduler, queue, *[work(1) for _ in range(16)])
    assert [len(take(scheduler).slices) for _ in range(4)] == [8, 8, 8, 8]
    for queue in mine:
        submit(scheduler, queue, *[work(1) for _ in range(8)])
    submit(scheduler, Batcher(None, FLAT, 100), work(1, urgent=True))
    take(scheduler)
    assert len(take(scheduler).slices) == 1, "another model does"


def test_of_the_lanes_of_a_model_goes_the_one_that_waits_longest() -> None:
    scheduler = Scheduler()
    busy, quiet, last = lanes(FLAT, FLAT, FLAT)
    submit(scheduler, busy, work(8))
    submit(scheduler, quiet, work(8))
    submit(scheduler, busy, *[work(8) for _ in range(5)])
    submit(scheduler, last, work(8))
    assert [take(scheduler).batcher for _ in range(4)] == [busy, quiet, busy, busy]


def test_lanes_go_together_where_one_run_costs_less_than_theirs() -> None:
    """As on a device that is as long for a row as for eight: a longer program takes shorter rows too."""
    scheduler = Scheduler()
    short, middle, long = lanes(FLAT, BucketChoice.of({1: 1.1, 8: 1.1}), BucketChoice.of({1: 1.3, 8: 1.3}))
    works = [work(2), work(3), work(1)]
    for queue, each in zip((middle, short, long), works, strict=True):
        submit(scheduler, queue, each)
    batch = scheduler.take()
    assert batch is not None and batch.batcher is long and batch.rows == 6
    assert {entry for entry, _, _ in batch.slices} == set(works)
    assert scheduler.take(wait=False) is None
    assert short.account.spent == 1.3 and long.running == 1 and long.rows_running == 6
    scheduler.done(batch)
    assert (long.running, long.rows_running) == (0, 0)


def test_lanes_go_apart_where_length_is_what_costs_but_for_rows_that_would_be_padding() -> None:
    scheduler = Scheduler()
    short = BucketChoice.of({1: 1.0, 2: 2.0, 4: 4.0, 8: 8.0})
    long = BucketChoice.of({1: 4.0, 2: 8.0, 4: 16.0, 8: 32.0})
    two = lanes(short, long)
    submit(scheduler, two[0], work(2))
    submit(scheduler, two[1], work(4))
    assert [take(scheduler).batcher for _ in range(2)] == two
    submit(scheduler, two[1], work(3))
    submit(scheduler, two[0], work(1))
    batch = take(scheduler)
    assert batch.batcher is two[1] and batch.rows == 4, "the fourth row costs nothing"
    submit(scheduler, two[1], work(8))
    submit(scheduler, two[0], work(8), work(8))
    assert [take(scheduler).rows for _ in range(3)] == [8, 8, 8], "full runs are not joined"


def test_what_nobody_waits_for_any_more_is_set_aside_when_lanes_go_together() -> None:
    scheduler = Scheduler()
    short, long = lanes(FLAT, FLAT)
    late, dead, alive = work(1, deadline=time.monotonic() - 1), work(1), work(1)
    dead.call.cancelled = True
    submit(scheduler, short, late, alive)
    submit(scheduler, long, dead, work(2, urgent=True))
    batch = take(scheduler)
    assert (batch.rows, batch.late, batch.cancelled) == (3, [late], [dead])
    assert not (short.waiting or long.waiting or short.rows or long.rows)


def test_urgent_requests_go_first_and_among_themselves_in_order() -> None:
    scheduler, queue = batcher()
    one, two, three, four = work(8), work(3, urgent=True), work(1), work(2, urgent=True)
    submit(scheduler, queue, one, two, three, four)
    assert [entry[0] for entry in take(scheduler).slices] == [two, four]
    assert [entry[0] for entry in take(scheduler).slices] == [one]
    assert [entry[0] for entry in take(scheduler).slices] == [three]
    other = Batcher(None, FLAT, 100)
    submit(scheduler, queue, work(1), work(1))
    submit(scheduler, other, work(1, urgent=True))
    assert take(scheduler).batcher is other


def test_a_request_that_would_be_answered_too_late_is_refused_and_an_urgent_one_is_not() -> None:
    scheduler = Scheduler(max_latency=5.0)
    queue = Batcher(None, FLAT, 1000)  # eight rows a second
    assert submit(scheduler, queue, work(40)) == [], "one that nothing stands before is taken"
    batch = scheduler.take()
    assert batch is not None
    assert submit(scheduler, queue, work(1)) == [Refusal.SLOW]
    assert submit(scheduler, queue, work(1, urgent=True)) == []
    scheduler.done(batch)
    small = Batcher(None, FLAT, 1000)
    assert submit(scheduler, small, *[work(8) for _ in range(3)]) == []
    assert submit(scheduler, small, work(8)) == [Refusal.SLOW]


def test_what_the_last_batches_took_tells_how_long_the_next_will() -> None:
    scheduler = Scheduler()
    queue = Batcher(None, BucketChoice.of({1: 0.001, 2: 0.002}), 1000)
    submit(scheduler, queue, *[work(1) for _ in range(60)])
    for _ in range(20):
        batch = scheduler.take()
        assert batch is not None
        time.sleep(0.01)  # five times as long as alone
        scheduler.done(batch)
    assert 0.05 < queue.seconds_until(0) < 0.5, "twenty rows of 5 ms, not of 1"


def test_a_batch_that_is_not_full_waits_only_where_that_is_asked_for() -> None:
    scheduler = Scheduler()
    patient = Batcher(None, FLAT, 100, max_delay=0.2)
    submit(scheduler, patient, work(3))
    assert scheduler.take(wait=False) is None
    began = time.monotonic()
    batch = scheduler.take()
    assert batch is not None
    assert time.monotonic() - began > 0.1
    scheduler.done(batch)
    submit(scheduler, patient, work(3), work(5))
    assert sizes(take(scheduler)) == [3, 5], "a full one goes at once"


def test_callers_who_were_just_answered_are_waited_for_a_moment_and_nobody_else_is() -> None:
    """Eight callers who ask again at once make one batch of eight, not one of the first and one of the rest."""
    scheduler, queue = batcher()
    submit(scheduler, queue, *[work(1) for _ in range(4)])
    batch = scheduler.take()
    assert batch is not None
    batch.taken -= 10.0  # the run took so long, of which two in a hundred are 0.2 s
    scheduler.done(batch)
    submit(scheduler, queue, work(1))
    assert scheduler.take(wait=False) is None
    submit(scheduler, queue, work(3))
    assert sizes(take(scheduler)) == [1, 3], "all of them are back"
    time.sleep(0.002)
    submit(scheduler, queue, work(1))
    assert sizes(take(scheduler)) == [1], "that run was too short to wait for"


def test_callers_who_do_not_come_back_hold_the_others_up_for_a_moment_only() -> None:
    scheduler, queue = batcher()
    submit(scheduler, queue, *[work(1) for _ in range(4)])
    batch = scheduler.take()
    assert batch is not None
    batch.taken -= 5.0
    scheduler.done(batch)
    submit(scheduler, queue, work(1))
    began = time.monotonic()
    batch = scheduler.take()
    assert batch is not None
    assert 0.05 < time.monotonic() - began < 5, "as long as the run"
    scheduler.done(batch)


def test_short_runs_are_given_to_the_thread_that_received_them_while_the_device_is_idle() -> None:
    quick = Batcher(None, BucketChoice.of({1: 1e-4, 2: 1e-4}), 100)
    long = Batcher(None, FLAT, 100)
    scheduler = Scheduler()
    assert scheduler.submit([(quick, work(1))], run_here=True).mine
    assert not scheduler.submit([(quick, work(1))], run_here=True).mine, "somebody runs it already"
    assert scheduler.take(wait=False) is None, "nobody else may"
    batch = scheduler.take_mine()
    assert batch is not None
    assert sizes(batch) == [1, 1]
    scheduler.done(batch)
    assert scheduler.take_mine() is None
    assert not scheduler.submit([(quick, work(1)), (long, work(1))], run_here=True).mine
    running = scheduler.take()
    assert running is not None
    assert not scheduler.submit([(quick, work(1))], run_here=True).mine, "the device is busy"


def test_closing_waits_for_what_was_accepted_and_refuses_the_rest() -> None:
    scheduler, queue = batcher()
    submit(scheduler, queue, work(1))
    closed = threading.Event()
    thread = threading.Thread(target=lambda: (scheduler.close(queue), closed.set()))
    thread.start()
    batch = scheduler.take()
    assert batch is not None
    assert not closed.wait(0.05), "the batch is still on the device"
    assert submit(scheduler, queue, work(1)) == [Refusal.CLOSED]
    scheduler.done(batch)
    assert closed.wait(5)
    thread.join()


def test_a_stopped_scheduler_finishes_what_waits() -> None:
    scheduler, queue = batcher()
    submit(scheduler, queue, work(1))
    scheduler.stop()
    assert sizes(take(scheduler)) == [1]
    assert scheduler.take() is None


@pytest.mark.parametrize(
    ("most", "sizes"),
    [(1, (1,)), (2, (1, 2)), (8, (1, 2, 4, 8)), (6, (1, 2, 4, 6)), (64, (1, 2, 4, 8, 16, 32, 64))],
)
def test_candidate_buckets(most: int, sizes: tuple[int, ...]) -> None:
    assert candidates(most) == sizes


@pytest.mark.parametrize(
    ("seconds", "used"),
    [
        ({1: 1.0, 2: 1.0, 4: 1.0}, [1, 2, 4]),
        ({1: 1.0, 2: 2.0, 4: 4.0}, [1]),
        ({1: 1.0, 2: 1.99, 4: 3.8}, [1, 4]),  # each compared with the best in use
        ({1: 1.0, 2: 1.0, 4: 3.0, 8: 3.8}, [1, 2, 8]),
        ({1: 1.0, 2: 1.0, 4: 1.5, 8: 9.0}, [1, 2, 4]),
        ({1: 5.0, 2: 15.0}, [1]),
        ({1: 1e-5, 2: 2e-5, 4: 4e-5}, [1, 2, 4]),  # what a run costs beside its seconds is shared by its rows
    ],
)
def test_a_bucket_that_adds_no_throughput_is_not_used(seconds: dict[int, float], used: list[int]) -> None:
    assert list(worth_using(seconds)) == used


@pytest.mark.parametrize(
    ("seconds", "goes_on"),
    [
        ({1: 1.0}, True),
        ({1: 1.0, 2: 2.0, 4: 4.0}, True),
        ({1: 1.0, 2: 2.0, 4: 4.0, 8: 8.0}, False),
        ({1: 1.0, 2: 1.0, 4: 2.0, 8: 4.0}, True),
        ({1: 1.0, 2: 1.0, 4: 2.0, 8: 4.0, 16: 8.0}, False),
        ({1: 1.0, 2: 2.0, 4: 4.0, 8: 7.0}, True),
    ],
)
def test_no_larger_bucket_is_tried_once_three_add_nothing(seconds: dict[int, float], goes_on: bool) -> None:
    assert still_climbing(seconds) is goes_on


@pytest.mark.parametrize(("waiting", "goes"), [(0, 1), (1, 1), (3, 2), (4, 4), (6, 4), (7, 8), (8, 8)])
def test_the_bucket_for_what_waits_where_rows_cost_the_same(waiting: int, goes: int) -> None:
    """One row of padding in eight is worth a run less; two are not."""
    assert LINEAR.target[waiting] == goes


def test_the_bucket_for_what_waits_where_every_run_costs_the_same() -> None:
    assert FLAT.target == (1, 1, 2, 4, 4, 8, 8, 8, 8)
    assert FLAT.covering == (1, 1, 2, 4, 4, 8, 8, 8, 8)

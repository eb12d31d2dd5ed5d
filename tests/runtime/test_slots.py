"""Rollouts and policies handed over between a collector's thread and the learner."""

from __future__ import annotations

import random
import threading
import traceback
from collections.abc import Callable
from time import perf_counter, sleep

import numpy as np
import pytest
from numpy.typing import NDArray

from unilab.errors import PhysicsError, UnilabError
from unilab.runtime import free_running
from unilab.runtime.free_running import FreeRunning
from unilab.runtime.slots import Handover, HandoverClosedError, SlotState, Snapshots

WIDTH = 257
Payload = NDArray[np.int64]
Check = Callable[[], None]


def payloads(count: int) -> list[Payload]:
    return [np.full(WIDTH, -1, np.int64) for _ in range(count)]


def fill(payload: Payload, mark: int, pause: Callable[[], None]) -> None:
    """Write a payload in two halves; an untorn one holds one mark throughout."""
    payload[: WIDTH // 2] = mark
    pause()
    payload[WIDTH // 2 :] = mark


def mark_of(payload: Payload) -> int:
    assert (payload == payload[0]).all(), f"torn: {np.unique(payload)}"
    return int(payload[0])


def stress(handovers: int, slots: int, max_lag: int, seed: int) -> list[int]:
    """Hand over that many rollouts under random delays and check each. Returns the lags.

    Now and then the collector is held, and what is ready is taken meanwhile. It ends by itself.
    """
    delays = {"collect": random.Random(seed), "learn": random.Random(seed + 1)}

    def pause(side: str) -> None:
        draw = delays[side].random()
        if draw < 0.02:
            sleep(draw / 20)  # up to 1 ms
        elif draw < 0.2:
            sleep(0)  # let the other thread run

    written: list[tuple[int, int]] = []  # policy and previous rollout, of each rollout

    def collect(policy: Payload, rollout: Payload, previous: Payload | None, check: Check) -> None:
        version = mark_of(policy)
        pause("collect")
        number = len(written)
        fill(rollout, number, lambda: pause("collect"))
        check()
        assert mark_of(policy) == version, "the policy changed while it acted"
        written.append((version, -1 if previous is None else id(previous)))

    policies = (np.zeros(WIDTH, np.int64), np.zeros(WIDTH, np.int64))
    lags = []

    def learn(running: FreeRunning[Payload, Payload]) -> None:
        number = len(lags)
        with running.rollout() as slot:
            assert slot.state is SlotState.READING
            assert slot.number == number == mark_of(slot.payload)
            pause("learn")
            assert mark_of(slot.payload) == number, "overwritten while it was read"
            lags.append(running.handover.version - slot.version)
            assert slot.version == written[number][0]
            running.publish(lambda copy: fill(copy, number + 1, lambda: pause("learn")))

    with FreeRunning(
        payloads(slots), policies, collect, max_lag=max_lag, count=handovers
    ) as running:
        while len(lags) < handovers:
            learn(running)
            if len(lags) % 50 == 0:
                with running.paused():
                    while running.handover.ready:
                        learn(running)
                    assert len(lags) == len(written)
        running._thread.join(5)
        assert not running._thread.is_alive()
    assert running.handover.version == handovers == len(written)
    assert running.handover.ready == 0
    return lags


@pytest.mark.parametrize(("slots", "max_lag"), [(2, 1), (3, 2), (2, 5), (6, 5)])
def test_nothing_is_torn_lost_repeated_or_too_old(slots: int, max_lag: int) -> None:
    lags = stress(500, slots, max_lag, seed=slots)
    assert min(lags) >= 0
    assert max(lags) <= max_lag


@pytest.mark.slow
@pytest.mark.parametrize(("slots", "max_lag"), [(2, 1), (3, 2)])
def test_nothing_is_torn_lost_repeated_or_too_old_in_very_many(slots: int, max_lag: int) -> None:
    lags = stress(50_000, slots, max_lag, seed=slots)
    assert min(lags) >= 0
    assert max(lags) <= max_lag


@pytest.mark.parametrize("first", [0, 7])
def test_a_collector_that_runs_ahead_is_held_back_at_the_lag(first: int) -> None:
    begun: list[int] = []

    def collect(policy: Payload, rollout: Payload, previous: object, check: Check) -> None:
        begun.append(int(policy[0]))

    policies = (np.full(1, first), np.full(1, first))
    with FreeRunning(payloads(8), policies, collect, max_lag=2, version=first) as running:
        for updates in range(4):
            sleep(0.05)
            assert len(begun) == updates + 3  # rollouts 0 to updates + max_lag
            assert begun == [first] * 3 + list(range(first + 1, first + updates + 1))
            with running.rollout() as slot:
                assert running.handover.version - slot.version == min(updates, 2)
                running.publish(lambda copy, v=first + updates + 1: copy.fill(v))
    metrics = running.handover.take_metrics()
    assert metrics["handover/lag_max"] == 2
    assert metrics["handover/lag_mean"] == pytest.approx((0 + 1 + 2 + 2) / 4)
    assert metrics["handover/rollouts"] == 4
    assert metrics["handover/collector_wait_s"] > 0.1
    assert running.handover.take_metrics()["handover/rollouts"] == 0


def test_without_a_free_slot_the_collector_waits_and_never_overwrites() -> None:
    handover = Handover(payloads(2), max_lag=9)
    for mark in range(2):
        with handover.writing() as slot:
            slot.version = 0
            fill(slot.payload, mark, lambda: None)
    entered = threading.Event()

    def write() -> None:
        with handover.writing() as slot:
            slot.version = 0
            entered.set()

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    assert not entered.wait(0.1)
    with handover.reading() as slot:
        assert mark_of(slot.payload) == 0
        assert not entered.wait(0.1)  # being read is not free
    assert entered.wait(2)
    thread.join(2)
    assert [s.number for s in handover.slots] == [2, 1]


def test_a_learner_that_publishes_nothing_is_found_out() -> None:
    handover = Handover(payloads(2), max_lag=1)
    for _ in range(2):
        with handover.writing() as slot:
            slot.version = 0
        with handover.reading():
            pass
    with pytest.raises(AssertionError, match="behind the learner"), handover.writing() as slot:
        slot.version = 0


def broken_physics() -> None:
    raise PhysicsError("the cart left the rail", [3])


def test_an_error_of_the_collector_reaches_the_learner_with_its_traceback() -> None:
    def collect(policy: object, rollout: object, previous: object, check: Check) -> None:
        if previous is not None:
            broken_physics()

    taken = 0
    running = FreeRunning(payloads(2), ([0], [0]), collect, max_lag=1)

    def learn() -> None:
        nonlocal taken
        with running:
            while True:
                with running.rollout():
                    taken += 1
                    running.publish(lambda copy: None)

    with pytest.raises(PhysicsError, match="left the rail") as caught:
        learn()
    assert taken <= 1
    names = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert "broken_physics" in names
    assert not running._thread.is_alive()


def test_an_error_of_the_learner_reaches_the_collector_with_its_traceback() -> None:
    seen: list[BaseException] = []

    def collect(policy: object, rollout: object, previous: object, check: Check) -> None:
        try:
            while previous is not None:
                check()
                sleep(0.001)
        except HandoverClosedError as closed:
            seen.append(closed)
            raise

    running = FreeRunning(payloads(2), ([0], [0]), collect, max_lag=1)

    def broken_update() -> None:
        with running, running.rollout():
            sleep(0.05)
            raise ValueError("a bad update")

    with pytest.raises(ValueError, match="a bad update"):
        broken_update()
    (closed,) = seen
    assert isinstance(closed.__cause__, ValueError)
    names = [frame.name for frame in traceback.extract_tb(closed.__cause__.__traceback__)]
    assert "broken_update" in names
    assert not running._thread.is_alive()


def test_an_error_of_the_collector_after_the_last_update_is_not_lost() -> None:
    failing = threading.Event()

    def collect(policy: object, rollout: object, previous: object, check: Check) -> None:
        if previous is not None:
            failing.set()
            broken_physics()

    running = FreeRunning(payloads(2), ([0], [0]), collect, max_lag=1)

    def learn() -> None:
        with running, running.rollout():
            running.publish(lambda copy: None)
            assert failing.wait(2)

    with pytest.raises(PhysicsError, match="left the rail"):
        learn()


def test_stopping_ends_a_collector_in_the_middle_of_a_rollout_at_once() -> None:
    started = threading.Event()

    def collect(policy: object, rollout: object, previous: object, check: Check) -> None:
        while True:
            check()
            started.set()
            sleep(0.001)

    with FreeRunning(payloads(2), ([0], [0]), collect, max_lag=1) as running:
        assert started.wait(2)
        begin = perf_counter()
    assert perf_counter() - begin < 1
    assert not running._thread.is_alive()
    running.stop()


def test_a_collector_that_hangs_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(free_running, "STOP_S", 0.05)
    release = threading.Event()

    def collect(policy: object, rollout: object, previous: object, check: Check) -> None:
        release.wait(5)

    with (
        pytest.raises(UnilabError, match="has not ended"),
        FreeRunning(payloads(2), ([0], [0]), collect, max_lag=1),
    ):
        sleep(0.02)
    release.set()


def test_while_paused_nothing_is_collected_and_then_it_goes_on() -> None:
    steps = [0]

    def collect(policy: object, rollout: object, previous: object, check: Check) -> None:
        for _ in range(3):
            steps[0] += 1
            sleep(0.002)

    with FreeRunning(payloads(3), ([0], [0]), collect, max_lag=2) as running:
        for _ in range(10):
            with running.paused():
                before = steps[0]
                assert before % 3 == 0  # between two rollouts
                sleep(0.01)
                assert steps[0] == before
            with running.rollout():
                running.publish(lambda copy: None)
    assert steps[0] >= 30


def test_a_pause_within_a_pause_ends_with_the_outer_one() -> None:
    steps = [0]

    def collect(policy: object, rollout: object, previous: object, check: Check) -> None:
        steps[0] += 1

    with FreeRunning(payloads(9), ([0], [0]), collect, max_lag=8) as running, running.rollout():
        with running.paused():
            with running.paused():
                before = steps[0]
            sleep(0.05)
            assert steps[0] == before
        running.publish(lambda copy: None)


@pytest.mark.parametrize("held", [False, True])
def test_a_copy_that_is_held_is_never_written(held: bool) -> None:
    snapshots = Snapshots([0], [0])
    if not held:
        for version in (1, 2, 3):
            snapshots.publish(version, lambda copy, v=version: copy.__setitem__(0, v))
            with snapshots.newest() as (found, copy):
                assert found == copy[0] == version
        return
    snapshots.publish(1, lambda copy: copy.__setitem__(0, 1))
    with snapshots.newest() as (found, copy):
        for version in (2, 3, 4):
            snapshots.publish(version, lambda other, v=version: other.__setitem__(0, v))
            assert found == copy[0] == 1
    with snapshots.newest() as (found, copy):
        assert found == copy[0] == 4


@pytest.mark.parametrize(
    ("collect_s", "learn_s", "limit"),
    [(0.06, 0.02, 1.05), (0.02, 0.06, 1.05), (0.04, 0.04, 1.15)],
    ids=["3:1", "1:3", "1:1"],
)
@pytest.mark.parametrize("max_lag", [1, 2])
def test_an_iteration_takes_as_long_as_the_slower_side(
    collect_s: float, learn_s: float, limit: float, max_lag: int
) -> None:
    def collect(policy: object, rollout: object, previous: object, check: Check) -> None:
        sleep(collect_s)

    slowest, iterations = max(collect_s, learn_s), 12
    with FreeRunning(payloads(max_lag + 1), ([0], [0]), collect, max_lag=max_lag) as running:

        def iterate() -> None:
            with running.rollout():
                sleep(learn_s)
                running.publish(lambda copy: None)

        for _ in range(3):
            iterate()
        for _ in range(6):  # the machine may be busy with something else for a moment
            begin = perf_counter()
            for _ in range(iterations):
                iterate()
            found = (perf_counter() - begin) / iterations
            if found <= limit * slowest:
                break
    assert 0.95 * slowest <= found <= limit * slowest

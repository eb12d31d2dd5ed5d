"""When a run counts as stalled: by its signs of life, its process, and the length of its steps."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.monitor.support import row, status
from unilab.monitor.stall import BLACKOUT_S, BUSY_S, IDLE_S, STOPPED_S, StallDetector


def watch(detector, seconds, *, beats=None, state="sleeping", cores=0.0, start=0.0, first=None):
    """Look once a second; `beats(t)` is the run's count at a time. Returns when it was flagged."""
    made = status() if first is None else first
    for t in range(int(seconds) + 1):
        now = replace(made, beats=beats(t) if beats is not None else made.beats)
        stall = detector.update(start + t, now, 0.0, state, cores)
        if stall is not None:
            return t, stall
    return None, None


def test_a_run_that_beats_never_stalls():
    assert watch(StallDetector(), 600, beats=lambda t: t)[0] is None


def test_a_stopped_process_is_flagged_within_seconds():
    t, stall = watch(StallDetector(), 20, state="stopped")
    assert STOPPED_S < t < 10
    assert "stopped by a signal" in stall.why
    assert stall.seconds == pytest.approx(t)


def test_a_process_that_waits_without_cpu_is_flagged_within_ten_seconds():
    detector = StallDetector()
    detector.learn(row(1))
    t, stall = watch(detector, 20)
    assert IDLE_S < t < 10
    assert "no CPU" in stall.why


def test_a_step_as_long_as_those_before_is_no_stall():
    detector = StallDetector()
    long = replace(row(1), exposed_ms={"learn": 20_000.0, "physics": 10.0})
    detector.learn(long)  # an update of 20 s, which a GPU does without any CPU
    t, _ = watch(detector, 200)
    assert 60 <= t < 65


def test_long_gaps_between_beats_are_learnt():
    detector = StallDetector()
    assert watch(detector, 100, beats=lambda t: t // 10)[0] is None  # before a step is known
    last = status(beats=11)
    t, _ = watch(detector, 100, start=101.0, first=last)
    assert 30 <= t < 35  # three of the gaps of 10 s


def test_a_process_that_computes_gets_more_time():
    detector = StallDetector()
    detector.learn(row(1))
    t, stall = watch(detector, 200, cores=1.0)
    assert BUSY_S < t < BUSY_S + 3
    assert "computes" in stall.why


def test_before_the_first_iteration_is_done_there_is_patience():
    first = status(iteration=0, beats=0)
    t, _ = watch(StallDetector(), 100, first=first)
    assert 30 < t < 33


def test_a_run_of_a_version_without_beats_is_judged_by_its_iterations():
    detector = StallDetector()
    detector.learn(row(1))
    t, _ = watch(detector, 60, first=status(beats=None))
    assert IDLE_S < t < 10


def test_an_ended_run_does_not_stall():
    assert watch(StallDetector(), 300, first=status(state="finished"))[0] is None


def test_silence_before_the_watch_counts():
    detector = StallDetector()
    detector.learn(row(1))
    stall = detector.update(5.0, status(), 100.0, "sleeping", 0.0)
    assert stall is not None
    assert stall.seconds == pytest.approx(100.0)


def test_time_in_which_the_monitor_itself_could_not_look_does_not_count():
    detector = StallDetector()
    detector.learn(row(1))
    assert detector.update(0.0, status(), 0.0, "sleeping", 1.0) is None
    assert detector.update(1.0, status(), 0.0, "sleeping", 0.0) is None
    after = 1.0 + 20 * BLACKOUT_S
    assert detector.update(after, status(), 0.0, "sleeping", 0.0) is None
    assert watch(detector, 30, start=after + 1.0)[0] is not None

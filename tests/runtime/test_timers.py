"""Exposed spans and "other" add up to the total; busy times and the trace are kept beside."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from time import perf_counter_ns, sleep

import pytest

from tests.runtime.support import built_task, running, step_all, waves
from unilab.runtime.timers import Timers


def exposed(times: dict[str, float]) -> float:
    return sum(v for k, v in times.items() if k.startswith("stage/") and k != "iteration_ms")


def test_exposed_times_of_a_pipeline_add_up_to_the_total() -> None:
    timers = Timers()
    with running(built_task("cartpole"), 128, timers=timers) as pipeline:
        timers.take()
        for t in range(20):
            step_all(pipeline, waves(t, slice(0, 128), 1))
        times = timers.take()
    assert exposed(times) == pytest.approx(times["iteration_ms"], rel=1e-9)
    assert {"stage/kernel_ms", "stage/physics_ms", "stage/reset_ms", "stage/other_ms"} <= set(times)
    assert min(times.values()) > 0.0
    assert times["busy/kernel_ms"] == pytest.approx(times["stage/kernel_ms"])
    assert times["busy/physics_ms"] <= times["stage/physics_ms"]


def test_take_starts_anew() -> None:
    timers = Timers()
    with timers.span("a", busy="kernel"):
        sleep(0.002)
    assert timers.take()["stage/a_ms"] >= 2.0
    times = timers.take()
    assert set(times) == {"stage/other_ms", "iteration_ms"}
    assert times["iteration_ms"] < 2.0


def test_a_span_that_take_falls_into_is_cut_in_two() -> None:
    timers = Timers()
    with timers.span("log"):
        sleep(0.01)
        first = timers.take()
        sleep(0.005)
    second = timers.take()
    for times, least in ((first, 10.0), (second, 5.0)):
        assert times["stage/log_ms"] >= least
        assert times["stage/other_ms"] >= 0.0
        assert exposed(times) == pytest.approx(times["iteration_ms"], rel=1e-9)
    assert second["stage/log_ms"] < 15.0


def test_a_beat_comes_where_spans_end_and_not_more_often_than_asked_for() -> None:
    timers, beats = Timers(), []
    with timers.span("a"):
        pass  # nobody watches yet
    timers.watch(lambda: beats.append(perf_counter_ns()), 0.02)
    begin = perf_counter_ns()
    while perf_counter_ns() - begin < 0.1e9:
        with timers.span("a"):
            pass
    took_s = (perf_counter_ns() - begin) * 1e-9
    assert 2 <= len(beats) <= took_s / 0.02 + 1
    assert min(b - a for a, b in pairwise(beats)) > 0.015e9  # a beat is noted a little late


def test_a_span_inside_a_span_is_counted_once() -> None:
    timers = Timers()
    with timers.span("outer", busy="resource"):
        sleep(0.004)
        with timers.span("inner"):
            sleep(0.008)
        sleep(0.004)
    times = timers.take()
    assert exposed(times) == pytest.approx(times["iteration_ms"], rel=1e-9)
    assert times["stage/inner_ms"] >= 8.0
    assert times["stage/outer_ms"] >= 8.0
    assert times["busy/resource_ms"] == pytest.approx(
        times["stage/inner_ms"] + times["stage/outer_ms"]
    )


def test_a_span_is_closed_when_its_body_raises() -> None:
    timers = Timers(trace=True)
    with pytest.raises(KeyError), timers.span("a", busy="b", group=3):
        raise KeyError
    with timers.span("c"):
        pass
    times = timers.take()
    assert exposed(times) == pytest.approx(times["iteration_ms"], rel=1e-9)
    assert "busy/b_ms" in times
    assert timers.trace is not None
    assert [(span.name, span.group) for span in timers.trace] == [("a", 3), ("c", -1)]


def test_busy_time_of_another_thread_is_not_exposed() -> None:
    timers = Timers(trace=True)
    now = perf_counter_ns()
    timers.add_busy("physics", (now - 3_000_000, now), group=1)
    timers.add_busy("physics", (now, now + 4_000_000), group=0)
    times = timers.take()
    assert times["busy/physics_ms"] == pytest.approx(7.0)
    assert "stage/physics_ms" not in times
    assert timers.trace is not None
    first = timers.trace[0]
    assert (first.name, first.group, first.end_ns - first.begin_ns) == (
        "busy/physics", 1, 3_000_000,
    )  # fmt: skip


def test_no_trace_is_kept_unless_asked_for() -> None:
    timers = Timers()
    with timers.span("a"):
        pass
    assert timers.trace is None


def test_busy_time_taken_by_another_thread_is_not_lost() -> None:
    timers, count = Timers(), 20_000
    taken = 0.0
    with ThreadPoolExecutor(1) as other:

        def work() -> None:
            for _ in range(count):
                timers.add_busy("physics", (0, 1_000_000))

        adding = other.submit(work)
        while not adding.done():
            taken += timers.take_busy().get("busy/physics_ms", 0.0)
        adding.result()
    taken += timers.take_busy().get("busy/physics_ms", 0.0)
    assert taken == pytest.approx(count)

"""Scheduling never changes values: shards, groups, threads and overlap give the same bits."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from tests.runtime.support import Recorder, built_task, difference, plan, running, waves
from unilab.runtime.timers import Span, Timers

NUM_ENVS, STEPS = 512, 500
# Short episodes and frequent pushes, so that much happens in few steps.
BUSY = (
    "episode.length_s=1.0",
    "events.push.min_s=0.2",
    "events.push.max_s=0.6",
    "commands.velocity.resample_min_s=0.2",
    "commands.velocity.resample_max_s=0.5",
)
BAD_ENV, BAD_EVERY = 5, 40


# Small tiles and thrown robots, so that levels go up, down and beyond the last.
THROWN = (
    "terrain.tile_m=1.2",
    "terrain.platform_m=0.6",
    "terrain.levels=3",
    "events.reset_base.lin_vel_ms=2.5",
    "events.terrain_spawn.first_levels=3.0",
)


def record(steps: int, task: str = "go1_walk", *more: str, **schedule: int | bool) -> Recorder:
    """Run a task in the order that a runner uses: finish a group, then submit it again."""
    built = built_task(task, *BUSY, *more)
    with running(built, NUM_ENVS, plan(**schedule), random_start=True) as pipeline:  # type: ignore[arg-type]
        recorder = Recorder(pipeline)

        def submit(step: int, group: int) -> None:
            action = waves(step, pipeline.groups[group], pipeline.num_actions, size=2.5)
            if group == 0 and step % BAD_EVERY == BAD_EVERY - 1:
                action[BAD_ENV, 3] = np.nan
            pipeline.submit(group, action)

        groups = range(len(pipeline.groups))
        for group in groups:
            submit(0, group)
        for step in range(steps):
            for group in groups:
                recorder.add(pipeline.finish(group))
                if step + 1 < steps:
                    submit(step + 1, group)
            recorder.end_step()
        return recorder


@cache
def serial(steps: int) -> Recorder:
    return record(steps)


FEW = (
    {"shards": 3},
    {"shards": 8},
    {"groups": 2},
    {"groups": 4, "threads": 2},
    {"groups": 2, "overlap": True},
    {"groups": 4, "shards": 8, "threads": 2, "overlap": True},
    {"groups": 2, "shards": 3, "threads": 2, "overlap": True},
)
MANY = tuple(
    {"groups": groups, "shards": shards, "threads": threads, "overlap": overlap}
    for groups in (1, 2, 4)
    for shards in (1, 3, 8)
    for threads in (1, 2)
    for overlap in (False, True)
)


def test_the_compared_run_has_resets_timeouts_pushes_and_bad_actions() -> None:
    recorder = serial(STEPS)
    assert recorder.done > 2 * NUM_ENVS
    assert recorder.bad == STEPS // BAD_EVERY
    assert recorder.pushes > NUM_ENVS


@pytest.mark.parametrize("schedule", FEW, ids=str)
def test_every_schedule_gives_the_same_bits(schedule: dict[str, int | bool]) -> None:
    assert difference(serial(STEPS), record(STEPS, **schedule)) == ""


@cache
def serial_rough() -> tuple[Recorder, tuple[float, ...]]:
    recorder = record(120, "go1_rough", *THROWN)
    return recorder, tuple(recorder.levels)


def test_in_the_compared_run_on_uneven_ground_levels_move_both_ways() -> None:
    recorder, levels = serial_rough()
    assert recorder.done > 2 * NUM_ENVS
    assert {-1, 1} <= recorder.moves
    assert set(levels) == {0.0, 1.0, 2.0}


@pytest.mark.parametrize("schedule", [FEW[0], FEW[3], FEW[5]], ids=str)
def test_every_schedule_gives_the_same_levels_and_bits(schedule: dict[str, int | bool]) -> None:
    recorder, levels = serial_rough()
    other = record(120, "go1_rough", *THROWN, **schedule)
    assert difference(recorder, other) == ""
    assert tuple(other.levels) == levels


@pytest.mark.slow
@pytest.mark.parametrize("schedule", MANY, ids=str)
def test_every_combination_gives_the_same_bits(schedule: dict[str, int | bool]) -> None:
    assert difference(serial(STEPS), record(STEPS, **schedule)) == ""


def test_a_recording_of_other_actions_differs() -> None:
    built = built_task("cartpole")
    recorders = []
    for size in (0.5, 0.51):
        with running(built, 64) as pipeline:
            recorder = Recorder(pipeline)
            for step in range(3):
                pipeline.submit(0, waves(step, pipeline.groups[0], 1, size))
                recorder.add(pipeline.finish(0))
                recorder.end_step()
            recorders.append(recorder)
    assert difference(*recorders).startswith("step 0: ")
    assert "state" in difference(*recorders)


def kernels_inside_the_physics_of_another_group(overlap: bool) -> int:
    """Count kernel spans that lie within the physics of another group."""
    timers = Timers(trace=True)
    steps = 20
    built = built_task("go1_walk", *BUSY)
    with running(built, 128, plan(groups=2, overlap=overlap), timers=timers) as pipeline:
        for group in (0, 1):
            pipeline.submit(group, waves(0, pipeline.groups[group], pipeline.num_actions))
        for step in range(1, steps):
            for group in (0, 1):
                pipeline.finish(group)
                pipeline.submit(group, waves(step, pipeline.groups[group], pipeline.num_actions))
        for group in (0, 1):
            pipeline.finish(group)
    assert timers.trace is not None
    kernels = [span for span in timers.trace if span.name == "kernel"]
    physics = [span for span in timers.trace if span.name == "busy/physics"]
    assert len(physics) == 2 * steps

    def inside(kernel: Span, other: Span) -> bool:
        within = other.begin_ns <= kernel.begin_ns and kernel.end_ns <= other.end_ns
        return within and kernel.group != other.group

    return sum(any(inside(kernel, other) for other in physics) for kernel in kernels)


def test_with_overlap_kernels_run_while_physics_of_another_group_does() -> None:
    assert kernels_inside_the_physics_of_another_group(overlap=True) >= 5


def test_without_overlap_no_kernel_runs_while_physics_does() -> None:
    assert kernels_inside_the_physics_of_another_group(overlap=False) == 0

"""What one process measures: every row of the table, the same batch and the same states for all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch

from unilab.bench.agreement import check_noise, compare
from unilab.bench.bandwidth import measure_bandwidth
from unilab.bench.choices import HOST, STAGE_OF, Choice, combine, make_choices
from unilab.bench.collector import Collector, Pass
from unilab.bench.machine import last_level_cache_bytes
from unilab.bench.microloops import ArithmeticLoop, time_parts
from unilab.bench.numpy_step import BATCH, NoTwinError, with_numpy
from unilab.bench.recording import Recording, record, recorded_envs
from unilab.bench.replay import HostStep, ReplayPhysics
from unilab.config import RunConfig
from unilab.learners.ppo import PPO
from unilab.runners.backends import choose_device
from unilab.runners.build import (
    check_memory,
    compile_kernels,
    make_on_policy_learner,
    make_pipeline,
)
from unilab.runtime.shards import Shards
from unilab.runtime.threads import ENVS_PER_BLOCK, available_cpus
from unilab.tasks.base import BuiltTask, build_task
from unilab_kernels.arrays import ARRAYS

Report = Callable[[float, str], None]
COLLECT_STEPS = 2  # control steps of one pass of the collector
MIN_PASSES, MAX_PASSES = 2, 24


def record_inputs(config: RunConfig, job: dict[str, Any], report: Report) -> dict[str, Any]:
    """Record the inputs that all processes use, and warm up the kernel cache.

    Returns:
      Facts about the recording.
    """
    report(0.0, "compiling the kernel")
    built = build_task(config)
    check_memory(built)
    num_envs = job["num_envs"]
    plan = Choice("record", "record").plan(recorded_envs(num_envs))
    pipeline = make_pipeline(built, plan, seed=1, num_envs=recorded_envs(num_envs))
    compile_kernels(pipeline)
    report(0.4, "recording inputs from the running task")
    torch.set_num_threads(plan.learner)
    learner = make_on_policy_learner(built, config, torch.device("cpu"), seed=1)
    recording = record(pipeline, learner, num_envs, job["recorded_steps"])
    pipeline.close()
    recording.save(Path(job["recording"]))
    return {
        "done_per_step": recording.done_per_step,
        "physics_s_per_env_step": recording.physics_s_per_env_step,
    }


def measure(config: RunConfig, job: dict[str, Any], report: Report) -> dict[str, Any]:
    """Measure every row.

    Args:
      config: of the task.
      job: "recording": file; "host_s", "collect_s": how long to spend; "combined": fields of the
        last row, or None to choose it here; "cache_bytes": taken for the last-level cache, or None.
      report: called with how far it is, and what it does.
    """
    built = build_task(config)
    recording = Recording.load(Path(job["recording"]))
    report(0.02, "checking the NumPy baseline against the kernel")
    tasks, missing = _tasks(built)
    device = choose_device(config.device)
    choices = make_choices(
        available_cpus(), recording.num_envs, cuda=device.type == "cuda", numpy=missing
    )
    serial = Choice("numba", "").plan(recording.num_envs)
    agreement = None
    if not missing:
        check_noise()
        agreement = asdict(compare(built, recording, serial))
    report(0.08, "copying memory")
    bandwidth = measure_bandwidth(job["cache_bytes"] or last_level_cache_bytes(), available_cpus())
    report(0.12, "host step, every way")
    host = time_host_steps(tasks, choices, recording, job["host_s"])
    report(0.32, "one and two shards")
    scaling = time_scaling(built, recording) if available_cpus() > 1 else None
    parts = time_parts(built, recording.state[0], recording.sensors[0])
    report(0.4, "end to end, every way")
    learner = make_on_policy_learner(built, config, device, seed=1)
    assert isinstance(learner, PPO)
    passes, combined = collect_all(tasks, choices, learner, recording, job, host, report)
    for choice in choices:  # the last row's host step is that of a row above
        if combined.groups == 1 and _same_kernel(choice, combined) and choice.key in host:
            host["combined"] = host[choice.key]
    return {
        "choices": [asdict(choice) for choice in [*choices, combined]],
        "plans": {c.key: c.plan(recording.num_envs).describe() for c in choices if not c.absent},
        "num_envs": recording.num_envs,
        "done_per_step": recording.done_per_step,
        "agreement": agreement,
        "bandwidth": asdict(bandwidth),
        "host_ms": host,
        "passes": {key: median_pass(found) for key, found in passes.items()},
        "scaling": scaling,
        "parts_ms": parts,
    }


def measure_host(config: RunConfig, job: dict[str, Any], report: Report) -> dict[str, Any]:
    """Measure the rows that are about the host step, and what shards gain; nothing end to end.

    Args:
      config: of the task.
      job: "recording": file; "host_s": how long to spend.
      report: called with how far it is, and what it does.
    """
    built = build_task(config)
    recording = Recording.load(Path(job["recording"]))
    tasks, missing = _tasks(built)
    choices = make_choices(available_cpus(), recording.num_envs, cuda=False, numpy=missing)
    report(0.1, "host step, every way")
    host = time_host_steps(tasks, choices, recording, job["host_s"])
    scaling = time_scaling(built, recording) if available_cpus() > 1 else None
    return {
        "titles": {choice.key: choice.title for choice in choices if choice.timed == HOST},
        "absent": {c.key: c.absent for c in choices if c.timed == HOST and c.absent},
        "host_ms": host,
        "scaling": scaling,
    }


def _same_kernel(one: Choice, other: Choice) -> bool:
    """Say whether both run the kernel alike."""

    def threads(choice: Choice) -> tuple[str, str, int, int]:
        return choice.timed, choice.kernel, choice.shards, choice.threads_per_shard

    return threads(one) == threads(other)


def _tasks(built: BuiltTask) -> tuple[dict[str, BuiltTask], str]:
    """Return the task with each kernel, and why there is no NumPy form (empty: there is)."""
    try:
        numpy = {"numpy": with_numpy(built), "numpy_whole": with_numpy(built, part=BATCH)}
    except NoTwinError as error:
        return {"numba": built}, f"not run: {error}"
    return {"numba": built, **numpy}, ""


def time_host_steps(
    tasks: dict[str, BuiltTask], choices: list[Choice], recording: Recording, seconds: float
) -> dict[str, float]:
    """Return the median time of the host step of each row that is about it, ms; in turns."""
    physics = ReplayPhysics(recording, tasks["numba"])
    rows = {
        choice.key: HostStep(tasks[choice.kernel], physics, choice.plan(recording.num_envs))
        for choice in choices
        if choice.timed == HOST and not choice.absent
    }
    for row in rows.values():
        compile_kernels(row.pipeline)
        row.run()
    times: dict[str, list[float]] = {key: [] for key in rows}
    begin, rounds = perf_counter(), 0
    while rounds < 3 or perf_counter() - begin < seconds:
        for key, row in rows.items():
            times[key] += row.run()
        rounds += 1
    for row in rows.values():
        row.pipeline.shards.close()
    return {key: float(np.median(values)) for key, values in times.items()}


def time_scaling(built: BuiltTask, recording: Recording, rounds: int = 12) -> dict[str, float]:
    """Measure what two shards gain over one: host step, step kernel, and pure arithmetic.

    The arithmetic loop is as long as the host step. All alternate, so that they see the same
    machine.
    """
    physics, num_envs = ReplayPhysics(recording, built), recording.num_envs
    blocks = -(-num_envs // ENVS_PER_BLOCK)
    counts = (1, 2)
    hosts = {n: HostStep(built, physics, Choice("", "", shards=n).plan(num_envs)) for n in counts}
    shards = {n: Shards(n) for n in counts}
    arrays = hosts[1].pipeline.arrays
    ordered = tuple(arrays[name] for name in ARRAYS)
    kernel = built.kernel.load().step_serial
    loop = ArithmeticLoop(blocks)
    loop.set_length(float(np.median(hosts[1].run())))

    def timed(function: Any, count: int) -> float:
        begin = perf_counter()
        shards[count].run(function, 0, blocks, num_envs, ordered)
        return 1e3 * (perf_counter() - begin)

    times: dict[tuple[str, int], list[float]] = {}
    for _ in range(rounds):
        for count in counts:
            for name, values in (
                ("host", hosts[count].run()),
                ("loop", [timed(loop, count) for _ in range(recording.num_steps)]),
                ("kernel", [timed(kernel, count) for _ in range(recording.num_steps)]),
            ):
                times.setdefault((name, count), []).extend(values)
    for count in counts:
        hosts[count].pipeline.shards.close()
        shards[count].close()
    median = {key: float(np.median(values)) for key, values in times.items()}
    gains = {
        f"{name}_gain": median[name, 1] / median[name, 2] for name in ("host", "kernel", "loop")
    }
    return {**gains, "kernel_ms": median["kernel", 1], "loop_ms": median["loop", 1]}


def collect_all(
    tasks: dict[str, BuiltTask],
    choices: list[Choice],
    learner: PPO,
    recording: Recording,
    job: dict[str, Any],
    host: dict[str, float],
    report: Report,
) -> tuple[dict[str, list[Pass]], Choice]:
    """Run the collector of every row in turns, then of the last one, which they decide.

    Args:
      tasks: the task, with each kernel.
      choices: the rows.
      learner: its policy acts.
      recording: where every pass begins.
      job: see `measure`.
      host: key -> host step, ms.
      report: see `measure`.
    """

    def make(choice: Choice) -> Collector:
        return Collector(tasks[choice.kernel], choice, learner, recording, COLLECT_STEPS)

    given = None if job["combined"] is None else Choice(**job["combined"])
    chosen = [c for c in choices if not c.absent] + ([] if given is None else [given])
    rows = {choice.key: make(choice) for choice in chosen}
    passes: dict[str, list[Pass]] = {key: [] for key in rows}
    begin = perf_counter()
    for row in rows.values():  # first touch of fresh memory, and how long a round takes
        row.run()
    round_s = perf_counter() - begin
    rounds = int(np.clip(job["collect_s"] / round_s, MIN_PASSES, MAX_PASSES))
    for done in range(rounds):
        report(0.4 + 0.5 * (done + 1) / (rounds + 1), "end to end, every way")
        for key, row in rows.items():
            passes[key].append(row.run())
    for row in rows.values():
        row.close()
    if given is not None:
        return passes, given
    stages = {key: median_pass(found)["stages_ms"] for key, found in passes.items()}
    own = {c.key: stages[c.key][STAGE_OF[c.timed]] for c in chosen if c.timed in STAGE_OF}
    combined = combine(choices, {**own, **host}, {k: v["step"] for k, v in stages.items()})
    report(0.92, "all combined")
    last = make(combined)
    last.run()
    passes["combined"] = [last.run() for _ in range(rounds)]
    last.close()
    return passes, combined


def median_pass(passes: list[Pass]) -> dict[str, Any]:
    """Return the medians of several passes."""
    names = passes[0].stages_ms
    return {
        "env_steps_per_s": float(np.median([p.env_steps_per_s for p in passes])),
        "ceiling_env_steps_per_s": float(np.median([p.ceiling_env_steps_per_s for p in passes])),
        "host_ms": float(np.median([p.host_ms for p in passes])),
        "stages_ms": {
            n: float(np.median([p.stages_ms.get(n, 0.0) for p in passes])) for n in names
        },
    }

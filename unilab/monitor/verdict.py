"""What a run is bound by, from its stage times and the machine's counters. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from unilab.monitor.cpu import CpuUse
from unilab.monitor.gpu import GpuReading
from unilab.monitor.rows import StageTotals
from unilab.monitor.run_state import Setup

# Stage of the main line -> resource. A stage that is not listed counts as "other".
RESOURCES = {
    "physics": "physics",
    "kernel": "kernel",
    "reset": "kernel",
    "policy": "policy",
    "buffer": "buffer",
    "transfer": "transfer",
    "learn": "learner",
    "log": "bookkeeping",
    "snapshot": "bookkeeping",
    "checkpoint": "bookkeeping",
}
# Resources that work on the main line while physics of another group runs.
COLLECTING = ("kernel", "policy", "buffer", "transfer")
TITLES = {
    "physics": "physics",
    "kernel": "the task's kernel and resets",
    "policy": "the policy's forward pass",
    "buffer": "the rollout buffer",
    "transfer": "copies between host and device",
    "learner": "the learner",
    "bookkeeping": "logs and checkpoints",
    "other": "what no stage covers",
    "oversubscribed threads": "oversubscribed threads",
    "other load": "other load on the machine",
}
# From here on, waiting for a core says more than any stage does.
CONTENTION = 0.25
# The run's own threads are too many when this many times its cores want to run at once.
CROWDED = 1.4
# Other processes count when they take this share of the run's cores.
NOTICEABLE_LOAD = 0.1
# Forced switches a second and core that show contention where waits are not counted.
FORCED_PER_CORE = 100.0
# Two resources whose times differ by less than this factor are in balance.
BALANCED = 1.25


@dataclass(frozen=True)
class Measured:
    """What a verdict is reached from.

    Attributes:
      totals: stage times of the iterations watched.
      setup: what the run is made of.
      cpu: over the time watched; None where it was not seen.
      gpu: mean over the time watched; None without one.
      matmul_flops: measured peak rate of matrix products, FLOP/s; None where it was not measured.
    """

    totals: StageTotals
    setup: Setup = field(default_factory=Setup)
    cpu: CpuUse | None = None
    gpu: GpuReading | None = None
    matmul_flops: float | None = None


@dataclass(frozen=True)
class Cost:
    """One resource's part of an iteration.

    Attributes:
      exposed_ms: of the main line, an iteration.
      saved_ms: by how much an iteration were shorter if this cost nothing: less than what is
        exposed where physics, which runs beside it, would be waited for instead.
      speedup: of the whole, then.
    """

    exposed_ms: float
    saved_ms: float
    speedup: float


@dataclass(frozen=True)
class Verdict:
    """What holds a run back.

    Attributes:
      bound_by: a key of TITLES: a resource, "oversubscribed threads" or "other load"; None before
        the first iteration is done.
      stage: the resource whose stages cost most, whatever bound_by says.
      balance: time that `stage` costs over that of `second`; 1 is balanced, inf is nothing beside.
      second: the resource that costs most after it.
      costs: of every resource.
      contention: share of the time in which the run's threads wanted a core and had none.
      learner_flops: operations a second of the learner in its own time; None where unknown.
      sentence: the verdict in words.
      evidence: what it rests on.
      notes: what else is worth knowing.
    """

    bound_by: str | None
    stage: str | None
    balance: float
    second: str | None
    costs: Mapping[str, Cost]
    contention: float | None
    learner_flops: float | None
    sentence: str
    evidence: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def judge(measured: Measured) -> Verdict:
    """Return what a run is bound by."""
    costs = find_costs(measured.totals, overlap=_overlaps(measured.setup))
    contention = measured.cpu.wait_share if measured.cpu is not None else None
    flops = learner_flops(measured)
    notes = (*_gpu_notes(measured, flops), *_plan_notes(measured))
    if not costs:
        text = "no verdict yet: no iteration is done; its first one is under way or it was cut off"
        return Verdict(None, None, 1.0, None, {}, contention, flops, text, (), notes)
    ranked = sorted(costs, key=lambda name: costs[name].saved_ms, reverse=True)
    stage, second = ranked[0], ranked[1] if len(ranked) > 1 else None
    rest_ms = costs[second].saved_ms if second is not None else 0.0
    balance = costs[stage].saved_ms / rest_ms if rest_ms > 0 else float("inf")
    bound_by, evidence = _contention(measured)
    headline = bound_by or stage
    total_ms = measured.totals.per_iteration().iteration_ms
    return Verdict(
        bound_by=headline,
        stage=stage,
        balance=balance,
        second=second,
        costs=costs,
        contention=contention,
        learner_flops=flops,
        sentence=_sentence(headline, stage, second, balance, costs, total_ms, contention),
        evidence=(*evidence, *_pool_evidence(measured, stage)),
        notes=notes,
    )


def find_costs(totals: StageTotals, *, overlap: bool) -> dict[str, Cost]:
    """Return what each resource costs, and what an iteration would gain if it cost nothing.

    A resource that is free takes its exposed time away (Amdahl 1967). With overlap, physics is busy
    beside the stages that collect: exposed is only what it is waited for, and freeing one of those
    stages makes collecting no shorter than physics is busy.
    """
    per = totals.per_iteration()
    exposed: dict[str, float] = {}
    for stage, value in per.exposed_ms.items():
        name = RESOURCES.get(stage, "other")
        exposed[name] = exposed.get(name, 0.0) + max(0.0, value)
    total_ms = max(per.iteration_ms, sum(exposed.values()))
    if totals.iterations == 0 or total_ms <= 0.0:
        return {}
    collect_ms = sum(exposed.get(name, 0.0) for name in ("physics", *COLLECTING))
    slack_ms = collect_ms
    if overlap:
        slack_ms = max(0.0, collect_ms - per.busy_ms.get("physics", 0.0))
    costs = {}
    for name, value in exposed.items():
        saved_ms = min(value, slack_ms) if name in COLLECTING else value
        left_ms = max(total_ms - saved_ms, 1e-3 * total_ms)
        costs[name] = Cost(value, saved_ms, total_ms / left_ms)
    return costs


def learner_flops(measured: Measured) -> float | None:
    """Return the operations a second of the learner's networks, over the time it takes.

    On a CPU that is its stage. On a GPU the stage only hands over the work, and the read of its
    results, in the stage `log`, waits for the end: both together.
    """
    per, count = measured.totals.per_iteration(), measured.setup.update_flops
    time_ms = per.exposed_ms.get("learn", 0.0)
    if measured.setup.device.startswith("cuda"):
        time_ms += per.exposed_ms.get("log", 0.0)
    return count / (time_ms * 1e-3) if count is not None and time_ms > 0 else None


def _overlaps(setup: Setup) -> bool:
    return setup.plan is not None and setup.plan.overlap


def _contention(measured: Measured) -> tuple[str | None, tuple[str, ...]]:
    """Return what takes the cores from the run's threads, if anything does, and how that shows."""
    cpu, plan = measured.cpu, measured.setup.plan
    if cpu is None:
        return None, ()
    cores = float(min(cpu.available, plan.cpus) if plan is not None else cpu.available)
    planned = f"; the plan has {plan.together} for {plan.cpus} CPUs" if plan is not None else ""
    if cpu.runnable is None or cpu.wait_share is None:
        crowded = plan is not None and plan.together > plan.cpus
        if crowded and cpu.forced_per_s > FORCED_PER_CORE * cores:
            text = f"threads lose their core {cpu.forced_per_s:,.0f} times a second{planned}"
            return "oversubscribed threads", (text,)
        return None, ()
    if cpu.wait_share < CONTENTION:
        return None, ()
    waits = (
        f"its threads waited for a core in {cpu.wait_share:.0%} of the time they wanted one "
        f"({cpu.forced_per_s:,.0f} forced switches/s)"
    )
    if cpu.runnable > CROWDED * cores:
        crowd = f"{cpu.runnable:.1f} threads wanted to run at once on {cores:g} cores{planned}"
        return "oversubscribed threads", (crowd, waits)
    others = cpu.other_cores + cpu.stolen_cores
    if others >= NOTICEABLE_LOAD * cores:
        text = f"other processes used {cpu.other_cores:.2f} of the {cores:g} cores"
        if cpu.stolen_cores >= 0.01:
            text += f", the hypervisor withheld {cpu.stolen_cores:.2f}"
        return "other load", (text, waits)
    return "other load", (
        waits,
        "yet the machine shows no other load: a CPU quota of its container, or a low priority",
    )


def _sentence(
    headline: str,
    stage: str,
    second: str | None,
    balance: float,
    costs: Mapping[str, Cost],
    total_ms: float,
    contention: float | None,
) -> str:
    cost = costs[stage]
    share = cost.exposed_ms / total_ms
    place = f"{TITLES[stage]}: {share:.0%} of an iteration of {total_ms:,.4g} ms"
    if second is not None and balance < BALANCED:
        place += f", in balance with {TITLES[second]} ({balance:.2f} x)"
    elif second is not None and balance < 1000:
        place += f", {balance:.1f} x the next, {TITLES[second]}"
    gain = f"If it cost nothing, the run would be {cost.speedup:.2f} x as fast."
    if headline == stage:
        return f"bound by {place}. {gain}"
    text = f"bound by {TITLES[headline]}; of the stages most goes into {place}. {gain}"
    if headline == "other load" and contention is not None:
        at_most = 1.0 / max(1e-3, 1.0 - contention)
        text += f" Without the wait for cores it would be at most {at_most:.2f} x as fast."
    return text


def _pool_evidence(measured: Measured, stage: str) -> tuple[str, ...]:
    """How well the threads of the stage that costs most are used."""
    cpu, plan = measured.cpu, measured.setup.plan
    busy_s = 1e-3 * measured.totals.busy_ms.get("physics", 0.0)
    if stage != "physics" or cpu is None or plan is None or busy_s <= 0 or plan.physics < 2:
        return ()
    pool = cpu.pools.get("physics pool")
    if pool is None:
        return ()
    used = pool.cores * cpu.seconds / busy_s / plan.physics
    return (f"while physics runs, its {plan.physics} threads are busy {min(1.0, used):.0%} of it",)


def _plan_notes(measured: Measured) -> tuple[str, ...]:
    plan = measured.setup.plan
    if plan is None or measured.cpu is not None or plan.together <= plan.cpus:
        return ()
    return (
        f"the plan lets {plan.together} threads run at once on {plan.cpus} CPUs; what that costs "
        "shows only while the run goes on",
    )


def _gpu_notes(measured: Measured, flops: float | None) -> tuple[str, ...]:
    """Say that a busy GPU is not a well used one, with the figures that tell."""
    if flops is None and measured.gpu is None:
        return ()
    notes = []
    if flops is not None:
        text = f"the learner's networks ran at {show_flops(flops)}"
        if measured.matmul_flops:
            share = flops / measured.matmul_flops
            text += f", {share:.0%} of the {show_flops(measured.matmul_flops)} of a matrix product"
        notes.append(text)
    gpu = measured.gpu
    if gpu is None or gpu.busy_fraction is None:
        return tuple(notes)
    parts = []
    if gpu.sm_active_fraction is not None:
        parts.append(f"{gpu.sm_active_fraction:.0%} of its multiprocessors were at work")
    if gpu.power_w is not None and gpu.power_limit_w:
        parts.append(f"it drew {gpu.power_w:.0f} of {gpu.power_limit_w:.0f} W")
    detail = f"; {', '.join(parts)}" if parts else ""
    notes.append(
        f"GPU busy {gpu.busy_fraction:.0%} means that some kernel ran in that share of the time, "
        f"not that the GPU was well used{detail}"
    )
    return tuple(notes)


def show_flops(flops: float) -> str:
    """A rate of operations as 3.21 GFLOP/s."""
    for limit, unit in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M")):
        if flops >= limit:
            return f"{flops / limit:.3g} {unit}FLOP/s"
    return f"{flops:.3g} FLOP/s"

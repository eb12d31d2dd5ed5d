"""Thread plans to try: where to start, and ladders along one setting at a time.

Every plan here has passed `make_plan`, so none asks for more threads at a time than there are CPUs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from unilab.config.schema import RuntimeConfig
from unilab.errors import ConfigError
from unilab.runtime.threads import (
    ENVS_PER_BLOCK,
    MIN_BLOCKS_PER_SHARD,
    ThreadPlan,
    make_plan,
)

GROUP_COUNTS = (2, 3, 4, 6, 8)


def settings_of(plan: ThreadPlan) -> dict[str, int | bool]:
    """Return a plan as config keys with values."""
    return {
        "runtime.threads": plan.physics,
        "runtime.shards": plan.shards,
        "runtime.threads_per_shard": plan.threads_per_shard,
        "runtime.groups": plan.groups,
        "runtime.overlap": plan.overlap,
        "runtime.learner_threads": plan.learner,
    }


def auto_plan(cpus: int, num_envs: int) -> ThreadPlan:
    """Return what a run gets that leaves all settings at auto."""
    return make_plan(RuntimeConfig(), num_envs, cpus=cpus)


def sequential_start(cpus: int, num_envs: int) -> ThreadPlan:
    """Return the plan without overlap that the search begins with: all CPUs in every stage."""
    return make_plan(RuntimeConfig(overlap=False, groups=1), num_envs, cpus=cpus)


def overlapped_start(cpus: int, num_envs: int, learner: int) -> ThreadPlan | None:
    """Return the plan with overlap that the search begins with; None where none is possible."""
    runtime = RuntimeConfig(overlap=True, groups=2, learner_threads=learner)
    try:
        return make_plan(runtime, num_envs, cpus=cpus)
    except ConfigError:  # one CPU, or too few envs for two groups
        return None


def make_variant(plan: ThreadPlan, num_envs: int, **changes: int | bool) -> ThreadPlan | None:
    """Return a plan with some settings changed; None where it is not possible.

    With overlap, physics gives up the threads that more of the kernels need. Shards that more
    groups would leave idle go.

    Args:
      plan: what is kept.
      num_envs: N.
      changes: fields of `ThreadPlan`.
    """
    values = {
        "physics": plan.physics,
        "shards": plan.shards,
        "threads_per_shard": plan.threads_per_shard,
        "groups": plan.groups,
        "overlap": plan.overlap,
        "learner": plan.learner,
        **changes,
    }
    useful = useful_shards(num_envs, values["groups"])
    if "shards" not in changes:
        values["shards"] = min(values["shards"], useful)
    if values["overlap"]:
        rest = plan.cpus - values["shards"] * values["threads_per_shard"]
        values["physics"] = min(values["physics"], rest)
    if values["physics"] < 1 or values["shards"] > useful:
        return None
    runtime = RuntimeConfig(
        threads=values["physics"],
        shards=values["shards"],
        threads_per_shard=values["threads_per_shard"],
        groups=values["groups"],
        overlap=bool(values["overlap"]),
        learner_threads=values["learner"],
    )
    try:
        return make_plan(runtime, num_envs, cpus=plan.cpus)
    except ConfigError:
        return None


def useful_shards(num_envs: int, groups: int) -> int:
    """Return how many shards a group's kernel is cut into at most; more stay idle."""
    blocks = math.ceil(num_envs / ENVS_PER_BLOCK) // groups
    return max(1, blocks // MIN_BLOCKS_PER_SHARD)


def ladder(plan: ThreadPlan, setting: str, num_envs: int) -> list[ThreadPlan]:
    """Return plans that differ from one in a single setting, in rising order, itself included.

    Args:
      plan: one of them.
      setting: a field of `ThreadPlan`.
      num_envs: N.
    """
    cpus = plan.cpus
    if setting in ("physics", "learner"):
        counts = {3 * cpus // 4, *_halves(cpus)}
        if setting == "physics" and plan.overlap:
            counts |= {cpus - host for host in _doubles(cpus)}
    elif setting == "groups":
        counts = set(GROUP_COUNTS) if plan.overlap else {1}
    else:
        counts = set(_halves(cpus)) | _doubles(cpus)
        if setting == "shards":
            counts.add(min(cpus, useful_shards(num_envs, plan.groups)))
    counts.add(getattr(plan, setting))
    return _distinct(
        plan
        if count == getattr(plan, setting)
        else make_variant(plan, num_envs, **{setting: count})
        for count in sorted(counts)
        if count >= 1
    )


def _halves(count: int) -> list[int]:
    return [count >> k for k in range(count.bit_length())]


def _doubles(count: int) -> set[int]:
    return {1 << k for k in range(count.bit_length())}


def _distinct(plans: Iterable[ThreadPlan | None]) -> list[ThreadPlan]:
    return list(dict.fromkeys(plan for plan in plans if plan is not None))

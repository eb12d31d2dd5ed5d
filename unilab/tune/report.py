"""What `unilab tune` shows: a line for each comparison, the measured grid, and why it chose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from unilab.runtime.threads import ENVS_PER_BLOCK, MIN_BLOCKS_PER_SHARD, ThreadPlan
from unilab.tune.candidates import settings_of, useful_shards
from unilab.tune.envs import WORTH, EnvCount
from unilab.tune.search import Choice, Comparison

KEYS = {
    "physics": "runtime.threads",
    "shards": "runtime.shards",
    "threads_per_shard": "runtime.threads_per_shard",
    "groups": "runtime.groups",
    "overlap": "runtime.overlap",
    "learner": "runtime.learner_threads",
}
_CLEAR = 1.05  # from here on a difference is put in numbers


def comparison_line(comparison: Comparison) -> str:
    """Return one comparison in words."""
    old = getattr(comparison.best, comparison.setting)
    new = getattr(comparison.other, comparison.setting)
    key = KEYS[comparison.setting].removeprefix("runtime.")
    if comparison.ratio == float("inf"):
        verdict = "failed"
    elif comparison.ratio > 1.0:
        verdict = f"takes {comparison.ratio:.2f}x the time"
    else:
        verdict = f"is {1.0 / comparison.ratio:.2f}x as fast"
    return f"{key} {_show(old)} -> {_show(new)}: {verdict}   ({short(comparison.other)})"


def short(plan: ThreadPlan) -> str:
    """Return a plan in a few words."""
    per_shard = f" x {plan.threads_per_shard}" if plan.threads_per_shard > 1 else ""
    groups = f", {plan.groups} groups overlapped" if plan.overlap else ""
    return f"physics {plan.physics}, kernel {plan.shards}{per_shard}, torch {plan.learner}{groups}"


def grid_table(choice: Choice, env_steps: int) -> str:
    """Return every measured plan, the fastest first.

    Args:
      choice: the result of the search.
      env_steps: of one iteration.
    """
    head = (
        f"{'threads':>9s} {'shards':>6s} {'x':>3s} {'groups':>6s} {'overlap':>7s} {'learner':>7s}"
        f" | {'collecting':>10s} {'slowest':>9s} {'fastest':>9s} {'bursts':>6s}"
        f" | {'with learning':>13s}"
    )
    measured = [plan for plan, entry in choice.entries.items() if entry.collect_s]
    rows = []
    for plan in sorted(measured, key=lambda p: (choice.iteration_s(p), p != choice.plan)):
        times = choice.entries[plan].collect_s
        speeds = [env_steps / s for s in (median(times), max(times), min(times))]
        marks = [word for word, other in (("chosen", choice.plan), ("auto", choice.auto))
                 if plan == other]  # fmt: skip
        rows.append(
            f"{plan.physics:9d} {plan.shards:6d} {plan.threads_per_shard:3d} {plan.groups:6d} "
            f"{'on' if plan.overlap else 'off':>7s} {plan.learner:7d}"
            f" | {speeds[0]:10,.0f} {speeds[1]:9,.0f} {speeds[2]:9,.0f} {len(times):6d}"
            f" | {env_steps / choice.iteration_s(plan):13,.0f}  {', '.join(marks)}".rstrip()
        )
    failed = [
        f"  failed: {short(plan)}: {entry.error}"
        for plan, entry in choice.entries.items()
        if entry.error
    ]
    return "\n".join(["measured, env-steps/s (x = threads_per_shard)", head, *rows, *failed])


def reasons(
    choice: Choice, num_envs: int, layer: str | None, device: str, stages: Mapping[str, float]
) -> str:
    """Return the choice, setting by setting, with what speaks for it.

    Args:
      choice: the result of the search.
      num_envs: N.
      layer: Numba's threading layer; None where parallel kernels cannot run.
      device: kind of the learner's device.
      stages: exposed ms per control step of the chosen plan.
    """
    lines = ["chosen"]
    for (key, value), setting in zip(settings_of(choice.plan).items(), KEYS, strict=True):
        reason = _others(choice, setting) or _why_not_varied(
            choice, setting, num_envs, layer, device
        )
        lines.append(f"  {key + '=' + _show(value):30s} {reason}")
    lines += ["", _against_auto(choice), _noise(choice)]
    if not choice.complete:
        lines.append("The time ran out before everything was tried; --budget SECONDS gives more.")
    collect_s = median(choice.entries[choice.plan].collect_s)
    update_s = median(choice.update_s[choice.plan.learner])
    whole = sum(stages.values()) or 1.0
    parts = sorted(stages.items(), key=lambda item: -item[1])
    shares = ", ".join(f"{name} {value / whole:.0%}" for name, value in parts[:4])
    lines.append(
        f"An iteration takes {collect_s + update_s:.3g} s: collecting {collect_s:.3g} s "
        f"({shares}), learning {update_s:.3g} s."
    )
    return "\n".join(lines)


def env_count_lines(found: Sequence[EnvCount], best: EnvCount, num_envs: int, written: bool) -> str:
    """Return what other numbers of envs give, and what follows from it.

    Args:
      found: what was measured, in rising order.
      best: the smallest that is about as fast as the fastest.
      num_envs: the configured one.
      written: whether the best one is written with the other settings.
    """
    lines = ["number of envs (thread settings at auto), env-steps/s with learning"]
    for item in found:
        note = "  physics.num_envs now" if item.num_envs == num_envs else ""
        speed = f"failed: {item.error}" if item.error else f"{item.speed:.2f}x"
        lines.append(f"{item.num_envs:9d}  {speed}{note}")
    if len(found) == 1:
        lines.append("Other numbers were not tried: they take too long for the time there is.")
    elif best.num_envs == num_envs:
        lines.append(f"None is clearly faster than {num_envs}.")
    elif written:
        lines.append(
            f"{best.num_envs} is taken: the smallest within {WORTH - 1:.0%} of the fastest. It "
            "changes the batch that is learned from, so results differ from those of the task's "
            "file."
        )
    else:
        lines.append(
            f"{best.num_envs} would give {best.speed:.2f}x. It changes the batch that is learned "
            "from, not only the speed, so it is left to you: physics.num_envs="
            f"{best.num_envs} for a run, or `unilab tune` with --write-num-envs."
        )
    return "\n".join(lines)


def _others(choice: Choice, setting: str) -> str:
    """Return how much longer the other values of a setting took; empty where none was tried."""
    chosen = getattr(choice.plan, setting)
    ratios: dict[object, float] = {}
    for item in choice.comparisons:
        if item.setting == setting:
            old, new = getattr(item.best, setting), getattr(item.other, setting)
            if old == chosen:
                ratios[new] = item.ratio
            elif new == chosen and item.ratio > 0.0:
                ratios[old] = 1.0 / item.ratio
    parts = []
    for value, ratio in sorted(ratios.items(), key=lambda item: str(item[0])):
        if ratio == float("inf"):
            parts.append(f"{_show(value)} failed")
        elif abs(ratio - 1.0) < _CLEAR - 1.0:
            parts.append(f"{_show(value)} is about equal ({ratio:.2f}x)")
        else:
            parts.append(f"{_show(value)} takes {ratio:.2f}x the time")
    return "; ".join(parts)


def _why_not_varied(
    choice: Choice, setting: str, num_envs: int, layer: str | None, device: str
) -> str:
    plan = choice.plan
    if plan.cpus == 1:
        return "there is one CPU"
    if setting == "groups" and not plan.overlap:
        return "more than one is of use with overlap only"
    if setting == "overlap" and num_envs <= ENVS_PER_BLOCK:
        return f"needs two groups, so more than {ENVS_PER_BLOCK} envs"
    if setting == "shards" and useful_shards(num_envs, plan.groups) == 1:
        least = 2 * MIN_BLOCKS_PER_SHARD * ENVS_PER_BLOCK * plan.groups
        return f"a second one pays from {least} envs on"
    if setting == "threads_per_shard" and layer is None:
        return "more needs Numba's omp or tbb layer, which is not here"
    if setting == "learner" and device != "cpu":
        return f"the learner runs on {device}"
    return "not varied: the time ran out" if not choice.complete else "no other value is possible"


def _against_auto(choice: Choice) -> str:
    if choice.plan == choice.auto:
        return (
            "This is what `auto` gives on this machine: nothing that was tried is clearly better."
        )
    if choice.auto not in choice.ratios:
        return "How `auto` compares was not measured."
    gain = choice.ratios[choice.auto] / choice.ratios[choice.plan]
    return f"`auto` ({short(choice.auto)}) takes {gain:.2f}x the time."


def _noise(choice: Choice) -> str:
    if len(choice.ratios) < 2:
        return "The best plan of the search was taken; there was no time for a last round."
    return (
        f"In the last round, {len(choice.ratios)} plans in turns, those within {choice.margin:.1%} "
        "of the fastest count as equal; the simplest of them is taken."
    )


def _show(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)

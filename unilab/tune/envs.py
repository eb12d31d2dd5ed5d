"""How many envs this machine runs best: measured and shown, since it changes what is learned."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from unilab.tune.candidates import auto_plan
from unilab.tune.measuring import Budget, MeasureError, Probe

ROUNDS = 3
WORTH = 1.03  # twice the envs have to give this much more
CHANGE = 1.05  # the configured number stays unless another is this much faster
MOST_STEPS = 5  # times that the count is doubled


@dataclass(frozen=True)
class EnvCount:
    """What one number of envs gives, with all thread settings at auto.

    Attributes:
      num_envs: N.
      speed: env-steps per second over those of the configured number, collecting and learning.
      error: why it could not be measured; empty where it could.
    """

    num_envs: int
    speed: float
    error: str = ""


def scan_envs(probe: Probe, cpus: int, num_envs: int, budget: Budget) -> list[EnvCount]:
    """Try twice as many envs for as long as that is faster, and half as many.

    Each number is measured in turns with the configured one.

    Args:
      probe: what measures.
      cpus: CPUs that may be used.
      num_envs: the configured number.
      budget: time that may be spent; no measurement is begun that would likely exceed it.

    Returns:
      What was measured, the configured number included, in rising order.
    """
    found = [EnvCount(num_envs, 1.0)]
    begin = budget.now()
    _measure(probe, cpus, num_envs)
    base_s = budget.now() - begin
    for step in range(1, MOST_STEPS + 1):
        rounds = _rounds(budget.left, base_s * (1 + 2**step))
        if rounds == 0:
            break
        found.append(_compare(probe, cpus, num_envs, num_envs << step, rounds))
        if found[-1].error or found[-1].speed < WORTH * found[-2].speed:
            break
    rounds = _rounds(budget.left, 2 * base_s)
    if num_envs >= 2 and rounds:
        found.insert(0, _compare(probe, cpus, num_envs, num_envs // 2, rounds))
    return found


def _rounds(left_s: float, round_s: float) -> int:
    """How many rounds of a comparison there is time for."""
    return min(ROUNDS, int(max(left_s, 0.0) / max(round_s, 1e-3)))


def best_count(found: list[EnvCount], num_envs: int) -> EnvCount:
    """Return the configured number if none is clearly faster, else the smallest of the fastest."""
    fastest = max(item.speed for item in found)
    for item in found:
        if item.num_envs == num_envs and item.speed * CHANGE >= fastest:
            return item
    return next(item for item in found if item.speed * WORTH >= fastest)


def _compare(probe: Probe, cpus: int, base: int, other: int, rounds: int) -> EnvCount:
    speeds = []
    try:
        for _ in range(rounds):
            base_s, other_s = _measure(probe, cpus, base), _measure(probe, cpus, other)
            speeds.append(base_s / other_s * other / base)
    except MeasureError as error:
        return EnvCount(other, 0.0, str(error))
    return EnvCount(other, median(speeds))


def _measure(probe: Probe, cpus: int, num_envs: int) -> float:
    plan = auto_plan(cpus, num_envs)
    return probe.collect(plan, num_envs) + probe.update(plan.learner, num_envs)

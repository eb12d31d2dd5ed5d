"""The figures that one H200-class GPU is to reach, and whether this machine did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from unilab.selfcheck.rates import Rates

TASK, NUM_ENVS = "g1_walk", 8192


@dataclass(frozen=True)
class Target:
    """A figure with its limit.

    Attributes:
      name: what it is of.
      limit: for a person, with its unit.
      value: what was found; None where it was not run.
      met: None where it was not run.
    """

    name: str
    limit: str
    value: float | None
    met: bool | None

    def line(self) -> str:
        """Return it as a line of text."""
        if self.value is None:
            return f"target {self.name} {self.limit}: not run"
        shown = f"{self.value:,.0f}" if abs(self.value) >= 1000 else f"{self.value:.3g}"
        return f"target {self.name} {self.limit}: {shown}, {'met' if self.met else 'MISSED'}"


def judge(rates: Sequence[Rates], device: torch.device) -> list[Target]:
    """Compare the largest size of `g1_walk` with the targets; they are about a GPU."""
    rows = [r for r in rates if (r.task, r.num_envs) == (TASK, NUM_ENVS)]
    row = rows[0] if rows and device.type == "cuda" else None
    what = f"{TASK} at {NUM_ENVS:,} envs:"

    def target(name: str, limit: float, unit: str, value: float | None, *, least: bool) -> Target:
        sign = ">=" if least else "<="
        met = None if value is None else (value >= limit if least else value <= limit)
        return Target(f"{what} {name}", f"{sign} {limit:,g} {unit}", value, met)

    rate = row.collector_env_steps_per_s.median if row else None
    overhead = 100 * row.overhead.median if row else None
    host_ms = row.host_ms.median if row else None
    return [
        target("collected", 400_000, "env-steps/s", rate, least=True),
        target("exposed overhead over physics alone", 20, "%", overhead, least=False),
        target("host step", 1.0, "ms", host_ms, least=False),
    ]

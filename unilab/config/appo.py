"""Settings of the learner `appo`."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from unilab.config.base import CountOrAuto
from unilab.config.ppo import PPOConfig


class APPOConfig(PPOConfig):
    """PPO that collects while it learns. What it shares with PPO has PPO's keys and defaults.

    rho_bar and c_bar are those of IMPALA (Espeholt et al. 2018). Fewer passes over a rollout than
    PPO's, because collecting no longer waits for them.
    """

    epochs: int = Field(
        default=3, ge=1, description="Passes over the rollout in one update. More reuses data."
    )
    collection: Literal["free", "sync"] = Field(
        default="free",
        description="free: collect on a thread of its own while the learner learns; results depend "
        "on timing. sync: take turns, as PPO does; reproducible.",
    )
    max_lag: int = Field(
        default=2,
        ge=1,
        description="How many updates a rollout's policy may be behind when it is learnt from. "
        "The collector waits rather than exceed it. With collection=free.",
    )
    slots: CountOrAuto = Field(
        default="auto",
        description="Rollouts held in memory, with collection=free: one is written while "
        "another is learnt from. auto = max_lag + 1, the most that can be in use; at least 2.",
    )
    rho_bar: float = Field(
        default=1.0,
        gt=0,
        description="Bound of V-trace's importance weights of errors. 1 corrects off-policy data "
        "without blowing up its noise.",
    )
    c_bar: float = Field(
        default=1.0,
        gt=0,
        description="Bound of V-trace's importance weights of the trace, at most rho_bar. Lower "
        "cuts traces sooner.",
    )

    @model_validator(mode="after")
    def _check_vtrace(self) -> Self:
        if self.c_bar > self.rho_bar:
            raise ValueError(
                f"c_bar is {self.c_bar:g} and rho_bar is {self.rho_bar:g}; valid: c_bar at most "
                "rho_bar; lower c_bar or raise rho_bar"
            )
        return self

    @model_validator(mode="after")
    def _check_slots(self) -> Self:
        if self.slots != "auto" and not 2 <= self.slots <= self.max_lag + 1:
            raise ValueError(
                f"slots is {self.slots} and max_lag is {self.max_lag}; valid: 2 to max_lag + 1 = "
                f"{self.max_lag + 1}, or auto; more could never be filled"
            )
        return self

    @property
    def num_slots(self) -> int:
        """Rollouts in memory."""
        if self.collection == "sync":
            return 1
        return self.max_lag + 1 if self.slots == "auto" else self.slots

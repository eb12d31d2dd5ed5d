"""Settings of the learners that learn from a replay buffer: what they share, and each its own."""

from __future__ import annotations

from abc import abstractmethod
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from unilab.config.base import (
    OVERRIDES_TEXT,
    CompileMode,
    HiddenSizes,
    NetworkKind,
    Overlay,
    PrecisionName,
    Section,
    check_widths,
    hidden_layers,
)

MAX_LAG = 2  # with 1, a hiccup of either side costs the other
LimitOrAuto = Annotated[float, Field(gt=0)] | Literal["auto"]


class ReplayConfig(Section):
    """What all learners from a replay buffer share: what the loop and the buffer go by."""

    batch_size: int = Field(
        default=8192,
        ge=1,
        description="Transitions of one update. More gives steadier gradients and fills a GPU.",
    )
    updates_per_step: int = Field(
        default=8,
        ge=1,
        description="Updates of the critic for each control step of all envs. More learns more "
        "from each transition and takes longer.",
    )
    replay_capacity: int = Field(
        default=1024,
        ge=2,
        description="Control steps that the replay buffer keeps of each env. More remembers older "
        "policies and takes memory.",
    )
    replay_dtype: Literal["fp32", "bf16"] = Field(
        default="fp32",
        description="How the replay buffer stores observations; bf16 takes half the memory and "
        "keeps 3 digits.",
    )
    n_steps: int = Field(
        default=1,
        ge=1,
        description="Rewards summed before the critic's estimate takes over. More carries rewards "
        "back faster, through actions of older policies.",
    )
    num_steps: int = Field(
        default=24,
        ge=1,
        description="Control steps of an iteration: a row of the log; nothing else depends on it.",
    )
    warmup_steps: int = Field(
        default=10,
        ge=0,
        description="Control steps of each env with random actions before learning starts.",
    )
    schedule: Literal["lockstep", "sync", "free"] = Field(
        default="lockstep",
        description="lockstep: learn while the envs step, from transitions up to the step before; "
        "sync: one after the other; free: the envs run up to max_lag steps ahead on a thread of "
        "their own, and results depend on timing.",
    )
    max_lag: int = Field(
        default=MAX_LAG,
        ge=1,
        description="How many cycles of updates the policy that acted may be behind when its step "
        "is taken. The envs wait rather than exceed it. With schedule=free.",
    )
    gamma: float = Field(
        default=0.97, ge=0, le=1, description="Discount of the reward per control step."
    )
    capture: Literal["auto", "off"] = Field(
        default="auto",
        description="auto: on a GPU all updates of a step are one recorded graph, where that gives "
        "the same numbers and is not slower; a warning says where it is not used.",
    )
    action_limit: LimitOrAuto = Field(
        default="auto",
        description="Largest |action| the policy can choose. auto = the task's limits joint by "
        "joint, or 1 where it has none.",
    )
    symmetry: Literal["none", "augment"] = Field(
        default="none",
        description="augment: learn from the mirror image of each transition too, which doubles "
        "the work. The task must declare its mirror.",
    )
    precision: PrecisionName = "auto"
    compile: CompileMode = "off"
    overrides: Overlay = Field(default={}, description=OVERRIDES_TEXT, validate_default=True)

    @model_validator(mode="after")
    def _check_lag(self) -> Self:
        if self.schedule != "free" and self.max_lag != MAX_LAG:
            raise ValueError(
                f"max_lag={self.max_lag} does nothing with schedule={self.schedule}; valid: "
                "schedule=free, or leave max_lag out"
            )
        return self

    @model_validator(mode="after")
    def _check_capacity(self) -> Self:
        if self.replay_capacity <= self.n_steps:
            raise ValueError(
                f"replay_capacity={self.replay_capacity} holds no transition over n_steps="
                f"{self.n_steps}; valid: replay_capacity > n_steps"
            )
        if self.replay_capacity < self.warmup_steps:
            raise ValueError(
                f"warmup_steps={self.warmup_steps} is more than the replay keeps of an env, "
                f"replay_capacity={self.replay_capacity}: the first steps would be forgotten "
                "before learning starts; lower warmup_steps or raise replay_capacity"
            )
        return self

    @property
    def first_learning_step(self) -> int:
        """Control steps of each env before the first update."""
        late = 1 if self.schedule == "lockstep" else 0
        return max(self.warmup_steps, self.n_steps) + late

    @property
    @abstractmethod
    def layers(self) -> dict[str, tuple[int, ...]]:
        """Outputs of each hidden linear layer of policy and critic, by the key that sets them."""


class OffPolicyConfig(ReplayConfig):
    """What `sac` and `td3` share.

    Defaults are FastSAC's for locomotion (holosoma, Seo et al. 2025, arXiv 2512.01996) where `td3`
    does not say otherwise.
    """

    actor_every: int = Field(
        default=4, ge=1, description="Updates of the critic for each update of the actor."
    )
    tau: float = Field(
        default=0.125,
        gt=0,
        le=1,
        description="Share of the way that the target critic moves to the critic in an update.",
    )
    learning_rate: float = Field(
        default=3e-4, gt=0, description="Step size of AdamW, for actor and critic."
    )
    weight_decay: float = Field(
        default=1e-3, ge=0, description="Weight decay of AdamW, for actor and critic."
    )
    network: NetworkKind = "mlp"
    actor_hidden: HiddenSizes = Field(
        default=(512, 256, 128), description="Widths of the policy's hidden layers or blocks."
    )
    critic_hidden: HiddenSizes = Field(
        default=(768, 384, 192), description="Widths of each critic's hidden layers or blocks."
    )
    atoms: int = Field(
        default=101, ge=2, description="Values that the critics' distributions are made of."
    )
    v_min: float = Field(
        default=-20.0,
        description="Lowest of them. Discounted returns below it cannot be told apart.",
    )
    v_max: float = Field(
        default=20.0,
        description="Highest of them. Discounted returns above it cannot be told apart.",
    )
    normalize_obs: bool = Field(
        default=True, description="Centre and scale the observations by their running statistics."
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.v_min >= self.v_max:
            raise ValueError(
                f"v_min is {self.v_min:g} and v_max is {self.v_max:g}; valid: v_min < v_max"
            )
        check_widths(
            self.network,
            {"actor_hidden": self.actor_hidden, "critic_hidden": self.critic_hidden},
        )
        return self

    @property
    def layers(self) -> dict[str, tuple[int, ...]]:
        """Outputs of each hidden linear layer of policy and critic, by the key that sets them."""
        return {
            "actor_hidden": hidden_layers(self.network, self.actor_hidden),
            "critic_hidden": hidden_layers(self.network, self.critic_hidden),
        }


class SACConfig(OffPolicyConfig):
    """Soft actor-critic. Defaults are FastSAC's for locomotion (holosoma)."""

    init_temperature: float = Field(
        default=0.001,
        gt=0,
        description="Weight of the entropy in the objective at the start; it adapts from there.",
    )
    target_entropy_ratio: float = Field(
        default=0.0,
        description="Entropy aimed at, nats, as -ratio for each action. More keeps less noise.",
    )


class TD3Config(OffPolicyConfig):
    """Twin delayed deterministic policy gradient. Defaults are FastTD3's for MuJoCo Playground.

    Source: Seo et al. 2025, arXiv 2505.22642, and its repository.
    """

    batch_size: int = Field(
        default=32768,
        ge=1,
        description="Transitions of one update. More gives steadier gradients and fills a GPU.",
    )
    updates_per_step: int = Field(
        default=2,
        ge=1,
        description="Updates of the critic for each control step of all envs. More learns more "
        "from each transition and takes longer.",
    )
    actor_every: int = Field(
        default=2, ge=1, description="Updates of the critic for each update of the actor."
    )
    replay_capacity: int = Field(
        default=10240,
        ge=2,
        description="Control steps that the replay buffer keeps of each env. More remembers older "
        "policies and takes memory.",
    )
    tau: float = Field(
        default=0.1,
        gt=0,
        le=1,
        description="Share of the way that the target critic moves to the critic in an update.",
    )
    weight_decay: float = Field(
        default=0.1, ge=0, description="Weight decay of AdamW, for actor and critic."
    )
    critic_hidden: HiddenSizes = Field(
        default=(1024, 512, 256), description="Widths of each critic's hidden layers or blocks."
    )
    v_min: float = Field(
        default=-10.0,
        description="Lowest of them. Discounted returns below it cannot be told apart.",
    )
    v_max: float = Field(
        default=10.0,
        description="Highest of them. Discounted returns above it cannot be told apart.",
    )
    double_q: bool = Field(
        default=True,
        description="Learn from the lower of both critics; false: each from itself. Fujimoto et "
        "al. 2018.",
    )
    smoothing_std: float = Field(
        default=0.001,
        ge=0,
        description="Noise on the target's actions, as a fraction of the action limit.",
    )
    smoothing_clip: float = Field(
        default=0.5, ge=0, description="Largest such noise, as a fraction of the action limit."
    )
    noise_std_min: float = Field(
        default=0.001,
        ge=0,
        description="Exploration noise of the calmest envs, as a fraction of the action limit.",
    )
    noise_std_max: float = Field(
        default=0.4,
        ge=0,
        description="Exploration noise of the wildest envs, as a fraction of the action limit.",
    )
    noise_redraw_fraction: float = Field(
        default=0.005,
        ge=0,
        le=1,
        description="Share of the envs that draw their level of noise anew in a control step. The "
        "source draws it once an episode.",
    )

    @model_validator(mode="after")
    def _check_noise(self) -> Self:
        if self.noise_std_min > self.noise_std_max:
            raise ValueError(
                f"noise_std_min is {self.noise_std_min:g} and noise_std_max is "
                f"{self.noise_std_max:g}; valid: noise_std_min <= noise_std_max"
            )
        return self

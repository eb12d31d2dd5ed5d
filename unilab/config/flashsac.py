"""Settings of the learner `flashsac`."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from unilab.config.base import hidden_layers
from unilab.config.off_policy import ReplayConfig


class FlashSACConfig(ReplayConfig):
    """Soft actor-critic with normalised weights and a distributional critic.

    Defaults follow the FlashSAC paper (arXiv 2604.04539) for simulators with many envs.
    """

    batch_size: int = Field(
        default=2048, ge=2, description="Transitions of one update of the critic."
    )
    updates_per_step: int = Field(
        default=2,
        ge=1,
        description="Updates of the critic for each control step of all envs. More reuses data.",
    )
    replay_capacity: int = Field(
        default=9766,
        ge=2,
        description="Control steps that the replay buffer keeps of each env. The default is 10 "
        "million transitions of 1,024 envs.",
    )
    warmup_steps: int = Field(
        default=98,
        ge=0,
        description="Control steps of each env with random actions before learning starts. The "
        "default is 100,000 transitions of 1,024 envs.",
    )
    n_steps: int = Field(
        default=3, ge=1, description="Rewards that a target sums up before it asks the critic."
    )
    actor_every: int = Field(
        default=2, ge=1, description="Updates of the critic for each one of the policy."
    )
    gamma: float = Field(
        default=0.99, ge=0, lt=1, description="Discount of the reward per control step."
    )
    tau: float = Field(
        default=0.01,
        gt=0,
        le=1,
        description="Share of the critic that its slow copy takes up in each update.",
    )
    learning_rate: float = Field(default=3e-4, gt=0, description="Step size of Adam at the start.")
    final_learning_rate: float = Field(
        default=1.5e-4,
        gt=0,
        description="Step size of Adam at the end of its decay, along half a cosine.",
    )
    decay_updates: int = Field(
        default=97_656,
        ge=1,
        description="Updates of the critic over which the learning rate decays. The default is "
        "that of 50 million control steps of 1,024 envs, added up.",
    )
    num_critics: int = Field(
        default=2, ge=1, description="Critics; the one with the lower mean makes the target."
    )
    atoms: int = Field(
        default=101, ge=2, description="Values that a return's distribution is spread over."
    )
    v_max: float = Field(
        default=5.0,
        gt=0,
        description="The distribution reaches from -v_max to v_max, in normalised reward.",
    )
    normalize_reward: bool = Field(
        default=True,
        description="Scale the reward so that discounted returns fill the distribution's range.",
    )
    actor_width: int = Field(default=128, ge=1, description="Width of the policy's trunk.")
    actor_blocks: int = Field(default=2, ge=1, description="Residual blocks of the policy.")
    critic_width: int = Field(default=256, ge=1, description="Width of a critic's trunk.")
    critic_blocks: int = Field(default=2, ge=1, description="Residual blocks of a critic.")
    expansion: int = Field(
        default=4, ge=1, description="How many times wider a block is inside than the trunk."
    )
    init_temperature: float = Field(
        default=0.01, gt=0, description="Weight of the entropy at the start; it is learnt."
    )
    target_std: float = Field(
        default=0.15,
        gt=0,
        description="The temperature steers the policy's entropy towards that of Gaussian noise "
        "with this standard deviation, as a fraction of the action limit.",
    )
    noise_hold: Literal["shared", "per_env"] = Field(
        default="shared",
        description="Exploration noise is held for a random number of control steps. shared: all "
        "envs change it at the same time; per_env: each by itself.",
    )
    noise_hold_most: int = Field(
        default=16, ge=1, description="Control steps that noise is held for, at most."
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.final_learning_rate > self.learning_rate:
            raise ValueError(
                f"final_learning_rate is {self.final_learning_rate:g} and learning_rate is "
                f"{self.learning_rate:g}; valid: a final one not above it"
            )
        return self

    @property
    def layers(self) -> dict[str, tuple[int, ...]]:
        """Outputs of each hidden linear layer of policy and critic, by the key that sets them."""
        return {
            key: hidden_layers("residual", (width,) * blocks, self.expansion)
            for key, width, blocks in (
                ("actor_width", self.actor_width, self.actor_blocks),
                ("critic_width", self.critic_width, self.critic_blocks),
            )
        }

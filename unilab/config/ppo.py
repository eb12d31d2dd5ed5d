"""Settings of the learner `ppo`."""

from __future__ import annotations

from typing import Literal, Self

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


class PPOConfig(Section):
    """Proximal policy optimisation. Defaults follow the velocity tasks of mjlab 1.6 and rsl_rl."""

    num_steps: int = Field(
        default=24,
        ge=1,
        description="Control steps each env is run between two updates. More lowers the bias of "
        "the advantages and the number of updates per sample.",
    )
    epochs: int = Field(
        default=5, ge=1, description="Passes over the rollout in one update. More reuses data."
    )
    minibatches: int = Field(
        default=4,
        ge=1,
        description="Parts that the num_envs * num_steps samples are split into, one optimiser "
        "step each.",
    )
    gamma: float = Field(
        default=0.99, ge=0, le=1, description="Discount of the reward per control step."
    )
    lam: float = Field(
        default=0.95,
        ge=0,
        le=1,
        description="Lambda of the generalised advantage estimate: 0 trusts the critic, 1 the "
        "sampled returns.",
    )
    clip: float = Field(
        default=0.2,
        gt=0,
        description="Width of the band around 1 in which the probability ratio earns a gradient.",
    )
    value_clip: bool = Field(
        default=True, description="Limit the step of the value prediction by `clip` as well."
    )
    value_coef: float = Field(
        default=1.0, ge=0, description="Weight of the value loss beside the policy loss."
    )
    entropy_coef: float = Field(
        default=0.01, ge=0, description="Weight of the entropy bonus. More keeps exploring longer."
    )
    learning_rate: float = Field(
        default=1e-3, gt=0, description="Step size of Adam; the first one if adaptive."
    )
    schedule: Literal["adaptive", "fixed"] = Field(
        default="adaptive",
        description="adaptive: the learning rate follows the measured KL towards target_kl.",
    )
    target_kl: float = Field(
        default=0.01,
        gt=0,
        description="KL divergence per update that the adaptive schedule aims at, nats.",
    )
    max_grad_norm: float = Field(
        default=1.0, gt=0, description="Gradients are scaled down to this norm at most."
    )
    init_std: float = Field(
        default=1.0,
        gt=0,
        description="Standard deviation of the action noise at the start, in units of the action.",
    )
    network: NetworkKind = "mlp"
    actor_hidden: HiddenSizes = Field(
        default=(512, 256, 128), description="Widths of the policy's hidden layers or blocks."
    )
    critic_hidden: HiddenSizes = Field(
        default=(512, 256, 128), description="Widths of the critic's hidden layers or blocks."
    )
    activation: Literal["elu", "relu", "tanh", "silu", "gelu"] = Field(
        default="elu", description="Activation between the layers."
    )
    normalize_obs: bool = Field(
        default=True, description="Centre and scale the observations by their running statistics."
    )
    symmetry: Literal["none", "augment", "mirror_loss"] = Field(
        default="none",
        description="augment: train on mirrored samples too; mirror_loss: pull the policy towards "
        "its mirror image. The task must declare its mirror.",
    )
    mirror_coef: float = Field(
        default=0.0, ge=0, description="Weight of the mirror loss. Only with symmetry=mirror_loss."
    )
    precision: PrecisionName = "auto"
    compile: CompileMode = "off"
    overrides: Overlay = Field(default={}, description=OVERRIDES_TEXT, validate_default=True)

    @model_validator(mode="after")
    def _check_networks(self) -> Self:
        check_widths(
            self.network,
            {"actor_hidden": self.actor_hidden, "critic_hidden": self.critic_hidden},
        )
        return self

    @model_validator(mode="after")
    def _check_mirror(self) -> Self:
        if (self.symmetry == "mirror_loss") != (self.mirror_coef > 0):
            raise ValueError(
                f"symmetry is {self.symmetry!r} and mirror_coef is {self.mirror_coef:g}; valid: "
                "symmetry=mirror_loss with mirror_coef > 0, or another symmetry with mirror_coef=0"
            )
        return self

    @property
    def layers(self) -> dict[str, tuple[int, ...]]:
        """Outputs of each hidden linear layer of policy and critic, by the key that sets them."""
        return {
            "actor_hidden": hidden_layers(self.network, self.actor_hidden),
            "critic_hidden": hidden_layers(self.network, self.critic_hidden),
        }

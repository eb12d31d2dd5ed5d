"""The block `learners`, that holds the settings of each learner by name."""

from __future__ import annotations

from pydantic import Field

from unilab.config.appo import APPOConfig
from unilab.config.base import Section
from unilab.config.flashsac import FlashSACConfig
from unilab.config.off_policy import SACConfig, TD3Config
from unilab.config.ppo import PPOConfig


class LearnersConfig(Section):
    """One block of settings a learner; the top-level key `learner` says which is used."""

    ppo: PPOConfig = Field(
        default=PPOConfig(), description="Settings of the learner `ppo` (on-policy)."
    )
    appo: APPOConfig = Field(
        default=APPOConfig(),
        description="Settings of the learner `appo` (on-policy, collects while it learns).",
    )
    sac: SACConfig = Field(
        default=SACConfig(), description="Settings of the learner `sac` (off-policy, stochastic)."
    )
    td3: TD3Config = Field(
        default=TD3Config(),
        description="Settings of the learner `td3` (off-policy, deterministic).",
    )
    flashsac: FlashSACConfig = Field(
        default=FlashSACConfig(), description="Settings of the learner `flashsac` (off-policy)."
    )

"""APPO on the cart-pole with the collector on a thread of its own: the parts, put together."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tests.runtime.support import built_task, running
from unilab.buffers.rollout import Rollout
from unilab.config.appo import APPOConfig
from unilab.learners.acting import GaussianSampler
from unilab.learners.appo import APPO
from unilab.learners.base import ActOutput, LearnerSpec
from unilab.runners.on_policy import collect, set_first
from unilab.runtime.free_running import FreeRunning
from unilab.runtime.pipeline import Pipeline

CPU = torch.device("cpu")
NUM_ENVS, ITERATIONS, TURNS = 256, 60, 4
CONFIG = APPOConfig(
    num_steps=32,
    gamma=0.98,
    actor_hidden=(64, 64),
    critic_hidden=(64, 64),
    init_std=0.5,
    entropy_coef=0.0,
)


def collector(
    pipeline: Pipeline, generator: torch.Generator
) -> Callable[[GaussianSampler, Rollout, Rollout | None, Callable[[], None]], None]:
    def fill(
        policy: GaussianSampler,
        rollout: Rollout,
        previous: Rollout | None,
        check: Callable[[], None],
    ) -> None:
        if previous is None:
            set_first(pipeline, rollout)
        else:
            rollout.carry_over(previous)

        def act(obs: Tensor) -> ActOutput:
            check()
            return policy.act(obs, True, generator)

        collect(pipeline, act, rollout)

    return fill


def survived_fraction(learner: APPO, steps: int) -> float:
    """Share of the envs whose first episode gets to its time limit, without exploration."""
    with running(built_task("cartpole"), NUM_ENVS, seed=99) as pipeline:
        fallen = torch.zeros(NUM_ENVS, dtype=torch.bool)
        for _ in range(steps):
            obs = torch.from_numpy(pipeline.observe(0)[0])
            pipeline.submit(0, learner.act(obs, explore=False).action.numpy())
            fallen |= torch.from_numpy(pipeline.finish(0).terminated).bool()
        return 1.0 - fallen.float().mean().item()


def test_appo_learns_the_cart_pole_while_it_collects() -> None:
    built = built_task("cartpole")
    kernel = built.kernel
    spec = LearnerSpec(kernel.num_obs, kernel.num_critic_obs, 1)
    learner = APPO(CONFIG, spec, CPU, seed=1)
    sizes = (CONFIG.num_steps, NUM_ENVS, kernel.num_obs, kernel.num_critic_obs, 1)
    rollouts = [Rollout(*sizes, CPU) for _ in range(CONFIG.num_slots)]
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with running(built, NUM_ENVS, seed=1, random_start=True) as pipeline:
            for _ in range(TURNS):  # how much lag there is, and what it costs, depends on timing
                free = FreeRunning(
                    rollouts,
                    (learner.snapshot(), learner.snapshot()),
                    collector(pipeline, learner.acting_generator),
                    max_lag=CONFIG.max_lag,
                    version=learner.version,
                )
                with free:
                    for _ in range(ITERATIONS):
                        with free.rollout() as slot:
                            metrics = learner.update(slot.payload)
                            free.publish(learner.publish)
                    handed = free.handover.take_metrics()
                assert handed["handover/rollouts"] == ITERATIONS
                assert 0 <= handed["handover/lag_max"] <= CONFIG.max_lag
                assert metrics["learner/non_finite_updates"] == 0
                survived = survived_fraction(learner, int(10.0 / built.control_dt))
                if survived >= 0.95:
                    break
        assert survived >= 0.95
    finally:
        torch.set_num_threads(before)

"""The end-to-end figure: a real collector with one choice of kernel, threads, precision, buffer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import perf_counter, perf_counter_ns
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unilab.bench.choices import Choice
from unilab.bench.recording import Recording
from unilab.buffers.rollout import Rollout
from unilab.learners.base import ActOutput
from unilab.learners.ppo import PPO
from unilab.physics.base import Physics
from unilab.runners.build import compile_kernels, make_pipeline
from unilab.runners.on_policy import collect, set_first
from unilab.tasks.base import BuiltTask

HOST_STAGES = ("kernel", "reset", "other")
ROLLOUT_FIELDS = ("obs", "critic_obs", "action", "mean", "log_prob", "reward", "terminated",
                  "truncated")  # fmt: skip


class MeteredPhysics:
    """`Physics` that adds up the time of what resets ask of it, and hands everything else on.

    Args:
      inner: the real backend.

    Attributes:
      reset_ms: time in `reset_sensors`, which is physics within the stage `reset`.
    """

    def __init__(self, inner: Physics) -> None:
        self._inner, self.reset_ms = inner, 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def reset_sensors(self, env_ids: Any, ctrl: Any) -> None:
        """Compute the sensors of new episodes."""
        begin = perf_counter_ns()
        self._inner.reset_sensors(env_ids, ctrl)
        self.reset_ms += (perf_counter_ns() - begin) * 1e-6


@dataclass(frozen=True)
class Pass:
    """One pass of the collector.

    Attributes:
      env_steps_per_s: end to end.
      ceiling_env_steps_per_s: if the host step took no time, from the same pass.
      host_ms: exposed time of the host step, a control step.
      stages_ms: exposed time of each stage, a control step.
    """

    env_steps_per_s: float
    ceiling_env_steps_per_s: float
    host_ms: float
    stages_ms: Mapping[str, float]


class Collector:
    """A pipeline, a policy and a rollout, as in training.

    Args:
      built: the task, with the kernel of the choice.
      choice: threads, precision, buffer.
      learner: its policy acts.
      recording: passes begin at its first state.
      num_steps: T of a pass.
    """

    def __init__(
        self, built: BuiltTask, choice: Choice, learner: PPO, recording: Recording, num_steps: int
    ) -> None:
        self.choice, self.recording, self.num_steps = choice, recording, num_steps
        self.plan = choice.plan(recording.num_envs)
        self.pipeline = make_pipeline(built, self.plan, seed=1, num_envs=recording.num_envs)
        compile_kernels(self.pipeline)
        self.physics = MeteredPhysics(self.pipeline.physics)
        seam: Any = self.physics
        self.pipeline.physics = seam
        self.learner = learner
        act = Bf16Policy(learner).act if choice.bf16 else learner.act
        self.rollout = Rollout(
            num_steps, recording.num_envs, built.kernel.num_obs, built.kernel.num_critic_obs,
            self.pipeline.num_actions, torch.device("cuda" if choice.device_buffer else "cpu"),
        )  # fmt: skip
        self.act: Callable[[Tensor], ActOutput] = act
        self.on_other_device = learner.device.type != self.rollout.device.type
        if self.on_other_device:
            self.act = _moved(act, learner.device, self.rollout.device)

    def run(self) -> Pass:
        """Collect one rollout from the recorded states on."""
        pipeline, timers = self.pipeline, self.pipeline.timers
        pipeline.load_state_dict(self.recording.start)
        self.rollout.carry_over()
        set_first(pipeline, self.rollout)
        torch.set_num_threads(self.plan.acting if self.plan.overlap else self.plan.learner)
        self.physics.reset_ms = 0.0
        timers.take()
        begin = perf_counter()
        collect(pipeline, self.act, self.rollout)
        with timers.span("buffer"):
            self._hand_over()
        wall_ms = 1e3 * (perf_counter() - begin)
        times = timers.take()
        stages = {
            name.removeprefix("stage/").removesuffix("_ms"): value / self.num_steps
            for name, value in times.items()
            if name.startswith("stage/")
        }
        host_ms = sum(stages.get(name, 0.0) for name in HOST_STAGES)
        host_ms -= self.physics.reset_ms / self.num_steps
        count, step_ms = self.recording.num_envs, wall_ms / self.num_steps
        return Pass(
            count / step_ms * 1e3, count / (step_ms - host_ms) * 1e3, host_ms,
            {**stages, "step": step_ms},
        )  # fmt: skip

    def _hand_over(self) -> None:
        """Bring a rollout in host memory to the learner's device, and wait for the device."""
        if self.on_other_device:
            for name in ROLLOUT_FIELDS:
                getattr(self.rollout, name).to(self.learner.device)
        if self.learner.device.type == "cuda":
            torch.cuda.synchronize()

    def close(self) -> None:
        """Release all threads."""
        self.pipeline.close()


class Bf16Policy:
    """A learner's policy with its linear layers in bfloat16; all else stays float32.

    Args:
      learner: its weights are copied.
    """

    def __init__(self, learner: PPO) -> None:
        self.learner = learner
        self.trunk = learner.actor.mlp.as_sequential().to(torch.bfloat16)
        dim = learner.actor.std.numel()
        self._peak = -learner.actor.std.detach().log().sum() - 0.5 * dim * float(np.log(2 * np.pi))

    @torch.no_grad()
    def act(self, obs: Tensor) -> ActOutput:
        """Draw an action (B, A) for each observation (B, O)."""
        normal = self.learner.obs_normalizer(obs).to(torch.bfloat16)
        mean = self.trunk(normal).float()
        noise = torch.empty_like(mean).normal_(generator=self.learner.generator)
        action = torch.addcmul(mean, noise, self.learner.actor.std)
        log_prob = torch.add(self._peak, noise.square_().sum(-1), alpha=-0.5)
        return ActOutput(action, mean, log_prob)


def _moved(
    act: Callable[[Tensor], ActOutput], policy: torch.device, buffer: torch.device
) -> Callable[[Tensor], ActOutput]:
    """Let a policy on one device fill a buffer on another."""

    def moved(obs: Tensor) -> ActOutput:
        return ActOutput(*(part.to(buffer) for part in act(obs.to(policy))))

    return moved

"""FlashSAC: soft actor-critic with batch-normalised residual networks of unit weights.

Source: arXiv 2604.04539. Differences: a target's discount is gamma to the number of rewards that
were really summed, rows without a known next observation have no weight and stay out of the
statistics, critics see actions as fractions of their limits, and nothing waits for the device.
"""

from __future__ import annotations

import copy
import math
from typing import Any, Self

import torch
from torch import Tensor

from unilab.config.flashsac import FlashSACConfig
from unilab.errors import ConfigError
from unilab.learners.base import ActOutput, LearnerSpec
from unilab.learners.compiled import Call, compile_networks, example
from unilab.learners.distributional import Support, cross_entropy
from unilab.learners.ensemble import SquashedPolicy
from unilab.learners.flashsac_losses import gaussian_parameters, lowest_head
from unilab.learners.held_noise import HeldNoise
from unilab.learners.metric_slots import MetricSlots
from unilab.learners.normalize import RunningNormalizer
from unilab.learners.off_policy import Batch
from unilab.learners.off_policy_core import NON_FINITE
from unilab.learners.optimizer import FlatParameters
from unilab.learners.precision import choose_precision
from unilab.learners.residual import ResidualEnsemble
from unilab.learners.reward_scale import RewardScale
from unilab.learners.squashed import Squashed, squash
from unilab.learners.state import restore, restore_stream, snapshot, stream_state
from unilab.learners.temperature import Temperature
from unilab.learners.trained import TrainedModule
from unilab.learners.update_table import UpdateRows, UpdateTable, replace_unknown

BETAS = (0.9, 0.999)  # of Adam. Source: FlashSAC.
CRITIC_METRICS = (
    "loss/critic",
    "value/target",
    "value/edge_fraction",
    "learner/grad_norm_critic",
)
ACTOR_METRICS = (
    "loss/actor",
    "loss/temperature",
    "policy/entropy",
    "policy/temperature",
    "learner/grad_norm_actor",
)


class FlashSAC:
    """The FlashSAC learner: acts, learns from replayed batches, saves and restores itself.

    Observations are taken raw: the first batch normalisation of each network centres and scales
    them. An update whose loss or gradient is not finite changes neither moments nor statistics nor
    slow copies, and parameters by the rounding of their projection at most; it is counted.

    Args:
      config: hyperparameters.
      spec: sizes; symmetry and action limits if the task has them.
      device: where everything lives.
      seed: of the initial weights and of all noise.
      dtype: float32; float64 for checks against an oracle.

    Raises:
      ConfigError: a symmetry that the task does not declare, or a precision the device lacks.
    """

    def __init__(
        self,
        config: FlashSACConfig,
        spec: LearnerSpec,
        device: torch.device,
        seed: int,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        spec.check_symmetry("learners.flashsac", config.symmetry)
        self.config, self.spec, self.device, self.dtype = config, spec, device, dtype
        self.batch_size, self.updates_per_step = config.batch_size, config.updates_per_step
        self.seed, self.updates = seed, 0  # updates of the critic so far
        limits = spec.limits(config.action_limit)
        self.action_limit = torch.tensor(limits, device=device, dtype=dtype)  # (A,)
        # Densities are per unit of the action, not per fraction of its limit.
        self._log_limit = self.action_limit.log().sum()  # ()
        entropy = 0.5 * math.log(2.0 * math.pi * math.e * config.target_std**2)
        self._target_entropy = spec.action_dim * entropy + sum(math.log(x) for x in limits)
        self._build_networks(torch.Generator().manual_seed(seed))
        self.generator = torch.Generator(device=device).manual_seed(seed)
        self.noise = HeldNoise(
            spec.action_dim, config.noise_hold_most, config.noise_hold, device, dtype
        )
        self.reward_scale = RewardScale(config.gamma, config.v_max, device, dtype)
        self._support = Support(-config.v_max, config.v_max, config.atoms, device, dtype)
        self._table = UpdateTable(
            spec,
            config.updates_per_step,
            config.batch_size,
            config.symmetry == "augment",
            self.action_limit,
            device,
            dtype,
        )
        self._raw_obs, self._raw_critic_obs = (
            RunningNormalizer(dim, enabled=False, device=device, dtype=dtype)
            for dim in (spec.obs_dim, spec.critic_obs_dim)
        )
        self._done = torch.zeros((), device=device)  # as `updates`, for the learning rate
        self._critic_metrics = MetricSlots(CRITIC_METRICS, device, dtype)
        self._actor_metrics = MetricSlots(ACTOR_METRICS, device, dtype)
        self._refused = torch.zeros((), device=device, dtype=dtype)  # in this cycle so far
        self._non_finite = torch.zeros_like(self._refused)  # in the last cycle
        self._scale_metric = torch.zeros_like(self._refused)  # of rewards, in the last cycle

    def _build_networks(self, init: torch.Generator) -> None:
        config, spec, device = self.config, self.spec, self.device
        # What the products of a block take: width by expansion * width, for two observations a row.
        width = math.isqrt(config.expansion * max(config.actor_width, config.critic_width) ** 2)
        try:
            precision = choose_precision(config.precision, device, 2 * config.batch_size, width)
        except ConfigError as error:
            raise ConfigError(f"learners.flashsac.{error}") from error

        def ensemble(members: int, *sizes: int, blocks: int, tracks: bool) -> ResidualEnsemble:
            return ResidualEnsemble(
                members, *sizes, blocks=blocks, expansion=config.expansion, precision=precision,
                generator=init, device=device, dtype=self.dtype, tracks=tracks,
            )  # fmt: skip

        actor_sizes = (spec.obs_dim, config.actor_width, 2 * spec.action_dim)
        self.actor = ensemble(1, *actor_sizes, blocks=config.actor_blocks, tracks=True)
        inputs = spec.critic_obs_dim + spec.action_dim
        critic_sizes = (inputs, config.critic_width, config.atoms)
        self.critic, self.target = (
            ensemble(config.num_critics, *critic_sizes, blocks=config.critic_blocks, tracks=tracks)
            for tracks in (True, False)  # the target is only ever run on a batch's own statistics
        )
        self.temperature = Temperature(config.init_temperature, self.action_limit)
        self._trained_actor, self._trained_critic, self._trained_temperature = (
            TrainedModule(
                module, config.learning_rate, BETAS, weight_decay=0.0, half=half
            )  # gradients are not clipped
            for module, half in (
                (self.actor, precision.name == "fp16"),
                (self.critic, precision.name == "fp16"),
                (self.temperature, False),
            )
        )
        self._target_flat = FlatParameters(self.target.parameters())
        self._target_flat.vector.data.copy_(self._trained_critic.flat.vector.data)
        self._tau = torch.tensor(config.tau, device=device, dtype=self.dtype)

    @torch.no_grad()
    def act(self, obs: Tensor, explore: bool = True) -> ActOutput:
        """Choose an action for each raw observation.

        Args:
          obs: (N, O) of all envs: exploration noise is held from one control step to the next.
          explore: add noise; False gives the policy's mean.

        Returns:
          action (N, A) and mean (N, A), within the limits, and log_prob (N,), freshly allocated.
        """
        mean, log_std = gaussian_parameters(self.actor(obs, "running")[0])
        if explore:
            noise = self.noise.next(obs.shape[0], self.generator)
        else:
            noise = torch.zeros_like(mean)
        action, log_prob = squash(mean, log_std, noise)
        centre = torch.tanh(mean).mul_(self.action_limit)
        return ActOutput(action.mul_(self.action_limit), centre, log_prob.sub_(self._log_limit))

    def snapshot(self, generator: torch.Generator) -> Self:
        """A copy to act with while this learner learns; see `OffPolicyLearner`."""
        twin = copy.copy(self)
        twin.actor = copy.deepcopy(self.actor).requires_grad_(False)
        twin.generator = generator
        return twin

    @torch.no_grad()
    def publish(self, snapshot: Self) -> None:
        """Bring a copy's policy up to date, in one operation. Never waits."""
        here, there = ([*net.parameters(), net.running] for net in (self.actor, snapshot.actor))
        torch._foreach_copy_(there, here)

    @property
    def phase(self) -> int:
        """Where in the rhythm of critic and policy the next cycle starts."""
        return self.updates % self.config.actor_every

    @torch.no_grad()
    def random_actions(self, rows: int) -> Tensor:
        """Uniform actions (rows, A) within the limits, for the steps before learning starts."""
        draw = torch.empty(rows, self.spec.action_dim, device=self.device, dtype=self.dtype)
        return draw.uniform_(-1.0, 1.0, generator=self.generator).mul_(self.action_limit)

    def observe(self, obs: Tensor, critic_obs: Tensor) -> None:
        """Nothing to do: the networks keep statistics of what they learn from."""

    def observe_rewards(self, reward: Tensor, ended: Tensor) -> None:
        """Take the rewards of one control step into the scale of rewards, each of them once.

        Args:
          reward: (N,) of all envs.
          ended: (N,) bool, terminated or truncated.
        """
        if self.config.normalize_reward:
            self.reward_scale.observe(reward, ended)

    def compile_networks(self) -> bool:
        """Compile what cycles run. As in `OffPolicyCore`."""
        rows, spec, like = self._table.size, self.spec, self._refused
        obs = example(like, 2 * rows, spec.obs_dim)
        inputs = example(like, 2 * rows, spec.critic_obs_dim + spec.action_dim)
        actor = [Call(obs, ("noted",)), Call(obs[:rows], ("running",), grad=False)]
        name = self.actor.precision.name
        return compile_networks(
            {
                "actor": (self.actor, name, actor),
                "critic": (self.critic, name, [Call(inputs, ("noted",))]),
                "slow critic": (self.target, name, [Call(inputs, ("batch",), grad=False)]),
            }
        )

    def cycle(self, batch: Batch) -> dict[str, Tensor]:
        """Make U updates of the critic, and those of the policy that are due before them.

        Args:
          batch: U * B transitions.

        Returns:
          Metrics, 0-d on the learner's device, which the next cycle overwrites. Averages are over
          the updates that were finite (NaN if none was); those of the policy stay as they are in a
          cycle without an update of it.
        """
        known = replace_unknown(batch, self.updates_per_step)
        self._table.fill(known, self._raw_obs, self._raw_critic_obs)
        self._set_learning_rate()
        actor_updates = 0
        for update in range(self.updates_per_step):
            rows = self._table.rows(update)
            if self.updates % self.config.actor_every == 0:
                actor_updates += 1
                self._update_actor(rows)
            self._update_critic(rows)
            self.updates += 1
        self._critic_metrics.finish()
        if actor_updates:
            self._actor_metrics.finish()
        self._non_finite.copy_(self._refused)
        self._refused.zero_()
        torch.reciprocal(self.reward_scale.inverse, out=self._scale_metric)
        return {
            **self._critic_metrics.views,
            **self._actor_metrics.views,
            NON_FINITE: self._non_finite,
            "learner/learning_rate": self._trained_critic.learning_rate,
            "value/reward_scale": self._scale_metric,
        }

    @torch.no_grad()
    def _set_learning_rate(self) -> None:
        """Half a cosine from the first learning rate to the last."""
        config = self.config
        first, last = config.learning_rate, config.final_learning_rate
        angle = (self._done * (math.pi / config.decay_updates)).clamp_max_(math.pi)
        rate = angle.cos_().add_(1.0).mul_(0.5 * (first - last)).add_(last)
        for trained in (self._trained_actor, self._trained_critic, self._trained_temperature):
            trained.learning_rate.copy_(rate)
        self._done.add_(float(self.updates_per_step))

    def _sample(self, out: Tensor) -> Squashed:
        """Actions as fractions of their limits, and their densities in units of the action, of the
        policy's outputs (M, 2 A).
        """
        mean, log_std = gaussian_parameters(out)
        action, log_prob = squash(mean, log_std, self._draw(mean.shape[0]))
        return Squashed(action, log_prob - self._log_limit)

    def _draw(self, rows: int) -> Tensor:
        """Standard normal noise (rows, A)."""
        noise = torch.empty(rows, self.spec.action_dim, device=self.device, dtype=self.dtype)
        return noise.normal_(generator=self.generator)

    def _update_actor(self, rows: UpdateRows) -> None:
        """One step of the policy and of the temperature.

        The policy sees this and the next observations together, so that its statistics are of both.
        """
        both = torch.cat([rows.obs, rows.next_obs])
        action, log_prob = self._sample(self.actor(both, "noted")[0, : rows.obs.shape[0]])
        logits = self.critic(torch.cat([rows.critic_obs, action], 1), "running")
        value = self._support.mean(logits.softmax(-1)).amin(0)  # (M,)
        alpha = self.temperature()
        loss = ((alpha.detach() * log_prob - value) * rows.weight).sum()
        step = self._trained_actor.descend(loss)
        excess = ((log_prob.detach() + self._target_entropy) * rows.weight).sum()
        temperature_loss = -alpha * excess
        temperature_step = self._trained_temperature.descend(temperature_loss)
        self._refused.add_(step.refused).add_(temperature_step.refused)
        self.actor.commit(step.applied)
        self.actor.project()
        entropy = self._target_entropy - excess
        values = [loss, temperature_loss, entropy, alpha, step.grad_norm]
        self._actor_metrics.add([value.detach() for value in values], step.applied)

    @torch.no_grad()
    def _target(self, rows: UpdateRows) -> Tensor:
        """Where the critics should be (M, K): the copy with the lower mean at the next step.

        Fills in the next action. The copies see (s, a) and (s', a') together, as the critics do.
        """
        size = rows.reward.shape[0]
        next_action, log_prob = self._sample(self.actor(rows.next_obs, "running")[0])
        rows.next_critic_input[:, self.spec.critic_obs_dim :].copy_(next_action)
        both = torch.cat([rows.critic_input, rows.next_critic_input])
        probs = self.target(both, "batch")[:, size:].softmax(-1)  # (E, M, K)
        probs = lowest_head(probs, self._support.mean(probs))
        cost = rows.discount * (self.temperature() * log_prob)
        reward = rows.reward * self.reward_scale.inverse
        return self._support.project(probs, self._support.shift(reward - cost, rows.discount))

    def _update_critic(self, rows: UpdateRows) -> None:
        """One step of the critics, and of their slow copy."""
        target = self._target(rows)
        both = torch.cat([rows.critic_input, rows.next_critic_input])
        logits = self.critic(both, "noted")[:, : rows.reward.shape[0]]
        loss = cross_entropy(logits, target, rows.weight) / self.config.num_critics + rows.check
        step = self._trained_critic.descend(loss)
        self._refused.add_(step.refused)
        self.critic.commit(step.applied)
        self.critic.project()
        with torch.no_grad():
            share = torch.where(step.applied, self._tau, 0.0)
            self._target_flat.vector.data.lerp_(self._trained_critic.flat.vector.data, share)
            mass = torch.mv(target.t(), rows.weight)  # (K,)
            values = [loss, self._support.mean(mass), mass[0] + mass[-1], step.grad_norm]
            self._critic_metrics.add(values, step.applied)

    def state_dict(self) -> dict[str, Any]:
        """A snapshot of everything that decides how learning goes on.

        Tensors are clones; the rest is plain values, so `torch.load(weights_only=True)` reads it.
        """
        state: dict[str, Any] = {**snapshot(self._tensors() | self._per_env())}
        state["generator"] = stream_state(self.generator)
        state["seed"], state["updates"] = self.seed, self.updates
        return state

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up a state given by `state_dict`, from whatever device.

        The random stream goes on where it was. A state from another kind of device has another
        kind of stream: there it starts anew from the saved seed and number of updates.

        Raises:
          ConfigError: the state is of other sizes or of another kind of network.
        """
        restore(self._tensors(), state)
        self.noise.resize(state["noise"]["noise"].shape[0])
        self.noise.left = self.noise.left.new_zeros(state["noise"]["left"].shape)
        returns = state["returns"]["returns"]
        self.reward_scale.returns = self.reward_scale.returns.new_zeros(returns.shape)
        restore(self._per_env(), state)
        self.seed, self.updates = int(state["seed"]), int(state["updates"])
        restore_stream(self.generator, state["generator"], self.seed + self.updates)
        self.reward_scale.moments.refresh()
        self.reward_scale.refresh()

    def policy_module(self) -> SquashedPolicy:
        """The policy as it stands: raw observation (B, O) to mean action (B, A). A copy."""
        raw = self._raw_obs
        net = self.actor.folded(self.spec.action_dim)
        return SquashedPolicy(net, raw.shift, raw.inv_scale, self.action_limit)

    def _tensors(self) -> dict[str, dict[str, Tensor]]:
        """The live tensors of parameters, statistics and moments."""
        scale = self.reward_scale
        return {
            "actor": self.actor.state_dict(),
            "critic": self.critic.state_dict(),
            "target": self.target.state_dict(),
            "temperature": self.temperature.state_dict(),
            "optimizer_actor": self._trained_actor.tensors(),
            "optimizer_critic": self._trained_critic.tensors(),
            "optimizer_temperature": self._trained_temperature.tensors(),
            "reward_scale": {**scale.moments.state_dict(), "peak": scale.peak},
            "schedule": {"done": self._done},
        }

    def _per_env(self) -> dict[str, dict[str, Tensor]]:
        """The live tensors whose size is the number of envs, and so not known at the start."""
        return {
            "noise": {"noise": self.noise.noise, "left": self.noise.left},
            "returns": {"returns": self.reward_scale.returns},
        }

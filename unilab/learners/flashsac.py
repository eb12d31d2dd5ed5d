"""FlashSAC: soft actor-critic with batch-normalised residual networks of unit weights.

Source: arXiv 2604.04539. Differences: a target's discount is gamma to the number of rewards that
were really summed, rows without a known next observation have no weight, statistics of a batch
that is not finite are dropped, and nothing waits for the device.
"""

from __future__ import annotations

import copy
import math
from typing import Any, Self

import torch
from torch import Tensor, nn

from unilab.config.flashsac import FlashSACConfig
from unilab.learners.base import ActOutput, LearnerSpec
from unilab.learners.distributional import Support
from unilab.learners.flashsac_losses import (
    cross_entropy,
    gaussian_parameters,
    lowest_head,
)
from unilab.learners.held_noise import HeldNoise
from unilab.learners.off_policy import Batch
from unilab.learners.optimizer import FlatParameters, GatedAdam
from unilab.learners.residual import FoldedNetwork, ResidualEnsemble
from unilab.learners.reward_scale import RewardScale
from unilab.learners.squashed import squash
from unilab.learners.state import restore, restore_stream, snapshot, stream_state

CRITIC_METRICS = ("loss/critic", "critic/value", "learner/grad_norm_critic")
ACTOR_METRICS = (
    "loss/policy",
    "policy/entropy",
    "policy/temperature",
    "learner/grad_norm_actor",
    "learner/grad_norm_temperature",
)


class FlashSAC:
    """The FlashSAC learner: acts, learns from replayed batches, saves and restores itself.

    Actions are in (-1, 1). Observations are taken raw: the first batch normalisation of each
    network centres and scales them. An update whose loss or gradient is not finite changes neither
    optimiser state nor statistics, and parameters by the rounding of their projection at most; it
    is counted in `learner/non_finite_updates`.

    Rows of weight 0 have no part in a loss, but their observations are in the batch's statistics.

    Args:
      config: hyperparameters.
      spec: sizes.
      device: where everything lives.
      seed: of the initial weights and of all noise.
      dtype: float32; float64 for checks against an oracle.
    """

    def __init__(
        self,
        config: FlashSACConfig,
        spec: LearnerSpec,
        device: torch.device,
        seed: int,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.config, self.spec, self.device, self.dtype = config, spec, device, dtype
        self.batch_size, self.updates_per_step = config.batch_size, config.updates_per_step
        self.seed, self.updates = seed, 0  # updates of the critic so far
        self._build_networks(torch.Generator().manual_seed(seed))
        self.generator = torch.Generator(device=device).manual_seed(seed)
        self.noise = HeldNoise(
            spec.action_dim, config.noise_hold_most, config.noise_hold, device, dtype
        )
        self.reward_scale = RewardScale(config.gamma, config.v_max, device, dtype)
        self._support = Support(-config.v_max, config.v_max, config.atoms, device, dtype)
        self._target_entropy = (
            0.5 * spec.action_dim * math.log(2.0 * math.pi * math.e * config.target_std**2)
        )
        self._done = torch.zeros((), device=device)  # as `updates`, for the learning rate
        # Sums over the updates of a cycle and, last, how many of them were finite.
        self._one = torch.ones(1, device=device, dtype=dtype)
        self._critic_sums = torch.zeros(len(CRITIC_METRICS) + 1, device=device, dtype=dtype)
        self._actor_sums = torch.zeros(len(ACTOR_METRICS) + 1, device=device, dtype=dtype)

    def _build_networks(self, init: torch.Generator) -> None:
        config, spec, device = self.config, self.spec, self.device

        def ensemble(members: int, *sizes: int, blocks: int, tracks: bool) -> ResidualEnsemble:
            return ResidualEnsemble(
                members, *sizes, blocks=blocks, expansion=config.expansion, generator=init,
                device=device, dtype=self.dtype, tracks=tracks,
            )  # fmt: skip

        actor_sizes = (spec.obs_dim, config.actor_width, 2 * spec.action_dim)
        self.actor = ensemble(1, *actor_sizes, blocks=config.actor_blocks, tracks=True)
        inputs = spec.critic_obs_dim + spec.action_dim
        critic_sizes = (inputs, config.critic_width, config.atoms)
        self.critic, self.target = (
            ensemble(config.num_critics, *critic_sizes, blocks=config.critic_blocks, tracks=tracks)
            for tracks in (True, False)  # the target is only ever run on a batch's own statistics
        )
        temperature = torch.tensor([math.log(config.init_temperature)], dtype=torch.float64)
        self.log_temperature = nn.Parameter(temperature.to(device, self.dtype))  # (1,)
        self._critic_flat = FlatParameters(self.critic.parameters())
        self._target_flat = FlatParameters(self.target.parameters())
        self._target_flat.vector.data.copy_(self._critic_flat.vector.data)
        actor_parts = {
            "actor": FlatParameters(self.actor.parameters()),
            "temperature": FlatParameters([self.log_temperature]),
        }
        rate = config.learning_rate  # gradients are not clipped
        self._actor_adam = GatedAdam(actor_parts, rate, math.inf, device)
        self._critic_adam = GatedAdam({"critic": self._critic_flat}, rate, math.inf, device)

    @torch.no_grad()
    def act(self, obs: Tensor, explore: bool = True) -> ActOutput:
        """Choose an action for each raw observation.

        Args:
          obs: (N, O) of all envs: exploration noise is held from one control step to the next.
          explore: add noise; False gives the policy's mean.

        Returns:
          action (N, A) and mean (N, A), both in (-1, 1), and log_prob (N,), freshly allocated.
        """
        mean, log_std = gaussian_parameters(self.actor(obs, "running")[0])
        if explore:
            noise = self.noise.next(obs.shape[0], self.generator)
        else:
            noise = torch.zeros_like(mean)
        action, log_prob = squash(mean, log_std, noise)
        return ActOutput(action, mean.tanh() if explore else action, log_prob)

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
        """Uniform actions (rows, A), for the steps before learning starts."""
        draw = torch.empty(rows, self.spec.action_dim, device=self.device, dtype=self.dtype)
        return draw.uniform_(-1.0, 1.0, generator=self.generator)

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

    def cycle(self, batch: Batch) -> dict[str, Tensor]:
        """Make U updates of the critic, and those of the policy that are due before them.

        Args:
          batch: U * B transitions.

        Returns:
          Metrics, 0-d on the learner's device: averages over the updates that were finite (NaN if
          none was). Those of the policy are of the last cycle that updated it.
        """
        size = self.batch_size
        assert batch.reward.shape[0] == size * self.updates_per_step
        self._set_learning_rate()
        self._critic_sums.zero_()
        actor_updates = 0
        for start in range(0, size * self.updates_per_step, size):
            part = Batch(*(field[start : start + size] for field in batch))
            share = part.weight / part.weight.sum().clamp_min(1.0)
            if self.updates % self.config.actor_every == 0:
                if actor_updates == 0:
                    self._actor_sums.zero_()
                actor_updates += 1
                self._update_actor(part, share)
            self._update_critic(part, share)
            self.updates += 1
        return self._metrics(actor_updates)

    @torch.no_grad()
    def _set_learning_rate(self) -> None:
        """Half a cosine from the first learning rate to the last."""
        config = self.config
        first, last = config.learning_rate, config.final_learning_rate
        angle = (self._done * (math.pi / config.decay_updates)).clamp_max_(math.pi)
        rate = angle.cos_().add_(1.0).mul_(0.5 * (first - last)).add_(last)
        self._actor_adam.learning_rate.copy_(rate)
        self._critic_adam.learning_rate.copy_(rate)
        self._done.add_(float(self.updates_per_step))

    def _update_actor(self, batch: Batch, share: Tensor) -> None:
        """One step of the policy and of the temperature.

        Args:
          batch: B transitions.
          share: (B,) weights of the rows, that add up to 1.
        """
        rows = batch.obs.shape[0]
        alpha = self.log_temperature.detach().exp()
        both = torch.cat([batch.obs, batch.next_obs])
        mean, log_std = gaussian_parameters(self.actor(both, "noted")[0, :rows])
        action, log_prob = squash(mean, log_std, self._draw(rows))
        logits = self.critic(torch.cat([batch.critic_obs, action], 1), "running")
        value = self._support.mean(logits.softmax(-1)).amin(0)  # (B,)
        mean_log_prob = share @ log_prob
        loss = alpha * mean_log_prob - share @ value  # (1,)
        adam = self._actor_adam
        self._differentiate(loss, self.actor)
        with torch.no_grad():
            entropy = mean_log_prob.detach().neg()
            adam.parts["temperature"].grad[:1].copy_(alpha * (entropy - self._target_entropy))
            metrics = torch.stack([loss.detach()[0], entropy, alpha[0]])
            finite = self._step(adam, metrics, self._actor_sums)
        self.actor.commit(finite)
        self.actor.project()

    def _update_critic(self, batch: Batch, share: Tensor) -> None:
        """One step of the critics, and of their slow copy. Arguments as in `_update_actor`.

        Both the critics and their copy see the batch's (s, a) and (s', a') together, so that their
        statistics are of both.
        """
        rows = batch.obs.shape[0]
        with torch.no_grad():
            mean, log_std = gaussian_parameters(self.actor(batch.next_obs, "running")[0])
            next_action, log_prob = squash(mean, log_std, self._draw(rows))
            here = torch.cat([batch.critic_obs, batch.action], 1)
            both = torch.cat([here, torch.cat([batch.next_critic_obs, next_action], 1)])
            probs = self.target(both, "batch")[:, rows:].softmax(-1)  # (E, B, K)
            probs = lowest_head(probs, self._support.mean(probs))
            bonus = (self.log_temperature.exp() * log_prob).unsqueeze(1)  # (B, 1)
            soft = self._support.values - bonus  # (B, K)
            reward = batch.reward * self.reward_scale.inverse
            values = torch.addcmul(reward.unsqueeze(1), batch.discount.unsqueeze(1), soft)
            target = self._support.project(probs, values)
        logits = self.critic(both, "noted")[:, :rows]
        loss = cross_entropy(logits, target, share)
        self._differentiate(loss, self.critic)
        with torch.no_grad():
            metrics = torch.stack([loss.detach(), share @ self._support.mean(target)])
            finite = self._step(self._critic_adam, metrics, self._critic_sums)
        self.critic.commit(finite)
        self.critic.project()
        self._target_flat.vector.data.lerp_(self._critic_flat.vector.data, self.config.tau)

    def _draw(self, rows: int) -> Tensor:
        """Standard normal noise (rows, A)."""
        noise = torch.empty(rows, self.spec.action_dim, device=self.device, dtype=self.dtype)
        return noise.normal_(generator=self.generator)

    @staticmethod
    def _differentiate(loss: Tensor, network: ResidualEnsemble) -> None:
        """Overwrite the gradients of one network's parameters, and of nothing else."""
        parameters = list(network.parameters())
        grads = torch.autograd.grad(loss, parameters)
        with torch.no_grad():
            torch._foreach_copy_([p.grad for p in parameters if p.grad is not None], list(grads))

    def _step(self, adam: GatedAdam, metrics: Tensor, sums: Tensor) -> Tensor:
        """Step unless something is not finite, and add up the metrics. Returns () bool."""
        norms = adam.grad_norms()
        finite = torch.isfinite(metrics.sum() + norms.sum())
        adam.step(norms, finite)
        sums.add_(torch.where(finite, torch.cat([metrics, norms, self._one]), 0.0))
        return finite

    def _metrics(self, actor_updates: int) -> dict[str, Tensor]:
        metrics: dict[str, Tensor] = {}
        for names, sums in (
            (CRITIC_METRICS, self._critic_sums),
            (ACTOR_METRICS, self._actor_sums),
        ):
            metrics |= dict(zip(names, (sums[:-1] / sums[-1]).unbind(), strict=True))
        skipped = self.updates_per_step - self._critic_sums[-1]
        if actor_updates:
            skipped = skipped + (actor_updates - self._actor_sums[-1])
        metrics["learner/non_finite_updates"] = skipped
        metrics["learner/learning_rate"] = self._critic_adam.learning_rate
        metrics["critic/reward_scale"] = self.reward_scale.inverse.reciprocal()
        return metrics

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
        return SquashedPolicy(self.actor.folded(self.spec.action_dim))

    def _tensors(self) -> dict[str, dict[str, Tensor]]:
        """The live tensors of parameters, statistics and moments."""
        scale = self.reward_scale
        return {
            "actor": self.actor.state_dict(),
            "critic": self.critic.state_dict(),
            "target": self.target.state_dict(),
            "temperature": {"log_temperature": self.log_temperature.data},
            "optimizer_actor": self._actor_adam.moments("actor"),
            "optimizer_temperature": self._actor_adam.moments("temperature"),
            "optimizer_critic": self._critic_adam.moments("critic"),
            "reward_scale": {**scale.moments.state_dict(), "peak": scale.peak},
            "schedule": {"done": self._done},
        }

    def _per_env(self) -> dict[str, dict[str, Tensor]]:
        """The live tensors whose size is the number of envs, and so not known at the start."""
        return {
            "noise": {"noise": self.noise.noise, "left": self.noise.left},
            "returns": {"returns": self.reward_scale.returns},
        }


class SquashedPolicy(nn.Module):
    """Raw observation (B, O) to mean action (B, A) in (-1, 1).

    Args:
      net: (B, O) to the mean before the tanh.
    """

    def __init__(self, net: FoldedNetwork) -> None:
        super().__init__()
        self.net = net

    def forward(self, obs: Tensor) -> Tensor:
        """The action of each row of `obs`."""
        action: Tensor = self.net(obs).tanh()
        return action

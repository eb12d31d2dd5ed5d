"""Proximal policy optimisation with a Gaussian policy and an asymmetric critic.

Source: Schulman et al. 2017; the adaptive learning rate, the clipped value loss and the defaults
follow rsl_rl. Differences: returns bootstrap from the true final observation, a new permutation is
drawn for each epoch, normalisers are frozen within an iteration, and nothing waits for the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from unilab.buffers.rollout import Rollout
from unilab.config.ppo import PPOConfig
from unilab.errors import ConfigError
from unilab.learners.acting import GaussianSampler
from unilab.learners.base import ActOutput, LearnerSpec
from unilab.learners.losses import (
    HALF_LOG_2PI,
    MAX_LEARNING_RATE,
    MIN_LEARNING_RATE,
    gaussian_kl,
    learning_rate_factor,
    policy_loss,
    value_loss,
)
from unilab.learners.networks import (
    NETWORKS,
    POLICY_GAIN,
    DeterministicPolicy,
    GaussianActor,
    Network,
)
from unilab.learners.normalize import RunningNormalizer
from unilab.learners.optimizer import FlatParameters, GatedAdam
from unilab.learners.precision import LossScale, choose_precision
from unilab.learners.returns import gae
from unilab.learners.samples import Samples, SampleTable, TableMirror
from unilab.learners.state import restore, restore_stream, snapshot, stream_state
from unilab.learners.workspace import compiled_workspaces, make_workspace

ADVANTAGE_EPSILON = 1e-8

# Averaged over the minibatches of an iteration, in the order they are stacked.
MINIBATCH_METRICS = (
    "loss/policy",
    "loss/value",
    "loss/entropy",
    "loss/mirror",
    "policy/kl",
    "policy/clip_fraction",
    "learner/learning_rate",
    "policy/std",
    "learner/grad_norm_actor",
    "learner/grad_norm_critic",
)


class PPO:
    """The PPO learner: acts, learns from rollouts, saves and restores itself.

    `update` and `act` never read a value back from the device. A minibatch whose loss or gradient
    is not finite changes neither parameters nor optimiser state and is counted in the metric
    `learner/non_finite_updates`.

    Args:
      config: hyperparameters.
      spec: sizes, and the task's symmetry if it has one.
      device: where everything lives.
      seed: of the initial weights, the exploration noise and the minibatch order.
      dtype: float32; float64 for checks against an oracle.

    Raises:
      ConfigError: a symmetry that the task does not declare, or a precision the device lacks.
    """

    block = "learners.ppo"  # of the config, for messages

    def __init__(
        self,
        config: PPOConfig,
        spec: LearnerSpec,
        device: torch.device,
        seed: int,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        spec.check_symmetry(self.block, config.symmetry)
        self.config, self.spec, self.device, self.dtype = config, spec, device, dtype
        self.seed, self.iteration = seed, 0
        self._build_networks(torch.Generator().manual_seed(seed))
        half = self.critic.precision.name == "fp16"
        self._loss_scale = LossScale(device) if half else None
        self.generator = torch.Generator(device=device).manual_seed(seed)
        parts = {
            "actor": FlatParameters(self.actor.parameters()),
            "critic": FlatParameters(self.critic.parameters()),
        }
        self._optimizer = GatedAdam(parts, config.learning_rate, config.max_grad_norm, device)
        self.learning_rate = self._optimizer.learning_rate  # () f32, changed in place
        self._metric_names = tuple(
            name
            for name in MINIBATCH_METRICS
            if name != "loss/mirror" or config.symmetry == "mirror_loss"
        )
        # Sums of the metrics and, last, the number of minibatches that were finite.
        self._one = torch.ones(1, device=device, dtype=dtype)
        self._sums = torch.zeros(len(self._metric_names) + 1, device=device, dtype=dtype)
        self._overflows = torch.zeros((), device=device, dtype=dtype)  # that a loss scale provoked
        self._mirror = None if spec.symmetry is None else TableMirror(spec.symmetry, device, dtype)
        self._acting = GaussianSampler(self.actor, self.obs_normalizer)
        self._allocate(0)
        self._refresh()

    def _build_networks(self, init: torch.Generator) -> None:
        config, spec, device, dtype = self.config, self.spec, self.device, self.dtype
        rows = spec.num_envs * config.num_steps // config.minibatches
        widest = max(*config.actor_hidden, *config.critic_hidden)
        try:
            precision = choose_precision(config.precision, device, rows, widest)
        except ConfigError as error:
            raise ConfigError(f"{self.block}.{error}") from error

        def network(fan_in: int, hidden: Sequence[int], fan_out: int, gain: float) -> Network:
            sizes, build = (fan_in, *hidden, fan_out), NETWORKS[config.network]
            return build(sizes, config.activation, gain, init, device, dtype, precision)

        def normalizer(dim: int) -> RunningNormalizer:
            enabled = config.normalize_obs
            return RunningNormalizer(dim, enabled=enabled, device=device, dtype=dtype)

        trunk = network(spec.obs_dim, config.actor_hidden, spec.action_dim, POLICY_GAIN)
        self.actor = GaussianActor(trunk, spec.action_dim, config.init_std)
        self.critic = network(spec.critic_obs_dim, config.critic_hidden, 1, 1.0)
        self.obs_normalizer = normalizer(spec.obs_dim)
        self.critic_obs_normalizer = normalizer(spec.critic_obs_dim)

    def _allocate(self, rows: int) -> None:
        """Make room for updates from rollouts of `rows` samples."""
        size = rows // self.config.minibatches
        mirrored = self.config.symmetry != "none"
        mirror = self._mirror if mirrored else None
        self._table = SampleTable(self.spec, rows, size, mirror, self.device, self.dtype)
        held = 2 * size if mirrored else size
        self._actor_work, self._critic_work = (
            make_workspace(network, held, trains=True, loss_scale=self._loss_scale)
            for network in (self.actor.mlp, self.critic)
        )
        if self.config.compile == "on" and size:
            batch = self._table.batch
            critic_obs = batch.critic_obs[: held if self.config.symmetry == "augment" else size]
            self._actor_work, self._critic_work = compiled_workspaces(
                (self._actor_work, batch.obs), (self._critic_work, critic_obs)
            )

    def act(self, obs: Tensor, explore: bool = True) -> ActOutput:
        """Choose an action for each raw observation.

        Args:
          obs: (B, O) on the learner's device.
          explore: draw from the policy; False gives its mean.

        Returns:
          action (B, A), mean (B, A), log_prob (B,), freshly allocated.
        """
        return self._acting.act(obs, explore, self.generator)

    def update(self, rollout: Rollout) -> dict[str, Tensor]:
        """Learn from a full rollout, then fold its observations into the normalisers.

        Args:
          rollout: T steps of N envs, collected with `act` since the last update.

        Returns:
          Metrics of the iteration, 0-d on the learner's device. Averages are over the minibatches
          that were finite (NaN if none was).

        Raises:
          ConfigError: fewer samples than minibatches.
        """
        explained = self._prepare(rollout)
        rows, size = self._table.rows, self._table.size
        self._sums.zero_()
        self._overflows.zero_()
        for _ in range(self.config.epochs):
            order = torch.randperm(rows, generator=self.generator, device=self.device)
            for i in range(self.config.minibatches):
                self._table.gather(order[i * size : (i + 1) * size])
                self._learn(self._table.batch, size)
        steps = rollout.num_steps
        finite_obs = self.obs_normalizer.fold(rollout.obs[:steps].flatten(0, 1))
        finite_critic = self.critic_obs_normalizer.fold(rollout.critic_obs[:steps].flatten(0, 1))
        self.iteration += 1
        self._refresh()
        return self._metrics(explained, finite_obs, finite_critic)

    @torch.no_grad()
    def _prepare(self, rollout: Rollout) -> Tensor:
        """Fill the table: normalised observations, values, advantages, returns, each once.

        Returns the fraction of the returns' variance that the critic explains, ().
        """
        steps, envs = rollout.num_steps, rollout.num_envs
        rows = steps * envs
        if rows < self.config.minibatches:
            raise ConfigError(
                f"{self.block}.minibatches is {self.config.minibatches}, but a rollout has only "
                f"{steps} steps x {envs} envs = {rows} samples; lower it or raise num_envs"
            )
        if self._table.rows != rows:
            self._allocate(rows)
        samples = self._table.samples
        self.obs_normalizer(rollout.obs[:steps].flatten(0, 1), out=samples.obs)
        self.critic_obs_normalizer(rollout.critic_obs[:steps].flatten(0, 1), out=samples.critic_obs)
        samples.action.copy_(rollout.action.flatten(0, 1))
        samples.mean.copy_(rollout.mean.flatten(0, 1))
        samples.log_prob.copy_(rollout.log_prob.flatten())
        value = rollout.reward.new_empty(steps + 1, envs)
        self._evaluate(samples.critic_obs, value[:steps].view(-1))
        self._evaluate(self.critic_obs_normalizer(rollout.critic_obs[steps]), value[steps])
        final_obs, final_index = rollout.final_rows()
        final_value = rollout.reward.new_empty(final_index.shape[0])
        self._evaluate(self.critic_obs_normalizer(final_obs), final_value)
        bootstrap = rollout.reward.new_zeros(rows + 1)  # one more: where padding rows go
        bootstrap.scatter_(0, final_index, final_value)
        advantage, returns = self._estimate(rollout, value, bootstrap[:rows].view(steps, envs))
        spread, centre = torch.std_mean(advantage, correction=0)
        samples.value.copy_(value[:steps].flatten())
        samples.returns.copy_(returns.flatten())
        samples.advantage.copy_(((advantage - centre) / (spread + ADVANTAGE_EPSILON)).flatten())
        self._old_std = self.actor.std.detach().clone()
        return 1.0 - advantage.var(correction=0) / returns.var(correction=0).clamp_min(1e-8)

    def _estimate(
        self, rollout: Rollout, value: Tensor, final_value: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Advantages and returns, both (T, N), from value (T + 1, N) and final_value (T, N)."""
        return gae(
            rollout.reward,
            value,
            rollout.terminated,
            rollout.truncated,
            final_value,
            self.config.gamma,
            self.config.lam,
        )

    def _evaluate(self, critic_obs: Tensor, out: Tensor) -> None:
        """Write the critic's values of normalised observations (B, C) to `out` (B,)."""
        most = self._critic_work.rows
        for rows, values in zip(torch.split(critic_obs, most), torch.split(out, most), strict=True):
            values.copy_(self._critic_work.forward(rows)[:, 0])

    @torch.no_grad()
    def _learn(self, batch: Samples, size: int) -> None:
        """One optimiser step on `batch`, whose first `size` rows are as collected."""
        config, std = self.config, self.actor.std
        used = slice(None) if config.symmetry == "augment" else slice(size)
        mean = self._actor_work.forward(batch.obs)
        value = self._critic_work.forward(batch.critic_obs[used])
        score = (batch.action[used] - mean[used]).div_(std)  # (B, A) action noise in stds
        square = score.square()
        log_std = std.log().sum()
        log_prob = square.sum(-1).mul_(-0.5).sub_(log_std + HALF_LOG_2PI * std.numel())
        policy = policy_loss(log_prob, batch.log_prob[used], batch.advantage[used], config.clip)
        clip = config.clip if config.value_clip else None
        critic_loss, value_grad = value_loss(
            value[:, 0], batch.value[used], batch.returns[used], clip
        )
        entropy = log_std + (0.5 + HALF_LOG_2PI) * std.numel()
        kl = gaussian_kl(mean[:size], std, batch.mean[:size], self._old_std)
        metrics = [policy.loss, critic_loss, entropy]

        grad = policy.grad_log_prob
        mean_grad = score.mul_(grad.unsqueeze(1)).div_(std)
        if config.symmetry == "mirror_loss":
            mirror_loss, mean_grad = self._mirror_loss(mean, size, mean_grad)
            metrics.append(mirror_loss)
        assert std.grad is not None
        std.grad.copy_((square.t() @ grad - grad.sum() - config.entropy_coef).div_(std))
        self._actor_work.backward(mean_grad)
        self._critic_work.backward(value_grad.mul_(config.value_coef).unsqueeze(1))
        self._step([*metrics, kl, policy.clip_fraction], kl)

    def _mirror_loss(self, mean: Tensor, size: int, mean_grad: Tensor) -> tuple[Tensor, Tensor]:
        """Mean squared distance of the policy's answers to mirrored observations, `mean[size:]`,
        from the mirror images of its answers to the observations, taken as given.

        Returns the loss () and the gradient of the total loss by all of `mean`.
        """
        assert self._mirror is not None
        error = mean[size:] - self._mirror.action(mean[:size])
        loss = error.square().mean()
        mirrored_grad = error.mul_(2.0 * self.config.mirror_coef / error.numel())
        return loss, torch.cat([mean_grad, mirrored_grad])

    def _step(self, metrics: list[Tensor], kl: Tensor) -> None:
        """Clip the gradients, adapt the learning rate and step, unless something is not finite."""
        config = self.config
        norms, row = self._optimizer.grad_norms(), torch.stack(metrics)
        finite = torch.isfinite(row.sum() + norms.sum())
        if self._loss_scale is not None:
            self._loss_scale.update(finite)
            self._overflows.add_(torch.isfinite(row.sum()).logical_and_(~finite))
        if config.schedule == "adaptive":
            factor = torch.where(finite, learning_rate_factor(kl, config.target_kl), 1.0)
            self.learning_rate.mul_(factor).clamp_(MIN_LEARNING_RATE, MAX_LEARNING_RATE)
        self._optimizer.step(norms, finite)
        self.actor.clamp_std()
        rest = torch.stack([self.learning_rate.to(self.dtype), self.actor.std.mean()])
        row = torch.cat([row, rest, norms, self._one])
        self._sums.add_(torch.where(finite, row, 0.0))

    def _metrics(self, explained: Tensor, *folded: Tensor) -> dict[str, Tensor]:
        count = self._sums[-1].clone()
        averages = (self._sums[:-1] / count).unbind()
        metrics = dict(zip(self._metric_names, averages, strict=True))
        metrics["learner/explained_variance"] = explained
        skipped = self.config.epochs * self.config.minibatches - count - self._overflows
        metrics["learner/non_finite_updates"] = skipped + sum((~ok).to(self.dtype) for ok in folded)
        return metrics

    def state_dict(self) -> dict[str, Any]:
        """A snapshot of everything that decides how learning goes on.

        Tensors are clones; the rest is plain values, so `torch.load(weights_only=True)` reads it.
        """
        state: dict[str, Any] = {**snapshot(self._tensors())}
        state["learning_rate"] = self.learning_rate.clone()
        state["generator"] = stream_state(self.generator)
        state["seed"], state["iteration"] = self.seed, self.iteration
        return state

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up a state given by `state_dict`, from whatever device.

        The random stream goes on where it was. A state from another kind of device has another
        kind of stream: there it starts anew from the saved seed and iteration.

        Raises:
          ConfigError: the state is of other sizes or of another kind of network.
        """
        restore(self._tensors(), state)
        if self.config.schedule == "adaptive":  # else it is the config's, which a resume may change
            self.learning_rate.copy_(state["learning_rate"])
        self.seed, self.iteration = int(state["seed"]), int(state["iteration"])
        restore_stream(self.generator, state["generator"], self.seed + self.iteration)
        self._refresh()

    def policy_module(self) -> DeterministicPolicy:
        """The policy as it stands: raw observation (B, O) to mean action (B, A). A copy."""
        normalizer = self.obs_normalizer
        return DeterministicPolicy(self.actor.mlp, normalizer.shift, normalizer.inv_scale)

    def _tensors(self) -> dict[str, dict[str, Tensor]]:
        """The live tensors of parameters, statistics and moments."""
        tensors = {
            "actor": self.actor.state_dict(),
            "critic": self.critic.state_dict(),
            "obs_normalizer": self.obs_normalizer.state_dict(),
            "critic_obs_normalizer": self.critic_obs_normalizer.state_dict(),
            "optimizer_actor": self._optimizer.moments("actor"),
            "optimizer_critic": self._optimizer.moments("critic"),
        }
        if self._loss_scale is not None:
            tensors["loss_scale"] = self._loss_scale.tensors()
        return tensors

    @torch.no_grad()
    def _refresh(self) -> None:
        """Derive what `act` and the mirror read from parameters and statistics."""
        self.obs_normalizer.refresh()
        self.critic_obs_normalizer.refresh()
        self._acting.refresh()
        if self._mirror is not None:
            self._mirror.refresh(self.obs_normalizer, self.critic_obs_normalizer)

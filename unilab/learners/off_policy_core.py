"""What the learners with twin critics share: everything but how actions and targets are made."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from typing import Any, Self

import torch
from torch import Tensor

from unilab.config.off_policy import OffPolicyConfig
from unilab.errors import ConfigError
from unilab.learners.base import ActOutput, LearnerSpec
from unilab.learners.compiled import Call, compile_networks, example
from unilab.learners.critic import HEADS, TwinCritic
from unilab.learners.ensemble import EnsembleNetwork, NetworkShape, SquashedPolicy
from unilab.learners.metric_slots import MetricSlots
from unilab.learners.normalize import RunningNormalizer
from unilab.learners.off_policy import Batch
from unilab.learners.precision import choose_precision
from unilab.learners.state import Tensors, restore, restore_stream, snapshot, stream_state
from unilab.learners.trained import TrainedModule
from unilab.learners.update_table import UpdateRows, UpdateTable

NON_FINITE = "learner/non_finite_updates"


class OffPolicyCore(ABC):
    """An off-policy learner up to its actor. See `OffPolicyLearner` for what it is to a runner.

    An update is: the critics one step towards their target, every `actor_every`-th time the actor
    one step, then the slow critics a share tau of the way. `act` and `cycle` never read a value
    back from the device, and with the same `phase` a cycle runs the same operations in the same
    memory. An update whose loss or gradient is not finite changes nothing and is counted.

    Args:
      name: of the learner, as in the config.
      config: hyperparameters.
      spec: sizes; symmetry and action limits if the task has them.
      device: where everything lives.
      seed: of the initial weights and of all noise.
      dtype: float32; float64 for checks against an oracle.
      shape: activation and layer norm of the networks, as (activation, layer_norm).
      outputs: numbers that the actor's network gives for an observation.
      betas: of AdamW.

    Attributes:
      updates: made so far. Who replays a recorded cycle adds `updates_per_step` to it.

    Raises:
      ConfigError: a symmetry that the task does not declare, or a precision the device lacks.
    """

    critic_metric_names: tuple[str, ...]
    actor_metric_names: tuple[str, ...]

    def __init__(
        self,
        name: str,
        config: OffPolicyConfig,
        spec: LearnerSpec,
        device: torch.device,
        seed: int,
        dtype: torch.dtype,
        *,
        shape: tuple[str, bool],
        outputs: int,
        betas: tuple[float, float],
    ) -> None:
        spec.check_symmetry(f"learners.{name}", config.symmetry)
        self.config, self.spec, self.device, self.dtype = config, spec, device, dtype
        self.batch_size, self.updates_per_step = config.batch_size, config.updates_per_step
        self.seed, self.updates = seed, 0
        self.generator = torch.Generator(device=device).manual_seed(seed)
        self._build_networks(name, shape, outputs, betas)
        limits = spec.limits(config.action_limit)
        self.action_limit = torch.tensor(limits, device=device, dtype=dtype)  # (A,)
        self._table = UpdateTable(
            spec,
            config.updates_per_step,
            config.batch_size,
            config.symmetry == "augment",
            self.action_limit,
            device,
            dtype,
        )
        self._critic_metrics = MetricSlots(self.critic_metric_names, device, dtype)
        self._actor_metrics = MetricSlots(self.actor_metric_names, device, dtype)
        self._refused = torch.zeros((), device=device, dtype=dtype)  # since the last cycle
        self._non_finite = torch.zeros_like(self._refused)  # in the last cycle

    def _build_networks(
        self, name: str, shape: tuple[str, bool], outputs: int, betas: tuple[float, float]
    ) -> None:
        config, spec, device, dtype = self.config, self.spec, self.device, self.dtype
        draw = torch.Generator().manual_seed(self.seed)
        like = torch.empty(0, device=device, dtype=dtype)
        widest = max(*config.actor_hidden, *config.critic_hidden)
        try:
            precision = choose_precision(config.precision, device, config.batch_size, widest)
        except ConfigError as error:
            raise ConfigError(f"learners.{name}.{error}") from error

        def network(
            members: int, fan_in: int, hidden: tuple[int, ...], out: int
        ) -> EnsembleNetwork:
            choice = NetworkShape(config.network, hidden, *shape)
            return EnsembleNetwork(members, fan_in, out, choice, precision, draw, like)

        def normalizer(dim: int) -> RunningNormalizer:
            return RunningNormalizer(dim, enabled=config.normalize_obs, device=device, dtype=dtype)

        self.actor = network(1, spec.obs_dim, config.actor_hidden, outputs)
        self._start_actor(draw)
        self._trained_actor = TrainedModule(
            self.actor,
            config.learning_rate,
            betas,
            config.weight_decay,
            half=precision.name == "fp16",
        )
        inputs = spec.critic_obs_dim + spec.action_dim
        critics = network(HEADS, inputs, config.critic_hidden, config.atoms)
        self.critic = TwinCritic(critics, config, betas)
        self.obs_normalizer = normalizer(spec.obs_dim)
        self.critic_obs_normalizer = normalizer(spec.critic_obs_dim)

    @abstractmethod
    def _start_actor(self, draw: torch.Generator) -> None:
        """Give the actor's head its first weights."""

    @abstractmethod
    def _draw_noise(self) -> None:
        """Draw all noise of a cycle."""

    @abstractmethod
    def _learn_critic(self, rows: UpdateRows, update: int) -> Tensor:
        """One step of the critics. Returns whether it was applied, () bool."""

    @abstractmethod
    def _learn_actor(self, rows: UpdateRows, turn: int) -> None:
        """One step of the actor, the `turn`-th of the cycle."""

    @abstractmethod
    def act(self, obs: Tensor, explore: bool = True) -> ActOutput:
        """Choose an action for each raw observation (B, O)."""

    def snapshot(self, generator: torch.Generator) -> Self:
        """A copy to act with while this learner learns; see `OffPolicyLearner`."""
        twin = copy.copy(self)
        twin.actor = copy.deepcopy(self.actor).requires_grad_(False)
        twin.obs_normalizer = copy.deepcopy(self.obs_normalizer)
        twin.generator = generator
        return twin

    @torch.no_grad()
    def publish(self, snapshot: Self) -> None:
        """Bring a copy's policy up to date, in one operation. Never waits."""
        torch._foreach_copy_(snapshot._acting_tensors(), self._acting_tensors())

    def _acting_tensors(self) -> list[Tensor]:
        """All that `act` reads and learning changes."""
        normalizer = self.obs_normalizer
        return [*self.actor.parameters(), normalizer.shift, normalizer.inv_scale]

    @property
    def phase(self) -> int:
        """Where in the rhythm of critic and actor the next cycle starts."""
        return self.updates % self.config.actor_every

    @property
    def actor_turns(self) -> int:
        """The most steps of the actor in a cycle."""
        return -(-self.updates_per_step // self.config.actor_every)

    @torch.no_grad()
    def random_actions(self, rows: int) -> Tensor:
        """Uniform actions (rows, A) within the limits, for the steps before learning starts."""
        draw = torch.empty(rows, self.spec.action_dim, device=self.device, dtype=self.dtype)
        return draw.uniform_(-1.0, 1.0, generator=self.generator).mul_(self.action_limit)

    def observe(self, obs: Tensor, critic_obs: Tensor) -> None:
        """Take raw observations (N, O), (N, C) into the statistics; each must come once."""
        for normalizer, rows in (
            (self.obs_normalizer, obs),
            (self.critic_obs_normalizer, critic_obs),
        ):
            self._refused.add_(~normalizer.fold(rows))

    def observe_rewards(self, reward: Tensor, ended: Tensor) -> None:  # noqa: B027
        """Nothing to do: rewards are learned from as they are."""

    def compile_networks(self) -> bool:
        """Compile what cycles run, where it is right and not slower; else a warning says why.

        The pass of the critics that the actor's step goes through is not compiled. Call it before
        the first cycle, and before cycles are recorded.
        """
        rows, spec, name = self._table.size, self.spec, self.actor.precision.name
        obs = example(self.action_limit, rows, spec.obs_dim)
        inputs = example(self.action_limit, rows, spec.critic_obs_dim + spec.action_dim)
        return compile_networks(
            {
                "actor": (self.actor, name, [Call(obs), Call(obs, grad=False)]),
                "critic": (self.critic.network, name, [Call(inputs)]),
                "slow critic": (self.critic.target, name, [Call(inputs, grad=False)]),
            }
        )

    def cycle(self, batch: Batch) -> dict[str, Tensor]:
        """Make `updates_per_step` updates, from as many times `batch_size` transitions.

        Returns:
          Metrics, 0-d on the device, which the next cycle overwrites. Averages are over the
          updates that were finite (NaN if none was); those of the actor stay as they are in a
          cycle without a step of it.
        """
        self._table.fill(batch, self.obs_normalizer, self.critic_obs_normalizer)
        self._draw_noise()
        every, turn = self.config.actor_every, 0
        for update in range(self.updates_per_step):
            rows = self._table.rows(update)
            applied = self._learn_critic(rows, update)
            if self.updates % every == 1 % every:
                self._learn_actor(rows, turn)
                turn += 1
            self.critic.follow(applied)
            self.updates += 1
        self._critic_metrics.finish()
        if turn:
            self._actor_metrics.finish()
        self._non_finite.copy_(self._refused)
        self._refused.zero_()
        return {
            **self._critic_metrics.views,
            **self._actor_metrics.views,
            NON_FINITE: self._non_finite,
        }

    def state_dict(self) -> dict[str, Any]:
        """A snapshot of everything that decides how learning goes on.

        Tensors are clones; the rest is plain values, so `torch.load(weights_only=True)` reads it.
        """
        state: dict[str, Any] = {**snapshot(self._tensors())}
        state["generator"] = stream_state(self.generator)
        state["seed"], state["updates"] = self.seed, self.updates
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up a state given by `state_dict`, from whatever device.

        A state from another kind of device has another kind of random stream: there it starts
        anew from the saved seed and number of updates.

        Raises:
          ConfigError: the state is of other sizes or of another kind of network.
        """
        restore(self._tensors(), state)
        for members in self._tensors().values():
            if "learning_rate" in members:  # it is the config's, which a resume may change
                members["learning_rate"].fill_(self.config.learning_rate)
        self.seed, self.updates = int(state["seed"]), int(state["updates"])
        restore_stream(self.generator, state["generator"], self.seed + self.updates)
        self.obs_normalizer.refresh()
        self.critic_obs_normalizer.refresh()

    def policy_module(self) -> SquashedPolicy:
        """The policy as it stands: raw observation (B, O) to its deterministic action (B, A)."""
        normalizer = self.obs_normalizer
        net = self.actor.plain(slice(self.spec.action_dim))
        return SquashedPolicy(net, normalizer.shift, normalizer.inv_scale, self.action_limit)

    def _tensors(self) -> Tensors:
        """The live tensors of parameters, statistics and moments."""
        return {
            **self.critic.tensors(),
            "actor": self.actor.state_dict(),
            "optimizer_actor": self._trained_actor.tensors(),
            "obs_normalizer": self.obs_normalizer.state_dict(),
            "critic_obs_normalizer": self.critic_obs_normalizer.state_dict(),
            "counters": {"refused": self._refused},
        }

"""The whole configuration of a run, as one typed and frozen object.

Every key has its default, its bounds, its unit and what it does; `unilab explain TASK` prints them.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from unilab.config.base import (
    BoolOrAuto,
    CountOrAuto,
    PointTuple,
    Section,
    SizeOrAuto,
    TermConfig,
    Terms,
    Thresholds,
)
from unilab.config.learners import LearnersConfig
from unilab.config.off_policy import ReplayConfig
from unilab.config.ppo import PPOConfig
from unilab.config.randomization import RandomizationConfig
from unilab.config.terrain import TerrainConfig

__all__ = [
    "ActionsConfig",
    "CheckpointConfig",
    "EpisodeConfig",
    "EvaluationConfig",
    "LearnersConfig",
    "LogConfig",
    "ObservationsConfig",
    "PPOConfig",
    "PhysicsConfig",
    "RandomizationConfig",
    "RunConfig",
    "RuntimeConfig",
    "TermConfig",
    "TerrainConfig",
    "TrainConfig",
]

Device = Literal["auto", "cpu", "cuda"] | Annotated[str, Field(pattern=r"^cuda:\d+$")]

_INT32_MAX = 2**31 - 1  # env ids are int32


class PhysicsConfig(Section):
    """The simulation."""

    backend: Literal["auto", "mujoco_cpu", "mujoco_warp"] = Field(
        default="auto",
        description="Physics engine: MuJoCo C on CPU threads, or mujoco-warp on `device`. auto = "
        "mujoco_warp where that is a CUDA GPU and it is installed, else mujoco_cpu.",
    )
    model: str | None = Field(
        default=None,
        description="MJCF file used in place of the task's robot; in a task's YAML it counts from "
        "that file's folder. null = the task's.",
    )
    num_envs: int = Field(
        default=1024,
        ge=1,
        le=_INT32_MAX,
        description="Environments simulated side by side. More fills the CPUs and the learner's "
        "batch, and takes memory.",
    )
    timestep_s: float = Field(
        default=0.005,
        gt=0,
        description="Integration step of the simulation, s. Smaller is more accurate and slower.",
    )
    substeps: int = Field(
        default=4,
        ge=1,
        description="Integration steps per control step; control period = timestep_s * substeps.",
    )

    contacts_per_env: SizeOrAuto = Field(
        default="auto",
        description="mujoco_warp: contact points there is room for, an env on average. auto = "
        "measured by letting the robot fall, with head room. More takes memory and time.",
    )
    constraints_per_env: SizeOrAuto = Field(
        default="auto",
        description="mujoco_warp: constraint rows there is room for, in each env. auto = measured "
        "likewise. More takes memory and time.",
    )
    cuda_graph: Literal["auto", "on", "off"] = Field(
        default="auto",
        description="mujoco_warp: run a control step as one recorded graph. auto = where the "
        "device can, with a warning where it cannot; on = an error there; off is several times "
        "slower.",
    )
    on_overflow: Literal["end_episode", "raise"] = Field(
        default="end_episode",
        description="mujoco_warp: what an env with more constraints than fit does to the run. "
        "end_episode = a warning, its episode ends as a failure; raise = the run stops.",
    )


class EpisodeConfig(Section):
    """When an episode runs out of time."""

    length_s: float = Field(
        default=20.0, gt=0, description="Time after which an episode is truncated, s."
    )
    random_start: bool = Field(
        default=True,
        description="Let the first episodes start at a random age, so that time-outs spread.",
    )


class ActionsConfig(Section):
    """From the policy's action to the target of the joints."""

    scale: float = Field(
        default=1.0, gt=0, description="Multiplies the task's per-joint action scale."
    )
    clip: float = Field(
        default=100.0, gt=0, description="Limit of |action| before scaling. Large = no limit."
    )


class ObservationsConfig(Section):
    """What the policy and the critic see: ordered terms with their parameters."""

    actor: Terms = Field(
        default={},
        validate_default=True,
        description="Observation terms of the policy, in order, with noise, scale and the like.",
    )
    critic: Terms = Field(
        default={},
        validate_default=True,
        description="Observation terms of the critic, in order. May hold what a robot cannot "
        "measure.",
    )


class RuntimeConfig(Section):
    """How the work is spread over the CPUs this process may use.

    No key changes a transition by a bit. `unilab tune` finds the fastest values on a machine.
    """

    threads: CountOrAuto = Field(
        default="auto",
        description="Threads of the MuJoCo pool. auto = every CPU; with overlap, those that "
        "kernels and policy leave.",
    )
    shards: CountOrAuto = Field(
        default="auto",
        description="Threads that run the task's kernel, each on its part of the envs. A part has "
        "512 envs at least; a smaller batch runs in fewer. auto = as many as that and the CPUs "
        "allow.",
    )
    threads_per_shard: CountOrAuto = Field(
        default="auto",
        description="Numba threads inside one shard. auto = 1, the serial kernel. More needs the "
        "omp or tbb layer; it divides batches that are too small for shards.",
    )
    groups: CountOrAuto = Field(
        default="auto",
        description="Groups of envs that take turns, so that kernels of one run while physics of "
        "another does. At most one for 64 envs. auto = 2 with overlap, else 1.",
    )
    overlap: BoolOrAuto = Field(
        default="auto",
        description="Let physics of one group run beside kernels and policy of another; they then "
        "share the CPUs. auto = on with more than 4 CPUs and 64 envs.",
    )
    learner_threads: CountOrAuto = Field(
        default="auto",
        description="Threads of torch on the CPU, for learning and, without overlap, for the "
        "policy. auto = one for 16 envs, at most every CPU. Changes rounding in the learner.",
    )
    threading_layer: Literal["auto", "omp", "tbb", "workqueue"] = Field(
        default="auto",
        description="Numba's threading layer, for threads_per_shard above 1. auto = omp, else tbb. "
        "workqueue cannot run parallel kernels from shards.",
    )
    allow_oversubscription: bool = Field(
        default=False,
        description="Accept more threads at the same time than CPUs, up to 256 or 16 a CPU in all.",
    )


class TrainConfig(Section):
    """How long to train."""

    iterations: int = Field(
        default=1000, ge=1, description="Iterations (one rollout and one update each) to train for."
    )
    max_time_s: Annotated[float, Field(gt=0)] | None = Field(
        default=None, description="Stop after this wall time, s, and save. null = no limit."
    )


class CheckpointConfig(Section):
    """When to save, and what to keep."""

    every: int = Field(default=50, ge=1, description="Iterations between two checkpoints.")
    keep: int = Field(
        default=3, ge=1, description="Number of latest checkpoints kept, besides the best one."
    )
    replay: bool = Field(
        default=False,
        description="Save the replay buffer of an off-policy learner too. A resume then goes on "
        "bit for bit; else the buffer fills anew. Makes checkpoints large.",
    )


class LogConfig(Section):
    """Where results go."""

    dir: str = Field(
        default="runs", min_length=1, description="Folder that the run directories are made in."
    )
    tensorboard: bool = Field(default=True, description="Write TensorBoard files as well.")
    every: int = Field(default=1, ge=1, description="Iterations between two logged rows.")


class EvaluationConfig(Section):
    """How a policy is judged."""

    at_end: bool = Field(default=True, description="Evaluate when training ends.")
    episodes: int = Field(default=50, ge=1, description="Episodes per evaluation.")
    episode_length_s: float = Field(default=20.0, gt=0, description="Length of an episode, s.")
    video: bool = Field(default=True, description="Record a video of the policy.")
    video_seconds: float = Field(default=10.0, gt=0, description="Length of the video, s.")
    points: PointTuple = Field(
        default=(),
        description="Fixed commands to evaluate at, one list each, in the units of the task's "
        "command. Empty = commands are sampled as in training.",
    )
    thresholds: Thresholds = Field(
        default={},
        validate_default=True,
        description="Metric name to the value that counts as passed, in the metric's unit.",
    )


def _terms(text: str) -> Terms:
    return Field(default={}, validate_default=True, description=text)  # type: ignore[no-any-return]


class RunConfig(Section):
    """All that determines a run."""

    task: str = Field(
        min_length=1, description="Task name, or path to a task file of your own (.py)."
    )
    description: str = Field(default="", description="One line that `unilab list` shows.")
    seed: Annotated[int, Field(ge=0, le=2**63 - 1)] | None = Field(
        default=None,
        description="Seed of every random number. null = drawn at start, logged and saved.",
    )
    device: Device = Field(
        default="auto",
        description="Device of the learner; cuda:1 is the second GPU. auto = the best there is.",
    )
    learner: Literal["ppo", "appo", "sac", "td3", "flashsac"] = Field(
        default="ppo",
        description="Learning algorithm, with its settings in learners.<name>. ppo learns from "
        "each rollout once; appo does so while the next one is collected; sac, td3 and flashsac "
        "learn from a replay buffer: fewer env steps, more updates.",
    )
    physics: PhysicsConfig = Field(default=PhysicsConfig(), description="The simulation.")
    episode: EpisodeConfig = Field(default=EpisodeConfig(), description="Length of episodes.")
    terrain: TerrainConfig = Field(
        default=TerrainConfig(), description="Uneven ground in the place of the model's floor."
    )
    actions: ActionsConfig = Field(default=ActionsConfig(), description="The action map.")
    observations: ObservationsConfig = Field(
        default=ObservationsConfig(), description="Observation terms, in order."
    )
    rewards: Terms = _terms("Reward terms, each with its weight and parameters.")
    terminations: Terms = _terms("Conditions that end an episode, with their parameters.")
    commands: Terms = _terms("Command terms, with their ranges.")
    events: Terms = _terms("Resets and pushes, with their parameters.")
    randomization: RandomizationConfig = Field(
        default=RandomizationConfig(),
        description="Physical properties and hardware that differ between envs and episodes.",
    )
    learners: LearnersConfig = Field(
        default=LearnersConfig(), description="Settings of each learner, by name."
    )
    runtime: RuntimeConfig = Field(default=RuntimeConfig(), description="Threads and overlap.")
    train: TrainConfig = Field(default=TrainConfig(), description="How long to train.")
    checkpoint: CheckpointConfig = Field(
        default=CheckpointConfig(), description="When to save and what to keep."
    )
    log: LogConfig = Field(default=LogConfig(), description="Where results go.")
    evaluation: EvaluationConfig = Field(
        default=EvaluationConfig(), description="How a policy is judged."
    )

    @model_validator(mode="after")
    def _check_sizes(self) -> Self:
        num_envs, num_steps = self.physics.num_envs, self.learners.ppo.num_steps
        minibatches = self.learners.ppo.minibatches
        if self.learner == "ppo" and minibatches > num_envs * num_steps:
            raise ValueError(
                f"learners.ppo.minibatches={minibatches} is more than the samples of a rollout, "
                f"physics.num_envs * learners.ppo.num_steps = {num_envs} * {num_steps} = "
                f"{num_envs * num_steps}; lower minibatches or raise one of the others"
            )
        learner = getattr(self.learners, self.learner)
        if isinstance(learner, ReplayConfig):
            self._check_warm_up(learner)
        elif self.checkpoint.replay:
            raise ValueError(
                f"checkpoint.replay=true, but learner={self.learner} has no replay buffer; leave "
                "it out, or choose learner=sac, td3 or flashsac"
            )
        for name in ("groups", "shards"):
            count = getattr(self.runtime, name)
            if count != "auto" and count > num_envs:
                raise ValueError(
                    f"runtime.{name}={count} is more than physics.num_envs={num_envs}; valid: 1 to "
                    f"{num_envs}, or auto"
                )
        return self

    def _check_warm_up(self, learner: ReplayConfig) -> None:
        """Refuse a run that is over before it has learnt anything."""
        where, steps = f"learners.{self.learner}", self.train.iterations * learner.num_steps
        if steps < learner.first_learning_step:
            raise ValueError(
                f"train.iterations={self.train.iterations} with {where}.num_steps="
                f"{learner.num_steps} is {steps} control steps; learning starts after "
                f"{learner.first_learning_step}, with {where}.warmup_steps={learner.warmup_steps} "
                f"and n_steps={learner.n_steps}; raise train.iterations or lower warmup_steps"
            )

    @model_validator(mode="after")
    def _check_times(self) -> Self:
        control_s = self.physics.timestep_s * self.physics.substeps
        for key, length_s in (
            ("episode.length_s", self.episode.length_s),
            ("evaluation.episode_length_s", self.evaluation.episode_length_s),
        ):
            if length_s < control_s * (1 - 1e-9):
                raise ValueError(
                    f"{key}={length_s:g} is shorter than one control step, physics.timestep_s * "
                    f"physics.substeps = {control_s:g} s; raise {key}"
                )
        return self

"""What the assembler is told about a task: its fields, constants and chosen terms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

ParameterValue = float | bool | list[float] | tuple[float, ...]
TermParameters = Mapping[str, ParameterValue]

BLOCK = 64  # envs a block: log sums are added per block, shards are cut at block borders

# Why an env failed (u8). Failures are events of one env: it is terminated, counted and reset.
FAILURES = ("none", "unstable", "frozen", "diverged", "bad_action", "bad_term")
DIVERGED, BAD_ACTION, BAD_TERM = 3, 4, 5
DIVERGED_LIMIT = 1.0e6  # |qpos| or |qvel| beyond it counts as diverged, on every backend


@dataclass(frozen=True)
class StateField:
    """A field that is read from the physics.

    Attributes:
      columns: where its numbers are in the state row, or in the sensor row.
      source: "state" or "sensor".
      reduce: over the substeps, for sensors: "last", "max" or "any".
      scalar: terms get a number rather than a row.
    """

    columns: tuple[int, ...]
    source: str = "state"
    reduce: str = "last"
    scalar: bool = False


@dataclass(frozen=True)
class CarriedField:
    """A field that is carried between steps: registered, so that it is reset and saved.

    Attributes:
      size: how many numbers.
      scalar: terms that only read it get a number rather than a row.
      reset: its value at a reset; None keeps it across episodes.
      update: name of the carry term that updates it, if one does.
    """

    size: int
    scalar: bool = False
    reset: float | None = 0.0
    update: str | None = None


@dataclass(frozen=True)
class EncoderBias:
    """Offsets of the joint positions that the actor sees.

    Attributes:
      low, high: (A,) range of each joint's offset, rad (m for a slide).
      per_episode: drawn anew for each episode rather than once for an env.
    """

    low: np.ndarray
    high: np.ndarray
    per_episode: bool = False


@dataclass(frozen=True)
class Delay:
    """A whole number of steps, from low to high, both included.

    Attributes:
      per_episode: drawn anew for each episode rather than once for an env.
      terms: what comes late, for observations.
    """

    low: int
    high: int
    per_episode: bool = False
    terms: tuple[str, ...] = ()


@dataclass(frozen=True)
class Hardware:
    """What keeps a robot from acting and seeing at once and exactly; None: nothing does.

    Attributes:
      encoder_bias: needs a state field `joint_pos`.
      action_delay: in substeps.
      observation_delay: in control steps, of terms of the actor.
      substeps: T.
    """

    encoder_bias: EncoderBias | None = None
    action_delay: Delay | None = None
    observation_delay: Delay | None = None
    substeps: int = 1


@dataclass(frozen=True)
class KernelSpec:
    """Everything that `fuse.assemble` needs.

    Attributes:
      name: of the task, an identifier.
      num_actions: A.
      qpos_column, nq, qvel_column, nv: where qpos and qvel are in the state row.
      state_fields, carried_fields: by name.
      constants: by name; float, or an array of shape (size,).
      actor, critic: observation terms in order, each with its parameters.
      rewards, terminations, commands, events: terms with their parameters.
      hardware: delays and biases of the robot.
    """

    name: str
    num_actions: int
    qpos_column: int
    nq: int
    qvel_column: int
    nv: int
    state_fields: Mapping[str, StateField]
    carried_fields: Mapping[str, CarriedField]
    constants: Mapping[str, float | np.ndarray]
    actor: Mapping[str, TermParameters]
    critic: Mapping[str, TermParameters]
    rewards: Mapping[str, TermParameters]
    terminations: Mapping[str, TermParameters] = field(default_factory=dict)
    commands: Mapping[str, TermParameters] = field(default_factory=dict)
    events: Mapping[str, TermParameters] = field(default_factory=dict)
    hardware: Hardware = field(default_factory=Hardware)


@dataclass(frozen=True)
class ObservationSlice:
    """Where one term is in an observation row, with its noise (uniform, +-) and scale."""

    name: str
    start: int
    stop: int
    noise: float
    scale: float

"""From the `randomization` block to what the kernel draws: encoder bias and delays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

import numpy as np

from unilab.config import RunConfig
from unilab.config.randomization import EncoderBias as EncoderBiasConfig
from unilab.config.randomization import Entry
from unilab.errors import ConfigError, nearest
from unilab.physics.model import Robot
from unilab_kernels import terms
from unilab_kernels.spec import Delay, EncoderBias, Hardware, StateField


def make_hardware(config: RunConfig, robot: Robot, fields: Mapping[str, StateField]) -> Hardware:
    """Resolve the entries that the kernel draws.

    Args:
      config: of the run.
      robot: the compiled robot.
      fields: what the task's terms read of the physics.

    Raises:
      ConfigError: a pattern matches nothing, or an entry has no effect in this task.
    """
    block, actor = config.randomization, config.observations.actor
    bias = action_delay = observation_delay = None
    if block.encoder_bias.is_on:
        bias = _encoder_bias(block.encoder_bias, robot, fields, tuple(actor))
    if block.action_delay.substeps is not None:
        action_delay = _delay(block.action_delay, block.action_delay.substeps, "substeps")
    if block.observation_delay.steps is not None:
        chosen = _matching(
            block.observation_delay.terms,
            tuple(actor),
            "randomization.observation_delay.terms",
            "term in observations.actor",
        )
        observation_delay = _delay(
            block.observation_delay, block.observation_delay.steps, "steps", chosen
        )
    return Hardware(bias, action_delay, observation_delay, config.physics.substeps)


def _encoder_bias(
    entry: EncoderBiasConfig, robot: Robot, fields: Mapping[str, StateField], actor: tuple[str, ...]
) -> EncoderBias:
    where = "randomization.encoder_bias"
    joints = robot.joint_names
    chosen = _matching(entry.joints, joints, f"{where}.joints", "actuated joint")
    joint_pos = fields.get("joint_pos")
    readers = [
        name
        for name in actor
        if (term := terms.find("observation", name)) is not None and "joint_pos" in term.arguments
    ]
    if joint_pos is None or len(joint_pos.columns) != len(joints) or not readers:
        raise ConfigError(
            f"{where}: has no effect: no term in observations.actor reads the field 'joint_pos' "
            f"({', '.join(actor)}); take the entry out, or observe joint positions"
        )
    assert entry.add_rad is not None
    used = np.isin(joints, chosen)
    low, high = (np.where(used, end, 0.0).astype(np.float32) for end in entry.add_rad)
    return EncoderBias(low, high, entry.mode == "reset")


def _delay(entry: Entry, steps: tuple[int, ...], key: str, chosen: tuple[str, ...] = ()) -> Delay:
    if steps[1] == 0:
        name = "observation_delay" if chosen else "action_delay"
        raise ConfigError(
            f"randomization.{name}.{key}: [0, 0] has no effect; take it out (null), or give a "
            "high of 1 or more"
        )
    low, high = steps
    return Delay(low, high, entry.mode == "reset", chosen)


def _matching(
    patterns: Sequence[str], names: Sequence[str], where: str, what: str
) -> tuple[str, ...]:
    """Return the names that some pattern matches, in their order."""
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise ConfigError(f"{where}: '{pattern}' matches no {what}; {nearest(pattern, names)}")
    return tuple(name for name in names if any(fnmatchcase(name, p) for p in patterns))

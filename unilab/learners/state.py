"""What saving and restoring of the learners have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from unilab.errors import ConfigError


def stream_state(generator: torch.Generator) -> dict[str, Any]:
    """The place of a random stream, as plain values and a tensor."""
    return {"device": generator.device.type, "state": generator.get_state().clone()}


def restore_stream(generator: torch.Generator, state: Mapping[str, Any], seed: int) -> None:
    """Let a random stream go on where `stream_state` found it.

    A state from another kind of device has another kind of stream: there it starts anew from
    `seed`.
    """
    if state["device"] == generator.device.type:
        generator.set_state(state["state"].cpu())
    else:
        generator.manual_seed(seed)


def check_layout(name: str, state: Mapping[str, Tensor], target: Mapping[str, Tensor]) -> None:
    """Refuse tensors of other names or shapes than those they are to be copied to.

    Raises:
      ConfigError: names the first that differs.
    """
    came = {key: tuple(value.shape) for key, value in state.items()}
    wanted = {key: tuple(value.shape) for key, value in target.items()}
    if came != wanted:
        differing = sorted(k for k in came.keys() | wanted.keys() if came.get(k) != wanted.get(k))
        key = differing[0]
        raise ConfigError(
            f"learner state: {name}.{key} has shape {came.get(key, 'none')} in the checkpoint and "
            f"{wanted.get(key, 'none')} here; build the learner with the checkpoint's own config"
        )

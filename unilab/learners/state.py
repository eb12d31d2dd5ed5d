"""Saving and restoring of learners: tensors by name, and the random stream."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from unilab.errors import ConfigError

Tensors = Mapping[str, Mapping[str, Tensor]]  # group, then name


def snapshot(tensors: Tensors) -> dict[str, dict[str, Tensor]]:
    """Clone live tensors."""
    return {
        group: {key: value.detach().clone() for key, value in members.items()}
        for group, members in tensors.items()
    }


@torch.no_grad()
def restore(tensors: Tensors, state: Mapping[str, Any]) -> None:
    """Copy a snapshot back into the live tensors, all of it or nothing.

    Raises:
      ConfigError: a name or a shape differs.
    """
    for group, members in tensors.items():
        check_layout(group, state.get(group, {}), members)
    for group, members in tensors.items():
        for key, tensor in members.items():
            tensor.copy_(state[group][key])


def check_layout(name: str, state: Mapping[str, Tensor], target: Mapping[str, Tensor]) -> None:
    """Raise ConfigError where two groups of tensors differ in names or shapes."""
    came = {key: tuple(value.shape) for key, value in state.items()}
    wanted = {key: tuple(value.shape) for key, value in target.items()}
    if came != wanted:
        differing = sorted(k for k in came.keys() | wanted.keys() if came.get(k) != wanted.get(k))
        key = differing[0]
        raise ConfigError(
            f"learner state: {name}.{key} has shape {came.get(key, 'none')} in the checkpoint and "
            f"{wanted.get(key, 'none')} here; build the learner with the checkpoint's own config"
        )


def stream_state(generator: torch.Generator) -> dict[str, Any]:
    """Where a random stream stands, and the kind of device it is on."""
    return {"device": generator.device.type, "state": generator.get_state().clone()}


def restore_stream(generator: torch.Generator, state: Mapping[str, Any], seed: int) -> None:
    """Let a random stream go on from a saved state.

    Another kind of device has another kind of stream: there it starts anew from `seed`.
    """
    if state["device"] == generator.device.type:
        generator.set_state(state["state"].cpu())
    else:
        generator.manual_seed(seed)

"""How much device memory the worlds of a model take, before they are allocated."""

from __future__ import annotations

import dataclasses
from typing import Any

import mujoco_warp as mjw
import torch
import warp as wp

from unilab.errors import ConfigError
from unilab.physics.contact_sizes import ContactSizes

_SAMPLE = 16  # worlds made on the CPU to see how much one more takes


def bytes_per_world(model: Any, sizes: ContactSizes) -> int:
    """Return the bytes that mujoco-warp allocates for one more world, measured on the CPU."""
    few, many = (_data_bytes(model, sizes, count) for count in (_SAMPLE, 2 * _SAMPLE))
    return (many - few) // _SAMPLE


def check_device_memory(
    model: Any, sizes: ContactSizes, num_envs: int, device: torch.device
) -> None:
    """Refuse more worlds than the GPU has room for.

    Raises:
      ConfigError: says how many would fit, and what to lower.
    """
    each = bytes_per_world(model, sizes)
    free, _total = torch.cuda.mem_get_info(device)
    if each * num_envs > free:
        raise ConfigError(
            f"physics.num_envs={num_envs}: the envs need about {each * num_envs / 2**30:.1f} GiB "
            f"on {device} ({each / 2**10:.0f} KiB each), {free / 2**30:.1f} GiB are free; lower "
            f"physics.num_envs to {free // each} or less, or physics.contacts_per_env and "
            "physics.constraints_per_env"
        )


def _data_bytes(model: Any, sizes: ContactSizes, count: int) -> int:
    with wp.ScopedDevice("cpu"):
        data = mjw.make_data(model, count, nconmax=sizes.contacts, njmax=sizes.constraints)
    return _array_bytes(data)


def _array_bytes(value: Any) -> int:
    """Add up the arrays of a dataclass and of those within it."""
    if isinstance(value, wp.array):
        return int(value.capacity)
    if dataclasses.is_dataclass(value):
        return sum(_array_bytes(getattr(value, f.name)) for f in dataclasses.fields(value))
    return 0

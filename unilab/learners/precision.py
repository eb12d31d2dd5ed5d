"""The number type of the hidden layers, chosen once, and the loss scale that float16 needs."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor

from unilab.errors import ConfigError

DTYPES = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
# Kinds of device that float16 is for. Its products are emulated on CPUs.
FP16_DEVICES = ("cuda",)
# With `auto`, rows * width^2 of the widest layer from which bfloat16 is used. A product of 2 * that
# many operations takes a data-centre GPU as long in TF32 (2e14 a second) as launching it (6 us):
# below, a faster product is not seen. An estimate from these two figures.
AUTO_MIN_PRODUCT = 6e8
# Source: Micikevicius et al. 2018, and the defaults of torch.amp.GradScaler. The largest is ours:
# an infinite scale would never come back.
FIRST_SCALE, MAX_SCALE, GROWTH, BACKOFF, GROWTH_INTERVAL = 2.0**16, 2.0**24, 2.0, 0.5, 2000.0


@dataclass(frozen=True)
class Precision:
    """What the hidden layers compute in. Parameters, heads and losses stay as they are.

    Args:
      name: fp32, bf16 or fp16.
      device_type: cpu or cuda.
    """

    name: str
    device_type: str

    def autocast(self) -> AbstractContextManager[object]:
        """The context to run hidden layers in."""
        dtype = DTYPES[self.name]
        if dtype is None:
            return contextlib.nullcontext()
        # A cache of cast weights would outlive its weights in a recorded graph.
        return torch.autocast(self.device_type, dtype=dtype, cache_enabled=False)


FULL = Precision("fp32", "cpu")  # the same on every device


def choose_precision(name: str, device: torch.device, rows: int, width: int) -> Precision:
    """Resolve `auto`, refuse what the device cannot do, and let float32 products use TF32.

    Args:
      name: auto, fp32, bf16 or fp16.
      device: of the learner.
      rows: B of an update.
      width: of the widest hidden layer.

    Raises:
      ConfigError: the device lacks the type.
    """
    kind = device.type
    bf16 = kind == "cpu" or (
        kind == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    )
    if name == "auto":
        pays = kind == "cuda" and bf16 and rows * width**2 >= AUTO_MIN_PRODUCT
        name = "bf16" if pays else "fp32"
    if (name == "fp16" and kind not in FP16_DEVICES) or (name == "bf16" and not bf16):
        fits = "auto, fp32" + (", bf16" if bf16 else "") + (", fp16" if kind == "cuda" else "")
        raise ConfigError(f"precision={name}: device {device} does not support it; valid: {fits}")
    if kind == "cuda":
        torch.set_float32_matmul_precision("high")
    return Precision(name, kind)


class LossScale:
    """Multiplies a float16 loss so that small gradients do not vanish, and adapts on the device.

    Twice as much after GROWTH_INTERVAL good steps in a row, half after a step that overflowed.

    Args:
      device: where it lives.
    """

    def __init__(self, device: torch.device) -> None:
        self.scale = torch.tensor(FIRST_SCALE, device=device)  # () f32
        self.good_steps = torch.zeros((), device=device)  # () f32, in a row

    def update(self, finite: Tensor) -> None:
        """Take in how a step went, () bool."""
        run = torch.where(finite, self.good_steps + 1.0, 0.0)
        grows = run >= GROWTH_INTERVAL
        factor = torch.where(grows, GROWTH, torch.where(finite, 1.0, BACKOFF))
        self.scale.mul_(factor).clamp_max_(MAX_SCALE)
        self.good_steps.copy_(torch.where(grows, 0.0, run))

    def tensors(self) -> dict[str, Tensor]:
        """The live state."""
        return {"scale": self.scale, "good_steps": self.good_steps}

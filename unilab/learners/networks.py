"""Networks of the learners: a plain MLP, the Gaussian actor, and flat parameter storage."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from unilab.errors import ConfigError
from unilab.learners.activations import ACTIVATIONS

# Bounds of the exploration noise, in units of the action. Below the lower one an optimiser step
# can change the noise by several times its size; above the upper one nothing is learnt.
MIN_STD, MAX_STD = 1e-2, 1e2
# Gain of the policy's last layer: the first actions are near 0 whatever is observed.
# Source: Andrychowicz et al. 2021, "What matters in on-policy reinforcement learning".
POLICY_GAIN = 0.01


class MLP(nn.Module):
    """Linear layers with an activation between them and none after the last.

    Weights start orthogonal (Saxe et al. 2014), with gain sqrt(2) in hidden layers and `last_gain`
    in the last; biases start at 0.

    Args:
      sizes: width of the input, of each hidden layer and of the output.
      activation: a key of ACTIVATIONS.
      last_gain: gain of the last layer.
      generator: draws the weights, on the CPU, so that they do not depend on the device.
      device, dtype: of the parameters.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        activation: str,
        last_gain: float,
        generator: torch.Generator,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.activation = activation
        self._function = ACTIVATIONS[activation].module()
        linears = []
        for i, (fan_in, fan_out) in enumerate(pairwise(sizes)):
            layer = nn.Linear(fan_in, fan_out, device=device, dtype=dtype)
            gain = last_gain if i == len(sizes) - 2 else math.sqrt(2.0)
            weight = torch.empty(fan_out, fan_in, dtype=torch.float64)
            nn.init.orthogonal_(weight, gain=gain, generator=generator)
            with torch.no_grad():
                layer.weight.copy_(weight)
                layer.bias.zero_()
            linears.append(layer)
        self.linears = tuple(linears)
        self.layers = nn.ModuleList(linears)  # registers them

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., D_in) to (..., D_out)."""
        last = len(self.linears) - 1
        for i, layer in enumerate(self.linears):
            x = functional.linear(x, layer.weight, layer.bias)
            if i < last:
                x = self._function(x)
        return x

    def as_sequential(self) -> nn.Sequential:
        """A copy made of torch's own modules only, for export."""
        modules: list[nn.Module] = []
        for i, layer in enumerate(self.linears):
            if i:
                modules.append(ACTIVATIONS[self.activation].module())
            copy = nn.Linear(layer.in_features, layer.out_features).to(layer.weight)
            copy.load_state_dict(layer.state_dict())
            modules.append(copy)
        return nn.Sequential(*modules)


class GaussianActor(nn.Module):
    """A policy with a mean given by an MLP and a noise level that is the same in every state.

    Args:
      mlp: (..., O) to (..., A).
      action_dim: A.
      init_std: start of the noise's standard deviation, in units of the action.

    Raises:
      ConfigError: init_std outside [MIN_STD, MAX_STD].
    """

    def __init__(self, mlp: MLP, action_dim: int, init_std: float) -> None:
        super().__init__()
        if not MIN_STD <= init_std <= MAX_STD:
            raise ConfigError(
                f"init_std is {init_std:g}; valid: {MIN_STD:g} to {MAX_STD:g}, in units of the "
                "action"
            )
        self.mlp = mlp
        like = mlp.linears[0].weight
        self.std = nn.Parameter(torch.full((action_dim,), init_std).to(like))  # (A,)

    def forward(self, x: Tensor) -> Tensor:
        """Mean action (..., A) for normalised observations (..., O)."""
        mean: Tensor = self.mlp(x)
        return mean

    @torch.no_grad()
    def clamp_std(self) -> None:
        """Bring the noise back within its bounds; call after each optimiser step.

        Projecting the parameter, rather than clamping it where it is used, keeps its gradient
        alive at the bounds.
        """
        self.std.clamp_(MIN_STD, MAX_STD)


class DeterministicPolicy(nn.Module):
    """Raw observation (B, O) to mean action (B, A): normaliser and network, nothing else.

    Args:
      mlp: the actor's network; its weights are copied.
      shift, inv_scale: (O,) applied as `(obs - shift) * inv_scale`; copied.
    """

    shift: Tensor
    inv_scale: Tensor

    def __init__(self, mlp: MLP, shift: Tensor, inv_scale: Tensor) -> None:
        super().__init__()
        self.register_buffer("shift", shift.detach().clone())
        self.register_buffer("inv_scale", inv_scale.detach().clone())
        self.net = mlp.as_sequential()
        self.requires_grad_(False)
        self.eval()

    def forward(self, obs: Tensor) -> Tensor:
        """The action of each row of `obs`, raw and unclipped."""
        action: Tensor = self.net((obs - self.shift) * self.inv_scale)
        return action

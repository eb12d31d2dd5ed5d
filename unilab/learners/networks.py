"""Networks of the on-policy learners: an MLP or a residual one, the Gaussian actor, its export."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from unilab.errors import ConfigError
from unilab.learners.activations import ACTIVATIONS
from unilab.learners.ensemble import EnsembleNetwork, NetworkShape
from unilab.learners.precision import FULL, Precision

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
      precision: of all layers but the last.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        activation: str,
        last_gain: float,
        generator: torch.Generator,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
        precision: Precision = FULL,
    ) -> None:
        super().__init__()
        self.activation, self.precision = activation, precision
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
        """Map (..., D_in) to (..., D_out), in the type of `x`."""
        *hidden, last = self.linears
        h = x
        with self.precision.autocast():
            for layer in hidden:
                h = self._function(functional.linear(h, layer.weight, layer.bias))
        return functional.linear(h.to(x.dtype), last.weight, last.bias)

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


class ResidualNetwork(EnsembleNetwork):
    """An embedding, a pre-norm residual block for each hidden width, a norm and a linear head.

    The head starts as an MLP's last layer does, all else as in the off-policy learners.

    Args, forward: as `MLP`, for inputs (B, D_in) and hidden layers of one width.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        activation: str,
        last_gain: float,
        generator: torch.Generator,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
        precision: Precision = FULL,
    ) -> None:
        fan_in, *hidden, fan_out = sizes
        shape = NetworkShape("residual", tuple(hidden), activation, layer_norm=True)
        like = torch.empty(0, device=device, dtype=dtype)
        super().__init__(1, fan_in, fan_out, shape, precision, generator, like)
        weight = torch.empty(fan_out, hidden[-1], dtype=torch.float64)
        nn.init.orthogonal_(weight, gain=last_gain, generator=generator)
        with torch.no_grad():
            self.head.weight.copy_(weight.t())
            self.head.bias.zero_()

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, D_in) to (B, D_out), in the type of `x`."""
        return super().forward(x)[0]

    def as_sequential(self) -> nn.Sequential:
        """A copy made of torch's own modules and sums, for export."""
        return self.plain()


Network = MLP | ResidualNetwork
NETWORKS: dict[str, type[Network]] = {"mlp": MLP, "residual": ResidualNetwork}  # by config name


class GaussianActor(nn.Module):
    """A policy with a mean given by a network and a noise level that is the same in every state.

    Args:
      mlp: (B, O) to (B, A).
      action_dim: A.
      init_std: start of the noise's standard deviation, in units of the action.

    Raises:
      ConfigError: init_std outside [MIN_STD, MAX_STD].
    """

    def __init__(self, mlp: Network, action_dim: int, init_std: float) -> None:
        super().__init__()
        if not MIN_STD <= init_std <= MAX_STD:
            raise ConfigError(
                f"init_std is {init_std:g}; valid: {MIN_STD:g} to {MAX_STD:g}, in units of the "
                "action"
            )
        self.mlp = mlp
        like = next(mlp.parameters())
        self.std = nn.Parameter(torch.full((action_dim,), init_std).to(like))  # (A,)

    def forward(self, x: Tensor) -> Tensor:
        """Mean action (B, A) for normalised observations (B, O)."""
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

    def __init__(self, mlp: Network, shift: Tensor, inv_scale: Tensor) -> None:
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

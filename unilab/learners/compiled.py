"""Networks' passes as code made by torch.compile, tried against the passes themselves before use.

Only the passes of an update are compiled: acting meets other numbers of rows, and may do so on
another thread. The code holds no graph of its own, so that it can be part of a recorded cycle.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

MOST_TEXT = 160  # characters of a compiler's complaint
TIMED = 5  # passes of each kind
SLOWER = 1.1  # times as long as the passes themselves: not used
# Relative to the largest entry of a tensor. Compiled code rounds between fewer operations; half
# types and TF32 keep 8 and 11 bits, and a gradient goes through several products.
TOLERANCES = {"fp32": 1e-5, "tf32": 4e-3, "bf16": 3e-2, "fp16": 4e-3}


class Trial(NamedTuple):
    """One pass, as it is and compiled. Both give the same tensors: results, then gradients."""

    name: str
    plain: Callable[[], Sequence[Tensor]]
    compiled: Callable[[], Sequence[Tensor]]
    tolerance: float


class Call(NamedTuple):
    """How an update calls a network.

    Args:
      rows: input, (B, D_in).
      rest: other arguments.
      grad: it is differentiated by the network's parameters.
    """

    rows: Tensor
    rest: tuple[str, ...] = ()
    grad: bool = True


class CompiledForward:
    """A network's forward pass, compiled for the calls that are named and as it is for all others.

    Args:
      network: a module whose `forward` takes (B, D_in) and perhaps names.
      calls: the ones to compile.
    """

    def __init__(self, network: nn.Module, calls: Sequence[Call]) -> None:
        self._network, self._plain = network, type(network).forward
        self._compiled = torch.compile(self._plain, fullgraph=True, dynamic=False)
        self._kinds = {(call.rows.shape, call.rest, call.grad, False) for call in calls}

    def __call__(self, x: Tensor, *rest: str) -> Tensor:
        """Map (B, D_in) as the network does."""
        # Where the gradient goes on to the input, it is not wanted by the parameters: compiled code
        # would compute both.
        kind = (x.shape, rest, torch.is_grad_enabled(), x.requires_grad)
        run = self._compiled if kind in self._kinds else self._plain
        result: Tensor = run(self._network, x, *rest)
        return result


def tolerance(precision: str, device: torch.device) -> float:
    """How far a compiled pass may be from the pass itself, relative to the largest entry."""
    return TOLERANCES["tf32" if precision == "fp32" and device.type == "cuda" else precision]


def compile_networks(networks: dict[str, tuple[nn.Module, str, Sequence[Call]]]) -> bool:
    """Compile networks' forward passes and those back, if all are right and not slower.

    Args:
      networks: name to network, its precision, and how an update calls it.

    Returns:
      Whether they are compiled. If not, a warning has said why.
    """
    forwards = {name: CompiledForward(net, calls) for name, (net, _, calls) in networks.items()}
    trials = [
        Trial(
            name,
            _pass_of(network, network.forward, call),
            _pass_of(network, forwards[name], call),
            tolerance(precision, call.rows.device),
        )
        for name, (network, precision, calls) in networks.items()
        for call in calls
    ]
    accepted = accept(trials)
    if accepted:
        for name, (network, _, _) in networks.items():
            network.forward = forwards[name]  # what calling the module runs
    return accepted


def accept(trials: Sequence[Trial]) -> bool:
    """Compile by trying; True where all passes agree and are not slower, else one warning."""
    # No pool of processes for compiling, and no limit that is shared with other learners' code.
    import torch._dynamo.config as dynamo
    import torch._inductor.config as inductor

    with inductor.patch(compile_threads=1), dynamo.patch(recompile_limit=1000):
        why_not = ""
        try:
            for trial in trials:
                why_not = why_not or _difference(trial)
        except (RuntimeError, OSError) as error:
            why_not = " ".join(str(error).split())[:MOST_TEXT]
    why_not = why_not or _slower(trials)
    if why_not:
        warnings.warn(f"networks of the learner are not compiled: {why_not}", stacklevel=4)
    return not why_not


def _pass_of(
    network: nn.Module, forward: Callable[..., Tensor], call: Call
) -> Callable[[], list[Tensor]]:
    parameters = list(network.parameters())

    def run() -> list[Tensor]:
        with torch.set_grad_enabled(call.grad):
            result = forward(call.rows, *call.rest)
        if not call.grad:
            return [result]
        return [result.detach(), *torch.autograd.grad(result, parameters, _like(result))]

    return run


def _like(x: Tensor) -> Tensor:
    """Numbers of a trial: standard normal, the same at each call."""
    generator = torch.Generator(device=x.device).manual_seed(0)
    return torch.empty_like(x).normal_(generator=generator)


def example(like: Tensor, *shape: int) -> Tensor:
    """Return rows to try a network with, as normalised observations are."""
    return _like(like.new_empty(shape))


def _difference(trial: Trial) -> str:
    """Say how far the compiled pass is off, where that is too far."""
    wanted = [tensor.clone() for tensor in trial.plain()]
    for found, right in zip(trial.compiled(), wanted, strict=True):
        off = float((found - right).abs().max() / right.abs().max().clamp_min(1e-30))
        if not off <= trial.tolerance:
            return f"code of the {trial.name} gives other numbers (off by {off:.1e})"
    return ""


def _slower(trials: Sequence[Trial]) -> str:
    """Say so where the compiled passes take longer than the passes themselves."""
    best: dict[str, float] = {}
    for kind in ("plain", "compiled"):
        total = 0.0
        for trial in trials:
            total += min(_seconds(getattr(trial, kind)) for _ in range(TIMED))
        best[kind] = total
    if best["compiled"] <= SLOWER * best["plain"]:
        return ""
    return (
        f"compiled passes take {1e3 * best['compiled']:.2f} ms, others {1e3 * best['plain']:.2f} ms"
    )


def _seconds(run: Callable[[], Sequence[Tensor]]) -> float:
    start = perf_counter()
    results: Any = run()
    if results[0].device.type == "cuda":
        torch.cuda.synchronize(results[0].device)
    return perf_counter() - start

"""Compiled passes: the numbers of the passes themselves, and a fall back that is said."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from tests.learners import flash_support
from tests.learners.off_policy_support import observe_something, random_batch, small
from tests.learners.support import CPU, collect, small_learner, tensors_of
from unilab.learners import compiled
from unilab.learners.compiled import Call, CompiledForward, Trial, accept, compile_networks, example
from unilab.learners.networks import MLP
from unilab.learners.workspace import AutogradWorkspace, MLPWorkspace


@pytest.fixture
def any_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nets of a few units gain nothing from being compiled."""
    monkeypatch.setattr(compiled, "SLOWER", 1e9)


@pytest.fixture
def no_compiler() -> Iterator[None]:
    import torch._inductor.config as inductor

    missing = {"cpp.cxx": ("no-such-compiler",), "force_disable_caches": True}
    with inductor.patch(missing):  # and no code from an earlier run
        yield


def network() -> MLP:
    return MLP((3, 8, 2), "relu", 1.0, torch.Generator().manual_seed(0), CPU)


def furthest(left: dict[str, Tensor], right: dict[str, Tensor]) -> float:
    """The largest difference of two states."""
    assert left.keys() == right.keys()
    return max(
        float((left[k] - right[k]).abs().max())
        for k in left
        if left[k].is_floating_point() and left[k].numel()
    )


def test_a_compiled_pass_is_used_for_the_calls_it_was_tried_with_and_copies_apart(
    any_speed: None,
) -> None:
    net, rows = network(), example(torch.empty(0), 8, 3)
    other = torch.randn(5, 3)
    wanted = net(rows), net(other)
    assert compile_networks({"net": (net, "fp32", [Call(rows, grad=False)])})
    assert isinstance(net.forward, CompiledForward)
    ran: list[str] = []
    forward = net.forward
    for name in ("_plain", "_compiled"):
        run = getattr(forward, name)
        setattr(forward, name, lambda *a, run=run, name=name: (ran.append(name), run(*a))[1])
    with torch.no_grad():
        found = net(rows), net(other)
    net(rows)  # with a gradient, which was not tried
    assert ran == ["_compiled", "_plain", "_plain"]
    for a, b in zip(found, wanted, strict=True):
        assert (a - b).abs().max() <= 1e-6
    twin = copy.deepcopy(net)
    with torch.no_grad():
        twin.linears[-1].bias.add_(1.0)
        assert torch.allclose(twin(rows), net(rows) + 1.0)


def test_without_a_compiler_ppo_learns_as_it_is_and_says_so_once(no_compiler: None) -> None:
    plain, learner = small_learner(), small_learner(compile="on")
    rollout = collect(plain, seed=1).rollout
    learner.load_state_dict(plain.state_dict())  # the stream that collecting drew from
    plain.update(rollout)
    with pytest.warns(UserWarning, match=r"not compiled.*no-such-compiler") as said:
        learner.update(rollout)
    assert len([w for w in said if "not compiled" in str(w.message)]) == 1
    assert isinstance(learner._actor_work, MLPWorkspace)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learner.update(rollout)
    plain.update(rollout)
    assert furthest(tensors_of(plain.state_dict()), tensors_of(learner.state_dict())) == 0.0


def test_without_a_compiler_td3_learns_as_it_is_and_says_so_once(no_compiler: None) -> None:
    plain, learner = small("td3"), small("td3")
    with pytest.warns(UserWarning, match=r"not compiled.*no-such-compiler") as said:
        assert not learner.compile_networks()
    assert len([w for w in said if "not compiled" in str(w.message)]) == 1
    batch = random_batch(plain, 1)
    plain.cycle(batch)
    learner.cycle(batch)
    assert furthest(tensors_of(plain.state_dict()), tensors_of(learner.state_dict())) == 0.0


@pytest.mark.parametrize(
    ("factor", "slower", "why"),
    [(1.0 + 1e-3, 1e9, "code of the net gives other numbers"), (1.0, 0.0, "compiled passes take")],
)
def test_code_that_is_wrong_or_slower_is_not_used(
    factor: float, slower: float, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled, "SLOWER", slower)
    x = torch.linspace(-1.0, 1.0, 5)
    trial = Trial("net", lambda: [x], lambda: [x * factor], 1e-5)
    with pytest.warns(UserWarning, match=f"not compiled: {why}"):
        assert not accept([trial])


def test_code_that_gives_nan_is_not_used(any_speed: None) -> None:
    x = torch.ones(3)
    with pytest.warns(UserWarning, match="other numbers"):
        assert not accept([Trial("net", lambda: [x], lambda: [x * float("nan")], 1e-5)])


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{}, {"network": "residual", "actor_hidden": [8, 8],
    "critic_hidden": [12]}, {"symmetry": "mirror_loss", "mirror_coef": 0.5}])  # fmt: skip
def test_a_compiled_update_of_ppo_is_that_of_ppo(any_speed: None, changes: dict) -> None:
    few = {"epochs": 1, "minibatches": 2} | changes
    plain, fast = small_learner(**few), small_learner(**few, compile="on")
    rollout = collect(plain, seed=1).rollout
    fast.load_state_dict(plain.state_dict())  # the stream that collecting drew from
    left, right = plain.update(rollout), fast.update(rollout)
    assert isinstance(fast._actor_work, AutogradWorkspace)
    assert isinstance(fast._actor_work._run, CompiledForward)
    assert furthest(left, right) <= 1e-5
    assert furthest(tensors_of(plain.state_dict()), tensors_of(fast.state_dict())) <= 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sac", "td3"])
def test_a_compiled_cycle_is_that_of_the_learner(any_speed: None, kind: str) -> None:
    plain, fast = small(kind), small(kind)
    for learner in (plain, fast):
        observe_something(learner)
    assert fast.compile_networks()
    batch = random_batch(plain, 1)
    left, right = plain.cycle(batch), fast.cycle(batch)
    assert furthest(left, right) <= 1e-5
    assert furthest(tensors_of(plain.state_dict()), tensors_of(fast.state_dict())) <= 1e-5
    assert plain.act(batch.obs[:5], explore=False).action.allclose(
        fast.act(batch.obs[:5], explore=False).action, atol=1e-5
    )


@pytest.mark.slow
def test_a_compiled_cycle_is_that_of_flashsac(any_speed: None) -> None:
    small = {"actor_blocks": 1, "critic_blocks": 1}
    plain, fast = (flash_support.small_learner(**small) for _ in range(2))
    assert fast.compile_networks()
    batch = flash_support.random_batch(plain, 1)
    left, right = plain.cycle(batch), fast.cycle(batch)
    assert furthest(left, right) <= 1e-5
    assert furthest(tensors_of(plain.state_dict()), tensors_of(fast.state_dict())) <= 1e-5

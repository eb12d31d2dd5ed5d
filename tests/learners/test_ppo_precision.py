"""Hidden layers of PPO and APPO in other number types, and residual ones."""

from __future__ import annotations

import copy

import pytest
import torch

from tests.learners.dispatch import CountOps, NoHostSync
from tests.learners.reach import reachable, same, saved_and_loaded
from tests.learners.support import CPU, SPEC, collect, small_learner, tensors_of
from tests.learners.test_ppo_state import SCRATCH
from unilab.config.appo import APPOConfig
from unilab.errors import ConfigError
from unilab.learners import precision
from unilab.learners.appo import APPO
from unilab.learners.networks import MLP, NETWORKS, ResidualNetwork
from unilab.learners.ppo import PPO
from unilab.learners.precision import FULL, LossScale, Precision
from unilab.learners.workspace import AutogradWorkspace, MLPWorkspace

F64 = torch.float64
RESIDUAL = {"network": "residual", "actor_hidden": [8, 8], "critic_hidden": [12, 12]}
CHANGES = {
    "bf16": {"precision": "bf16"},
    "fp16": {"precision": "fp16"},
    "residual": RESIDUAL,
    "residual bf16": RESIDUAL | {"precision": "bf16"},
}


@pytest.fixture(autouse=True)
def fp16_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Emulated on a CPU: slow, but what the code does is the same."""
    monkeypatch.setattr(precision, "FP16_DEVICES", ("cpu", "cuda"))


def modest_scale(learner: PPO) -> None:
    """A dozen samples weigh so much each that the first loss scale overflows."""
    if learner._loss_scale is not None:
        learner._loss_scale.scale.fill_(256.0)


def appo(seed: int = 3, **changes: object) -> APPO:
    settings = {"epochs": 3, "minibatches": 4, "actor_hidden": [16, 12], "num_steps": 6}
    return APPO(APPOConfig.model_validate(settings | changes), SPEC, CPU, seed)


def network(kind: str, dtype: torch.dtype = F64, how: Precision = FULL) -> MLP | ResidualNetwork:
    draw = torch.Generator().manual_seed(1)
    net = NETWORKS[kind]((5, 8, 8, 3), "elu", 0.01, draw, CPU, dtype, how)
    for p in net.parameters():
        p.grad = torch.full_like(p, float("nan"))  # to be overwritten
    return net


def inputs(*shape: int, dtype: torch.dtype = F64) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(2), dtype=dtype)


@pytest.mark.parametrize("kind", NETWORKS)
def test_autograd_and_the_hand_written_pass_agree(kind: str) -> None:
    net, x, grad = network(kind), inputs(11, 5), inputs(11, 3)
    work = AutogradWorkspace(net, 11, trains=True)
    result = work.forward(x)
    work.backward(grad)
    found = [p.grad.clone() for p in net.parameters()]
    if isinstance(net, MLP):
        other = MLPWorkspace(net, 11, trains=True)
        assert torch.allclose(other.forward(x), result, atol=1e-12)
        other.backward(grad)
        wanted = [p.grad for p in net.parameters()]
    else:
        plain = copy.deepcopy(net)
        wanted = torch.autograd.grad(plain(x), list(plain.parameters()), grad)
    assert not result.requires_grad
    for a, b in zip(found, wanted, strict=True):
        assert torch.allclose(a, b, rtol=1e-12, atol=1e-14)


def test_a_loss_scale_leaves_gradients_as_they_are_unless_they_overflow() -> None:
    net, scale = network("mlp", torch.float32, Precision("fp16", "cpu")), LossScale(CPU)
    x, grad = inputs(64, 5, dtype=torch.float32), 1e-8 * inputs(64, 3, dtype=torch.float32)

    def gradients(loss_scale: LossScale | None) -> list[torch.Tensor]:
        work = AutogradWorkspace(net, 64, trains=True, loss_scale=loss_scale)
        work.forward(x)
        work.backward(grad)
        return [p.grad.clone() for p in net.parameters()]

    full = MLPWorkspace(net, 64, trains=True)
    full.forward(x)
    full.backward(grad)
    wanted = [p.grad.clone() for p in net.parameters()]
    scaled, lost = gradients(scale), gradients(None)
    for a, b in zip(scaled, wanted, strict=True):
        assert (a - b).abs().max() <= 0.02 * b.abs().max()
    assert not lost[0].any()  # below the smallest number of float16
    scale.scale.fill_(1e20)
    assert not torch.isfinite(gradients(scale)[0]).all()


@pytest.mark.parametrize("name", ["bf16", "fp16"])
def test_only_hidden_layers_are_in_a_half_type(name: str) -> None:
    full, half = small_learner(), small_learner(precision=name)
    rollout = collect(full, seed=1).rollout
    half.load_state_dict(half.state_dict() | full.state_dict())
    modest_scale(half)
    seen: set[tuple[str, torch.dtype]] = set()

    class Watch(CountOps):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor):
                seen.add((func.overloadpacket.__name__, result.dtype))
            return result

    with Watch():
        right = half.update(rollout)
    left = full.update(rollout)
    kind = precision.DTYPES[name]
    products = {"addmm", "mm", "linear", "elu", "elu_backward", "t", "_to_copy", "sum"}
    assert ("addmm", kind) in seen
    assert ("elu", kind) in seen
    assert {op for op, dtype in seen if dtype == kind} - products <= {
        "detach", "view", "transpose", "empty", "expand", "_unsafe_view", "new_empty_strided",
    }  # fmt: skip
    for key, value in left.items():
        assert right[key].dtype == torch.float32, key
        assert right[key].item() == pytest.approx(value.item(), rel=0.1, abs=0.03), key
    for key, value in tensors_of(half.state_dict()).items():
        if "generator" not in key:
            assert value.dtype in (torch.float32, F64), key  # master weights too
    action = half.act(rollout.obs[0])
    assert {part.dtype for part in action} == {torch.float32}


@pytest.mark.parametrize("make", [small_learner, appo])
@pytest.mark.parametrize("name", CHANGES)
def test_the_first_ratio_is_one_whatever_the_type(make, name: str) -> None:
    """Acting and learning run the same numbers: no minibatch starts with clipped samples."""
    learner = make(**CHANGES[name], minibatches=1, epochs=1)
    modest_scale(learner)
    rollout = collect(learner, seed=1).rollout
    metrics = learner.update(rollout)
    assert metrics["policy/clip_fraction"].item() == 0.0
    assert abs(metrics["policy/kl"].item()) < 1e-5


@pytest.mark.parametrize("make", [small_learner, appo])
@pytest.mark.parametrize("name", CHANGES)
def test_update_and_act_never_wait_for_the_device(make, name: str) -> None:
    learner = make(**CHANGES[name])
    rollout = collect(learner, seed=1).rollout
    with NoHostSync():
        metrics = learner.update(rollout)
        learner.act(rollout.obs[0])
        learner.act(rollout.obs[0], explore=False)
    assert metrics["learner/non_finite_updates"].item() == 0


@pytest.mark.parametrize(("name", "budget"), [("bf16", 240), ("fp16", 260), ("residual", 280)])
def test_one_minibatch_stays_within_a_budget_of_operations(name: str, budget: int) -> None:
    three = {"actor_hidden": [16, 16, 16], "critic_hidden": [16, 16, 16]}
    learner = small_learner(**CHANGES[name] | three)
    learner.update(collect(learner, seed=1).rollout)
    with CountOps() as count:
        learner._table.gather(torch.arange(learner._table.size))
        learner._learn(learner._table.batch, learner._table.size)
    assert 100 < len(count.names) <= budget


@pytest.mark.parametrize("make", [small_learner, appo])
@pytest.mark.parametrize("name", CHANGES)
def test_a_restored_learner_equals_the_saved_one_in_all_it_can_reach(make, name: str) -> None:
    learner, other = make(seed=3, **CHANGES[name]), make(seed=4, **CHANGES[name])
    learner.update(collect(learner, seed=1).rollout)
    if learner._loss_scale is not None:
        learner._loss_scale.scale.fill_(128.0)
    other.update(collect(other, seed=9).rollout)
    other.load_state_dict(saved_and_loaded(learner.state_dict()))
    scratch = (*SCRATCH, "_result", "_overflows", "_lag_kl", "_lag_weight")
    here, there = (reachable(x, "ppo", scratch) for x in (learner, other))
    assert here.keys() == there.keys()
    assert [key for key in here if not same(here[key], there[key])] == []
    if learner._loss_scale is not None:
        assert other._loss_scale.scale.item() == 128.0


def test_half_types_share_their_states_with_float32() -> None:
    full, half = small_learner(seed=3), small_learner(seed=4, precision="bf16")
    full.update(collect(full, seed=1).rollout)
    half.load_state_dict(saved_and_loaded(full.state_dict()))
    full.load_state_dict(saved_and_loaded(half.state_dict()))
    obs = torch.randn(4, 5)
    close = full.act(obs, explore=False).action, half.act(obs, explore=False).action
    assert torch.allclose(*close, atol=0.02)


def test_an_overflow_of_the_loss_scale_is_skipped_but_not_counted() -> None:
    learner = small_learner(precision="fp16", epochs=1)
    learner._loss_scale.scale.fill_(2.0**24)
    rollout = collect(learner, seed=1).rollout
    rollout.reward.mul_(1e4)
    before = learner._loss_scale.scale.item()
    metrics = learner.update(rollout)
    assert learner._loss_scale.scale.item() < before
    assert metrics["learner/non_finite_updates"].item() == 0
    rollout = collect(learner, seed=2, rollout=rollout).rollout
    rollout.reward[0, 0] = float("nan")
    assert learner.update(rollout)["learner/non_finite_updates"].item() > 0


@pytest.mark.parametrize("name", ["fp32", "bf16", "fp16"])
def test_large_observations_overflow_nowhere(name: str) -> None:
    learner = small_learner(precision=name)
    rollout = collect(learner, seed=1).rollout
    rollout.obs.mul_(1e5)
    rollout.critic_obs.mul_(1e5)
    learner.obs_normalizer.fold(rollout.obs[:6].flatten(0, 1))
    learner.critic_obs_normalizer.fold(rollout.critic_obs[:6].flatten(0, 1))
    learner._refresh()
    metrics = learner.update(rollout)
    assert metrics["learner/non_finite_updates"].item() == 0
    assert all(torch.isfinite(value) for value in metrics.values())


@pytest.mark.parametrize(("make", "block"), [(small_learner, "ppo"), (appo, "appo")])
def test_float16_on_a_cpu_is_refused_by_key(make, block: str, monkeypatch) -> None:
    monkeypatch.setattr(precision, "FP16_DEVICES", ("cuda",))
    message = rf"learners\.{block}\.precision=fp16: device cpu does not support it; valid: auto"
    with pytest.raises(ConfigError, match=message):
        make(precision="fp16")


def test_a_residual_policy_starts_near_zero_and_exports_itself() -> None:
    learner = small_learner(**RESIDUAL)
    obs = 3 * torch.randn(64, 5)
    assert learner.act(obs, explore=False).action.abs().max() < 0.1
    learner.update(collect(learner, seed=1).rollout)
    policy = learner.policy_module()
    assert torch.allclose(policy(obs), learner.act(obs, explore=False).action, atol=1e-6)

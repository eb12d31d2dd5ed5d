from __future__ import annotations

import pytest
import torch

from tests.learners.off_policy_support import KINDS, observe_something, random_batch, small
from tests.learners.support import CPU, tensors_of
from unilab.errors import ConfigError
from unilab.learners import precision
from unilab.learners.precision import LossScale, choose_precision


def test_auto_is_float32_on_a_cpu() -> None:
    assert choose_precision("auto", CPU, 32768, 4096).name == "fp32"


def test_what_the_device_lacks_is_refused_by_key() -> None:
    with pytest.raises(ConfigError, match=r"learners\.sac\.precision=fp16: device cpu.*bf16"):
        small("sac", precision="fp16")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["bf16", "fp16"])
def test_half_precision_keeps_parameters_and_results_in_float32_and_learns_alike(
    kind: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precision, "FP16_DEVICES", ("cpu", "cuda"))
    full, half = small(kind), small(kind, precision=name)
    for learner in (full, half):
        observe_something(learner)
    batch = random_batch(full, 1)
    left, right = full.cycle(batch), half.cycle(batch)
    for key, value in left.items():
        assert right[key].dtype == torch.float32
        assert right[key].item() == pytest.approx(value.item(), rel=0.05, abs=0.02), key
    for key, value in tensors_of(half.state_dict()).items():
        if key != "generator.state":
            assert value.dtype in (torch.float32, torch.float64), key
    assert half.act(batch.obs).action.dtype == torch.float32
    used: list[torch.dtype] = []
    half.actor.trunk.register_forward_hook(lambda m, i, out: used.append(out.dtype))
    half.actor.trunk[0].register_forward_hook(lambda m, i, out: used.append(out.dtype))
    half.act(batch.obs)
    assert precision.DTYPES[name] in used


@pytest.mark.parametrize("name", ["fp32", "bf16", "fp16"])
def test_large_observations_overflow_nowhere(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "FP16_DEVICES", ("cpu", "cuda"))
    learner = small("sac", precision=name)
    batch = random_batch(learner, 1)
    batch = batch._replace(obs=batch.obs * 1e5, next_obs=batch.next_obs * 1e5)
    learner.observe(batch.obs, batch.critic_obs)
    metrics = learner.cycle(batch)
    assert metrics["learner/non_finite_updates"].item() == 0
    assert all(torch.isfinite(value) for value in metrics.values())


def test_an_overflow_of_the_scaled_loss_is_skipped_but_not_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(precision, "FP16_DEVICES", ("cpu", "cuda"))
    learner = small("td3", precision="fp16")
    scale = learner.critic.trained._loss_scale
    scale.scale.fill_(2.0**24)  # every gradient overflows float16
    before = learner.critic.trained.flat.vector.detach().clone()
    metrics = learner.cycle(random_batch(learner, 1))
    assert metrics["learner/non_finite_updates"].item() == 0
    assert scale.scale.item() < 2.0**24
    for _ in range(5):
        learner.cycle(random_batch(learner, 1))
    assert not torch.equal(before, learner.critic.trained.flat.vector)


def test_the_loss_scale_halves_after_an_overflow_and_doubles_after_a_long_good_run() -> None:
    scale, good, bad = LossScale(CPU), torch.tensor(True), torch.tensor(False)
    scale.update(bad)
    assert scale.scale.item() == 2.0**15
    for _ in range(1999):
        scale.update(good)
    assert scale.scale.item() == 2.0**15
    scale.update(good)
    assert scale.scale.item() == 2.0**16
    assert scale.good_steps.item() == 0
    scale.update(good)
    scale.update(bad)
    assert (scale.scale.item(), scale.good_steps.item()) == (2.0**15, 0)

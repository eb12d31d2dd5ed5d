"""Export: what the file computes, what it says about itself, and what a damaged one does."""

from __future__ import annotations

import json
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import numpy_helper
from torch import nn

from unilab.errors import ConfigError
from unilab.export import (
    ExportError,
    ExportMetadata,
    ObservationPart,
    export_policy,
    verify_onnx,
)
from unilab.learners.ensemble import EnsembleNetwork, NetworkShape, SquashedPolicy
from unilab.learners.networks import ACTIVATIONS, MLP, DeterministicPolicy, ResidualNetwork
from unilab.learners.precision import FULL

OBS_DIM, ACTION_DIM, CLIP = 9, 3, 1.5
SCALE = np.array([0.25, 0.5, 1.0], dtype=np.float32)
OFFSET = np.array([0.1, -0.2, 0.3], dtype=np.float32)
METADATA = ExportMetadata(
    task="tripod_walk",
    joint_names=("a_hip", "b_hip", "c_hip"),
    default_pose=(0.1, -0.2, 0.3),
    actuator_type=("position", "position", "motor"),
    kp=(20.0, 20.0, 30.0),
    kd=(0.5, 0.5, 0.7),
    gear=(1.0, 1.0, 2.0),
    effort_limit=(23.5, 23.5, None),
    observation_layout=(
        ObservationPart("gravity", 0, 3, "Direction of gravity."),
        ObservationPart("joint_pos", 3, 6, "Joint positions, rad.", noise=0.01),
        ObservationPart("joint_vel", 6, 9, "Joint velocities, rad/s.", scale=0.05, noise=1.5),
    ),
    control_dt_s=0.02,
)


def make_policy(activation: str = "elu", seed: int = 0) -> DeterministicPolicy:
    generator = torch.Generator().manual_seed(seed)
    mlp = MLP((OBS_DIM, 32, 16, ACTION_DIM), activation, 1.0, generator, torch.device("cpu"))
    shift = torch.randn(OBS_DIM, generator=generator)
    return DeterministicPolicy(mlp, shift, 0.5 + torch.rand(OBS_DIM, generator=generator))


def export(policy: nn.Module, path: Path, **changes: Any) -> Any:
    arguments: dict[str, Any] = {
        "obs_dim": OBS_DIM,
        "ctrl_scale": SCALE,
        "ctrl_offset": OFFSET,
        "action_clip": CLIP,
        "metadata": METADATA,
        "path": path,
    }
    return export_policy(policy, **(arguments | changes))


@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
def test_file_computes_what_the_policy_computes(tmp_path: Path, activation: str) -> None:
    policy = make_policy(activation)
    report = export(policy, tmp_path / "policy.onnx")
    assert report.path == tmp_path / "policy.onnx"
    assert 0 <= report.max_error_action < 1e-5
    assert 0 <= report.max_error_ctrl < 1e-5

    moved = tmp_path / "elsewhere" / "p.onnx"
    moved.parent.mkdir()
    shutil.move(report.path, moved)
    session = onnxruntime.InferenceSession(str(moved))
    for batch in (1, 7):
        obs = 3 * np.random.default_rng(batch).normal(size=(batch, OBS_DIM)).astype(np.float32)
        action, ctrl = session.run(["action", "ctrl"], {"obs": obs})
        expected = policy(torch.from_numpy(obs)).numpy()
        np.testing.assert_allclose(action, np.clip(expected, -CLIP, CLIP), atol=1e-5)
        np.testing.assert_allclose(ctrl, OFFSET + SCALE * action, atol=1e-6)


def residual_policy() -> DeterministicPolicy:
    generator = torch.Generator().manual_seed(0)
    sizes = (OBS_DIM, 16, 16, ACTION_DIM)
    net = ResidualNetwork(sizes, "elu", 1.0, generator, torch.device("cpu"))
    shift = torch.randn(OBS_DIM, generator=generator)
    return DeterministicPolicy(net, shift, 0.5 + torch.rand(OBS_DIM, generator=generator))


def squashed_policy(kind: str) -> SquashedPolicy:
    generator = torch.Generator().manual_seed(0)
    shape = NetworkShape(kind, (16, 16), "silu", layer_norm=True)
    like = torch.zeros(OBS_DIM)
    net = EnsembleNetwork(1, OBS_DIM, 2 * ACTION_DIM, shape, FULL, generator, like)
    shift = torch.randn(OBS_DIM, generator=generator)
    limit = torch.linspace(0.5, 1.2, ACTION_DIM)
    return SquashedPolicy(net.plain(slice(ACTION_DIM)), shift, 0.5 + shift.abs(), limit)


@pytest.mark.parametrize(
    "make",
    [residual_policy, lambda: squashed_policy("mlp"), lambda: squashed_policy("residual")],
    ids=["residual ppo", "sac", "residual sac"],
)
def test_file_computes_what_normalised_and_residual_policies_compute(tmp_path, make) -> None:
    policy = make()
    with torch.no_grad():  # gains and offsets that matter
        for p in policy.parameters():
            p.add_(0.1 * torch.randn(p.shape, generator=torch.Generator().manual_seed(3)))
    report = export(policy, tmp_path / "policy.onnx")
    assert 0 <= report.max_error_action < 1e-5
    session = onnxruntime.InferenceSession(str(report.path))
    obs = 3 * np.random.default_rng(1).normal(size=(7, OBS_DIM)).astype(np.float32)
    (action,) = session.run(["action"], {"obs": obs})
    expected = policy(torch.from_numpy(obs)).numpy()
    np.testing.assert_allclose(action, np.clip(expected, -CLIP, CLIP), atol=1e-5)


def test_actions_beyond_the_limit_are_clipped_before_the_action_map(tmp_path: Path) -> None:
    policy = make_policy()
    with torch.no_grad():
        policy.net[-1].bias.copy_(torch.tensor([50.0, -50.0, 0.0]))
    export(policy, tmp_path / "p.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "p.onnx"))
    action, ctrl = session.run(["action", "ctrl"], {"obs": np.zeros((1, OBS_DIM), np.float32)})
    assert action[0, :2].tolist() == [1.5, -1.5]
    np.testing.assert_allclose(ctrl[0, :2], [0.1 + 0.25 * 1.5, -0.2 - 0.5 * 1.5], rtol=1e-6)


def test_runner_that_knows_only_the_file_reproduces_ctrl(tmp_path: Path) -> None:
    policy = make_policy()
    export(policy, tmp_path / "policy.onnx")
    measured = {"gravity": [0.0, 0.1, -1.0], "joint_pos": [0.2, 0.0, -0.1], "joint_vel": [9, -4, 2]}

    session = onnxruntime.InferenceSession(str(tmp_path / "policy.onnx"))
    contract = json.loads(session.get_modelmeta().custom_metadata_map["unilab"])
    obs = np.full((1, session.get_inputs()[0].shape[1]), np.nan, dtype=np.float32)
    for part in contract["observation_layout"]:
        value = np.asarray(measured[part["name"]], dtype=np.float32)
        obs[0, part["start"] : part["stop"]] = value * part["scale"]
    (ctrl,) = session.run(["ctrl"], {"obs": obs})
    targets = dict(zip(contract["joint_names"], ctrl[0].tolist(), strict=True))

    by_hand = torch.tensor([[0.0, 0.1, -1.0, 0.2, 0.0, -0.1, 0.45, -0.2, 0.1]])
    action = policy(by_hand)[0].clamp(-CLIP, CLIP).numpy()
    expected = OFFSET + SCALE * action
    assert list(targets) == ["a_hip", "b_hip", "c_hip"]
    np.testing.assert_allclose(list(targets.values()), expected, atol=1e-5)
    assert contract["task"] == "tripod_walk"
    assert contract["format"] == "unilab-policy-1"
    assert contract["kp"] == [20.0, 20.0, 30.0]
    assert contract["actuator_type"] == ["position", "position", "motor"]
    assert contract["effort_limit"] == [23.5, 23.5, None]
    assert contract["observation_layout"][1] == {
        "name": "joint_pos", "start": 3, "stop": 6, "meaning": "Joint positions, rad.",
        "scale": 1.0, "noise": 0.01,
    }  # fmt: skip
    assert contract["default_pose"] == [0.1, -0.2, 0.3]
    assert contract["action"]["clip"] == CLIP
    assert contract["control_dt_s"] == 0.02


def test_file_with_one_changed_weight_fails_verification(tmp_path: Path) -> None:
    policy = make_policy()
    path = export(policy, tmp_path / "policy.onnx").path
    verify_onnx(path, policy)

    model = onnx.load(path)
    weight = next(w for w in model.graph.initializer if w.name.endswith("net.2.weight"))
    array = numpy_helper.to_array(weight).copy()
    array[3, 5] += 0.01
    weight.CopyFrom(numpy_helper.from_array(array, weight.name))
    onnx.save(model, path)
    with pytest.raises(ExportError, match="differs from the policy's"):
        verify_onnx(path, policy)


def test_policy_with_undefined_numbers_leaves_no_file(tmp_path: Path) -> None:
    policy = make_policy()
    with torch.no_grad():
        policy.net[0].weight[0, 0] = float("nan")
    with pytest.raises(ExportError, match="undefined numbers"):
        export(policy, tmp_path / "policy.onnx")
    assert list(tmp_path.iterdir()) == []


class _Branching(nn.Module):
    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return obs[:, :3] if obs.sum() > 0 else -obs[:, :3]


class _Sorting(nn.Module):
    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return torch.sort(obs)


class _Numbers(nn.Module):
    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return obs[:, :3] * 2.0


class _Methods(nn.Module):
    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return obs.mul(obs)


@pytest.mark.parametrize(
    "policy",
    [_Branching(), _Sorting(), _Numbers(), _Methods(), nn.Sequential(nn.BatchNorm1d(9))],
)
def test_policy_without_translation_is_refused_and_the_old_file_stays(
    tmp_path: Path, policy: nn.Module
) -> None:
    path = export(make_policy(), tmp_path / "policy.onnx").path
    before = path.read_bytes()
    with pytest.raises(ExportError, match="no translation to ONNX"):
        export(policy, path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_functions_and_repeated_use_of_a_weight_are_translated(tmp_path: Path) -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.ctrl_scale = nn.Parameter(torch.linspace(0.5, 1.5, OBS_DIM))
            self.layer = nn.Linear(OBS_DIM, ACTION_DIM)

        def forward(self, obs: torch.Tensor) -> torch.Tensor:
            x = (obs - self.ctrl_scale) * self.ctrl_scale
            return self.layer(x) * self.layer(obs) - self.layer(x)

    torch.manual_seed(0)
    report = export(Odd(), tmp_path / "odd.onnx")
    assert report.max_error_ctrl < 1e-5


def test_observations_that_are_given_are_compared_on(tmp_path: Path) -> None:
    """A policy that is right on small observations and undefined on one large one."""
    policy = make_policy()
    with torch.no_grad():
        policy.inv_scale.fill_(1e30)
    path = tmp_path / "policy.onnx"
    large = np.full((2, OBS_DIM), 3e38, dtype=np.float32)
    export(policy, path, observations=np.zeros_like(large))
    with pytest.raises(ExportError, match="undefined numbers"):
        export(policy, path, observations=large)


@pytest.mark.parametrize("missing", ["onnx", "onnxruntime"])
def test_missing_package_names_the_extra_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    start = time.perf_counter()
    with pytest.raises(ConfigError, match=r"pip install 'unilab-engine\[export\]'"):
        export(make_policy(), tmp_path / "policy.onnx")
    assert time.perf_counter() - start < 5
    assert list(tmp_path.iterdir()) == []


def test_verifying_what_is_no_exported_policy_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no file"):
        verify_onnx(tmp_path / "none.onnx", make_policy())
    (tmp_path / "text.onnx").write_text("not a model")
    with pytest.raises(ConfigError, match="not a policy that can be run"):
        verify_onnx(tmp_path / "text.onnx", make_policy())


@pytest.mark.parametrize(
    "change",
    [
        {"joint_names": ("a", "b")},
        {"actuator_type": ("position",)},
        {"effort_limit": (1.0, None, 1.0, 1.0)},
        {"observation_layout": METADATA.observation_layout[:2]},
        {"observation_layout": METADATA.observation_layout[1:]},
    ],
)
def test_metadata_that_does_not_cover_the_policy_is_refused(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    fields = {name: getattr(METADATA, name) for name in METADATA.__dataclass_fields__}
    with pytest.raises(ValueError, match="metadata"):
        export(make_policy(), tmp_path / "p.onnx", metadata=ExportMetadata(**(fields | change)))

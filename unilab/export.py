"""Turn a policy into one ONNX file that a robot's computer can run, and prove that it is right."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from unilab.errors import ConfigError, UnilabError

FORMAT = "unilab-policy-1"
# Key of the file's metadata under which the contract is, as JSON.
METADATA_KEY = "unilab"
TOLERANCE = 1e-5
# Fields of the metadata with one entry for each actuated joint.
PER_JOINT = ("joint_names", "default_pose", "actuator_type", "kp", "kd", "gear", "effort_limit")
# Batch sizes that the file is run with before it gets its name.
BATCHES = (1, 7, 1000)


class ExportError(UnilabError):
    """The file does not compute what the policy computes, or the policy cannot be written down."""


@dataclass(frozen=True)
class ObservationPart:
    """What a range of the observation holds.

    Args:
      name: of the observation term.
      start, stop: its range in the observation.
      meaning: in words, with the unit before scaling.
      scale: what the measured value was multiplied with; a runner has to do the same.
      noise: half width of the uniform noise in training, after scaling; a runner adds none.
    """

    name: str
    start: int
    stop: int
    meaning: str
    scale: float = 1.0
    noise: float = 0.0


@dataclass(frozen=True)
class ExportMetadata:
    """Everything around the network that a runner must do as training did.

    Args:
      task: its name.
      joint_names: (A,) actuated joints, in the order of actions and ctrl.
      default_pose: (A,) rad or m, of those joints.
      actuator_type: (A,) what ctrl is to the actuator: motor, position, velocity or general.
      kp, kd: (A,) servo gains before the gear, N m/rad and N m s/rad (0 where there is none).
      gear: (A,) joint torque per actuator force.
      effort_limit: (A,) largest joint torque, N m (N for a slide joint); None: the model sets none.
      observation_layout: slices that fill the observation without gap or overlap.
      control_dt_s: time between two actions.
      extra: anything else that JSON can hold, for example the command's range or versions.
    """

    task: str
    joint_names: Sequence[str]
    default_pose: Sequence[float]
    actuator_type: Sequence[str]
    kp: Sequence[float]
    kd: Sequence[float]
    gear: Sequence[float]
    effort_limit: Sequence[float | None]
    observation_layout: Sequence[ObservationPart]
    control_dt_s: float
    extra: Mapping[str, Any] = field(default_factory=dict)

    def check(self, obs_dim: int, action_dim: int) -> None:
        """Raise ValueError unless it describes O observations and A actions completely."""
        for name in PER_JOINT:
            if len(getattr(self, name)) != action_dim:
                raise ValueError(
                    f"metadata: {name} has {len(getattr(self, name))} entries for "
                    f"{action_dim} actions"
                )
        at = 0
        for part in self.observation_layout:
            if part.start != at or part.stop <= part.start:
                raise ValueError(f"metadata: slice '{part.name}' must start at {at}, got {part}")
            at = part.stop
        if at != obs_dim:
            raise ValueError(f"metadata: the layout covers {at} of {obs_dim} observations")


@dataclass(frozen=True)
class ExportReport:
    """What was written and how well it agrees with the policy on the observations tried."""

    path: Path
    max_error_action: float  # largest absolute difference, in units of the action
    max_error_ctrl: float  # the same of ctrl, in its unit
    num_observations: int  # how many were tried


def require_export_packages() -> None:
    """Raise a ConfigError that says what to install, unless onnx and onnxruntime are there."""
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f"export needs a package that is not installed ({error}); install it with: "
            "pip install 'unilab-engine[export]'"
        ) from None


def export_policy(
    policy: nn.Module,
    *,
    obs_dim: int,
    ctrl_scale: NDArray[np.float32],
    ctrl_offset: NDArray[np.float32],
    action_clip: float,
    metadata: ExportMetadata,
    path: Path | str,
    observations: NDArray[np.float32] | None = None,
) -> ExportReport:
    """Write a policy, its normaliser and its action map into a single ONNX file.

    Input `obs` (n, O) f32, raw; outputs `action` (n, A) f32, clipped, and `ctrl` (n, A) f32 =
    ctrl_offset + ctrl_scale * action. Any batch size. The contract (see ExportMetadata) is JSON
    under the key "unilab" of the file's metadata. The file gets its name only after it has been run
    with onnxruntime and agrees with `policy`; otherwise nothing is left behind.

    Args:
      policy: raw observation (n, O) to action (n, A); not changed.
      obs_dim: O.
      ctrl_scale, ctrl_offset: (A,) the action map.
      action_clip: limit of |action|, positive.
      metadata: what a runner needs to know.
      path: file to write; replaced if it is there.
      observations: (n, O) f32 to compare on, besides random ones.

    Raises:
      ConfigError: onnx or onnxruntime is not installed.
      ExportError: the policy uses an operation that has no translation, or the file disagrees.
      ValueError: sizes that do not fit each other.
    """
    require_export_packages()
    from unilab.onnx_graph import write_onnx

    scale = np.asarray(ctrl_scale, dtype=np.float32)
    offset = np.asarray(ctrl_offset, dtype=np.float32)
    if scale.ndim != 1 or scale.shape != offset.shape or not action_clip > 0:
        raise ValueError(f"ctrl_scale {scale.shape}, ctrl_offset {offset.shape}, {action_clip=}")
    metadata.check(obs_dim, scale.size)
    text = _contract(metadata, float(action_clip), scale, offset)
    out = Path(path)
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = out.with_name(f".{out.name}.partial")
    try:
        write_onnx(
            _frozen(policy),
            obs_dim=obs_dim,
            ctrl_scale=scale,
            ctrl_offset=offset,
            action_clip=float(action_clip),
            properties={METADATA_KEY: text},
            path=partial,
        )
        report = verify_onnx(partial, policy, observations=observations)
        os.replace(partial, out)
    finally:
        partial.unlink(missing_ok=True)
    return replace(report, path=out)


def verify_onnx(
    path: Path | str,
    policy: nn.Module,
    *,
    observations: NDArray[np.float32] | None = None,
    tolerance: float = TOLERANCE,
) -> ExportReport:
    """Run a file with onnxruntime, in batches of 1, 7 and 1000, and compare it with the policy.

    Differences may be `tolerance` times the largest value that is compared, or `tolerance` where
    all values are below 1.

    Args:
      path: a file that export_policy wrote.
      policy: what it should compute.
      observations: (n, O) f32 to compare on besides the random ones.
      tolerance: see above.

    Raises:
      ConfigError: a package or the file is missing, or it is not a file of export_policy.
      ExportError: they disagree, or one of them gives undefined numbers.
    """
    require_export_packages()
    session, contract = _open(Path(path))
    obs_dim = contract["observation_layout"][-1]["stop"]
    scale = torch.tensor(contract["action"]["scale"])
    offset = torch.tensor(contract["action"]["offset"])
    clip = contract["action"]["clip"]
    frozen = _frozen(policy)
    random = np.random.default_rng(0)
    batches = [random.normal(size=(n, obs_dim)).astype(np.float32) for n in BATCHES]
    batches[-1] *= np.linspace(0.1, 3.0, BATCHES[-1], dtype=np.float32)[:, None]
    if observations is not None:
        batches.append(np.ascontiguousarray(observations, dtype=np.float32))
    worst = {"action": 0.0, "ctrl": 0.0}
    for obs in batches:
        with torch.no_grad():
            raw = frozen(torch.from_numpy(obs))
        if not torch.isfinite(raw).all():
            raise ExportError("the policy itself gives undefined numbers")
        action = raw.clamp(-clip, clip)
        expected = {"action": action, "ctrl": offset + scale * action}
        results = session.run(["action", "ctrl"], {"obs": obs})
        for (name, value), result in zip(expected.items(), results, strict=True):
            error = _difference(name, value.numpy(), result)
            # Rounding grows with the numbers in the network, which the raw action tells.
            allowed = tolerance * max(1.0, float(raw.abs().max()), float(value.abs().max()))
            if not error <= allowed:
                raise ExportError(
                    f"{path}: {name} differs from the policy's by {error:.3g} in a batch of "
                    f"{len(obs)}; {allowed:.1g} is allowed"
                )
            worst[name] = max(worst[name], error)
    return ExportReport(Path(path), worst["action"], worst["ctrl"], sum(map(len, batches)))


def _contract(
    metadata: ExportMetadata, clip: float, scale: NDArray[np.float32], offset: NDArray[np.float32]
) -> str:
    """Return the contract as JSON."""
    action_map = {"clip": clip, "scale": scale.tolist(), "offset": offset.tolist()}
    return json.dumps({"format": FORMAT, "action": action_map, **asdict(metadata)}, allow_nan=False)


def _difference(name: str, expected: NDArray[np.float32], result: NDArray[np.float32]) -> float:
    if result.shape != expected.shape:
        raise ExportError(f"{name} has shape {result.shape}, the policy's is {expected.shape}")
    if not np.isfinite(result).all():
        raise ExportError(f"the file gives undefined numbers in {name}")
    return float(np.abs(expected.astype(np.float64) - result).max(initial=0.0))


def _frozen(policy: nn.Module) -> nn.Module:
    """A copy on the CPU in f32, in evaluation mode."""
    return copy.deepcopy(policy).cpu().float().eval().requires_grad_(False)


def _open(path: Path) -> tuple[Any, dict[str, Any]]:
    import onnxruntime

    if not path.is_file():
        raise ConfigError(f"no file {path}; give the .onnx file that export wrote")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    errors = onnxruntime.capi.onnxruntime_pybind11_state
    try:
        session = onnxruntime.InferenceSession(
            path.read_bytes(), options, providers=["CPUExecutionProvider"]
        )
        text = session.get_modelmeta().custom_metadata_map.get(METADATA_KEY)
    except (errors.InvalidProtobuf, errors.InvalidGraph, errors.Fail) as error:
        raise ConfigError(f"{path} is not a policy that can be run: {error}") from None
    if text is None:
        raise ConfigError(
            f"{path} has no '{METADATA_KEY}' metadata; only files that `unilab export` wrote can "
            "be verified"
        )
    contract: dict[str, Any] = json.loads(text)
    return session, contract

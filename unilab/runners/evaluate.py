"""Judges a policy: fixed episodes, fixed seed, the noise and pushes of training, no exploration."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from unilab.config import RunConfig, diff_configs, load_config, task_label
from unilab.errors import ConfigError, nearest
from unilab.learners.base import Policy
from unilab.runners.build import make_pipeline
from unilab.runners.restore import restore_policy
from unilab.runtime.pipeline import Pipeline
from unilab.runtime.threads import make_side_plan
from unilab.tasks.base import BuiltTask, root_starts
from unilab.video import Arrow, Frame, RenderUnavailable, render_video

F64 = NDArray[np.float64]

# Evaluations of all policies see the same noise, pushes and initial states.
EVALUATION_SEED = 20_260_101
EVALUATION_FILE, VIDEO_FILE = "evaluation.json", "policy.mp4"
VIDEO_FPS = 25.0
# For these metrics more is better; every other threshold is an upper limit.
NOT_THE_MDP = ("seed", "device", "log.", "train.", "checkpoint.", "runtime.", "description")
HIGHER_IS_BETTER = ("survived_fraction", "return")
COMMAND_COLOR, VELOCITY_COLOR = (0.1, 0.75, 0.25, 1.0), (0.15, 0.4, 0.95, 1.0)


@dataclass(frozen=True)
class Evaluation:
    """What an evaluation found.

    Attributes:
      episodes: how many.
      metrics: "return" and "length_s" (means), "survived_fraction", and for velocity tasks
        "lin_vel_error" (m/s) and "ang_vel_error" (rad/s), means over time and episodes.
      passed: for each threshold of the config, whether it is met.
      thresholds: the limits.
      points: the same metrics for each fixed command.
      levels: on uneven ground, the same metrics for each level.
    """

    episodes: int
    metrics: dict[str, float]
    thresholds: dict[str, float]
    passed: dict[str, bool]
    points: list[dict[str, Any]] = field(default_factory=list)
    levels: list[dict[str, Any]] = field(default_factory=list)


def check_evaluation(built: BuiltTask) -> None:
    """Refuse thresholds and points that the task has no metric or command for.

    Raises:
      ConfigError: names what is valid.
    """
    settings, names = built.config.evaluation, ["return", "length_s", "survived_fraction"]
    velocity = _is_velocity_task(built)
    if velocity:
        names += ["lin_vel_error", "ang_vel_error"]
    for name in settings.thresholds:
        if name not in names:
            raise ConfigError(
                f"evaluation.thresholds.{name}: this task has no such metric; "
                f"{nearest(name, names)}"
            )
    if settings.points and not velocity:
        raise ConfigError("evaluation.points: this task has no command to fix; leave it empty")
    for point in settings.points:
        if len(point) != 3:
            raise ConfigError(
                f"evaluation.points: {list(point)} has {len(point)} numbers; valid: vx, vy in m/s "
                "and the yaw rate in rad/s, such as [0.5, 0.0, 0.0]"
            )


def evaluate(built: BuiltTask, learner: Policy) -> Evaluation:
    """Run `evaluation.episodes` episodes, one per env, and measure.

    Commands are the fixed points of the config, in turn; on uneven ground the envs are spread over
    the tiles of all levels. An episode counts until it ends; what an env does afterwards does not.

    Raises:
      ConfigError: see `check_evaluation`.
    """
    check_evaluation(built)
    config = built.config
    count = config.evaluation.episodes
    steps = max(1, round(config.evaluation.episode_length_s / built.control_dt))
    plan = make_side_plan(config.runtime, count)
    pipeline = make_pipeline(built, plan, seed=EVALUATION_SEED, num_envs=count)
    try:
        points = _fix_commands(pipeline, config.evaluation.points)
        levels = _fix_tiles(pipeline)
        # One step longer than is looked at: what survives is still in its own last state.
        _start(pipeline, steps + 1)
        velocity = _VelocityError(pipeline) if _is_velocity_task(built) else None
        total, length = np.zeros(count), np.zeros(count)
        alive, survived = np.ones(count, bool), np.ones(count, bool)
        for _ in range(steps):
            for group, envs in enumerate(pipeline.groups):
                _act(pipeline, learner, group)
                step = pipeline.finish(group)
                total[envs] += np.where(alive[envs], step.reward, 0.0)
                length[envs] += alive[envs]
                survived[envs] &= ~alive[envs] | (step.terminated == 0)
                alive[envs] &= (step.terminated == 0) & (step.truncated == 0)
                if velocity is not None:  # an env that has just ended shows its next episode
                    velocity.add(envs, alive)
    finally:
        pipeline.close()
    per_env = {
        "return": total,
        "length_s": length * built.control_dt,
        "survived_fraction": survived.astype(np.float64),
    }
    if velocity is not None:
        per_env["lin_vel_error"] = velocity.lin / np.maximum(velocity.steps, 1)
        per_env["ang_vel_error"] = velocity.ang / np.maximum(velocity.steps, 1)
    return _summarise(built, per_env, points, levels)


def _summarise(
    built: BuiltTask, per_env: dict[str, F64], points: F64 | None, levels: F64 | None
) -> Evaluation:
    settings = built.config.evaluation
    metrics = {name: float(values.mean()) for name, values in per_env.items()}
    passed = {
        name: metrics[name] >= limit if name in HIGHER_IS_BETTER else metrics[name] <= limit
        for name, limit in settings.thresholds.items()
    }

    def means(rows: NDArray[np.bool_]) -> dict[str, float]:
        return {name: float(values[rows].mean()) for name, values in per_env.items()}

    by_point, by_level = [], []
    if points is not None:
        for point in np.unique(points, axis=0):
            by_point.append({"command": point.tolist(), **means((points == point).all(axis=1))})
    if levels is not None:
        for level in np.unique(levels):
            by_level.append({"level": int(level), **means(levels == level)})
    episodes = len(per_env["return"])
    return Evaluation(episodes, metrics, dict(settings.thresholds), passed, by_point, by_level)


def format_evaluation(result: Evaluation) -> str:
    """Return the evaluation as lines for a person."""
    lines = [f"evaluation over {result.episodes} episodes (fixed seed, noise and pushes on):"]
    for name, value in result.metrics.items():
        verdict = ""
        if name in result.thresholds:
            sign = ">=" if name in HIGHER_IS_BETTER else "<="
            word = "ok" if result.passed[name] else "MISSED"
            verdict = f"   {sign} {result.thresholds[name]:g}  {word}"
        lines.append(f"  {name:18s} {value:8.3f}{verdict}")
    for title, table in (("command", result.points), ("level", result.levels)):
        if not table:
            continue
        names = [n for n in ("lin_vel_error", "ang_vel_error", "survived_fraction")
                 if n in table[0]]  # fmt: skip
        lines.append(f"  {'by ' + title + ':':19s}  " + "  ".join(f"{n:>17s}" for n in names))
        for row in table:
            command = row[title] if title == "command" else [row[title]]
            shown = " ".join(f"{c:5.2f}" if title == "command" else f"{c:5d}" for c in command)
            lines.append(f"    {shown:17s}  " + "  ".join(f"{row[n]:17.3f}" for n in names))
    return "\n".join(lines)


def save_evaluation(run_dir: Path, result: Evaluation) -> Path:
    """Write the evaluation beside the run and return the path."""
    path = run_dir / EVALUATION_FILE
    path.write_text(json.dumps(vars(result), indent=2) + "\n")
    return path


def record_video(built: BuiltTask, learner: Policy, path: Path) -> None:
    """Film the policy in one env; for a velocity task, following one command after the other.

    Raises:
      RenderUnavailable: no picture can be made on this machine.
    """
    config = built.config
    plan = make_side_plan(config.runtime, 1)
    pipeline = make_pipeline(built, plan, seed=EVALUATION_SEED, num_envs=1)
    try:
        frames = _frames(pipeline, learner)
        render_video(built.robot.model, frames, path, camera=built.task.camera, fps=VIDEO_FPS)
    finally:
        pipeline.close()


def _frames(pipeline: Pipeline, learner: Policy) -> Iterator[Frame]:
    settings, dt = pipeline.built.config.evaluation, pipeline.built.control_dt
    steps = round(settings.video_seconds / dt)
    points = list(settings.points) if _is_velocity_task(pipeline.built) else []
    velocity = _VelocityError(pipeline) if points else None
    if points:
        pipeline.field("fixed_command")[0] = [1.0, *points[0]]
    _show_tile(pipeline)
    _start(pipeline, steps + 1)
    shown = 0
    for k in range(steps):
        if points:
            point = points[min(k * len(points) // steps, len(points) - 1)]
            pipeline.field("fixed_command")[0] = [1.0, *point]
        _act(pipeline, learner, 0)
        pipeline.finish(0)
        if (k + 1) * dt * VIDEO_FPS >= shown:
            shown += 1
            yield _frame(pipeline, velocity, point if points else None)


def _frame(
    pipeline: Pipeline, velocity: _VelocityError | None, point: tuple[float, ...] | None
) -> Frame:
    qpos = pipeline.qpos()[0].copy()
    if velocity is None or point is None:
        return Frame(qpos, (task_label(pipeline.built.config.task),))
    lin, yaw_rate = velocity.measured(slice(0, 1))
    vx, vy = lin[0]
    base = qpos[velocity.qpos_start : velocity.qpos_start + 3]
    start = (float(base[0]), float(base[1]), float(base[2]) + 0.25)
    turn = velocity.heading(slice(0, 1))[0]

    def tip(x: float, y: float) -> tuple[float, float, float]:
        wx, wy = turn @ np.array([x, y]) * 0.6
        return (start[0] + wx, start[1] + wy, start[2])

    return Frame(
        qpos,
        (
            f"command   {point[0]:+.2f} {point[1]:+.2f} m/s  {point[2]:+.2f} rad/s",
            f"measured  {vx:+.2f} {vy:+.2f} m/s  {yaw_rate[0]:+.2f} rad/s",
        ),
        (
            Arrow(start, tip(point[0], point[1]), COMMAND_COLOR),
            Arrow(start, tip(float(vx), float(vy)), VELOCITY_COLOR),
        ),
    )


class _VelocityError:
    """Tracking errors of a free base, from qpos and qvel in f64 and not from the kernel's terms."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self.qpos_start, self.qvel_start = root_starts(pipeline.built.robot)
        self.lin: F64 = np.zeros(pipeline.num_envs)
        self.ang: F64 = np.zeros(pipeline.num_envs)
        self.steps: F64 = np.zeros(pipeline.num_envs)

    def add(self, envs: slice, alive: NDArray[np.bool_]) -> None:
        """Add the errors of one step where the episode is still on."""
        command = self.pipeline.field("command")[envs].astype(np.float64)
        lin, yaw_rate = self.measured(envs)
        error = np.linalg.norm(lin - command[:, :2], axis=1)
        self.lin[envs] += np.where(alive[envs], error, 0.0)
        self.ang[envs] += np.where(alive[envs], np.abs(yaw_rate - command[:, 2]), 0.0)
        self.steps[envs] += alive[envs]

    def measured(self, envs: slice) -> tuple[F64, F64]:
        """Return the planar velocity (n, 2) in the base frame and the yaw rate (n,)."""
        qvel = np.asarray(self.pipeline.qvel()[envs], np.float64)
        world = qvel[:, self.qvel_start : self.qvel_start + 3]
        lin = np.einsum("nij,ni->nj", self._matrices(envs), world)
        return lin[:, :2], qvel[:, self.qvel_start + 5]

    def heading(self, envs: slice) -> F64:
        """Return the rotation of the heading, (n, 2, 2)."""
        forward = self._matrices(envs)[:, :2, 0]
        forward = forward / np.linalg.norm(forward, axis=1, keepdims=True)
        left = np.stack([-forward[:, 1], forward[:, 0]], axis=1)
        return np.stack([forward, left], axis=2)

    def _matrices(self, envs: slice) -> F64:
        q = self.pipeline.qpos()[envs, self.qpos_start + 3 : self.qpos_start + 7]
        w, x, y, z = q.T
        rows = [
            [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
            [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
            [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
        ]
        return np.moveaxis(np.array(rows), -1, 0)


def _is_velocity_task(built: BuiltTask) -> bool:
    fields = built.kernel.carried_slices
    return {"command", "fixed_command"} <= fields.keys() and built.robot.root_joint is not None


def _fix_commands(pipeline: Pipeline, points: tuple[tuple[float, ...], ...]) -> F64 | None:
    if not points:
        return None
    table = np.array(points, np.float64)
    chosen: F64 = table[np.arange(pipeline.num_envs) % len(table)]
    fixed = pipeline.field("fixed_command")
    fixed[:, 0] = 1.0
    fixed[:, 1:] = chosen
    return chosen


def _fix_tiles(pipeline: Pipeline) -> F64 | None:
    """Spread the envs over the tiles, level by level, and return their levels (N,)."""
    terrain, count = pipeline.built.robot.terrain, pipeline.num_envs
    if terrain is None or "fixed_tile" not in pipeline.built.kernel.carried_slices:
        return None
    columns = len(terrain.config.kinds)
    tiles = np.arange(count) * (terrain.config.levels * columns) // count
    fixed = pipeline.field("fixed_tile")
    fixed[:, 0] = 1.0
    fixed[:, 1], fixed[:, 2] = tiles // columns, tiles % columns
    return (tiles // columns).astype(np.float64)


def _show_tile(pipeline: Pipeline) -> None:
    """Film on the kind in the middle of all, on a level that a short training reaches."""
    terrain = pipeline.built.robot.terrain
    if terrain is not None and "fixed_tile" in pipeline.built.kernel.carried_slices:
        middle = [terrain.config.levels // 4, len(terrain.config.kinds) // 2]
        pipeline.field("fixed_tile")[:] = [1.0, *middle]


def _start(pipeline: Pipeline, max_steps: int) -> None:
    """Begin all episodes at age 0, each `max_steps` long."""
    pipeline.arrays["max_steps_in"][:] = max_steps
    pipeline.reset(random_start=False)


def _act(pipeline: Pipeline, learner: Policy, group: int) -> None:
    obs = torch.from_numpy(pipeline.observe(group)[0])
    action = learner.act(obs.to(learner.device), explore=False).action
    pipeline.submit(group, action.cpu().numpy())


def evaluate_run(run_dir: Path, checkpoint: Path, overrides: list[str], video: bool) -> int:
    """`unilab eval`: judge a checkpoint with the config it was trained with.

    Returns:
      0, whether or not the thresholds are met; 1 where the video could not be made.
    """
    policy = restore_policy(run_dir, checkpoint, overrides)
    built, learner = policy.built, policy.learner
    check_evaluation(built)
    _print_differences(built.config)
    print(f"checkpoint {checkpoint}, iteration {policy.progress.iteration}")  # noqa: T201
    result = evaluate(built, learner)
    save_evaluation(run_dir, result)
    print(format_evaluation(result))  # noqa: T201
    if video:
        try:
            record_video(built, learner, run_dir / VIDEO_FILE)
        except RenderUnavailable as error:
            print(f"error: {error}", file=sys.stderr)  # noqa: T201
            return 1
        print(f"video {run_dir / VIDEO_FILE}")  # noqa: T201
    return 0


def _print_differences(config: RunConfig) -> None:
    """Say where the task's file of today differs from the run's own config, which is used."""
    try:
        today = load_config(config.task).config
    except ConfigError as error:
        print(f"the task's file of today is not usable, the run's own is used: {error}")  # noqa: T201
        return
    mine = f"learners.{config.learner}."
    for difference in diff_configs(today, config):
        of_another = difference.key.startswith("learners.") and not difference.key.startswith(mine)
        if not (of_another or difference.key.startswith(NOT_THE_MDP)):
            print(f"differs from the task's file today: {difference}")  # noqa: T201

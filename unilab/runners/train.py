"""`unilab train`: build a run, train it, judge it, show it. And go on with one."""

from __future__ import annotations

import secrets
import socket
import sys
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import torch

from unilab.buffers.replay import Replay
from unilab.buffers.rollout import Rollout
from unilab.config import (
    LoadedConfig,
    RunConfig,
    diff_configs,
    load_resolved,
    save_resolved,
    task_label,
)
from unilab.config.appo import APPOConfig
from unilab.config.off_policy import ReplayConfig
from unilab.errors import ConfigError, PhysicsError
from unilab.learners.base import Learner, LearnerSpec
from unilab.learners.capture import Capturable, CycleRunner
from unilab.learners.flops import iteration_flops
from unilab.learners.off_policy import OffPolicyLearner
from unilab.plots import learning_curve
from unilab.record import Recorder
from unilab.runners import checkpoint as checkpoints
from unilab.runners.backends import choose_device, physics_place
from unilab.runners.build import (
    check_memory,
    compile_kernels,
    learner_settings,
    make_learner,
    make_pipeline,
    make_replay,
)
from unilab.runners.checkpoint import Checkpoint, Progress
from unilab.runners.evaluate import (
    VIDEO_FILE,
    check_evaluation,
    evaluate,
    format_evaluation,
    record_video,
    save_evaluation,
)
from unilab.runners.free import FreeRun, run_free
from unilab.runners.free_off_policy import ACTING_STREAM, FreeOffPolicyRun, run_free_off_policy
from unilab.runners.interrupt import Interrupt
from unilab.runners.off_policy import OffPolicyRun, run_off_policy
from unilab.runners.on_policy import OnPolicyRun, is_complete, run_on_policy, set_first
from unilab.runs import CONFIG_FILE, check_new_run, create_run, find_checkpoint, list_checkpoints
from unilab.runtime.pipeline import Pipeline
from unilab.runtime.thread_names import name_python_threads
from unilab.runtime.threads import make_plan
from unilab.runtime.timers import Timers
from unilab.runtime.transfer import own_stream
from unilab.tasks.base import BuiltTask, build_task
from unilab.video import RenderUnavailable

Run = OnPolicyRun | OffPolicyRun
EXIT_INTERRUPTED = 130
CURVE_FILE = "learning_curve.png"
BEAT_S = 1.0  # between two signs of life


@dataclass(frozen=True)
class _Parts:
    """What a config is turned into, before anything of the run is written."""

    device: torch.device
    built: BuiltTask
    pipeline: Pipeline
    learner: Learner | OffPolicyLearner
    replay: Replay | None


def train(loaded: LoadedConfig, *, name: str | None, command: list[str]) -> int:
    """Train a policy from nothing.

    Args:
      loaded: the config.
      name: added to the run directory's name.
      command: what the user typed, for the record.

    Returns:
      The exit code: 0, or 130 after Ctrl-C.

    Raises:
      ConfigError: before anything is written.
    """
    if loaded.config.seed is None:
        loaded = loaded.with_value("seed", secrets.randbelow(2**31), "drawn at start")
    config = loaded.config
    check_new_run(config, name)
    parts = _build(config)
    with closing(parts.pipeline):
        run_dir = create_run(config, name=name, command=command)
        return _run(run_dir, parts, Progress(), resumed=False)


def resume(run_dir: Path, overrides: list[str]) -> int:
    """Go on with a run from its latest checkpoint, or from its start where it has none yet.

    Args:
      run_dir: the run.
      overrides: `key=value`, such as train.iterations; saved with the run.

    Returns:
      The exit code.

    Raises:
      ConfigError: the checkpoint cannot be read or the overrides do not fit; nothing is changed.
    """
    before = load_resolved(run_dir / CONFIG_FILE).config
    config = load_resolved(run_dir / CONFIG_FILE, overrides).config
    progress, checkpoint = Progress(), None
    if list_checkpoints(run_dir):
        path = find_checkpoint(run_dir)
        checkpoint = checkpoints.load(path)
        checkpoints.check_same_task(checkpoint, config, path)
        progress = checkpoint.progress
    if is_complete(config.train, progress):
        raise ConfigError(
            f"{run_dir}: is complete: {progress.iteration} iterations are done in "
            f"{progress.wall_s:.0f} s; train.iterations={config.train.iterations}, "
            f"train.max_time_s={config.train.max_time_s}; give a larger one to go on"
        )
    _check_resumable(before, config)
    parts = _build(config)
    with closing(parts.pipeline):
        if checkpoint is not None:
            _restore(parts, checkpoint, config)
        for difference in diff_configs(before, config):
            say(f"changed: {difference}")
        if config != before:
            save_resolved(config, run_dir / CONFIG_FILE)
        return _run(run_dir, parts, progress, resumed=True, checkpoint=checkpoint)


def _build(config: RunConfig) -> _Parts:
    """Build all parts; what does not fit is refused here."""
    device = choose_device(config.device)
    plan = make_plan(config.runtime, config.physics.num_envs, physics=physics_place(config, device))
    torch.set_num_threads(plan.learner)
    built = build_task(config)
    check_evaluation(built)
    check_memory(built)
    assert config.seed is not None
    learner = make_learner(built, config, device, config.seed)
    replay = None
    if isinstance(learner_settings(config), ReplayConfig):
        replay = make_replay(built, config.physics.num_envs, device)
    pipeline = make_pipeline(built, plan, seed=config.seed, timers=Timers())
    say(f"task     {config.task}: {config.physics.num_envs} envs, seed {config.seed}")
    say(f"physics  {pipeline.physics.describe()}")
    say(f"threads  {plan.describe()}; learner on {device}")
    say("kernels  compiling (cached for the next start) ...")
    compile_kernels(pipeline)
    return _Parts(device, built, pipeline, learner, replay)


def _check_resumable(before: RunConfig, config: RunConfig) -> None:
    """Refuse overrides that would make another run of it."""
    for key, old, new in (
        ("seed", before.seed, config.seed),
        ("physics.num_envs", before.physics.num_envs, config.physics.num_envs),
        ("physics.model", before.physics.model, config.physics.model),
        ("observations.actor", list(before.observations.actor), list(config.observations.actor)),
        ("observations.critic", list(before.observations.critic), list(config.observations.critic)),
    ):
        if old != new:
            raise ConfigError(
                f"command line: {key}: {old} cannot become {new} in a run that goes on; leave it "
                "out, or start a new run"
            )


def _restore(parts: _Parts, checkpoint: Checkpoint, config: RunConfig) -> None:
    """Take up a checkpoint. The log's sums of other terms than today's are left out."""
    arrays: dict[str, Any] = dict(checkpoint.pipeline["arrays"])
    then, fresh = checkpoint.config, parts.pipeline.state_dict()["arrays"]
    if (list(then.rewards), list(then.terminations)) != (
        list(config.rewards),
        list(config.terminations),
    ):
        arrays["log_io"] = fresh["log_io"]
    for name, array in fresh.items():
        there = tuple(arrays[name].shape) if name in arrays else None
        if there != array.shape:
            raise ConfigError(
                f"checkpoint: '{name}' of the envs has shape {there} there and {array.shape} here: "
                "the robot or the task has changed since; start a new run"
            )
    try:
        parts.pipeline.load_state_dict({**checkpoint.pipeline, "arrays": arrays})
    except PhysicsError as error:
        raise ConfigError(
            f"checkpoint: {error}; go on with the physics.backend that the run was begun with "
            f"(physics.backend={then.physics.backend}, device={then.device}), or start a new run"
        ) from error
    if parts.replay is not None and "replay" in checkpoint.runner and config.checkpoint.replay:
        parts.replay.check_state(checkpoint.runner["replay"])
    parts.learner.load_state_dict(checkpoint.learner)


def _run(
    run_dir: Path,
    parts: _Parts,
    progress: Progress,
    *,
    resumed: bool,
    checkpoint: Checkpoint | None = None,
) -> int:
    pipeline, config = parts.pipeline, parts.built.config
    say(f"run      {run_dir}")
    if checkpoint is None:
        pipeline.reset()
    if resumed:
        say(f"resumed  after iteration {progress.iteration}")
    recorder = Recorder(
        run_dir,
        total_iterations=config.train.iterations,
        tensorboard=config.log.tensorboard,
        max_time_s=config.train.max_time_s,
        resume_iteration=progress.iteration if resumed else None,
        setup=_setup(parts),
    )

    def beat() -> None:
        name_python_threads()  # pools start their threads when they get their first work
        recorder.beat()

    run = _make_run(run_dir, parts, recorder, progress, checkpoint)
    run.timers.watch(beat, BEAT_S)
    with recorder, Interrupt() as interrupt, own_stream(parts.device):
        done = _train_or_save(run, interrupt)
        if interrupt.requested:
            recorder.close("interrupted")
    if not is_complete(config.train, progress):
        say(f"interrupted after iteration {done}; everything is saved")
        say(f"go on with: unilab train --resume {run_dir}")
        return EXIT_INTERRUPTED
    pipeline.close()
    try:
        if not interrupt.requested:
            _finish(run)
            return 0
    except KeyboardInterrupt:
        pass  # training is complete and stands
    say(f"interrupted; training is complete: {find_checkpoint(run_dir)}")
    say(f"evaluate with: unilab eval --run {run_dir}")
    return EXIT_INTERRUPTED


def _make_run(
    run_dir: Path,
    parts: _Parts,
    recorder: Recorder,
    progress: Progress,
    checkpoint: Checkpoint | None,
) -> Run:
    """Put a loop's parts together: a rollout or a replay buffer, with its first observations."""
    pipeline, kernel, config = parts.pipeline, parts.built.kernel, parts.built.config
    settings, learner = learner_settings(config), parts.learner
    if isinstance(settings, ReplayConfig):
        assert parts.replay is not None
        assert config.seed is not None
        sampler = torch.Generator(device=parts.device).manual_seed(config.seed)
        if settings.compile == "on":
            say("learner  compiling its networks ...")
            cast(OffPolicyLearner, learner).compile_networks()
        cycle = CycleRunner(cast(Capturable, learner), settings.capture)
        replayed = (
            run_dir, pipeline, cast(OffPolicyLearner, learner), parts.replay, recorder, progress,
            settings, sampler, Timers(), cycle,
        )  # fmt: skip
        if settings.schedule == "free":
            acting = torch.Generator(device=parts.device).manual_seed(config.seed ^ ACTING_STREAM)
            run: OffPolicyRun = FreeOffPolicyRun(*replayed, acting=acting)
        else:
            run = OffPolicyRun(*replayed)
        run.restore({} if checkpoint is None else checkpoint.runner)
        return run
    free = isinstance(settings, APPOConfig) and settings.collection == "free"
    rollouts = [
        Rollout(
            settings.num_steps, pipeline.num_envs, kernel.num_obs,
            kernel.num_critic_obs, pipeline.num_actions, parts.device,
        )
        for _ in range(settings.num_slots if isinstance(settings, APPOConfig) else 1)
    ]  # fmt: skip
    common = (run_dir, pipeline, cast(Learner, learner), rollouts[0], recorder, progress)
    if free:
        return FreeRun(*common, rollouts, Timers())
    set_first(pipeline, rollouts[0])
    return OnPolicyRun(*common)


def _setup(parts: _Parts) -> dict[str, Any]:
    """What a monitor has to know of a run and cannot see from outside."""
    config, pipeline, device = parts.built.config, parts.pipeline, parts.device
    kernel = parts.built.kernel
    settings = learner_settings(config)
    sizes = LearnerSpec(kernel.num_obs, kernel.num_critic_obs, pipeline.num_actions)
    gpu = None
    if device.type == "cuda":
        gpu = str(torch.cuda.get_device_properties(device).uuid)
    return {
        "host": socket.gethostname(),
        "task": config.task,
        "learner": config.learner,
        "num_envs": pipeline.num_envs,
        "num_steps": settings.num_steps,
        "device": str(device),
        "gpu_uuid": gpu,
        "plan": asdict(pipeline.plan),
        "update_flops": iteration_flops(settings, sizes, pipeline.num_envs),
    }


def _train_or_save(run: Run, interrupt: Interrupt) -> int:
    """Train; where an interrupt cut an iteration short, save the state at its start.

    Returns the iteration of the last checkpoint.
    """
    try:
        if isinstance(run, FreeOffPolicyRun):
            run_free_off_policy(run, interrupt)
        elif isinstance(run, OffPolicyRun):
            run_off_policy(run, interrupt)
        elif isinstance(run, FreeRun):
            run_free(run, interrupt)
        else:
            run_on_policy(run, interrupt)
        return run.progress.iteration
    except KeyboardInterrupt:
        if interrupt.cut_at is None:
            raise
        keep = run.pipeline.built.config.checkpoint.keep
        checkpoints.save(run.run_dir, interrupt.cut_at, keep=keep)
        return interrupt.cut_at.progress.iteration
    except Exception as error:
        if interrupt.resume_point is not None:  # the state before the iteration that failed
            keep = run.pipeline.built.config.checkpoint.keep
            checkpoints.save(run.run_dir, interrupt.resume_point, keep=keep)
        saved = list_checkpoints(run.run_dir)
        last = f"the last checkpoint is {saved[-1][1]}" if saved else "there is no checkpoint yet"
        error.add_note(
            f"training stopped after {run.progress.iteration} iterations; {last}; go on with: "
            f"unilab train --resume {run.run_dir}"
        )
        raise


def _finish(run: Run) -> None:
    """Evaluate, plot, film. What cannot be made is said in a line; training's result stands."""
    built, run_dir = run.pipeline.built, run.run_dir
    config = built.config
    lines = [f"run         {run_dir}", f"checkpoint  {find_checkpoint(run_dir)}"]
    if config.evaluation.at_end:
        say("evaluating ...")
        result = evaluate(built, run.learner)
        save_evaluation(run_dir, result)
        say(format_evaluation(result))
    curve = run_dir / CURVE_FILE
    learning_curve(
        run_dir / "metrics.jsonl", curve, f"{task_label(config.task)}, seed {config.seed}"
    )
    lines.append(f"curve       {curve}")
    if config.evaluation.video:
        say("rendering the video ...")
        try:
            record_video(built, run.learner, run_dir / VIDEO_FILE)
            lines.append(f"video       {run_dir / VIDEO_FILE}")
        except RenderUnavailable as error:
            lines.append(f"video       none: {error}")
    say("\n".join(lines))


def say(text: str) -> None:
    """Print a line of a run's story."""
    print(text, file=sys.stdout, flush=True)  # noqa: T201

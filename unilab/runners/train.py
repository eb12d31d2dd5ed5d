"""`unilab train`: build a run, train it, judge it, show it. And go on with one."""

from __future__ import annotations

import secrets
import sys
from contextlib import ExitStack
from pathlib import Path

import torch

from unilab.buffers.rollout import Rollout
from unilab.config import LoadedConfig, RunConfig, diff_configs, load_resolved, save_resolved
from unilab.errors import ConfigError, UnilabError
from unilab.plots import learning_curve
from unilab.record import Recorder
from unilab.runners import checkpoint as checkpoints
from unilab.runners.build import choose_device, make_learner, make_pipeline
from unilab.runners.checkpoint import Checkpoint, Progress
from unilab.runners.evaluate import evaluate, format_evaluation, record_video, save_evaluation
from unilab.runners.interrupt import Interrupt
from unilab.runners.on_policy import OnPolicyRun, run_on_policy, set_first
from unilab.runs import CONFIG_FILE, create_run, find_checkpoint
from unilab.runtime.threads import make_plan
from unilab.runtime.timers import Timers
from unilab.tasks.base import build_task

EXIT_INTERRUPTED = 130
CURVE_FILE, VIDEO_FILE = "learning_curve.png", "policy.mp4"


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
    make_plan(config.runtime, config.physics.num_envs)
    choose_device(config.device)
    build_task(config)  # refuse a wrong model or term before a directory is made
    run_dir = create_run(config, name=name, command=command)
    return _run(run_dir, config, None)


def resume(run_dir: Path, overrides: list[str]) -> int:
    """Go on with a run from its latest checkpoint.

    Args:
      run_dir: the run.
      overrides: `key=value`, such as train.iterations; saved with the run.

    Returns:
      The exit code.

    Raises:
      ConfigError: there is no checkpoint, or it does not fit.
    """
    before = load_resolved(run_dir / CONFIG_FILE).config
    config = load_resolved(run_dir / CONFIG_FILE, overrides).config
    path = find_checkpoint(run_dir)
    checkpoint = checkpoints.load(path)
    checkpoints.check_same_task(checkpoint, config, path)
    if checkpoint.progress.iteration >= config.train.iterations:
        raise ConfigError(
            f"{run_dir}: is complete: {checkpoint.progress.iteration} of train.iterations="
            f"{config.train.iterations} iterations are done; give a larger train.iterations"
        )
    for difference in diff_configs(before, config):
        print(f"changed: {difference}")  # noqa: T201
    if config != before:
        save_resolved(config, run_dir / CONFIG_FILE)
    return _run(run_dir, config, checkpoint)


def _run(run_dir: Path, config: RunConfig, checkpoint: Checkpoint | None) -> int:
    device, plan = choose_device(config.device), make_plan(config.runtime, config.physics.num_envs)
    torch.set_num_threads(plan.learner)
    assert config.seed is not None
    say(f"run      {run_dir}")
    say(f"task     {config.task}: {config.physics.num_envs} envs, seed {config.seed}")
    say(f"threads  {plan.describe()}; learner on {device}")
    built = build_task(config)
    with ExitStack() as stack:
        timers = Timers()
        pipeline = make_pipeline(built, plan, seed=config.seed, timers=timers)
        stack.callback(pipeline.close)
        learner = make_learner(built, config, device, config.seed)
        say("kernels  compiling (cached for the next start) ...")
        pipeline.reset()
        progress = Progress()
        if checkpoint is not None:
            learner.load_state_dict(checkpoint.learner)
            pipeline.load_state_dict(checkpoint.pipeline)
            progress = checkpoint.progress
            say(f"resumed  after iteration {progress.iteration}")
        kernel = built.kernel
        rollout = Rollout(
            config.learners.ppo.num_steps, pipeline.num_envs, kernel.num_obs,
            kernel.num_critic_obs, pipeline.num_actions, device,
        )  # fmt: skip
        set_first(pipeline, rollout)
        recorder = Recorder(
            run_dir,
            total_iterations=config.train.iterations,
            tensorboard=config.log.tensorboard,
            max_time_s=config.train.max_time_s,
            resume_iteration=None if checkpoint is None else progress.iteration,
        )
        run = OnPolicyRun(run_dir, pipeline, learner, rollout, recorder, progress)
        with recorder, Interrupt() as interrupt:
            complete = _train_or_save(run, interrupt)
            if not complete:
                recorder.close("interrupted")
        if not complete:
            say(f"interrupted after iteration {progress.iteration}; everything is saved")
            say(f"go on with: unilab train --resume {run_dir}")
            return EXIT_INTERRUPTED
    _finish(run)
    return 0


def _train_or_save(run: OnPolicyRun, interrupt: Interrupt) -> bool:
    """Train; where an interrupt cut a long iteration short, save the state at its start."""
    try:
        return run_on_policy(run, interrupt)
    except KeyboardInterrupt:
        if interrupt.resume_point is None:
            raise
        keep = run.pipeline.built.config.checkpoint.keep
        checkpoints.save(run.run_dir, interrupt.resume_point, keep=keep)
        return False


def _finish(run: OnPolicyRun) -> None:
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
    learning_curve(run_dir / "metrics.jsonl", curve, f"{config.task}, seed {config.seed}")
    lines.append(f"curve       {curve}")
    if config.evaluation.video:
        say("rendering the video ...")
        try:
            record_video(built, run.learner, run_dir / VIDEO_FILE)
            lines.append(f"video       {run_dir / VIDEO_FILE}")
        except UnilabError as error:
            lines.append(f"video       none: {error}")
    say("\n".join(lines))


def say(text: str) -> None:
    """Print a line of a run's story."""
    print(text, file=sys.stdout, flush=True)  # noqa: T201

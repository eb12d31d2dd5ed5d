"""Commands that make runs and use them: train, eval, export."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from unilab.cli.base import (
    Checkpoint,
    NoTuned,
    Run,
    Words,
    app,
    checkpoint_of,
    exits,
    find_run,
    interrupt,
    load_run,
    load_task,
    on_interrupt,
    prepare,
)
from unilab.errors import ConfigError


@app.command(name="train")
@exits
def train_command(
    words: Words = None,
    resume: Annotated[
        str | None,
        typer.Option(
            "--resume", metavar="RUN", help="Go on with this run: latest, -1, a name or a path."
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option("--name", metavar="NAME", help="Added to the name of the run directory."),
    ] = None,
    no_tuned: NoTuned = False,
) -> int:
    """Train a policy, or go on with a run.

    \b
    Examples:
      unilab train cartpole
      unilab train go1_walk physics.num_envs=2048 seed=1 --name wide
      unilab train go1_walk rewards.track_lin_vel.weight=3 rewards.feet_slip=null
      unilab train path/to/my_task.py device=cpu train.iterations=200
      unilab train --resume latest
      unilab train go1_walk --resume -1 train.iterations=2000

    A value is YAML: 1e-3, true, null, [0.5, 1.0]. null takes a term out. `unilab explain TASK`
    lists every key.
    """
    if resume is not None:
        if name is not None:
            raise ConfigError("--name is for a new run, --resume goes on with one; leave one out")
        run_dir, overrides = find_run(resume, words)
        prepare(load_run(run_dir, overrides))
        from unilab.runners.train import resume as resume_run

        on_interrupt(interrupt)
        return resume_run(run_dir, overrides)
    loaded = load_task(words, "train", tuned=not no_tuned)
    prepare(loaded)
    for note in loaded.notes:
        print(f"tuned    {note}")
    from unilab.runners.train import train

    on_interrupt(interrupt)
    return train(loaded, name=name, command=["unilab", *sys.argv[1:]])


@app.command(name="eval")
@exits
def eval_command(
    words: Words = None,
    run: Run = "latest",
    checkpoint: Checkpoint = "latest",
    video: Annotated[
        bool, typer.Option("--video", help="Record a video of the policy as well.")
    ] = False,
) -> int:
    """Evaluate the policy of a run, with the config it was trained with.

    \b
    Examples:
      unilab eval
      unilab eval go1_walk --run latest --checkpoint best --video
      unilab eval --run wide evaluation.episodes=200
      unilab eval --run runs/go1_walk/2026-01-31_12-00-00 --checkpoint 500

    TASK narrows down the runs that RUN is looked for in. KEY=VALUE is laid over the config of the
    run.
    """
    run_dir, overrides = find_run(run, words)
    loaded = load_run(run_dir, overrides)
    checkpoint_file = checkpoint_of(run_dir, checkpoint)
    prepare(loaded)
    from unilab.runners.evaluate import evaluate_run

    on_interrupt(interrupt)
    return evaluate_run(run_dir, checkpoint_file, overrides, video)


@app.command(name="export")
@exits
def export_command(
    words: Words = None,
    run: Run = "latest",
    checkpoint: Checkpoint = "latest",
    output: Annotated[
        Path | None,
        typer.Option("--output", metavar="PATH", help="Where to write. Default: inside the run."),
    ] = None,
) -> int:
    """Export the policy of a run for use on a robot.

    \b
    Examples:
      unilab export
      unilab export go1_walk --run latest --checkpoint best --output go1.onnx
      unilab export --run wide log.dir=/data/runs

    All that is exported is taken from the run; the only config key with an effect is log.dir, which
    says where the runs are.
    """
    run_dir, overrides = find_run(run, words)
    if overrides:
        raise ConfigError(
            f"command line: {overrides[0]}: a policy is exported as it was trained; valid here: "
            "log.dir=FOLDER"
        )
    loaded = load_run(run_dir, [])
    checkpoint_file = checkpoint_of(run_dir, checkpoint)
    prepare(loaded)
    from unilab.runners.export import export_run

    on_interrupt(interrupt)
    return export_run(run_dir, checkpoint_file, output)

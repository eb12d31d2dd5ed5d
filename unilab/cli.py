"""The command `unilab`: it reads the command line, calls what does the work, and reports errors.

Nothing heavy is imported before a command needs it, so that help and lists come at once, and so
that the thread limits are set before the libraries that read them are loaded.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, ParamSpec

import typer

from unilab.errors import ConfigError

if TYPE_CHECKING:
    from unilab.config import LoadedConfig

P = ParamSpec("P")

EXIT_CONFIG_ERROR = 2
EXIT_INTERRUPTED = 130

app = typer.Typer(
    name="unilab",
    help="Train robot policies: an MJCF robot and a task in, an exported policy out.",
    epilog="Start with: unilab list",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)

_Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="TASK KEY=VALUE",
        help="Task name or .py task file, then config values such as physics.num_envs=2048.",
        show_default=False,
    ),
]
_Run = Annotated[
    str,
    typer.Option(
        "--run", metavar="RUN", help="latest, -1 (latest), -2 (the one before), a name or a path."
    ),
]
_Checkpoint = Annotated[
    str,
    typer.Option("--checkpoint", metavar="WHICH", help="latest, best, an iteration, or a path."),
]
_NoTuned = Annotated[
    bool,
    typer.Option("--no-tuned", help="Leave out what `unilab tune` wrote for this machine."),
]


def main() -> None:
    """Run the command line and leave with its exit code.

    A ConfigError is printed without a traceback and gives 2, as wrong usage does; Ctrl-C gives 130;
    any other exception shows its full traceback and gives 1. SIGTERM is taken as Ctrl-C.
    """
    _on_interrupt(_leave)  # raised in the midst of an import it would surface as any error
    try:
        app()
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(EXIT_CONFIG_ERROR)


def _on_interrupt(handler: Callable[[int, FrameType | None], None]) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handler)


def _leave(_number: int, _frame: FrameType | None) -> None:
    """End at once: nothing has been begun."""
    os.write(2, b"interrupted\n")
    os._exit(EXIT_INTERRUPTED)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _exits(command: Callable[P, int]) -> Callable[P, None]:
    """Let a command return its exit code, and give 130 on Ctrl-C."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            code = command(*args, **kwargs)
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            code = EXIT_INTERRUPTED
        raise typer.Exit(code)

    return run


def _show_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import PackageNotFoundError, version

        try:
            print(f"unilab {version('unilab-engine')}")
        except PackageNotFoundError:  # a checkout that is not installed
            print("unilab unknown")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Show the version and exit.", callback=_show_version, is_eager=True
        ),
    ] = False,
) -> None:
    del version  # dealt with by its callback


@app.command(name="train")
@_exits
def train_command(
    words: _Words = None,
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
    no_tuned: _NoTuned = False,
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
        run_dir, overrides = _find_run(resume, words)
        _prepare(_load_run(run_dir, overrides))
        from unilab.runners.train import resume as resume_run

        _on_interrupt(_interrupt)
        return resume_run(run_dir, overrides)
    loaded = _load_task(words, "train", tuned=not no_tuned)
    _prepare(loaded)
    for note in loaded.notes:
        print(f"tuned    {note}")
    from unilab.runners.train import train

    _on_interrupt(_interrupt)
    return train(loaded, name=name, command=["unilab", *sys.argv[1:]])


@app.command(name="eval")
@_exits
def eval_command(
    words: _Words = None,
    run: _Run = "latest",
    checkpoint: _Checkpoint = "latest",
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
    run_dir, overrides = _find_run(run, words)
    loaded = _load_run(run_dir, overrides)
    checkpoint_file = _find_checkpoint(run_dir, checkpoint)
    _prepare(loaded)
    from unilab.runners.evaluate import evaluate_run

    _on_interrupt(_interrupt)
    return evaluate_run(run_dir, checkpoint_file, overrides, video)


@app.command(name="export")
@_exits
def export_command(
    words: _Words = None,
    run: _Run = "latest",
    checkpoint: _Checkpoint = "latest",
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
    run_dir, overrides = _find_run(run, words)
    if overrides:
        raise ConfigError(
            f"command line: {overrides[0]}: a policy is exported as it was trained; valid here: "
            "log.dir=FOLDER"
        )
    loaded = _load_run(run_dir, [])
    checkpoint_file = _find_checkpoint(run_dir, checkpoint)
    _prepare(loaded)
    from unilab.runners.export import export_run

    _on_interrupt(_interrupt)
    return export_run(run_dir, checkpoint_file, output)


@app.command(name="list")
@_exits
def list_command() -> int:
    """List the tasks.

    \b
    Example:
      unilab list
    """
    from unilab.config import list_tasks

    tasks = list_tasks()
    width = max((len(task.name) for task in tasks), default=0)
    for task in tasks:
        print(f"{task.name:<{width}}  {task.description}".rstrip())
    return 0


@app.command(name="explain")
@_exits
def explain_command(
    words: _Words = None,
    kernel: Annotated[
        bool, typer.Option("--kernel", help="Show the source of the task's fused kernel.")
    ] = False,
    no_tuned: _NoTuned = False,
) -> int:
    """Show what a task is made of: every config value, its origin and meaning, and its terms.

    \b
    Examples:
      unilab explain go1_walk
      unilab explain go1_walk physics.num_envs=64 learner=ppo
      unilab explain path/to/my_task.py --kernel
    """
    loaded = _load_task(words, "explain", tuned=not no_tuned)
    _prepare(loaded)
    from unilab.explain import explain

    _on_interrupt(_interrupt)
    print("\n".join([*(f"# tuned: {note}" for note in loaded.notes), explain(loaded, kernel)]))
    return 0


@app.command(name="tune")
@_exits
def tune_command(
    words: _Words = None,
    budget: Annotated[
        float,
        typer.Option("--budget", metavar="SECONDS", min=5.0, help="Time it may take, in all."),
    ] = 110.0,
    write_num_envs: Annotated[
        bool,
        typer.Option(
            "--write-num-envs",
            help="Write the best number of envs too. It changes what is learned, not only the "
            "speed.",
        ),
    ] = False,
) -> int:
    """Find the thread settings with which a task runs fastest on this machine, and keep them.

    \b
    Examples:
      unilab tune go1_walk
      unilab tune go1_walk physics.num_envs=4096 --budget 60
      unilab tune cartpole --write-num-envs

    Runs the real task in many settings, shows what was measured, says which settings are chosen
    and why, and writes them to a file of this machine, which `unilab train` picks up. The task's
    YAML is not touched. Best on a machine that has nothing else to do.
    """
    loaded = _load_task(words, "tune")
    _prepare(loaded)
    from unilab.tune.command import tune

    _on_interrupt(_interrupt)
    return tune(loaded, budget_s=budget, write_num_envs=write_num_envs)


@app.command(name="monitor")
@_exits
def monitor_command(
    words: _Words = None,
    run: Annotated[
        str | None,
        typer.Option("--run", metavar="RUN", help="Watch this run: latest, -1, a name or a path."),
    ] = None,
    pid: Annotated[
        int | None, typer.Option("--pid", metavar="PID", help="Watch the run of this process.")
    ] = None,
    interval: Annotated[
        float, typer.Option("--interval", metavar="S", min=0.2, help="Seconds between samples.")
    ] = 2.0,
    for_s: Annotated[
        float | None,
        typer.Option("--for", metavar="S", min=1.0, help="Watch for this time; else to the end."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", metavar="DIR", help="Where the report goes. Default: RUN/monitor"),
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(
            "--baseline",
            metavar="FILE|NAME",
            help="An earlier report, a run that has one, or a name in benchmark/results. Exit code "
            "1 if this run is more than 10 % slower.",
        ),
    ] = None,
    any_machine: Annotated[
        bool, typer.Option("--any-machine", help="Compare with a baseline of another machine too.")
    ] = False,
    peak: Annotated[
        bool,
        typer.Option("--peak", help="First time matrix products, which the learner is held to."),
    ] = False,
    keep: Annotated[
        bool, typer.Option("--keep", help="Let a run that is started here go on after --for.")
    ] = False,
) -> int:
    """Watch a run from outside, and say what holds it back.

    \b
    Examples:
      unilab monitor go1_walk physics.num_envs=1024 --for 60
      unilab monitor --run latest
      unilab monitor --pid 1234 --interval 1
      unilab monitor --run latest --baseline go1_walk/2026-01-31_12-00-00

    With a TASK it starts a training of its own and watches that; all after -- is then a train
    command with its options: monitor --for 60 -- train go1_walk --name wide. Else it watches a run
    that goes on, or judges one that is over; without words, the latest.

    Ctrl-C ends the watch of a run that goes on, and is handed on to one that was started here. No
    other end of the monitor touches a run. Exit code: 1 for a stalled or failed run or one slower
    than its baseline, 2 for a mistake in what was asked for.
    """
    words = list(words or [])
    start = run is None and pid is None and bool(words)
    if pid is not None and (words or run is not None):
        raise ConfigError("--pid says all; leave --run, TASK and KEY=VALUE out")
    if keep and not start:
        raise ConfigError("--keep is for a run that is started here: give a TASK")
    from unilab.monitor.baseline import load_baseline
    from unilab.monitor.command import Options, start_and_watch, watch_pid, watch_run

    options = Options(
        interval_s=interval,
        for_s=for_s,
        output=output,
        baseline=load_baseline(baseline, _log_dir(words)) if baseline is not None else None,
        any_machine=any_machine,
        peak=peak,
        keep=keep,
        command=["unilab", *sys.argv[1:]],
    )
    _on_interrupt(_interrupt)
    if start:
        return start_and_watch(words[1:] if words[0] == "train" else words, options)
    if pid is not None:
        return watch_pid(pid, options)
    run_dir, overrides = _find_run(run or "latest", words)
    if overrides:
        raise ConfigError(
            f"command line: {overrides[0]}: a run is watched as it is; valid here: log.dir=FOLDER; "
            "to start one, leave --run out"
        )
    return watch_run(run_dir, options)


def _log_dir(words: list[str]) -> Path:
    from unilab.config.schema import LogConfig

    given = [word.partition("=")[2] for word in words if word.startswith("log.dir=")]
    return Path(given[-1] if given else LogConfig().dir)


@app.command(name="bench")
@_exits
def bench_command(
    words: _Words = None,
    num_envs: Annotated[
        int | None,
        typer.Option("--num-envs", metavar="N", min=1, help="Batch of the figures. Default: 8192."),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="One process instead of three: 90 s instead of 6 min.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            metavar="DIR",
            help="Where the files go. Default: benchmark/results of the checkout, else "
            "benchmark_results here.",
        ),
    ] = None,
    compare: Annotated[
        str | None,
        typer.Option(
            "--compare",
            metavar="BASE",
            help="Compare this code with a commit, tag or branch; exit code 1 if it is slower.",
        ),
    ] = None,
    tolerance: Annotated[
        float,
        typer.Option("--tolerance", min=0.0, max=1.0, help="Loss that --compare accepts."),
    ] = 0.1,
) -> int:
    """Measure what a control step of a task costs, beside what it would cost otherwise.

    \b
    Examples:
      unilab bench g1_walk
      unilab bench go1_walk --num-envs 2048 --quick --output results
      unilab bench g1_walk --compare main --tolerance 0.05

    One table: NumPy and Numba, serial and in parallel, buffers, precision and overlap; each with
    its time, its share of memory bandwidth, and the rate of a real collector that runs this way.
    """
    loaded = _load_task(words, "bench")
    _prepare(loaded)
    _on_interrupt(_interrupt)
    overrides = list(words or [])[1:]
    if compare is not None:
        from unilab.bench.gate import compare_with

        return compare_with(
            loaded, overrides, compare, tolerance, num_envs=num_envs, quick=quick, output=output
        )
    from unilab.bench.command import QUICK, bench

    return bench(
        loaded,
        overrides,
        num_envs=num_envs,
        effort=QUICK if quick else None,
        output=output,
        command=["unilab", *sys.argv[1:]],
    )


def _load_task(words: list[str] | None, command: str, *, tuned: bool = False) -> LoadedConfig:
    """Load a task's config; `tuned` lays over it what `unilab tune` found on this machine."""
    from unilab.config import list_tasks, load_config
    from unilab.config.tuned import OFF_VARIABLE

    if not words:
        names = ", ".join(task.name for task in list_tasks()) or "none"
        raise ConfigError(f"the task is missing; write: unilab {command} TASK   (tasks: {names})")
    if not tuned or os.environ.get(OFF_VARIABLE):
        return load_config(words[0], words[1:])
    from unilab.tune.machine import this_machine

    return load_config(words[0], words[1:], machine=this_machine())


def _split(words: list[str] | None) -> tuple[str | None, list[str]]:
    """Return the task, if the first word is one, and the rest."""
    from unilab.config import locate_task, looks_like_key, missing_equals

    words = list(words or [])
    if not words or "=" in words[0]:
        return None, words
    if looks_like_key(words[0]):
        raise missing_equals(words, 0)
    return locate_task(words[0]).task, words[1:]


def _find_run(selector: str, words: list[str] | None) -> tuple[Path, list[str]]:
    """Return the run that is meant, and the overrides but log.dir, which has done its work."""
    from unilab.config import load_config, parse_overrides
    from unilab.config.schema import LogConfig
    from unilab.runs import resolve_run

    task, arguments = _split(words)
    parsed = parse_overrides(arguments)
    log_dirs = [str(override.value) for override in parsed if override.path == ("log", "dir")]
    if log_dirs:
        log_dir = log_dirs[-1]
    else:
        log_dir = load_config(task).config.log.dir if task else LogConfig().dir
    rest = [
        argument
        for argument, override in zip(arguments, parsed, strict=True)
        if override.path != ("log", "dir")
    ]
    return resolve_run(selector, log_dir, task), rest


def _load_run(run_dir: Path, overrides: list[str]) -> LoadedConfig:
    from unilab.config import load_resolved
    from unilab.runs import CONFIG_FILE

    return load_resolved(run_dir / CONFIG_FILE, overrides)


def _find_checkpoint(run_dir: Path, which: str) -> Path:
    from unilab.runs import find_checkpoint

    return find_checkpoint(run_dir, which)


def _prepare(loaded: LoadedConfig) -> None:
    """Set the thread limits, and keep OpenGL out. Comes before torch, Numba and MuJoCo load."""
    from unilab.gl import keep_gl_out
    from unilab.runtime.threads import prepare_environment

    keep_gl_out()
    prepare_environment(loaded.config.runtime)


if __name__ == "__main__":
    main()

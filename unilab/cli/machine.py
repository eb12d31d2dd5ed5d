"""Commands about speed on this machine: tune, monitor, bench."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from unilab.cli.base import (
    Words,
    app,
    exits,
    find_run,
    interrupt,
    load_task,
    on_interrupt,
    prepare,
)
from unilab.errors import ConfigError


@app.command(name="tune")
@exits
def tune_command(
    words: Words = None,
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
    loaded = load_task(words, "tune")
    prepare(loaded)
    from unilab.tune.command import tune

    on_interrupt(interrupt)
    return tune(loaded, budget_s=budget, write_num_envs=write_num_envs)


@app.command(name="monitor")
@exits
def monitor_command(
    words: Words = None,
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
    on_interrupt(interrupt)
    if start:
        return start_and_watch(words[1:] if words[0] == "train" else words, options)
    if pid is not None:
        return watch_pid(pid, options)
    run_dir, overrides = find_run(run or "latest", words)
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
@exits
def bench_command(
    words: Words = None,
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
    loaded = load_task(words, "bench")
    prepare(loaded)
    on_interrupt(interrupt)
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


@app.command(name="selfcheck")
@exits
def selfcheck_command(
    gpu: Annotated[
        bool,
        typer.Option("--gpu", help="On the CUDA GPU. Without: Warp's CPU device, few envs."),
    ] = False,
    checks_only: Annotated[
        bool, typer.Option("--checks-only", help="Leave the table of rates out.")
    ] = False,
    task: Annotated[
        list[str] | None,
        typer.Option("--task", metavar="TASK", help="Default: go1_walk and g1_walk."),
    ] = None,
    num_envs: Annotated[
        list[int] | None,
        typer.Option(
            "--num-envs", metavar="N", min=1, help="Sizes of the table. GPU: 2048, 4096, 8192."
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", metavar="DIR", help="Where the JSON goes, as with bench."),
    ] = None,
) -> int:
    """Check mujoco-warp on this machine against MuJoCo C, and measure what a run would reach.

    \b
    Examples:
      unilab selfcheck --gpu
      unilab selfcheck --checks-only --task go1_walk

    First correctness: the same states as MuJoCo C, graph as eager, resets, overflow, no waiting of
    the host for the GPU, overlap on as off. Then a table: physics alone, the collector, exposed and
    busy times, bytes between host and device, buffer and learner. Exit code 1 if a check fails.
    """
    from unilab.config.schema import RuntimeConfig
    from unilab.runtime.threads import prepare_environment

    prepare_environment(RuntimeConfig())
    on_interrupt(interrupt)
    from unilab.selfcheck.command import TASKS, selfcheck

    return selfcheck(
        gpu=gpu,
        tasks=task or TASKS,
        sizes=num_envs,
        checks_only=checks_only,
        output=output,
        command=["unilab", *sys.argv[1:]],
    )

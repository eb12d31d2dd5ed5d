"""What all commands share: the application, exit codes, interrupts, finding runs and tasks."""

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

Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="TASK KEY=VALUE",
        help="Task name or .py task file, then config values such as physics.num_envs=2048.",
        show_default=False,
    ),
]
Run = Annotated[
    str,
    typer.Option(
        "--run", metavar="RUN", help="latest, -1 (latest), -2 (the one before), a name or a path."
    ),
]
Checkpoint = Annotated[
    str,
    typer.Option("--checkpoint", metavar="WHICH", help="latest, best, an iteration, or a path."),
]
NoTuned = Annotated[
    bool,
    typer.Option("--no-tuned", help="Leave out what `unilab tune` wrote for this machine."),
]


def on_interrupt(handler: Callable[[int, FrameType | None], None]) -> None:
    """Call `handler` on Ctrl-C, and on SIGTERM, which is taken alike."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handler)


def leave(_number: int, _frame: FrameType | None) -> None:
    """End at once: nothing has been begun."""
    os.write(2, b"interrupted\n")
    os._exit(EXIT_INTERRUPTED)


def interrupt(_number: int, _frame: FrameType | None) -> None:
    """End what is going on with a KeyboardInterrupt."""
    raise KeyboardInterrupt


def exits(command: Callable[P, int]) -> Callable[P, None]:
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


def load_task(words: list[str] | None, command: str, *, tuned: bool = False) -> LoadedConfig:
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


def find_run(selector: str, words: list[str] | None) -> tuple[Path, list[str]]:
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


def load_run(run_dir: Path, overrides: list[str]) -> LoadedConfig:
    """Load the config of a run, with overrides laid over it."""
    from unilab.config import load_resolved
    from unilab.runs import CONFIG_FILE

    return load_resolved(run_dir / CONFIG_FILE, overrides)


def checkpoint_of(run_dir: Path, which: str) -> Path:
    """Return the checkpoint of a run that is meant."""
    from unilab.runs import find_checkpoint

    return find_checkpoint(run_dir, which)


def prepare(loaded: LoadedConfig) -> None:
    """Set the thread limits, and keep OpenGL out. Comes before torch, Numba and MuJoCo load."""
    from unilab.gl import keep_gl_out
    from unilab.runtime.threads import prepare_environment

    keep_gl_out()
    prepare_environment(loaded.config.runtime)

"""Commands that tell about tasks: list, explain."""

from __future__ import annotations

from typing import Annotated

import typer

from unilab.cli.base import (
    NoTuned,
    Words,
    app,
    exits,
    interrupt,
    load_task,
    on_interrupt,
    prepare,
)


@app.command(name="list")
@exits
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
@exits
def explain_command(
    words: Words = None,
    kernel: Annotated[
        bool, typer.Option("--kernel", help="Show the source of the task's fused kernel.")
    ] = False,
    no_tuned: NoTuned = False,
) -> int:
    """Show what a task is made of: every config value, its origin and meaning, and its terms.

    \b
    Examples:
      unilab explain go1_walk
      unilab explain go1_walk physics.num_envs=64 learner=ppo
      unilab explain path/to/my_task.py --kernel
    """
    loaded = load_task(words, "explain", tuned=not no_tuned)
    prepare(loaded)
    from unilab.explain import explain

    on_interrupt(interrupt)
    print("\n".join([*(f"# tuned: {note}" for note in loaded.notes), explain(loaded, kernel)]))
    return 0

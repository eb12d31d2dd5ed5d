"""The command `unilab`: it reads the command line, calls what does the work, and reports errors.

Nothing heavy is imported before a command needs it, so that help and lists come at once, and so
that the thread limits are set before the libraries that read them are loaded.
"""

from __future__ import annotations

import sys

from unilab.cli import machine, runs, tasks
from unilab.cli.base import EXIT_CONFIG_ERROR, app, leave, on_interrupt
from unilab.errors import ConfigError

COMMANDS = (runs, tasks, machine)  # importing one adds its commands to the application


def main() -> None:
    """Run the command line and leave with its exit code.

    A ConfigError is printed without a traceback and gives 2, as wrong usage does; Ctrl-C gives 130;
    any other exception shows its full traceback and gives 1. SIGTERM is taken as Ctrl-C.
    """
    on_interrupt(leave)  # raised in the midst of an import it would surface as any error
    try:
        app()
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(EXIT_CONFIG_ERROR)

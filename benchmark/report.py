"""Rebuilds the Markdown and the pictures of all results of `unilab bench`, machine by machine.

python benchmark/report.py [FOLDER]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from unilab.bench.report import rebuild
from unilab.errors import ConfigError


def main() -> None:
    """Rebuild, and say what was written."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "folder", nargs="?", type=Path, default=Path(__file__).resolve().parent / "results"
    )
    try:
        for path in rebuild(parser.parse_args().folder):
            print(f"written: {path}")
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()

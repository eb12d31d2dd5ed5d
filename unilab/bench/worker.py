"""One fresh process of a benchmark: ``python -m unilab.bench.worker``, a job as JSON on stdin.

Prints ``PROGRESS <fraction> <what>`` lines, and writes its result to the file that the job names.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    """Do the job."""
    job: dict[str, Any] = json.loads(sys.stdin.read())
    from unilab.config import load_config
    from unilab.config.schema import RuntimeConfig
    from unilab.errors import ConfigError
    from unilab.gl import keep_gl_out
    from unilab.runtime.threads import available_cpus, prepare_environment

    overrides = [*job["overrides"], f"physics.num_envs={job['num_envs']}"]
    config = load_config(job["task"], overrides).config
    keep_gl_out()
    # The threads of the widest row; rows with fewer limit themselves.
    prepare_environment(RuntimeConfig(threads_per_shard=max(2, available_cpus())))
    from unilab.bench import measure

    def report(fraction: float, what: str) -> None:
        sys.stdout.write(f"PROGRESS {fraction:.3f} {what}\n")
        sys.stdout.flush()

    modes = {
        "record": measure.record_inputs,
        "measure": measure.measure,
        "host": measure.measure_host,
    }
    try:
        result = modes[job["mode"]](config, job, report)
    except ConfigError as error:
        result = {"error": str(error)}
    Path(job["result"]).write_text(json.dumps(result))


if __name__ == "__main__":
    main()

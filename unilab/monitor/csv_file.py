"""samples.csv: one line a sample, written while the watch goes on."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path

from unilab.monitor.gpu import READING_NAMES
from unilab.monitor.recording import Sample
from unilab.monitor.threads import MAIN, OTHER, ROLES, UNNAMED
from unilab.monitor.verdict import RESOURCES

STAGES = (*RESOURCES, "other")
BUSY = ("physics", "kernel", "reset", "transfer", "policy", "learner")
POOLS = (MAIN, *dict.fromkeys(ROLES.values()), UNNAMED, OTHER)
PLAIN = ("unix_s", "elapsed_s", "iteration", "env_steps", "env_steps_per_s", "iteration_ms")
CPU = ("cores", "other_cores", "stolen_cores", "runnable", "wait_share", "voluntary_per_s",
       "forced_per_s", "rss_bytes", "monitor_cores")  # fmt: skip


class CsvFile:
    """Writes samples. A cell is empty where nothing is known.

    Columns: PLAIN, exposed_ms/<stage> and busy_ms/<resource> an iteration, CPU, cores/<role> of
    threads, core_busy/<n> of the cores that the run may use, gpu/<counter>.

    Args:
      path: the file; one that is there is replaced.
      num_cores: cores that the run may use.
    """

    def __init__(self, path: Path, num_cores: int) -> None:
        self._num_cores = num_cores
        self._file = path.open("w", newline="", encoding="utf-8")
        self._columns = [
            *PLAIN,
            *(f"exposed_ms/{name}" for name in STAGES),
            *(f"busy_ms/{name}" for name in BUSY),
            *CPU,
            *(f"cores/{role}" for role in POOLS),
            *(f"core_busy/{i}" for i in range(num_cores)),
            *(f"gpu/{name}" for name in READING_NAMES),
        ]
        self._writer = csv.DictWriter(self._file, self._columns, restval="")
        self._writer.writeheader()

    def write(self, sample: Sample) -> None:
        """Write a sample and hand it to the system."""
        values = {name: value for name, value in _flat(sample).items() if value is not None}
        self._writer.writerow({k: v for k, v in values.items() if k in self._columns})
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _flat(sample: Sample) -> dict[str, float | None]:
    values: dict[str, float | None] = {
        "unix_s": round(sample.unix_s, 3),
        "elapsed_s": round(sample.elapsed_s, 3),
        "env_steps_per_s": sample.env_steps_per_s,
    }
    if sample.status is not None:
        values["iteration"] = sample.status.iteration
        values["env_steps"] = sample.status.env_steps
    if sample.totals is not None:
        per = sample.totals.per_iteration()
        values["iteration_ms"] = per.iteration_ms
        values |= {f"exposed_ms/{k}": v for k, v in _known(per.exposed_ms, STAGES).items()}
        values |= {f"busy_ms/{k}": v for k, v in per.busy_ms.items()}
    if sample.cpu is not None:
        values |= {name: getattr(sample.cpu, name) for name in CPU}
        values |= {f"cores/{role}": pool.cores for role, pool in sample.cpu.pools.items()}
        values |= {f"core_busy/{i}": v for i, v in enumerate(sample.cpu.per_core)}
    if sample.gpu is not None:
        values |= {f"gpu/{name}": getattr(sample.gpu, name) for name in READING_NAMES}
    return values


def _known(values: Mapping[str, float], names: tuple[str, ...]) -> dict[str, float]:
    """Add up under "other" what has no column of its own."""
    found = {name: value for name, value in values.items() if name in names}
    rest = sum(value for name, value in values.items() if name not in names)
    if rest:
        found["other"] = found.get("other", 0.0) + rest
    return found

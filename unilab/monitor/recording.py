"""What was seen of a run while it was watched."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, TypeVar

from unilab.monitor.cpu import CpuUse, PoolUse
from unilab.monitor.gpu import GpuReading, average
from unilab.monitor.rows import Row, StageTotals, rate
from unilab.monitor.run_state import Setup, Status
from unilab.monitor.stall import Stall
from unilab.monitor.verdict import Measured

T = TypeVar("T")

# How a watch ended, or what had become of the run before it began.
FINISHED, INTERRUPTED, FAILED = "finished", "interrupted", "failed"  # the run's own words
KILLED = "killed"  # its process is gone, and it has left no word
STALLED = "stalled"
TIME_UP = "time up"  # the watch is over, the run is not
LEFT = "left"  # the user ended the watch
UNKNOWN = "unknown"  # its state cannot be read

# A run's first iterations warm up; they are left out once there are more than this.
WARM_UP, LEAST = 1, 4


@dataclass(frozen=True)
class Sample:
    """One moment of a watched run; rates and uses are over the time since the last one.

    Attributes:
      unix_s, elapsed_s: when; since the watch began.
      totals: of the rows that came; None where none did.
    """

    unix_s: float
    elapsed_s: float
    status: Status | None
    totals: StageTotals | None
    env_steps_per_s: float | None
    cpu: CpuUse | None
    gpu: GpuReading | None


class Thinned(Generic[T]):
    """A list that never holds more than `limit` items: when full, every second one goes.

    Args:
      limit: a whole number of at least 2.
    """

    def __init__(self, limit: int) -> None:
        self.items: list[T] = []
        self._limit, self._stride, self._count = limit, 1, 0

    def append(self, item: T) -> None:
        """Add an item, or skip it as its neighbours were."""
        self._count += 1
        if (self._count - 1) % self._stride:
            return
        self.items.append(item)
        if len(self.items) >= self._limit:
            del self.items[1::2]
            self._stride *= 2


class CpuMean:
    """The mean of `CpuUse` over intervals of any length."""

    def __init__(self) -> None:
        self._uses: Thinned[CpuUse] = Thinned(4096)
        self.last: CpuUse | None = None

    def add(self, use: CpuUse) -> None:
        """Take up an interval."""
        self._uses.append(use)
        self.last = use

    def mean(self) -> CpuUse | None:
        """Return the mean over the time; counts and memory are the last ones."""
        uses, last = self._uses.items, self.last
        if not uses or last is None:
            return None
        seconds = sum(use.seconds for use in uses)

        def over_time(name: str) -> float:
            return float(sum(getattr(use, name) * use.seconds for use in uses) / seconds)

        cores = over_time("cores")
        known = [use for use in uses if use.runnable is not None]
        runnable = wait_share = None
        if known:
            known_s = sum(use.seconds for use in known)
            runnable = sum((use.runnable or 0.0) * use.seconds for use in known) / known_s
            wait_share = max(0.0, runnable - cores) / runnable if runnable else 0.0
        same = [use for use in uses if len(use.per_core) == len(last.per_core)]
        return CpuUse(
            seconds=seconds,
            available=last.available,
            cores=cores,
            other_cores=over_time("other_cores"),
            stolen_cores=over_time("stolen_cores"),
            runnable=runnable,
            wait_share=wait_share,
            voluntary_per_s=over_time("voluntary_per_s"),
            forced_per_s=over_time("forced_per_s"),
            per_core=tuple(
                sum(use.per_core[i] for use in same) / len(same) for i in range(len(last.per_core))
            ),
            pools=self._pools(seconds),
            rss_bytes=last.rss_bytes,
            monitor_cores=over_time("monitor_cores"),
        )

    def _pools(self, seconds: float) -> dict[str, PoolUse]:
        found: dict[str, PoolUse] = {}
        uses = self._uses.items
        for role in dict.fromkeys(role for use in uses for role in use.pools):
            parts = [(use.pools[role], use.seconds) for use in uses if role in use.pools]
            waits = [p.wait_cores * s for p, s in parts if p.wait_cores is not None]
            found[role] = PoolUse(
                threads=max(pool.threads for pool, _ in parts),
                cores=sum(pool.cores * s for pool, s in parts) / seconds,
                wait_cores=sum(waits) / seconds if waits else None,
            )
        return found


class StageSums:
    """Stage times and rate of the rows watched, without the warm-up once there are enough."""

    def __init__(self) -> None:
        self._warm_up, self._rest = StageTotals(), StageTotals()
        self._before: Row | None = None  # the row before the first one
        self._first: Row | None = None
        self._last: Row | None = None
        self.count = 0

    def start_after(self, row: Row) -> None:
        """Take the row before those that are watched: the rate counts from there."""
        self._before = row

    def add(self, row: Row) -> None:
        """Take up a row."""
        self.count += 1
        self._first = self._first or row
        self._last = row
        warms_up = self._before is None and self.count <= WARM_UP
        (self._warm_up if warms_up else self._rest).add(row)

    @property
    def totals(self) -> StageTotals:
        """Sums over the rows that count."""
        if self.count >= LEAST or not self._warm_up.iterations:
            return self._rest
        both = StageTotals(
            self._rest.iterations + self._warm_up.iterations,
            self._rest.iteration_ms + self._warm_up.iteration_ms,
        )
        for name in ("exposed_ms", "busy_ms"):
            parts = (getattr(self._warm_up, name), getattr(self._rest, name))
            keys = dict.fromkeys(key for part in parts for key in part)
            setattr(both, name, {key: sum(part.get(key, 0.0) for part in parts) for key in keys})
        return both

    @property
    def env_steps_per_s(self) -> float | None:
        """Env steps a second over all rows, by the run's own clock."""
        begin = self._before or self._first
        return rate([begin, self._last]) if begin is not None and self._last is not None else None


@dataclass
class Recording:
    """All that was seen of a run.

    Attributes:
      begin_unix_s, seconds: when the watch began, and how long it took.
      end: how it ended, one of the words above.
      stages: rows since the watch began (of a run that is over: all there are).
      history: rows before, where none has come since.
      samples, rows: thinned out, for pictures.
      run_goes_on: the run is left going when the watch is over.
      gpu_name: of the GPU that the run learns on.
      file_problems: what cannot be read of the run's files, as of the last look.
    """

    begin_unix_s: float
    seconds: float = 0.0
    end: str = UNKNOWN
    status: Status | None = None
    stages: StageSums = field(default_factory=StageSums)
    history: StageSums = field(default_factory=StageSums)
    samples: Thinned[Sample] = field(default_factory=lambda: Thinned(1024))
    rows: Thinned[Row] = field(default_factory=lambda: Thinned(2048))
    cpu: CpuMean = field(default_factory=CpuMean)
    stall: Stall | None = None
    run_goes_on: bool = False
    gpu_name: str | None = None
    matmul_flops: float | None = None
    first_rss_bytes: int | None = None
    file_problems: list[str] = field(default_factory=list)
    _notes: list[str] = field(default_factory=list)

    @property
    def problems(self) -> list[str]:
        """What could not be read, in lines for a person."""
        return list(dict.fromkeys([*self.file_problems, *self._notes]))

    @property
    def setup(self) -> Setup:
        """What the run is made of."""
        return self.status.setup if self.status is not None else Setup()

    @property
    def env_steps_per_s(self) -> float | None:
        """Env steps a second while it was watched; what the run itself says where none is known."""
        seen = self.stages.env_steps_per_s or self.history.env_steps_per_s
        return seen or (self.status.env_steps_per_s if self.status is not None else None)

    def measured(self) -> Measured:
        """Return what a verdict is reached from."""
        stages = self.stages if self.stages.count else self.history
        readings = [sample.gpu for sample in self.samples.items if sample.gpu is not None]
        return Measured(
            totals=stages.totals,
            setup=self.setup,
            cpu=self.cpu.mean(),
            gpu=average(readings),
            matmul_flops=self.matmul_flops,
        )

    def note(self, problem: str | None) -> None:
        """Add a problem."""
        if problem is not None:
            self._notes.append(problem)

"""Samples a run until it ends, stalls, or the watch is over."""

from __future__ import annotations

import time

import psutil

from unilab.monitor import recording as ends
from unilab.monitor.attach import Target
from unilab.monitor.cpu import Counters, CpuSampler, CpuUse, use_between
from unilab.monitor.gpu import Gpu, GpuReading, open_gpu
from unilab.monitor.recording import Recording, Sample
from unilab.monitor.rows import Row, StageTotals, rate
from unilab.monitor.run_files import RunFiles
from unilab.monitor.stall import StallDetector

# Between a process that is gone and its last word: a file system may be slow.
LAST_WORD_S = 1.0
HISTORY_ROWS = 20


class Watcher:
    """Watches one run.

    Args:
      target: the run and its process.
      gpu: counters to read; None finds the run's own GPU by what the run says.

    Attributes:
      recording: what has been seen so far.
    """

    def __init__(self, target: Target, gpu: Gpu | None = None) -> None:
        self.target = target
        self.recording = Recording(begin_unix_s=time.time())
        self._begin_s = time.monotonic()
        self._goes_on = target.goes_on
        self._files = RunFiles(target.run_dir, whole=not self._goes_on)
        self._sampler = CpuSampler(target.process) if target.process is not None else None
        self._stall = StallDetector()
        self._gpu, self._asked_for_gpu = gpu, gpu is not None
        self._counters: Counters | None = None
        self._cpu_mark: tuple[float, float] | None = None
        self._new_rows: list[Row] = []
        self._last_row: Row | None = None
        self.recording.note(target.problem)
        self._start()

    def _start(self) -> None:
        """Read what is there. Of a run that goes on, that is history."""
        for row in self._poll()[-HISTORY_ROWS:] if self._goes_on else self._poll():
            (self.recording.history if self._goes_on else self.recording.stages).add(row)
            self.recording.rows.append(row)
            self._stall.learn(row)
            self._last_row = row
        if self._goes_on and self._last_row is not None:
            self.recording.stages.start_after(self._last_row)
        self._read_counters()
        self._watch_process()

    def tick(self) -> str | None:
        """Look for new rows, for the end of the run, and for a stall. Cheap; call it every second.

        Returns how the run ended, or None while it goes on.
        """
        for row in self._poll():
            self.recording.stages.add(row)
            self.recording.rows.append(row)
            self._stall.learn(row)
            self._new_rows.append(row)
        recording = self.recording
        recording.seconds = time.monotonic() - self._begin_s
        end = self._find_end()
        if end is None and recording.status is not None:
            state, cores = self._watch_process()
            age_s = time.time() - recording.status.beat_unix_s
            recording.stall = self._stall.update(
                time.monotonic(), recording.status, age_s, state, cores
            )
            end = ends.STALLED if recording.stall is not None else None
        if end is not None:
            recording.end = end
        return end

    def sample(self) -> Sample:
        """Read all counters; the uses are over the time since the last sample."""
        before, after = self._counters, self._read_counters()
        use: CpuUse | None = None
        if before is not None and after is not None:
            use = use_between(before, after)
            self.recording.cpu.add(use)
            self.recording.first_rss_bytes = self.recording.first_rss_bytes or before.rss_bytes
        rows, self._new_rows = self._new_rows, []
        totals = StageTotals()
        for row in rows:
            totals.add(row)
        sample = Sample(
            unix_s=time.time(),
            elapsed_s=time.monotonic() - self._begin_s,
            status=self.recording.status,
            totals=totals if rows else None,
            env_steps_per_s=rate([r for r in (self._last_row, *rows) if r is not None]),
            cpu=use,
            gpu=self._read_gpu(),
        )
        if rows:
            self._last_row = rows[-1]
        self.recording.samples.append(sample)
        return sample

    def close(self) -> None:
        """Let go of the GPU."""
        if self._gpu is not None:
            self._gpu.close()

    def _poll(self) -> list[Row]:
        rows = self._files.poll()
        if self._files.status is not None:
            self.recording.status = self._files.status
        damaged = self._files.damaged_lines
        self.recording.file_problems = [
            *([self._files.status_problem] if self._files.status_problem is not None else []),
            *([f"metrics.jsonl: {damaged} damaged line(s) left out"] if damaged else []),
        ]
        return rows

    def _find_end(self) -> str | None:
        status = self.recording.status
        if status is None:
            return None if self._goes_on else ends.UNKNOWN
        if status.state != "running":
            return status.state
        if self._goes_on and (self.target.process is None or _is_alive(self.target.process)):
            return None
        deadline = time.monotonic() + LAST_WORD_S
        while self._goes_on and time.monotonic() < deadline:
            self._files.poll()
            if self._files.status is not None and self._files.status.state != "running":
                self.recording.status = self._files.status
                return self._files.status.state
            time.sleep(0.05)
        return ends.KILLED

    def _watch_process(self) -> tuple[str | None, float | None]:
        """State of the process, and its CPU time over time since the last tick."""
        process = self.target.process
        if process is None:
            return None, None
        try:
            state, times = str(process.status()), process.cpu_times()
        except psutil.Error:
            return None, None
        now_s, cpu_s = time.monotonic(), times.user + times.system
        before, self._cpu_mark = self._cpu_mark or (now_s, cpu_s), (now_s, cpu_s)
        if now_s <= before[0]:
            return state, None
        return state, max(0.0, cpu_s - before[1]) / (now_s - before[0])

    def _read_counters(self) -> Counters | None:
        self._counters = None
        if self._sampler is None:
            return None
        try:
            self._counters = self._sampler.read()
        except psutil.AccessDenied:
            self._sampler = None
            self.recording.note(
                "CPU figures are missing: the system does not let this user read the counters of "
                f"process {self.target.process.pid if self.target.process else '?'}; watch as its "
                "owner"
            )
        except psutil.NoSuchProcess:  # it has ended: the next tick tells how
            self._sampler = None
        return self._counters

    def _read_gpu(self) -> GpuReading | None:
        status = self.recording.status
        if not self._asked_for_gpu and status is not None:
            self._asked_for_gpu = True
            if self._goes_on:
                self._gpu, problem = open_gpu(status.setup.gpu_uuid)
                self.recording.note(problem)
        if self._gpu is None:
            return None
        self.recording.gpu_name = self._gpu.name
        return self._gpu.read()


def _is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:  # it is there, and that is all we may know
        return True

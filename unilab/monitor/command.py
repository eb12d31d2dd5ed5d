"""`unilab monitor`, from what was asked to the exit code."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import psutil
from rich.console import Console

from unilab.config import RunConfig, load_resolved
from unilab.errors import ConfigError
from unilab.monitor import page
from unilab.monitor import recording as ends
from unilab.monitor.attach import Target, attach_to_pid, attach_to_run
from unilab.monitor.baseline import REPORT_FOLDER, Baseline, Comparison, compare, refuse
from unilab.monitor.csv_file import CsvFile
from unilab.monitor.launch import Launched
from unilab.monitor.live import View, open_view, write
from unilab.monitor.machine import describe_machine
from unilab.monitor.peak import measure_matmul
from unilab.monitor.recording import Recording
from unilab.monitor.report import CSV_FILE, Report, prepare_folder, summary, write_report
from unilab.monitor.verdict import judge
from unilab.monitor.watcher import Watcher
from unilab.record.progress import duration
from unilab.runs import CONFIG_FILE

EXIT_FAILED, EXIT_CONFIG_ERROR, EXIT_INTERRUPTED = 1, 2, 130
FAILURES = (ends.STALLED, ends.FAILED, ends.KILLED, ends.UNKNOWN)
TICK_S = 1.0  # between two looks for the end of the run or a stall
NAP_S = 0.1  # a signal is noticed after this
NICENESS = 10  # the run comes first
SAVE_S = 60.0  # a run that was asked to end may take this long for its checkpoint


@dataclass(frozen=True)
class Options:
    """How to watch.

    Attributes:
      interval_s: between two samples.
      for_s: end the watch after this time; None is when the run ends.
      output: folder of the report; None is <run>/monitor.
      baseline: what the run is held against.
      any_machine: compare with a baseline of another machine too.
      peak: measure the machine's rate of matrix products first.
      keep: let a run that was started go on when the watch is over.
      command: what was typed, for the record.
    """

    interval_s: float = 2.0
    for_s: float | None = None
    output: Path | None = None
    baseline: Baseline | None = None
    any_machine: bool = False
    peak: bool = False
    keep: bool = False
    command: Sequence[str] = ()


class Signals:
    """Counts Ctrl-C (SIGINT), and notes SIGTERM, while it is entered."""

    def __init__(self) -> None:
        self.interrupts = 0
        self.terminated = False
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_error: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGTERM:
            self.terminated = True
        else:
            self.interrupts += 1


def watch_run(run_dir: Path, options: Options) -> int:
    """Watch a run that goes on, or judge one that is over. Returns the exit code."""
    return _watch(attach_to_run(run_dir), None, options)


def watch_pid(pid: int, options: Options) -> int:
    """Watch the run of a process. Returns the exit code."""
    return _watch(attach_to_pid(pid), None, options)


def start_and_watch(words: Sequence[str], options: Options) -> int:
    """Start `unilab train WORDS` and watch it. Returns the exit code.

    Ctrl-C is handed on to the run, which saves and ends. When `for_s` is over the run is asked to
    end in the same way, unless `keep` is set. Anything else that ends the monitor leaves it alone.
    """
    peak = measure_matmul() if options.peak else None
    with Signals() as signals:
        launched = Launched(words)
        try:
            with _view() as view:
                target = _await_run(launched, view, signals)
            if target is None:
                return _failed_start(launched, signals)
            return _watch(target, launched, options, peak, signals)
        finally:
            if launched.code is not None:
                launched.output.unlink(missing_ok=True)


def _await_run(launched: Launched, view: View, signals: Signals) -> Target | None:
    """Wait until the run has its directory. None if it ends before, or the user wants it to."""
    handed_on, shown = 0, ""
    while True:
        target = launched.find()
        if target is not None:
            return target
        if launched.code is not None:
            return launched.find()
        if signals.terminated:
            return None
        if signals.interrupts > handed_on:
            handed_on = signals.interrupts
            launched.interrupt()
        line = launched.last_line()
        if line != shown:
            shown = line
            view.show([f"starting  {line}"], f"starting: {line}")
        time.sleep(NAP_S)


def _failed_start(launched: Launched, signals: Signals) -> int:
    """Show why a run did not come to be, in its own words."""
    text = launched.output.read_text(errors="replace")
    code = launched.code
    if code is None:
        write(sys.stderr, f"the run goes on: process {launched.pid}, output {launched.output}\n")
        return EXIT_INTERRUPTED
    write(sys.stderr, text)
    if signals.interrupts:
        return EXIT_INTERRUPTED
    return EXIT_CONFIG_ERROR if code == EXIT_CONFIG_ERROR else EXIT_FAILED


def _watch(
    target: Target,
    launched: Launched | None,
    options: Options,
    peak: float | None = None,
    signals: Signals | None = None,
) -> int:
    folder = options.output or target.run_dir / REPORT_FOLDER
    prepare_folder(folder)
    if options.peak and launched is None:
        peak = measure_matmul()
    config = _load_config(target.run_dir)
    watcher = Watcher(target)
    watcher.recording.matmul_flops = peak
    machine = describe_machine()
    _warn_of_baseline(options, watcher.recording, config, machine)
    _lower_priority()
    with contextlib.ExitStack() as stack:
        signals = signals or stack.enter_context(Signals())
        csv_file = CsvFile(folder / CSV_FILE, len(psutil.cpu_times(percpu=True)))
        stack.callback(csv_file.close)
        stack.callback(watcher.close)
        with _view() as view:
            _follow(watcher, launched, options, signals, view, csv_file)
        code = _end_run(watcher.recording, launched, options, signals)
    over = launched is not None and launched.code is not None
    watcher.recording.run_goes_on = not over and watcher.recording.end in (ends.TIME_UP, ends.LEFT)
    return _finish(watcher, launched, options, config, folder, code)


def _follow(
    watcher: Watcher,
    launched: Launched | None,
    options: Options,
    signals: Signals,
    view: View,
    csv_file: CsvFile,
) -> None:
    """Watch until the run ends or stalls, the time is up, or a signal comes."""
    recording, target = watcher.recording, watcher.target
    begin_s = time.monotonic()
    sample_due_s, handed_on = begin_s + options.interval_s, signals.interrupts
    over = not target.goes_on
    while True:
        if not over:
            _sleep(min(TICK_S, options.interval_s), signals, handed_on)
        end = watcher.tick()
        now_s = time.monotonic()
        time_up = options.for_s is not None and now_s - begin_s >= options.for_s
        leave = signals.terminated or (signals.interrupts > handed_on and launched is None)
        last = end is not None or time_up or leave
        if (last or now_s >= sample_due_s) and not over:
            sample = watcher.sample()
            csv_file.write(sample)
            sample_due_s = now_s + options.interval_s
            verdict = judge(recording.measured())
            width = shutil.get_terminal_size().columns
            view.show(page.moment(recording, sample, target.run_dir, verdict, width),
                      _short(recording, verdict.bound_by, sample.elapsed_s))  # fmt: skip
        if last:
            if end is None:
                recording.end = ends.LEFT if leave else ends.TIME_UP
            return
        if signals.interrupts > handed_on and launched is not None:
            handed_on = signals.interrupts
            launched.interrupt()


def _end_run(
    recording: Recording, launched: Launched | None, options: Options, signals: Signals
) -> int | None:
    """End a run that was started here where its time is up; wait for its last steps.

    Returns its exit code; None where it is not ours or goes on.
    """
    if launched is None:
        return None
    if recording.end == ends.TIME_UP and not options.keep:
        launched.interrupt()
        launched.wait(SAVE_S)
    elif recording.end in (ends.FINISHED, ends.INTERRUPTED, ends.FAILED, ends.KILLED):
        handed_on = signals.interrupts
        while launched.wait(NAP_S) is None and not signals.terminated:  # evaluation and video
            if signals.interrupts > handed_on:
                handed_on = signals.interrupts
                launched.interrupt()
    return launched.code


def _finish(
    watcher: Watcher,
    launched: Launched | None,
    options: Options,
    config: RunConfig | None,
    folder: Path,
    code: int | None,
) -> int:
    """Write the report, print the verdict, and return the exit code."""
    recording, run_dir = watcher.recording, watcher.target.run_dir
    machine = describe_machine(recording.gpu_name)
    report = Report(
        run_dir, recording, judge(recording.measured()), machine, config, options.command, None
    )
    comparison: Comparison | None = None
    if options.baseline is not None:
        comparison = compare(
            options.baseline,
            recording.env_steps_per_s,
            machine,
            report.run_facts(),
            any_machine=options.any_machine,
        )
        report = Report(
            run_dir, recording, report.verdict, machine, config, options.command, comparison
        )
    files = write_report(report, folder)
    lines = [summary(report, shutil.get_terminal_size().columns)]
    lines.append(f"report     {files[0]}")
    if launched is not None:
        lines += _story(launched, folder)
    write(sys.stdout, "\n".join(lines) + "\n")
    return _exit_code(recording.end, launched, code, comparison)


def _story(launched: Launched, folder: Path) -> list[str]:
    """Keep the output of the run that was started, and say what has become of it."""
    if launched.code is None:
        return [f"the run    goes on: process {launched.pid}, output {launched.output}"]
    kept = folder / "train.log"
    shutil.copyfile(launched.output, kept)
    return [f"the run    has ended with exit code {launched.code}; its output: {kept}"]


def _exit_code(
    end: str, launched: Launched | None, code: int | None, comparison: Comparison | None
) -> int:
    """2 for a baseline that does not fit, 1 for a stall, a failed run or a regression."""
    if end in FAILURES or (launched is not None and code not in (None, 0, EXIT_INTERRUPTED)):
        return EXIT_FAILED
    if comparison is not None and comparison.failed:
        return EXIT_FAILED
    if comparison is not None and comparison.refused:
        return EXIT_CONFIG_ERROR
    if launched is not None and end == ends.INTERRUPTED:
        return EXIT_INTERRUPTED
    return 0


def _load_config(run_dir: Path) -> RunConfig | None:
    """The run's config, for the values that hints show; they do without it."""
    try:
        return load_resolved(run_dir / CONFIG_FILE).config
    except (ConfigError, OSError):
        return None


def _warn_of_baseline(
    options: Options, recording: Recording, config: RunConfig | None, machine: dict[str, Any]
) -> None:
    """Say before a long watch that its baseline is of no use."""
    if options.baseline is None:
        return
    task = recording.setup.task or (config.task if config is not None else None)
    text = refuse(options.baseline, machine, {"task": task}, any_machine=options.any_machine)
    if text is not None:
        write(sys.stderr, f"warning: {text}\n")


def _lower_priority() -> None:
    with contextlib.suppress(OSError):
        os.nice(max(0, NICENESS - os.nice(0)))


def _sleep(seconds: float, signals: Signals, handed_on: int) -> None:
    """Sleep, but not through a signal."""
    until_s = time.monotonic() + seconds
    while (left_s := until_s - time.monotonic()) > 0:
        if signals.terminated or signals.interrupts > handed_on:
            return
        time.sleep(min(NAP_S, left_s))


def _short(recording: Recording, bound_by: str | None, elapsed_s: float) -> str:
    status, rate = recording.status, recording.env_steps_per_s
    count = f"{status.iteration}/{status.total_iterations}" if status is not None else "?"
    speed = "?" if rate is None else f"{rate:,.0f}"
    return (
        f"[{count}] watched {duration(elapsed_s)}, {speed} env-steps/s, "
        f"bound by {bound_by or '? (no iteration is done yet)'}"
    )


@contextlib.contextmanager
def _view() -> Iterator[View]:
    view = open_view(Console())
    try:
        yield view
    finally:
        view.close()

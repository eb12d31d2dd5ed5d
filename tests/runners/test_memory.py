"""Memory and handles do not grow with the iterations."""

from __future__ import annotations

import gc
import json
import threading

import numpy as np
import psutil
import pytest

from tests.runners.support import TINY, Process, only_run
from tests.runners.test_checkpoint import Parts
from tests.runners.test_off_policy import make_run, ticks
from unilab.runners.on_policy import set_first

# Resident memory may grow by this much in 1,000 iterations.
SLOPE_BYTES = 1e6


def test_iterations_leave_no_objects_threads_or_files_behind():
    parts = Parts()
    parts.pipeline.reset()
    set_first(parts.pipeline, parts.rollout)
    parts.train(5)
    counts = []
    for _ in range(2):
        parts.train(20)
        gc.collect()
        handles = psutil.Process().num_fds()
        counts.append((len(gc.get_objects()), threading.active_count(), handles))
    parts.pipeline.close()
    assert counts[1][0] <= counts[0][0] + 20
    assert counts[1][1:] == counts[0][1:]


def test_ticks_leave_no_objects_threads_or_files_behind(tmp_path):
    run = make_run(tmp_path)
    ticks(run, 50)  # the replay is over its seam
    counts = []
    for _ in range(2):
        ticks(run, 30)
        gc.collect()
        handles = psutil.Process().num_fds()
        counts.append((len(gc.get_objects()), threading.active_count(), handles))
    run.pipeline.close()
    assert counts[1][0] <= counts[0][0] + 20
    assert counts[1][1:] == counts[0][1:]


@pytest.mark.slow
def test_resident_memory_stays_where_it_is(tmp_path):
    """The median slope of three runs of 1,500 iterations, after a warm-up of 500."""
    slopes = []
    for k in range(3):
        folder = tmp_path / str(k)
        folder.mkdir()
        process = Process("train", "cartpole", *TINY, "train.iterations=1500", cwd=folder)
        assert process.popen.wait(600) == 0, process.outcome()
        lines = (only_run(folder) / "metrics.jsonl").read_text().splitlines()[500:]
        rss = [json.loads(line)["system/rss_bytes"] for line in lines]
        slopes.append(1000.0 * np.polyfit(np.arange(len(rss)), rss, 1)[0])
    assert np.median(slopes) < SLOPE_BYTES, slopes

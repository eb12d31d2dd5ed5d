"""Scalars for TensorBoard, through its own protocol buffers and record format.

TensorBoard's ready-made writers start a thread, and import TensorFlow where it is installed. Its
record writer and its message types, used here, do neither.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path

from tensorboard.compat.proto import event_pb2, summary_pb2
from tensorboard.summary.writer.record_writer import RecordWriter


class EventFile:
    """One event file. A resumed run gets a new one, which hides what the old ones hold beyond.

    Args:
      folder: TensorBoard's log directory; made if it is not there.
      resume_iteration: steps after this one, written by an earlier process, are hidden.
    """

    def __init__(self, folder: Path, resume_iteration: int | None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        # Readers take the files of a directory in the order of their names.
        name = f"events.out.tfevents.{time.time_ns()}.{socket.gethostname()}.{os.getpid()}"
        self._file = (folder / name).open("wb")
        self._writer = RecordWriter(self._file)
        self._write(event_pb2.Event(wall_time=time.time(), file_version="brain.Event:2"))
        if resume_iteration is not None:
            start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
            step = resume_iteration + 1
            self._write(event_pb2.Event(wall_time=time.time(), step=step, session_log=start))
        self._file.flush()

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Write the scalars of one step."""
        values = [summary_pb2.Summary.Value(tag=k, simple_value=v) for k, v in scalars.items()]
        summary = summary_pb2.Summary(value=values)
        self._write(event_pb2.Event(wall_time=time.time(), step=step, summary=summary))

    def flush(self) -> None:
        """Hand what was written to the system."""
        self._file.flush()

    def close(self) -> None:
        """Flush and close the file."""
        self._file.close()

    def _write(self, event: event_pb2.Event) -> None:
        self._writer.write(event.SerializeToString())

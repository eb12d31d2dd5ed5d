"""Hands rollouts from a collector to a learner that run at the same time, and policies back.

A `Handover` owns the slots that rollouts are written to::

    FREE -> WRITING -> READY -> READING -> FREE
            collector           learner

The collector waits while no slot is FREE, and never overwrites. The learner takes READY slots in
the order they were filled, each once. A collector that runs ahead is held back before it begins a
rollout that would be too old when its turn comes, so nothing is ever dropped for its age.

`Snapshots` is the way back: two copies of the policy and a sequence number.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from time import perf_counter
from typing import Generic, TypeVar

from unilab.errors import UnilabError

T = TypeVar("T")


class HandoverClosedError(UnilabError):
    """The other side has ended. Its error, if that is why, is the `__cause__`."""


class SlotState(Enum):
    """What a slot is in use for."""

    FREE = "free"
    WRITING = "writing"
    READY = "ready"
    READING = "reading"


@dataclass
class Slot(Generic[T]):
    """One rollout's place.

    Attributes:
      payload: the rollout.
      state: who may touch the payload.
      number: of the rollout in it, counted from 0 over the handover's life.
      version: of the policy that it was collected with.
    """

    payload: T
    state: SlotState = SlotState.FREE
    number: int = -1
    version: int = -1


class Handover(Generic[T]):
    """Slots between one collector and one learner, each on a thread of its own.

    Args:
      payloads: one a slot; at least two, so that both sides can work at the same time.
      max_lag: how many updates a rollout's policy may be behind when the learner takes it.
      version: of the policy at the start; the learner raises it by one with each rollout.
    """

    def __init__(self, payloads: Sequence[T], max_lag: int, version: int = 0) -> None:
        assert len(payloads) >= 2, "with one slot both sides would take turns"
        assert max_lag >= 1
        self.slots = [Slot(payload) for payload in payloads]
        self.max_lag = max_lag
        self.version = version
        self._first_version = version
        self._begun, self._taken = 0, 0  # rollouts
        self._cause: BaseException | None = None
        self._closed = False
        self._pauses = 0  # that are open
        self._changed = threading.Condition()
        self._stats = _Stats()

    @contextmanager
    def writing(self) -> Iterator[Slot[T]]:
        """Give the collector a slot to fill; it is READY when the block ends.

        Waits until a slot is FREE and a rollout begun now would not be too old when it is taken.
        The block sets the slot's `version`, to that of the newest policy. If it raises, the
        handover closes and the learner gets the error.

        Raises:
          HandoverClosedError: the learner has ended.
        """
        with self._changed:
            slot = self._wait_for(self._writable, "collector")
            slot.state, slot.number, slot.version = SlotState.WRITING, self._begun, -1
            self._begun += 1
        try:
            yield slot
            self.check()
            oldest = self._first_version + slot.number - self.max_lag
            assert slot.version >= oldest, "the published policy is behind the learner"
        except BaseException as error:
            self.close(error)
            raise
        with self._changed:
            slot.state = SlotState.READY
            self._changed.notify_all()

    @contextmanager
    def reading(self) -> Iterator[Slot[T]]:
        """Give the learner the oldest rollout; when the block ends, its slot is FREE.

        The block makes one update. Publish the new policy in it: when it ends, `version` rises and
        the collector may go on. If the block raises, the handover closes and the collector gets
        the error.

        Raises:
          HandoverClosedError: the collector has ended.
        """
        with self._changed:
            slot = self._wait_for(self._readable, "learner")
            slot.state = SlotState.READING
            self._taken += 1
            self._stats.lags.append(self.version - slot.version)
        try:
            yield slot
        except BaseException as error:
            self.close(error)
            raise
        with self._changed:
            self.version += 1
            slot.state = SlotState.FREE
            self._changed.notify_all()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Hold the collector between two rollouts; what it uses then stands still.

        Waits for the rollout being written. For the learner's side; may be nested, and may be
        around or inside `reading`.

        Raises:
          HandoverClosedError: the collector has ended.
        """
        with self._changed:
            self._pauses += 1
            try:
                self._wait_for(self._nothing_written, "")
            except HandoverClosedError:
                self._pauses -= 1
                raise
        try:
            yield
        finally:
            with self._changed:
                self._pauses -= 1
                self._changed.notify_all()

    @property
    def ready(self) -> int:
        """Rollouts that are written and not read yet."""
        with self._changed:
            return sum(slot.state is SlotState.READY for slot in self.slots)

    def check(self) -> None:
        """Raise HandoverClosedError if the other side has ended. Cheap: for every control step."""
        if self._closed:
            raise HandoverClosedError("the handover of rollouts is closed") from self._cause

    def close(self, cause: BaseException | None = None) -> None:
        """End both sides: whoever waits or checks gets HandoverClosedError. May be called again.

        Args:
          cause: the error that ends it; the first one is kept.
        """
        with self._changed:
            if not self._closed:
                self._closed, self._cause = True, cause
            self._changed.notify_all()

    def take_metrics(self) -> dict[str, float]:
        """What happened since the last call: lags in updates, waits in s."""
        with self._changed:
            stats, self._stats = self._stats, _Stats()
        lags = stats.lags
        metrics = {
            "handover/collector_wait_s": stats.waits_s["collector"],
            "handover/learner_wait_s": stats.waits_s["learner"],
            "handover/rollouts": float(len(lags)),
        }
        if lags:
            metrics["handover/lag_mean"] = sum(lags) / len(lags)
            metrics["handover/lag_max"] = float(max(lags))
        return metrics

    def _wait_for(self, find: Callable[[], Slot[T] | None], side: str) -> Slot[T]:
        """Wait until `find` finds a slot. The lock is held."""
        begin = perf_counter()
        while True:
            self.check()
            slot = find()
            if slot is not None:
                break
            self._changed.wait()
        if side:
            self._stats.waits_s[side] += perf_counter() - begin
        return slot

    def _writable(self) -> Slot[T] | None:
        # The rollout's turn comes at this version, if every one before it is learnt from.
        turn = self._first_version + self._begun
        if self._pauses or self.version < turn - self.max_lag:
            return None
        return next((slot for slot in self.slots if slot.state is SlotState.FREE), None)

    def _readable(self) -> Slot[T] | None:
        return next(
            (s for s in self.slots if s.state is SlotState.READY and s.number == self._taken), None
        )

    def _nothing_written(self) -> Slot[T] | None:
        if any(slot.state is SlotState.WRITING for slot in self.slots):
            return None
        return self.slots[0]


class _Stats:
    """What `take_metrics` reports."""

    def __init__(self) -> None:
        self.lags: list[int] = []
        self.waits_s = {"collector": 0.0, "learner": 0.0}


class Snapshots(Generic[T]):
    """Two copies of the policy: one to act with, one to write the next version to.

    The collector holds a copy for as long as it acts with it, so it never reads a copy that is
    half written. The learner never waits for the collector: it writes to the copy that is not
    held, newest or not. Copies on a GPU must be read and written on one stream, or on streams that
    wait for each other: the lock orders what is queued, not what runs.

    Args:
      first, second: the copies, equal at the start.
      version: of the policy that they hold.
    """

    def __init__(self, first: T, second: T, version: int = 0) -> None:
        self._copies = (first, second)
        self._versions = [version, version]
        self._held: int | None = None
        self._lock = threading.Lock()

    def publish(self, version: int, write: Callable[[T], None]) -> None:
        """Write a version to the copy that is not held; from then on it is the newest.

        Args:
          version: higher than all before.
          write: brings the copy that it is given up to date. A collector that asks for a copy
            meanwhile waits for it.
        """
        with self._lock:
            free = 1 - (self._newest() if self._held is None else self._held)
            assert version > max(self._versions), "versions must rise"
            write(self._copies[free])
            self._versions[free] = version

    @contextmanager
    def newest(self) -> Iterator[tuple[int, T]]:
        """Hold the newest copy, for the length of the block: its version and itself."""
        with self._lock:
            assert self._held is None, "there is one collector"
            index = self._held = self._newest()
            version = self._versions[index]
        try:
            yield version, self._copies[index]
        finally:
            with self._lock:
                self._held = None

    def _newest(self) -> int:
        return int(self._versions[1] > self._versions[0])

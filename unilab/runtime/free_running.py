"""The schedule `free`: a collector on a thread of its own beside the learner."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Generic, Self, TypeVar

import torch

from unilab.errors import UnilabError
from unilab.runtime.slots import Handover, HandoverClosedError, Slot, Snapshots
from unilab.runtime.thread_names import COLLECTOR, name_thread
from unilab.runtime.transfer import finish_queued, own_stream

R = TypeVar("R")  # a rollout
P = TypeVar("P")  # a copy of the policy

STOP_S = 5.0  # a collector that takes longer to end than this is reported


class FreeRunning(Generic[R, P]):
    """Collects rollouts on a thread, as long as the `with` block is open.

    The caller is the learner: it takes rollouts with `rollout`, learns, and publishes::

        with FreeRunning(rollouts, policies, collect, max_lag=2) as running:
            while ...:
                with running.rollout() as slot:
                    learner.update(slot.payload)
                    running.publish(learner.publish)

    On a GPU each side works on a stream of its own, and hands over only what is done there: then
    a policy is never as new as an update that still runs, and nobody waits for the other's work.

    Args:
      rollouts: one a slot, at least two.
      policies: two equal copies of the policy to act with.
      collect: `collect(policy, rollout, previous, check)` fills a rollout with the policy and runs
        on the thread. `previous` is the rollout before, that this one goes on from (only read it;
        None for the first), and `check` is to be called in each control step: it raises where the
        run ends.
      max_lag: how many updates a rollout's policy may be behind when it is learnt from.
      version: number of updates behind the policies.
      count: how many rollouts to collect; None goes on to the end.
      device: where both sides work.
    """

    def __init__(
        self,
        rollouts: Sequence[R],
        policies: tuple[P, P],
        collect: Callable[[P, R, R | None, Callable[[], None]], None],
        *,
        max_lag: int,
        version: int = 0,
        count: int | None = None,
        device: torch.device | None = None,
    ) -> None:
        self.handover = Handover(rollouts, max_lag, version)
        self._count, self._device = count, device or torch.device("cpu")
        self._snapshots = Snapshots(*policies, version)
        self._collect = collect
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=COLLECTOR, daemon=True)

    def __enter__(self) -> Self:
        finish_queued(self._device)  # the copies, made on another stream than they are read on
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop(error)

    @contextmanager
    def rollout(self) -> Iterator[Slot[R]]:
        """The next rollout to learn from, once; valid within the block, which is one update.

        Raises:
          whatever the collector raised, with its traceback.
        """
        try:
            with self.handover.reading() as slot:
                yield slot
        except HandoverClosedError:
            self._raise_collector_error()
            raise

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Hold the collector between two rollouts, to save what it uses. May be nested.

        Raises:
          whatever the collector raised, with its traceback.
        """
        try:
            with self.handover.paused():
                yield
        except HandoverClosedError:
            self._raise_collector_error()
            raise

    def publish(self, write: Callable[[P], None]) -> None:
        """Publish the policy of an update. Call once in each `rollout` block, after learning.

        Args:
          write: brings the copy that it is given up to date.
        """

        def write_and_finish(policy: P) -> None:
            write(policy)
            finish_queued(self._device)

        # The update itself: not under the lock that the collector needs for its next rollout.
        finish_queued(self._device)
        self._snapshots.publish(self.handover.version + 1, write_and_finish)

    def stop(self, cause: BaseException | None = None) -> None:
        """End the collector and wait for it. May be called again.

        Args:
          cause: why the learner ends, where that is an error; the collector sees it.

        Raises:
          UnilabError: the collector is still in a control step after STOP_S, s.
          whatever the collector raised, unless `cause` is the reason or is that error.
        """
        self.handover.close(cause)
        if self._thread.ident is None:
            return
        self._thread.join(STOP_S)
        if self._thread.is_alive():
            raise UnilabError(
                f"the collector has not ended {STOP_S:g} s after it was told to; a control step "
                "of all envs takes longer than that, or physics hangs"
            ) from cause
        if cause is None:
            self._raise_collector_error()

    def _run(self) -> None:
        """What the thread does."""
        name_thread(COLLECTOR)
        previous: R | None = None
        rounds = itertools.count() if self._count is None else range(self._count)
        try:
            with own_stream(self._device):
                for _ in rounds:
                    with (
                        self.handover.writing() as slot,
                        self._snapshots.newest() as (slot.version, policy),
                    ):
                        self._collect(policy, slot.payload, previous, self.handover.check)
                        finish_queued(self._device)
                        previous = slot.payload
        except HandoverClosedError:
            return
        except BaseException as error:  # noqa: BLE001 - the learner raises it
            self._error = error
            self.handover.close(error)

    def _raise_collector_error(self) -> None:
        if self._error is not None:
            error, self._error = self._error, None
            raise error

"""The search for good thread settings: what is measured, in which order, and what is chosen.

It climbs along one setting at a time, from all CPUs in every stage: first without overlap, then
with. Two plans are always compared in turns, one burst of each after the other, because a machine
drifts by more than settings differ. A last round measures the few best, in turns again, and the
simplest of those that are as good as the best within the noise is chosen.

It measures through a `Probe`, so a model of a machine can stand in for the machine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median

from unilab.runtime.threads import ThreadPlan
from unilab.tune.candidates import (
    auto_plan,
    ladder,
    overlapped_start,
    sequential_start,
)
from unilab.tune.measuring import Budget, MeasureError, OutOfTimeError, Probe

# Rounds of a comparison, and where they contradict each other; likewise of the last round.
DUEL_ROUNDS, MOST_DUEL_ROUNDS = 3, 5
FINAL_ROUNDS, MOST_FINAL_ROUNDS = 5, 15
HOPELESS = 1.25  # a plan this much slower in the first round is not measured again
SLOWER = 1.08  # likewise in both of the first two; and a climb turns round there at once
FAR_BEHIND = 1.5  # overlap is not looked into when its first plan is this much slower
MARGIN, MOST_MARGIN = 0.02, 0.05  # settings nearer than this count as equal
FINALISTS = 4
_SEQUENTIAL_AXES = ("physics", "learner", "shards", "threads_per_shard")
_OVERLAPPED_AXES = ("shards", "groups", "physics", "threads_per_shard")


@dataclass
class Entry:
    """What was measured of a plan.

    Attributes:
      collect_s: one value a burst, s per iteration.
      error: why it could not be measured; empty where it could.
    """

    collect_s: list[float] = field(default_factory=list)
    error: str = ""


@dataclass(frozen=True)
class Comparison:
    """Two plans that were measured in turns.

    Attributes:
      setting: in which they differ, a field of `ThreadPlan`.
      best: the one that was the best so far.
      other: the one that was tried.
      ratio: time of `other` over that of `best`, median of the rounds; infinite if it failed.
    """

    setting: str
    best: ThreadPlan
    other: ThreadPlan
    ratio: float


@dataclass(frozen=True)
class Choice:
    """The result of a search.

    Attributes:
      plan: the choice.
      auto: what a run gets that leaves everything at auto.
      ratios: finalist to its time over that of the fastest one, from the last rounds.
      margin: finalists below 1 + margin count as equal to the fastest.
      entries: all plans that were measured.
      update_s: torch threads to the bursts of the learner's update, s per iteration.
      comparisons: in the order in which they were made.
      complete: False when the time ran out before the search was through.
    """

    plan: ThreadPlan
    auto: ThreadPlan
    ratios: dict[ThreadPlan, float]
    margin: float
    entries: dict[ThreadPlan, Entry]
    update_s: dict[int, list[float]]
    comparisons: list[Comparison]
    complete: bool

    def iteration_s(self, plan: ThreadPlan) -> float:
        """Return the median time of an iteration, s: collecting and learning."""
        return median(self.entries[plan].collect_s) + median(self.update_s[plan.learner])


def search(
    probe: Probe,
    cpus: int,
    num_envs: int,
    budget: Budget,
    *,
    parallel: bool = True,
    tune_learner: bool = True,
    report: Callable[[Comparison], None] = lambda _: None,
) -> Choice:
    """Find the best thread plan.

    Args:
      probe: what measures.
      cpus: CPUs that may be used.
      num_envs: N.
      budget: time that may be spent.
      parallel: parallel kernels can run here (`threads_per_shard` above 1).
      tune_learner: the learner runs on the CPU.
      report: called after each comparison.

    Raises:
      MeasureError: not even the starting plan can be measured.
      OutOfTimeError: the time did not suffice to measure even that.
    """
    return _Search(probe, cpus, num_envs, budget, parallel, tune_learner, report).run()


@dataclass
class _Leader:
    """A plan on its climb.

    Attributes:
      plan: the best so far.
      time: its time over that of the first plan of all, by the comparisons on the way.
      left: what it was before. Noise could lead it back there, and round in a circle.
    """

    plan: ThreadPlan
    time: float
    left: set[ThreadPlan] = field(default_factory=set)

    def move(self, plan: ThreadPlan, ratio: float) -> None:
        """Go to a plan that takes `ratio` times as long."""
        self.left.add(self.plan)
        self.plan, self.time = plan, self.time * ratio


class _Search:
    def __init__(
        self,
        probe: Probe,
        cpus: int,
        num_envs: int,
        budget: Budget,
        parallel: bool,
        tune_learner: bool,
        report: Callable[[Comparison], None],
    ) -> None:
        self.probe, self.cpus, self.num_envs, self.budget = probe, cpus, num_envs, budget
        self.parallel, self.tune_learner, self.report = parallel, tune_learner, report
        self.auto = auto_plan(cpus, num_envs)
        self.entries: dict[ThreadPlan, Entry] = {}
        self.update_s: dict[int, list[float]] = {}
        self.comparisons: list[Comparison] = []
        # What the dearest burst of late took, with all that came with it.
        self.burst_s = self.learning_burst_s = 0.0

    def run(self) -> Choice:
        start = sequential_start(self.cpus, self.num_envs)
        self._collect(start)  # warms up; and without this one there is nothing to choose
        self._update(start.learner)
        leader, complete = _Leader(start, 1.0), True
        try:
            self._explore(leader)
        except OutOfTimeError:
            complete = False
        plan, ratios, margin = self._final(leader.plan)
        return Choice(
            plan, self.auto, ratios, margin, self.entries, self.update_s, self.comparisons, complete
        )

    # -- exploring ------------------------------------------------------------------------------

    def _explore(self, leader: _Leader) -> None:
        """Move the leader from plan to plan; wherever the time ends, it is the best so far."""
        for (
            axis
        ) in _SEQUENTIAL_AXES:  # stages take turns, so one does not change what suits another
            self._climb_axis(axis, leader)
        overlapped = overlapped_start(self.cpus, self.num_envs, leader.plan.learner)
        if overlapped is None:
            return
        outcome = self._duel("overlap", leader.plan, overlapped)
        if outcome.ratio > FAR_BEHIND:
            return
        other = _Leader(overlapped, leader.time * outcome.ratio)
        try:
            self._climb(other)
        finally:
            if other.time < leader.time:
                leader.move(other.plan, other.time / leader.time)
        if leader.plan.overlap:
            self._climb_axis("learner", leader)

    def _climb(self, leader: _Leader) -> None:
        """Improve a plan with overlap along each setting in turn, until nothing changes."""
        settled = ""  # the setting whose change was the last
        while True:
            for axis in _OVERLAPPED_AXES:
                if axis == settled:
                    return
                if self._climb_axis(axis, leader):
                    settled = axis
            if settled == "":
                return

    def _climb_axis(self, axis: str, leader: _Leader) -> bool:
        """Go up, else down one ladder as long as it gets better. Return whether it did."""
        if axis == "learner" and not self.tune_learner:
            return False
        if axis == "threads_per_shard" and not self.parallel:
            return False
        steps = ladder(leader.plan, axis, self.num_envs)
        begin = steps.index(leader.plan)
        for way in (range(begin + 1, len(steps)), range(begin - 1, -1, -1)):
            improved = False
            misses = 0
            for i in way:
                if steps[i] in leader.left:
                    continue
                ratio = self._duel(axis, leader.plan, steps[i]).ratio
                if ratio < 1.0 - MARGIN:
                    leader.move(steps[i], ratio)
                    improved, misses = True, 0
                    continue
                misses += 1
                if ratio > SLOWER or misses == 2:  # a plateau may have a better end
                    break
            if improved:
                return True
        return False

    # -- measuring ------------------------------------------------------------------------------

    def _duel(self, setting: str, best: ThreadPlan, other: ThreadPlan) -> Comparison:
        """Measure two plans in turns. A pair that was compared before is not measured again."""
        for known in self.comparisons:
            if (known.best, known.other) == (best, other):
                return known
            if (known.best, known.other) == (other, best):
                return Comparison(setting, best, other, 1.0 / known.ratio)
        ratios: list[float] = []
        try:
            while not _is_decided(ratios):
                self._check_time(2.0 * self._burst_of(setting))
                ratios.append(self._cost(other, setting) / self._cost(best, setting))
        except MeasureError as error:
            self.entries.setdefault(other, Entry()).error = str(error)
            ratios = [float("inf")]
        comparison = Comparison(setting, best, other, median(ratios))
        self.comparisons.append(comparison)
        self.report(comparison)
        return comparison

    def _cost(self, plan: ThreadPlan, setting: str) -> float:
        """One burst: of collecting, and of learning too where that is what differs."""
        learning_s = self._update(plan.learner) if setting == "learner" else 0.0
        return self._collect(plan) + learning_s

    def _collect(self, plan: ThreadPlan) -> float:
        begin = self.budget.now()
        seconds = self.probe.collect(plan, self.num_envs)
        self.entries.setdefault(plan, Entry()).collect_s.append(seconds)
        self.burst_s = max(0.8 * self.burst_s, self.budget.now() - begin)
        return seconds

    def _update(self, threads: int) -> float:
        begin = self.budget.now()
        seconds = self.probe.update(threads, self.num_envs)
        self.learning_burst_s = max(0.8 * self.learning_burst_s, self.budget.now() - begin)
        self.update_s.setdefault(threads, []).append(seconds)
        return seconds

    def _known_update(self, threads: int) -> float:
        return median(self.update_s[threads]) if threads in self.update_s else self._update(threads)

    def _time(self, plan: ThreadPlan) -> float:
        samples = self.entries[plan].collect_s
        return median(samples) if samples else float("inf")

    def _burst_of(self, setting: str) -> float:
        return self.burst_s + (self.learning_burst_s if setting == "learner" else 0.0)

    def _check_time(self, needed_s: float) -> None:
        """Keep enough for one last round of all finalists."""
        if self.budget.left < needed_s + FINALISTS * self.burst_s:
            raise OutOfTimeError

    # -- choosing -------------------------------------------------------------------------------

    def _final(self, best: ThreadPlan) -> tuple[ThreadPlan, dict[ThreadPlan, float], float]:
        """Measure the few best in turns, and choose.

        Returns the choice, each finalist's time over the fastest one's, and the margin.
        """
        finalists = self._finalists(best)
        rounds: list[list[float]] = []
        while finalists and len(rounds) < MOST_FINAL_ROUNDS:
            if self.budget.left < len(finalists) * self.burst_s:
                break
            if len(rounds) >= FINAL_ROUNDS and _compare_rounds(rounds)[1] <= MARGIN:
                break
            times = [self._last_burst(plan) for plan in finalists]
            if None in times:  # without those that failed, from the start
                finalists = [p for p, t in zip(finalists, times, strict=True) if t is not None]
                rounds = []
            else:
                rounds.append([t for t in times if t is not None])
        if not finalists:
            raise MeasureError("none of the best plans could be measured again")
        if not rounds:  # no time: what the search came to
            return best, {best: 1.0}, MARGIN
        relative, noise = _compare_rounds(rounds)
        margin = max(MARGIN, min(noise, MOST_MARGIN))
        ratios = dict(zip(finalists, relative, strict=True))
        equal = [plan for plan in finalists if ratios[plan] <= 1.0 + margin]
        return min(equal, key=self._complexity), ratios, margin

    def _last_burst(self, plan: ThreadPlan) -> float | None:
        """Time of an iteration, s; None where it could not be measured."""
        try:
            return self._collect(plan) + self._known_update(plan.learner)
        except MeasureError as error:
            self.entries.setdefault(plan, Entry()).error = str(error)
            return None

    def _finalists(self, best: ThreadPlan) -> list[ThreadPlan]:
        """The best so far, what `auto` gives, and the next ones by what was measured."""
        measured = [plan for plan, entry in self.entries.items() if not entry.error]
        measured.sort(key=lambda plan: self._time(plan) + self._known_update(plan.learner))
        wanted = [best, self.auto, *measured]
        return list(dict.fromkeys(wanted))[:FINALISTS]

    def _complexity(self, plan: ThreadPlan) -> tuple[int, ...]:
        """How much there is to understand; `auto` is the simplest."""
        return (
            int(plan != self.auto),
            int(plan.overlap),
            plan.groups,
            plan.threads_per_shard,
            plan.shards,
            plan.together,
        )


def _is_decided(ratios: list[float]) -> bool:
    """Say whether the rounds of a comparison suffice."""
    if not ratios or len(ratios) == MOST_DUEL_ROUNDS:
        return bool(ratios)
    if ratios[0] > HOPELESS or (len(ratios) == 2 and min(ratios) > SLOWER):
        return True
    contradict = min(ratios) < 1.0 - MARGIN and max(ratios) > 1.0 + MARGIN
    return len(ratios) >= DUEL_ROUNDS and not contradict


def _compare_rounds(rounds: list[list[float]]) -> tuple[list[float], float]:
    """Compare plans that were measured in turns.

    Args:
      rounds: one list a round, of the time of each plan.

    Returns:
      The time of each plan over that of the fastest, and the largest uncertainty of these.
    """
    middle = [median(times) for times in zip(*rounds, strict=True)]
    fastest = middle.index(min(middle))
    ratios, noise = [], 0.0
    for i in range(len(middle)):
        relative = [times[i] / times[fastest] for times in rounds]
        ratios.append(median(relative))
        noise = max(noise, (max(relative) - min(relative)) / (2.0 * len(rounds) ** 0.5))
    return ratios, noise

"""What a saver adds to steps, from pairs taken next to each other on a machine whose speed wanders:
medians with an interval.

A group is one control step, an episode of saving, one control step, all in one process; see
bench_worker.py. The difference between an episode and its own two control steps is free of what
changes slower than a group, and of what changes evenly over it. Groups share no step, so that their
differences are independent, and the interval of their median needs no assumption on how they
scatter.
"""

from __future__ import annotations

import math
import statistics
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence

COVERAGE = 0.95  # of an interval, where there are values enough: six
COVERAGE_MIN = 0.9  # for a verdict: five

# {"control": [part, part], "episode": part}; part: wall_s, cpu_s by what, steps, saves, blocked
Group = Dict[str, Any]


class Estimate(NamedTuple):
    """A median, and the interval that holds the true one with the probability `coverage`."""

    median: float
    low: float
    high: float
    coverage: float

    def is_resolved(self) -> bool:
        """It differs from nothing by more than its scatter."""
        return self.coverage >= COVERAGE_MIN and (self.low > 0 or self.high < 0)


def estimate(values: Sequence[float]) -> Estimate:
    """The interval lies between the k-th smallest and the k-th largest value, k as large as
    COVERAGE lets it."""
    if not values:
        raise ValueError("nothing was measured")
    ordered, count = sorted(values), len(values)
    # outside: the probability that the median lies beyond ordered[at] or its mirror
    outside, tail, at = 1.0, 0.5**count, 0
    for k in range((count + 1) // 2):
        if k and 2 * tail > 1 - COVERAGE:
            break
        outside, at = min(1.0, 2 * tail), k
        tail += math.comb(count, k + 1) * 0.5**count
    return Estimate(statistics.median(ordered), ordered[at], ordered[count - 1 - at], 1 - outside)


class Ratio(NamedTuple):
    """Of two medians, with all that their intervals allow; None where the denominator may be
    nothing, or they say too little."""

    value: Optional[float]
    low: Optional[float]
    high: Optional[float]

    def is_at_most(self, bound: float) -> Optional[bool]:
        """None: the scatter is too large to tell."""
        if self.high is not None and self.high <= bound:
            return True
        if self.low is not None and self.low > bound:
            return False
        return None


def ratio(over: Estimate, under: Estimate) -> Ratio:
    if under.low <= 0 or min(over.coverage, under.coverage) < COVERAGE_MIN:
        return Ratio(over.median / under.median if under.median > 0 else None, None, None)
    quotients = [a / b for a in (over.low, over.high) for b in (under.low, under.high)]
    return Ratio(over.median / under.median, min(quotients), max(quotients))


def control_s(group: Group) -> float:
    return statistics.fmean(each["wall_s"] / each["steps"] for each in group["control"])


def per_step(groups: Sequence[Group], always_s: float = 0.0) -> Estimate:
    """Seconds that a step takes longer while saves go on. always_s: what each step pays that the
    controls pay too."""
    return estimate(
        [
            each["episode"]["wall_s"] / each["episode"]["steps"] - control_s(each) + always_s
            for each in groups
        ]
    )


def per_save(groups: Sequence[Group], always_s: float = 0.0) -> Estimate:
    """Seconds that training takes longer for each state that is saved."""
    return estimate(
        [
            (each["episode"]["wall_s"] - each["episode"]["steps"] * (control_s(each) - always_s))
            / each["episode"]["saves"]
            for each in groups
        ]
    )


def cpu_per_save(groups: Sequence[Group], of: Callable[[Dict[str, float]], float]) -> Estimate:
    """CPU seconds per state saved beyond those of as many control steps, of what `of` picks."""
    return estimate(
        [
            (
                of(each["episode"]["cpu_s"])
                - each["episode"]["steps"]
                * statistics.fmean(of(part["cpu_s"]) / part["steps"] for part in each["control"])
            )
            / each["episode"]["saves"]
            for each in groups
        ]
    )


def control_scatter(groups: Sequence[Group]) -> Dict[str, float]:
    """Steps without saving: median, quartiles, and by how much the two of one group differ
    (median)."""
    steps: List[float] = [
        part["wall_s"] / part["steps"] for each in groups for part in each["control"]
    ]
    quarters = statistics.quantiles(steps, n=4, method="inclusive")
    apart = [abs(each["control"][0]["wall_s"] - each["control"][1]["wall_s"]) for each in groups]
    return {
        "median_s": quarters[1],
        "low_s": quarters[0],
        "high_s": quarters[2],
        "apart_s": statistics.median(apart),
    }

"""The ranks as the master will choose them from the plans at hand, and what a new plan has to beat."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from planner.solver.limits import Family, Limits
from planner.solver.preference import NEVER
from planner.solver.scale import MICROSECOND_S

NEAR_BEST = 1.01
"""Plans within 1 % count as equally fast when the simplest is preferred."""


@dataclass(frozen=True)
class Pick:
    """One rank: the least objective left, what still counts as nearly as fast, and the plan chosen."""

    fastest_us: int
    near_us: int
    score: int
    objective_us: int
    family: Family


class Standings:
    """Plans by family, and the ranks chosen one after the other, no two of one family."""

    def __init__(self, top: int, prefer_simple: bool) -> None:
        self._top = top
        self._prefer_simple = prefer_simple
        self._near = NEAR_BEST if prefer_simple else 1.0
        self._plans: dict[Family, list[tuple[int, int]]] = {}
        self._fastest: dict[Family, int] = {}
        self._picks: list[Pick] = []
        self._worths_us: dict[tuple[Family, int], int] = {}
        self.best_us = NEVER
        """Least objective of all."""

    def add(self, family: Family, score: int, objective_us: int) -> None:
        """Enter a plan; of two scores the lower one is simpler."""
        self._plans.setdefault(family, []).append((score, objective_us))
        self._fastest[family] = min(self._fastest.get(family, NEVER), objective_us)
        self.best_us = min(self.best_us, objective_us)
        self._picks = self._choose()
        self._worths_us = {}

    @property
    def picks(self) -> tuple[Pick, ...]:
        """The ranks as they stand, first to last."""
        return tuple(self._picks)

    def has(self, family: Family) -> bool:
        """Whether there is a plan of this family."""
        return family in self._fastest

    @property
    def are_full(self) -> bool:
        """Whether there is a plan for every rank."""
        return len(self._picks) >= self._top

    @property
    def limit_us(self) -> int:
        """What a candidate must beat to be shown at any rank, now or when more plans are known.

        The families ranked before the last one are fewer than the ranks, so the fastest plan left for it is
        no slower than the fastest of as many families as there are ranks: that figure only falls.
        """
        if len(self._fastest) < self._top:
            return NEVER
        return self._nearly(sorted(self._fastest.values())[self._top - 1])

    def limits(self) -> Limits:
        """``limit_us``, and of each family what a variant of its fastest plan must beat. [s].

        While a family is not ranked, the fastest plan left is no slower than the family's own, so that one of
        its variants that is not nearly as fast as its fastest is never chosen.
        """
        overall = self.limit_us
        families = {family: min(self._nearly(fastest), overall) for family, fastest in self._fastest.items()}
        return Limits(
            (overall + 1) * MICROSECOND_S,
            {family: (limit + 1) * MICROSECOND_S for family, limit in families.items()},
        )

    def _nearly(self, objective_us: int) -> int:
        return int(objective_us * self._near) + 1

    def worth_us(self, family: Family, score: int) -> int:
        """Price below which a candidate of this family and least score would be chosen at some rank.

        It would be the fastest left, or it is nearly as fast and simpler than the one chosen.
        """
        if (family, score) not in self._worths_us:
            self._worths_us[family, score] = self._worth(family, score)
        return self._worths_us[family, score]

    def _worth(self, family: Family, score: int) -> int:
        worth = 0
        for pick in self._picks:
            worth = max(worth, pick.fastest_us)
            if self._prefer_simple and score < pick.score:
                worth = max(worth, pick.near_us + 1)
            elif self._prefer_simple and score == pick.score:
                worth = max(worth, pick.objective_us)
            if pick.family == family:
                return worth
        return worth if self.are_full else NEVER

    def _choose(self) -> list[Pick]:
        left = dict(self._plans)
        picks: list[Pick] = []
        while left and len(picks) < self._top:
            fastest = min(objective for plans in left.values() for _, objective in plans)
            limit = int(fastest * self._near)
            near_ones = [
                (score, objective, family)
                for family, plans in left.items()
                for score, objective in plans
                if objective <= limit
            ]
            score, objective, family = min(near_ones, key=lambda each: each[:2])
            picks.append(Pick(fastest, limit, score, objective, family))
            del left[family]
        return picks


def undominated(families: Sequence[Family], scores: Sequence[int]) -> list[int]:
    """Which plans, given fastest first, have no faster one of their family that is as simple.

    At every rank the faster one comes first, by time and by simplicity, and both are excluded together: the
    other one is never chosen.
    """
    simplest: dict[Family, int] = {}
    kept = []
    for index, (family, score) in enumerate(zip(families, scores, strict=True)):
        if score < simplest.get(family, NEVER):
            simplest[family] = score
            kept.append(index)
    return kept

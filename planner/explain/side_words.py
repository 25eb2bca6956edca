"""What the alternatives of a setting cost or break, in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from planner.cost.activations import selective_modules
from planner.cost.words import plan_words, setting_words
from planner.explain.loss import amount, loss_phrase, percent
from planner.explain.optimum import NEAR_PCT, Ranking
from planner.explain.sentences import lower_first
from planner.explain.sides import Side
from planner.spec import Plan, PlanRequest

if TYPE_CHECKING:
    from planner.solver.result import Estimate

EQUAL_PCT = 0.05
"""Step times closer than this are called equal. [%]"""


@dataclass(frozen=True)
class Wording:
    """Words about plans beside the best one; one that is named again is called by what it is best for."""

    best: Estimate
    request: PlanRequest
    ranked: Sequence[Estimate] = ()
    _said: dict[Plan, str] = field(default_factory=dict)

    def side(self, side: Side, name: str, ranking: Ranking) -> str:
        """One alternative: the plan with it alone, and the best plan with it as far as it is known.

        Parameters
        ----------
        name
            The field whose value it is.
        ranking
            The plans of the answer where the first one with a value is the best, else an empty one.
        """
        short = setting_words(name, side.value)
        long = short
        if name == "recompute" and side.value == "selective" and side.plan is not None:
            long += f" ({', '.join(selective_modules(side.plan, self.request))})"
        words = self.alone(side, long)
        if side.optimum is not None:
            return words + self._optimum(side, short)
        return words + self._ranked(side, name, short, ranking)

    def alone(self, side: Side, name: str) -> str:
        """The plan with one setting changed: what it breaks, lacks or loses."""
        if side.plan is not None and side.estimate is None:
            return f"{name} cannot run: {lower_first(side.broken[0])}"
        if side.plan is None or side.estimate is None:
            return side.missing or f"{name} leaves no plan to compare with"
        if side.broken:
            return f"{name} is not allowed: {lower_first(side.broken[0])}{self._price_of_broken(side)}"
        if side.memory:
            return f"{name} does not fit: {lower_first(side.memory)}"
        return f"{name} is {self.loss(side.estimate)}"

    def loss(self, other: Estimate) -> str:
        """What another plan loses, and why it is not chosen where it gains a little."""
        words = loss_phrase(self.best, other, self.request.goal)
        slightly = self.request.goal != "memory" and -NEAR_PCT <= percent(self.best, other) < -EQUAL_PCT
        return f"{words}, too little to give up a simpler plan" if slightly and other.is_legal else words

    def _price_of_broken(self, side: Side) -> str:
        """What a plan that breaks a rule would cost, where that speaks against it as well."""
        if side.estimate is None or percent(self.best, side.estimate) <= 0:
            return "; it would not fit either" if side.memory else ""
        price = f"; it would be {loss_phrase(self.best, side.estimate, self.request.goal)}"
        return f"{price} and not fit" if side.memory else price

    def _optimum(self, side: Side, name: str) -> str:
        """The best plan with the value, which was searched for."""
        found = side.optimum
        if found is None or found.best is None:
            return self._nothing(side, name)
        if side.is_legal and side.estimate is not None and self._is_no_better(found.best, side.estimate):
            beats = "is leaner" if self.request.goal == "memory" else "beats that by 1 %"
            searched = "" if found.is_proven else " among what was found in the time given"
            rank = self._rank_of(side.estimate)
            return f"{f' (plan {rank})' if rank else ''}; nothing with {name} {beats}{searched}"
        best = "best plan" if found.is_proven else "best plan found in the time given"
        return f"; the {best} with {name} is {self.named(found.best, f'that with {name}')}"

    def named(self, other: Estimate, later: str = "") -> str:
        """A plan and its loss: term by term where it is named for the first time, else by what it was called.

        Parameters
        ----------
        later
            What to call it from now on, unless it is ranked.
        """
        rank = self._rank_of(other)
        known = self._said.get(other.plan)
        self._said.setdefault(other.plan, f"plan {rank}" if rank else later)
        if known is not None:
            return f"{known} ({amount(self.best, other, self.request.goal)})"
        return f"{f'plan {rank}' if rank else described(other.plan)}: {self.loss(other)}"

    def _rank_of(self, other: Estimate) -> int:
        """The rank of a plan in the answer; 0 where it has none."""
        return next((rank for rank, each in enumerate(self.ranked, 1) if each.plan == other.plan), 0)

    def _is_no_better(self, found: Estimate, side: Estimate) -> bool:
        """Whether a plan that was searched is the neighbour, or only simpler than it."""
        if self.request.goal == "memory":
            return found.peak_memory_bytes >= side.peak_memory_bytes - 0.5
        return percent(side, found) > -EQUAL_PCT

    def _nothing(self, side: Side, name: str) -> str:
        found = side.optimum
        if found is not None and not found.is_proven:
            return f"; no plan with {name} was found in the time given"
        why = f": {found.why_none}" if found is not None and found.why_none else ""
        return f"; no legal plan with {name} fits{why}"

    def _ranked(self, side: Side, field: str, name: str, ranking: Ranking) -> str:
        """What the ranking already knows about the best plan with another degree."""
        ranked = ranking.plans
        if side.broken or "not allowed" in side.missing or len(ranked) < 2:
            return ""
        for rank, other in enumerate(ranked[1:], 2):
            if getattr(other.plan, field) == side.value:
                if other.plan == side.plan:
                    return f" (plan {rank})"
                is_best = ranking.best_with(field, side.value) is other
                words = f"the best with {name} is" if is_best else f"with {name} there is"
                return f"; {words} {self.named(other)}"
        least = ranking.least_pct(self.best)
        bound = f", so the best with it is at least {least:+.1f} %" if least > EQUAL_PCT else ""
        return f"; none of the first {len(ranked)} plans has it{bound}"


def described(plan: Plan) -> str:
    """A plan in words, with what its ranks share where that is not all, and how much is recomputed."""
    words = plan_words(plan)
    if plan.zero_stage > 0 and plan.shard_group_size < plan.data_parallel * plan.context_parallel:
        words += f" shard={plan.shard_group_size}"
    layers = sum(stage.layers for stage in plan.stages)
    recomputed = sum(stage.recompute_layers for stage in plan.stages)
    if 0 < recomputed < layers:
        at_end = words.endswith("recompute")
        words += f" of {recomputed} layers" if at_end else f" ({recomputed} layers recomputed)"
    return words

"""The stages of one setting as a CP-SAT model: layers of every chunk, recomputed layers of every rank.

Time is bounded by chains of operations: each is a linear function of the layers, and none is longer than the
makespan. The model minimises the longest chain known so far plus what follows the pace-setting rank. Its
answer is simulated; the simulation's own longest chain joins the model, until the bound meets the best.
Memory is not linear in all loads, so each rank carries a table of the loads that fit.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import accumulate
from math import floor, inf
from typing import Any

import numpy as np

from planner.cost.critical_path import Chain, critical_path
from planner.cost.orders import BIDIRECTIONAL
from planner.solver.chain_pool import ADAPTIVE
from planner.solver.cp_sat import cp_model, new_solver
from planner.solver.layout_passes import may_skip_recompute, recomputes_all
from planner.solver.layouts import counts_allowed
from planner.solver.pair_loads import pair_loads
from planner.solver.price import Layout, SettingPrice
from planner.solver.rank_loads import Loads, RankLoad, covers, rank_loads
from planner.spec.model import LayerKind

UNITS = 1e9
"""The best known step is cut into so many units; a sum of chains loses less than one unit a layer."""
MEETS = 1e-7
"""A bound this close to the best, relative to it, is met: rounding of a few hundred coefficients."""
MOST_ROUNDS, EFFORT = 4, 0.1
"""Solves of one setting, each of which adds the chain that the last layout ran into, and CP-SAT's
deterministic seconds a solve: the same answer on every machine."""
PAIR_ROUNDS, PAIR_EFFORT = 24, 1.0
"""The same under two-way schedules, whose layouts are alike: a layer moves between the stages of a pair."""
MOST_NEARBY = 4
"""Layouts near a proposed one whose chains are added with its own."""


@dataclass(frozen=True)
class Refined:
    """The best layout found below the limit, and what no layout of the setting beats. [s]."""

    seconds: float
    layout: Layout | None
    bound_s: float


def refine(
    price: SettingPrice, worth_s: float, in_vain: list[Loads] | None = None, deadline: float = inf
) -> Refined:
    """Search all layouts of a setting for one that takes less than ``worth_s``.

    Parameters
    ----------
    in_vain
        Loads of settings with the same phases that were searched in vain, for as much time or more. A setting
        whose loads all fit there, with no more to follow, has no better layout; else its own are added.
    deadline
        When to stop, by ``time.monotonic``. [s]

    Where all chunks recompute the same number of layers, each number is a model of its own, unless it does
    not make room for any further load: then its layouts are only slower.
    """
    loads = (pair_loads if price.schedule in BIDIRECTIONAL else rank_loads)(price, worth_s)
    best: float = worth_s
    layout: Layout | None = None
    if not all(loads) or _room(loads) < price.request.model.num_layers:
        return Refined(inf, None, worth_s)
    if any(covers(known, loads) for known in in_vain or ()):
        return Refined(inf, None, worth_s)
    bound = inf
    fitting: list[list[RankLoad]] = []
    for first in _firsts(price, loads):
        before, fitting = fitting, [_with_first(rows, first, price.v) for rows in loads]
        if fitting == before:
            continue
        if not all(fitting) or _room(fitting) < price.request.model.num_layers:
            continue
        found = _search(StageModel(price, fitting, worth_s, first), price, best, deadline)
        bound = min(bound, found.bound_s)
        if found.layout is not None:
            best, layout = found.seconds, found.layout
    if in_vain is not None and layout is None and bound >= worth_s * (1 - MEETS):
        in_vain.append(loads)
    return Refined(best if layout else inf, layout, min(bound, best))


def _firsts(price: SettingPrice, loads: list[list[RankLoad]]) -> list[int | None]:
    """Numbers of layers that each chunk recomputes, where the framework has one number for all chunks."""
    limits = price.request.framework.limits
    partial = limits.recomputes_partially(price.values["recompute"])
    if (
        not partial
        or limits.recompute_per_stage
        or not may_skip_recompute(price.values["offload"], price.request)
    ):
        return [None]
    least = max(min(row.least_recomputed for row in rows) for rows in loads)
    most = max(row.num_layers for rows in loads for row in rows)
    return [*range(max(1, -(-least // price.v)), most + 1)]


def _with_first(rows: list[RankLoad], first: int | None, chunks: int) -> list[RankLoad]:
    """Loads that fit where each chunk recomputes no more than its ``first`` layers, all loads for None."""
    if first is None:
        return rows
    return [row for row in rows if row.least_recomputed <= min(first * chunks, row.num_layers)]


def _search(model: StageModel, price: SettingPrice, worth_s: float, deadline: float) -> Refined:
    """Solve, simulate and learn until the bound meets the best layout, or for so many rounds."""
    best, layout, bound = worth_s, None, 0.0
    for _ in range(PAIR_ROUNDS if price.schedule in BIDIRECTIONAL else MOST_ROUNDS):
        if time.monotonic() > deadline:
            break
        found, least = model.solve(best)
        bound = max(bound, least)
        if found is None or bound >= best * (1 - MEETS):
            break
        seconds = price.seconds(found)
        if seconds < best and _fits(price, found):
            best, layout = seconds, found
        model.learn(found)
    return Refined(best, layout, min(bound, best))


def _room(loads: list[list[RankLoad]]) -> int:
    """Layers that all ranks hold together at most."""
    return sum(max(row.num_layers for row in rows) for rows in loads)


def _fits(price: SettingPrice, layout: Layout) -> bool:
    return max(price.rank_bytes(layout)) <= price.request.cluster.usable_hbm_bytes


def _nearby(price: SettingPrice, layout: Layout, worth_s: float) -> list[Layout]:
    """Layouts with one layer moved between the stages of a pair that known chains allow, the best few."""
    if price.schedule not in BIDIRECTIONAL:
        return []
    found = []
    for rank in range(price.p):
        layers = list(layout.layers)
        layers[rank] -= 1
        layers[price.p - 1 - rank] += 1
        again = tuple(
            held if full == was else min(was, held)
            for held, full, was in zip(layers, layout.layers, layout.recomputed, strict=True)
        )
        if layers[rank]:
            found.append(Layout(tuple(layers), again))
    bounds = [(price.least_seconds(near), index) for index, near in enumerate(found)]
    return [found[index] for seconds, index in sorted(bounds)[:MOST_NEARBY] if seconds < worth_s]


class StageModel:
    """One CP-SAT model; chains are added between solves."""

    def __init__(
        self, price: SettingPrice, loads: list[list[RankLoad]], worth_s: float, first: int | None = None
    ) -> None:
        self._first = first
        self._price = price
        self._recomputes_all = recomputes_all(
            price.values["recompute"], price.values["offload"], price.request
        )
        self._bears_s = worth_s
        self._unit_s = worth_s / UNITS
        self._model = cp_model.CpModel()
        self._stage_of = {place: index for index, place in enumerate(price.order)}
        self._again_by_rank: list[Any] = []
        self._cuts: list[Any] = []
        self._counts = self._layers(loads)
        self._again = self._recomputed()
        self._makespan = self._model.new_int_var(0, int(2 * UNITS), "makespan")
        self._tail = self._model.new_int_var(0, int(2 * UNITS), "tail")
        self._busiest = self._model.new_int_var(0, int(2 * UNITS), "busiest")
        ranks = [self._rank(rank, rows) for rank, rows in enumerate(loads)]
        self._pace(ranks)
        for chain in price.chains.chains(price.schedule, price.p, price.v, price.m):
            self._add(chain)
        self._model.minimize(self._makespan + self._tail)

    def solve(self, best_s: float) -> tuple[Layout | None, float]:
        """Return the layout with the least bound and that bound [s]; None when none is below ``best_s``."""
        solver = new_solver()
        is_paired = self._price.schedule in BIDIRECTIONAL
        solver.parameters.max_deterministic_time = PAIR_EFFORT if is_paired else EFFORT
        status = solver.solve(self._model)
        if status == cp_model.INFEASIBLE:
            return None, inf
        bound = self._seconds(solver.best_objective_bound)
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE) or bound >= best_s:
            return None, bound
        layers = tuple(
            sum(solver.value(count) for count in self._counts[place].values()) for place in self._price.order
        )
        recomputed = tuple(
            sum(solver.value(self._again[rank, chunk]) for chunk in range(self._price.v))
            for rank in range(self._price.p)
        )
        return Layout(layers, recomputed), bound

    def learn(self, layout: Layout) -> None:
        """Add the longest chain of a layout's simulation, and never propose this layout again.

        Under two-way schedules the chains of layouts nearby as well: there a simulation is the lesser part.
        """
        price = self._price
        values = (*accumulate(layout.layers[:-1]), *layout.recomputed)
        self._model.add_forbidden_assignments([*self._cuts, *self._free_again()], [values])
        if price.schedule in ADAPTIVE:
            return
        for near in (layout, *_nearby(price, layout, self._bears_s)):
            chain = critical_path(price.schedule, *price.passes(near), price.m)
            if chain is not None:
                price.chains.keep(chain, price.schedule, price.p, price.v, price.m)
                self._add(chain)

    def _free_again(self) -> list[Any]:
        """Totals of recomputed layers where the model chooses them."""
        if not self._again_by_rank:
            self._again_by_rank = [
                self._column(sum(self._again[rank, chunk] for chunk in range(self._price.v)))
                for rank in range(self._price.p)
            ]
        return self._again_by_rank

    def _seconds(self, units: float) -> float:
        price = self._price
        return price.finish(units * self._unit_s, 0.0)

    def _layers(self, loads: list[list[RankLoad]]) -> dict[tuple[int, int], dict[LayerKind, Any]]:
        """Layers of each kind in every chunk: what lies between two cuts of the model."""
        price, model = self._price, self._model
        total = price.request.model.num_layers
        cuts: list[Any] = [0]
        cuts += [model.new_int_var(0, total, f"cut_{stage}") for stage in range(1, len(price.order))]
        self._cuts = cuts[1:]
        cuts.append(total)
        before = {kind: [self._before(kind, cut) for cut in cuts] for kind in price.kinds}
        counts = {}
        for stage, place in enumerate(price.order):
            least, most = counts_allowed(price, stage)
            most = min(most, max(row.num_layers for row in loads[self._load_of(place[0])]))
            model.add_linear_constraint(cuts[stage + 1] - cuts[stage], least, most)
            counts[place] = {kind: cut[stage + 1] - cut[stage] for kind, cut in before.items()}
        return {place: self._named(place, kinds) for place, kinds in counts.items()}

    def _named(self, place: tuple[int, int], kinds: dict[LayerKind, Any]) -> dict[LayerKind, Any]:
        """Variables for the differences of cuts."""
        named = {}
        for kind, difference in kinds.items():
            named[kind] = self._model.new_int_var(0, self._price.request.model.num_layers, f"{kind}_{place}")
            self._model.add(named[kind] == difference)
        return named

    def _before(self, kind: LayerKind, cut: Any) -> Any:
        """Layers of one kind among the first ``cut`` layers of the model."""
        kinds = self._price.request.model.layer_kinds
        if len(self._price.kinds) == 1:
            return cut
        sums = list(accumulate((own == kind for own in kinds), initial=0))
        if isinstance(cut, int):
            return sums[cut]
        found = self._model.new_int_var(0, sums[-1], "")
        self._model.add_element(cut, sums, found)
        return found

    def _recomputed(self) -> dict[tuple[int, int], Any]:
        """Recomputed layers of every chunk, tied together as the framework says them."""
        price, model = self._price, self._model
        held = {place: sum(kinds.values()) for place, kinds in self._counts.items()}
        if price.values["recompute"] == "none":
            return dict.fromkeys(held, 0)
        if self._recomputes_all:
            return held
        limits = price.request.framework.limits
        partial = limits.recomputes_partially(price.values["recompute"])
        again = {place: model.new_int_var(0, price.request.model.num_layers, "") for place in held}
        model.add(sum(again.values()) >= 1)
        if limits.recompute_per_stage:
            self._per_rank(again, held, partial)
            return again
        for place, variable in again.items():
            model.add_min_equality(variable, [self._first or 0, held[place]])
        return again

    def _per_rank(
        self, again: dict[tuple[int, int], Any], held: dict[tuple[int, int], Any], partial: bool
    ) -> None:
        """Every rank recomputes what it wants; without ``partial``, all or nothing."""
        whole = [self._model.new_bool_var("") for _ in range(self._price.p)]
        for place, variable in again.items():
            if partial:
                self._model.add(variable <= held[place])
                continue
            self._model.add(variable == held[place]).only_enforce_if(whole[place[0]])
            self._model.add(variable == 0).only_enforce_if(~whole[place[0]])

    def _load_of(self, rank: int) -> int:
        """Which load a rank holds: its own, or that of a pair of ranks."""
        return min(rank, self._price.p - 1 - rank) if self._price.schedule in BIDIRECTIONAL else rank

    def _rank(self, number: int, rows: list[RankLoad]) -> tuple[Any, Any]:
        """Tie a load to the table of those that fit; return its ranks' work and what would follow it."""
        price, model = self._price, self._model
        ranks = [rank for rank in range(price.p) if self._load_of(rank) == number]
        chunks, layers = range(price.v), price.request.model.num_layers
        columns = [
            [self._column(sum(self._counts[rank, chunk][kind] for chunk in chunks)) for kind in price.kinds]
            for rank in ranks
        ]
        least = [model.new_int_var(0, layers, "") for _ in ranks]
        tail = model.new_int_var(0, int(2 * UNITS), "")
        table = []
        for row in rows:
            held = np.array(row.layers).reshape(len(ranks), -1).sum(axis=1)
            again = np.minimum(held, row.least_recomputed).tolist()
            table.append((*row.layers, *again, floor(row.tail_s / self._unit_s)))
        model.add_allowed_assignments([*(each for own in columns for each in own), *least, tail], table)
        for rank, held_here, fewest in zip(ranks, columns, least, strict=True):
            model.add(sum(held_here) >= 1)
            model.add(sum(self._again[rank, chunk] for chunk in chunks) >= fewest)
        often = price.m // len(ranks)
        own = {(rank, chunk, phase): often for rank in ranks for chunk in chunks for phase in range(3)}
        return self._length(own), tail

    def _column(self, expression: Any) -> Any:
        variable = self._model.new_int_var(0, self._price.request.model.num_layers, "")
        self._model.add(variable == expression)
        return variable

    def _pace(self, ranks: list[tuple[Any, Any]]) -> None:
        """What follows the last backward pass is the busiest rank's; which one is the model's choice."""
        slack = 4 * self._price.request.model.num_layers + 16
        paces = [self._model.new_bool_var("") for _ in ranks]
        self._model.add_exactly_one(paces)
        for pace, (work, tail) in zip(paces, ranks, strict=True):
            self._model.add(self._busiest >= work)
            self._model.add(work + slack >= self._busiest).only_enforce_if(pace)
            self._model.add(self._tail >= tail).only_enforce_if(pace)

    def _add(self, chain: Chain) -> None:
        self._model.add(self._makespan >= self._length(chain))

    def _length(self, chain: Chain) -> Any:
        """A chain's length in units, rounded down term by term."""
        price = self._price
        variables: list[Any] = []
        weights: list[int] = []
        constant = 0.0
        for place in dict.fromkeys((rank, chunk) for rank, chunk, _ in chain):
            times = [chain.get((*place, phase), 0) for phase in range(3)]
            constant += sum(times[phase] * price.engine[phase] for phase in range(3))
            constant += self._ends(place, times)
            for kind, variable in self._counts[place].items():
                own = sum(times[phase] * price.kinds[kind][phase] for phase in range(3))
                own += times[1] * price.kinds[kind][3] * self._recomputes_all
                variables.append(variable)
                weights.append(floor(own / self._unit_s))
            if not self._recomputes_all:
                again = times[1] * min(phases[3] for phases in price.kinds.values())
                variables.append(self._again[place])
                weights.append(floor(again / self._unit_s))
        return cp_model.LinearExpr.weighted_sum(variables, weights) + floor(constant / self._unit_s)

    def _ends(self, place: tuple[int, int], times: list[int]) -> float:
        """Embedding, head and MTP of a chunk, along a chain. [s]."""
        stage, price = self._stage_of[place], self._price
        seconds = 0.0
        if stage == 0:
            seconds += sum(times[phase] * price.embedding[phase] for phase in range(3))
        if stage == len(price.order) - 1:
            seconds += sum(times[phase] * price.head[phase] for phase in range(3))
        return seconds

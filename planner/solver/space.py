"""Which settings exist: candidate values of every plan field, and tables of settings that the rules admit.

A *setting* is a plan without its stage layout. A table (``Rows``) holds settings, or parts of them, as one
integer code a field; codes index the field's domain. Tables grow by joins, and after each join every rule
whose fields are all present filters it: a setting that survives to the end satisfies every rule over fields.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from planner.catalog.defaults import MOST_CHUNKS, divisors, micro_batches
from planner.cost.layer_comm import orders_cost_the_same
from planner.cost.setting import Settings
from planner.rules import TABULAR_RULES, Rule, pin_rules
from planner.rules.check import CHOICES
from planner.spec.request import PlanRequest

Codes = npt.NDArray[np.int64]
FIELDS = (
    "tensor_parallel", "context_parallel", "context_parallel_kind", "sequence_parallel", "expert_parallel",
    "expert_tensor_parallel", "micro_batch", "recompute", "precision", "pipeline_parallel", "data_parallel",
    "num_microbatches", "schedule", "virtual_stages", "zero_stage", "shard_group_size", "offload",
    "rank_order",
)  # fmt: skip
"""Plan fields that a setting fixes."""
DEGREES = ("tensor_parallel", "context_parallel", "pipeline_parallel", "data_parallel")
"""Their product is the GPUs of a plan."""
MEANT_WITHIN = {"sequence_parallel": "tensor_parallel", "context_parallel_kind": "context_parallel"}
"""Fields that say how a degree is run, and the degree: where that is 1 they mean nothing."""
MOST_PAIRS = 200_000
"""Rows of one join in parts, before the rules filter them: 60 MB."""
MOST_COMBINATIONS = 2_000_000
"""A rule is evaluated on the whole product of its fields' values up to this size, beyond it on the rows."""


@dataclass(frozen=True)
class Rows:
    """Settings (or parts of settings) in a table: for each field one code a row."""

    domains: Mapping[str, npt.NDArray[Any]]
    codes: Mapping[str, Codes]

    def __len__(self) -> int:
        return len(next(iter(self.codes.values()))) if self.codes else 0

    def values(self, field: str) -> npt.NDArray[Any]:
        """The field's value in every row."""
        return np.asarray(self.domains[field][self.codes[field]])

    def value(self, field: str, row: int) -> Any:
        """The field's value in one row, as Python has it."""
        return self.domains[field][self.codes[field][row]].item()

    def take(self, chosen: npt.NDArray[Any]) -> Rows:
        """The rows of a mask or of an index array, in order."""
        return Rows(self.domains, {field: codes[chosen] for field, codes in self.codes.items()})

    def blocks(self, counts: Codes) -> Iterator[Rows]:
        """The rows in order, cut so that what becomes of a block, ``counts`` a row, is a bearable table."""
        cuts = np.searchsorted(np.cumsum(counts), np.arange(MOST_PAIRS, int(counts.sum()), MOST_PAIRS))
        edges = np.unique([0, *cuts.tolist(), len(self)]).tolist()
        for start, stop in pairwise(edges) if len(self) else [(0, 0)]:
            yield self.take(np.arange(start, stop))

    def key(self, fields: Iterable[str]) -> Codes:
        """One integer a row that tells combinations of these fields apart."""
        key = np.zeros(len(self), dtype=np.int64)
        for field in fields:
            key = key * len(self.domains[field]) + self.codes[field]
        return key

    def cross(self, other: Mapping[str, Codes]) -> Rows:
        """Every row with every row of another table over other fields."""
        length = len(next(iter(other.values())))
        codes = {field: np.repeat(column, length) for field, column in self.codes.items()}
        codes.update({field: np.tile(column, len(self)) for field, column in other.items()})
        return Rows(self.domains, codes)

    def matches(self, other: Rows, on: tuple[str, ...]) -> Codes:
        """How many rows of another table agree with each row on some fields."""
        right, left = np.sort(other.key(on)), self.key(on)
        return np.asarray(np.searchsorted(right, left, "right") - np.searchsorted(right, left, "left"))

    def join(self, other: Rows, on: tuple[str, ...]) -> tuple[Rows, Codes]:
        """Every pair of rows that agree on some fields, and the row of this table that each came from."""
        right_key = other.key(on)
        order = np.argsort(right_key, kind="stable")
        right_sorted = right_key[order]
        left_key = self.key(on)
        first = np.searchsorted(right_sorted, left_key, side="left")
        count = np.searchsorted(right_sorted, left_key, side="right") - first
        left = np.repeat(np.arange(len(self)), count)
        offset = np.arange(len(left)) - np.repeat(np.cumsum(count) - count, count)
        right = order[np.repeat(first, count) + offset]
        codes = {field: column[left] for field, column in self.codes.items()}
        codes.update({field: column[right] for field, column in other.codes.items() if field not in codes})
        return Rows(self.domains, codes), left

    @staticmethod
    def concatenate(tables: list[Rows]) -> Rows:
        """Tables with the same fields, one after the other."""
        first = tables[0]
        codes = {field: np.concatenate([table.codes[field] for table in tables]) for field in first.codes}
        return Rows(first.domains, codes)


Join = tuple[Rows, tuple[str, ...]]
"""A table to be joined, and the fields on which."""


@dataclass(frozen=True)
class Space:
    """Everything that the rules over fields admit, as small tables that are joined on demand."""

    request: PlanRequest
    rules: tuple[Rule, ...]
    domains: Mapping[str, npt.NDArray[Any]]

    @classmethod
    def of(cls, request: PlanRequest, without: frozenset[str] = frozenset()) -> Space:
        """Candidate values of every field, filtered by the rules over that field alone.

        Parameters
        ----------
        without
            Names of rules to leave out (for conflicts and relaxations).
        """
        tabular = (*TABULAR_RULES, *(rule for rule in pin_rules(request) if rule.is_tabular))
        rules = tuple(rule for rule in tabular if rule.name not in without)
        domains = {
            field: np.asarray(values) if len(values) else np.zeros(0, dtype=np.int64)
            for field, values in candidate_values(request).items()
        }
        for rule in rules:
            if len(rule.scope) == 1 and rule.scope[0] in domains:
                field = rule.scope[0]
                passed = rule.admits_columns(request, {field: domains[field]})
                domains[field] = domains[field][np.broadcast_to(passed, domains[field].shape)]
        return cls(request, rules, domains)

    def filtered(self, rows: Rows, new: Iterable[str]) -> Rows:
        """The rows that satisfy every rule over their fields that reads at least one of the ``new`` ones."""
        return rows.take(self.admitted(rows, new))

    def admitted(self, rows: Rows, new: Iterable[str]) -> npt.NDArray[np.bool_]:
        """Which rows satisfy the rules over their fields that read at least one of the ``new`` ones."""
        passed = np.ones(len(rows), dtype=bool)
        for rule in self.rules:
            scope = set(rule.scope)
            if len(scope) > 1 and scope & set(new) and scope <= set(rows.codes):
                passed &= self._admits(rule, rows)
        return passed

    def grown(self, rows: Rows, joins: Sequence[Join]) -> Iterator[Rows]:
        """Rows joined with one table after the other and filtered, in parts that are spread evenly over them.

        There is at least one part, which may be empty.
        """
        ordered = [(table.take(np.argsort(table.key(on), kind="stable")), on) for table, on in joins]
        yield from self._grown(rows, ordered)

    def _grown(self, rows: Rows, joins: Sequence[Join]) -> Iterator[Rows]:
        if not joins:
            yield rows
            return
        (other, on), later = joins[0], joins[1:]
        count = 1 + int(np.sum(rows.matches(other, on))) // MOST_PAIRS
        for start in range(min(count, max(len(rows), 1))):
            part, _ = rows.take(np.arange(start, len(rows), count)).join(other, on)
            yield from self._grown(self.filtered(part, set(part.codes) - set(rows.codes)), later)

    def _admits(self, rule: Rule, rows: Rows) -> npt.NDArray[np.bool_]:
        sizes = [len(self.domains[field]) for field in rule.scope]
        if np.prod(sizes, dtype=float) > MOST_COMBINATIONS:
            return rule.admits_columns(self.request, {field: rows.values(field) for field in rule.scope})
        return np.asarray(self.table(rule).ravel()[rows.key(rule.scope)])

    def table(self, rule: Rule) -> npt.NDArray[np.bool_]:
        """Which combinations of the domains of a rule's fields it admits; one axis a field."""
        if rule.name not in self._tables:
            grid = np.meshgrid(*(self.domains[field] for field in rule.scope), indexing="ij", sparse=True)
            shape = tuple(len(self.domains[field]) for field in rule.scope)
            admitted = rule.admits_columns(self.request, dict(zip(rule.scope, grid, strict=True)))
            self._tables[rule.name] = np.broadcast_to(admitted, shape)
        return self._tables[rule.name]

    @cached_property
    def _tables(self) -> dict[str, npt.NDArray[np.bool_]]:
        return {}

    @cached_property
    def shapes(self) -> Rows:
        """All (t, c, p, d) over the cluster's GPUs."""
        fields = ("tensor_parallel", "context_parallel", "pipeline_parallel", "data_parallel")
        rows = self._all(fields[:3])
        if self.request.allow_idle:
            every = {fields[3]: np.arange(len(self.domains[fields[3]]))}
            blocks = rows.blocks(np.full(len(rows), len(every[fields[3]])))
            return Rows.concatenate([self.filtered(block.cross(every), fields) for block in blocks])
        ranks = np.prod([rows.values(field) for field in fields[:3]], axis=0)
        data = self.request.cluster.num_gpus // ranks
        rows, data = rows.take(keep := data * ranks == self.request.cluster.num_gpus), data[keep]
        return self.filtered(self._with(rows, fields[3], data), fields)

    @cached_property
    def batches(self) -> Rows:
        """All (d, b, m) that make up an allowed global batch."""
        low = self.request.workload.global_batch
        high = self.request.workload.global_batch_max or low
        rows = self._all(("data_parallel", "micro_batch"))
        unit = rows.values("data_parallel") * rows.values("micro_batch")
        least, most = -(-low // unit), high // unit
        count = np.maximum(most - least + 1, 0)
        start = np.repeat(least, count)
        offset = np.arange(len(start)) - np.repeat(np.cumsum(count) - count, count)
        rows = rows.take(np.repeat(np.arange(len(rows)), count))
        return self.filtered(self._with(rows, "num_microbatches", start + offset), FIELDS)

    @cached_property
    def schedules(self) -> Rows:
        """All (p, schedule, v)."""
        fields = ("pipeline_parallel", "schedule", "virtual_stages")
        return self.filtered(self._all(fields), fields)

    @cached_property
    def recomputes(self) -> Rows:
        """All kinds of recompute."""
        return self._all(("recompute",))

    @cached_property
    def shards(self) -> Rows:
        """All (d, c, z, shard group)."""
        fields = ("data_parallel", "context_parallel")
        pairs = np.unique(self.shapes.key(fields))
        d, c = np.divmod(pairs, len(self.domains["context_parallel"]))
        rows = Rows(self.domains, {"data_parallel": d, "context_parallel": c})
        rows = rows.cross(self._all(("zero_stage",)).codes)
        replicas = rows.values("data_parallel") * rows.values("context_parallel")
        groups = {count: np.array(divisors(count)) for count in np.unique(replicas).tolist()}
        counts = np.array([len(groups[count]) for count in replicas.tolist()], dtype=np.int64)
        parts = []
        for block in rows.blocks(counts):
            replicas = block.values("data_parallel") * block.values("context_parallel")
            own = [groups[count] for count in replicas.tolist()]
            index = np.repeat(np.arange(len(block)), [len(sizes) for sizes in own])
            sizes = np.concatenate([np.zeros(0, dtype=np.int64), *own])
            part = self._with(block.take(index), "shard_group_size", sizes)
            parts.append(self.filtered(part, part.codes))
        return Rows.concatenate(parts)

    @cached_property
    def sharding(self) -> Rows:
        """All (p, z, offload)."""
        fields = ("pipeline_parallel", "zero_stage", "offload")
        return self.filtered(self._all(fields), fields)

    @cached_property
    def work(self) -> Rows:
        """Everything that the time of one layer depends on: t, c and its kind, sp, e, etp, b, precision."""
        pairs = np.unique(self.shapes.key(("tensor_parallel", "context_parallel")))
        t, c = np.divmod(pairs, len(self.domains["context_parallel"]))
        rows = Rows(self.domains, {"tensor_parallel": t, "context_parallel": c})
        for fields in (
            ("context_parallel_kind", "sequence_parallel"),
            ("expert_parallel", "expert_tensor_parallel"),
            ("micro_batch", "precision"),
        ):
            rows = self.filtered(rows.cross(self._all(fields).codes), fields)
            rows = rows.take(_canonical(rows))
        return rows

    def ordered(self, rows: Rows, first_only: bool = False) -> tuple[Rows, Codes]:
        """Every row in every rank order, and the row of the table that each came from.

        Where two orders cost exactly the same (``orders_cost_the_same``) the first one stands for both.
        """
        orders = np.arange(len(self.domains["rank_order"]))
        index = np.arange(len(rows))
        found, sources = [rows.cross({"rank_order": orders[:1]})], [index[: len(orders[:1]) * len(rows)]]
        if len(orders) > 1 and not first_only:
            degrees: dict[str, Any] = {name: rows.values(name) for name in DEGREES}
            apart = np.flatnonzero(~orders_cost_the_same(Settings(**degrees), self.request.cluster))
            found.append(rows.take(apart).cross({"rank_order": orders[1:]}))
            sources.append(np.repeat(apart, len(orders) - 1))
        together, source = Rows.concatenate(found), np.concatenate(sources)
        admitted = self.admitted(together, ("rank_order",))
        return together.take(admitted), source[admitted]

    def _all(self, fields: tuple[str, ...]) -> Rows:
        grid = np.meshgrid(*(np.arange(len(self.domains[field])) for field in fields), indexing="ij")
        return Rows(self.domains, {field: axis.ravel() for field, axis in zip(fields, grid, strict=True)})

    def _with(self, rows: Rows, field: str, values: npt.NDArray[Any]) -> Rows:
        """The rows with one more field; rows whose value is outside the field's domain are dropped."""
        domain = self.domains[field]
        codes = np.minimum(np.searchsorted(domain, values), max(len(domain) - 1, 0))
        known = domain[codes] == values if len(domain) else np.zeros(len(values), dtype=bool)
        return Rows(self.domains, {**rows.take(known).codes, field: codes[known]})


def _canonical(rows: Rows) -> npt.NDArray[np.bool_]:
    """One spelling for settings that differ only in a field without meaning.

    With one context rank the kind of context parallelism is not used; the first kind stands for all.
    """
    alone = rows.values("context_parallel") == 1
    return np.asarray(~alone | (rows.codes["context_parallel_kind"] == 0))


def candidate_values(request: PlanRequest) -> dict[str, Any]:
    """Every value that a field could take; counts ascend, so that a code can be searched by value."""
    model, gpus = request.model, request.cluster.num_gpus
    low = request.workload.global_batch
    high = request.workload.global_batch_max or low
    degrees = list(range(1, gpus + 1)) if request.allow_idle else divisors(gpus)
    batch = divisors(low) if low == high else list(range(1, high + 1))
    values: dict[str, Any] = {field: sorted(choices) for field, choices in CHOICES.items()}
    values["context_parallel_kind"] = list(request.framework.limits.context_parallel_kinds) or ["ring"]
    values["precision"] = sorted(request.workload.precisions)
    values |= dict.fromkeys(("tensor_parallel", "context_parallel", "data_parallel"), degrees)
    values["pipeline_parallel"] = [p for p in degrees if p <= model.num_layers]
    values["virtual_stages"] = list(range(1, min(model.num_layers, MOST_CHUNKS) + 1))
    values["expert_parallel"] = list(range(1, max(model.num_experts, 1) + 1))
    values["expert_tensor_parallel"] = degrees
    values |= {"num_microbatches": batch, "shard_group_size": degrees}
    pins = [pin for pin in request.pins if pin.field == "micro_batch"]
    values["micro_batch"] = micro_batches(low, high, lambda size: all(pin.admits(size) for pin in pins))
    if request.allow_idle:
        values |= _idle_degrees(request, degrees, low, high)
    return values


def _idle_degrees(request: PlanRequest, degrees: list[int], low: int, high: int) -> dict[str, list[int]]:
    """Degrees where not all GPUs need be used: of all numbers, those that batch and sequence can go with."""
    whole, tokens = low == high, request.workload.seq_length
    return {
        "data_parallel": [d for d in degrees if d <= high and not (whole and low % d)],
        "context_parallel": [c for c in degrees if tokens % c == 0],
        "expert_tensor_parallel": degrees if request.model.is_moe else [1],
    }

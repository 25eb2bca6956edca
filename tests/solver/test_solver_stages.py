"""The stage model against every layout of small settings, and the pipelines that it is for."""

from __future__ import annotations

from itertools import product
from math import inf

import numpy as np
import pytest
from toys import tiny_dense, tiny_moe, toy_cluster, vary

from planner.rules import broken_rules
from planner.solver import solve
from planner.solver.alike import bounded
from planner.solver.layouts import counts_allowed
from planner.solver.price import Layout, SettingPrice
from planner.solver.rank_shares import RankShares
from planner.solver.scan import Scan
from planner.solver.stage_model import MEETS, refine
from planner.solver.stages import every_share
from planner.spec import Pin, PlanRequest


def settings(request: PlanRequest) -> list[SettingPrice]:
    scan = Scan(request)
    found = scan.expand(np.arange(len(scan.steady_s)))
    prices = []
    for index in range(len(found.rows)):
        values = {field: found.rows.values(field)[index].item() for field in found.rows.codes}
        prices.append(SettingPrice(values, found.work, index, request))
    return prices


def compositions(total: int, parts: int) -> list[tuple[int, ...]]:
    if parts == 1:
        return [(total,)]
    return [(first, *rest) for first in range(total + 1) for rest in compositions(total - first, parts - 1)]


def fastest(price: SettingPrice) -> float:
    """Step time of the best legal layout of the solver's space by trying all, inf without one. [s]."""
    best = inf
    for layers in compositions(price.request.model.num_layers, len(price.order)):
        held = [0] * price.p
        for (rank, _), count in zip(price.order, layers, strict=True):
            held[rank] += count
        every = product(*(range(count + 1) for count in held))
        for recomputed in every if price.values["recompute"] != "none" else [(0,) * price.p]:
            if price.values["recompute"] != "none" and not any(recomputed):
                continue
            layout = Layout(layers, recomputed)
            ranges = (counts_allowed(price, stage) for stage in range(len(layers)))
            if not all(least <= count <= most for count, (least, most) in zip(layers, ranges, strict=True)):
                continue
            if broken_rules(price.plan(layout), price.request):
                continue
            best = min(best, price.seconds(layout))
    return best


def piped(layers: int, p: int, v: int, schedule: str, **changes: object) -> PlanRequest:
    """``layers`` on p stages of one GPU each, 8 micro-batches, recompute as given."""
    request = tiny_moe() if changes.pop("is_moe", False) else tiny_dense()
    limits = {"schedules": ("none", schedule), "zero_stages": (0,), "recompute": ("none",)}
    limits |= changes.pop("limits", {})  # type: ignore[call-overload]
    model = {"num_layers": layers, "vocab_size": 40_000}
    request = vary(request, model=model, limits=limits, workload={"global_batch": 8})
    pins = (
        Pin(field="pipeline_parallel", allowed=(p,), option="--pp"),
        Pin(field="virtual_stages", allowed=(v,), option="--vpp"),
        Pin(field="micro_batch", allowed=(1,), option="--micro-batch"),
    )
    cluster = toy_cluster(p, hbm_bytes=float(changes.pop("hbm_bytes", 16e9)))  # type: ignore[arg-type]
    return request.model_copy(update={"cluster": cluster, "pins": pins, "max_bubble": None})


TIGHT_BYTES = 2.1435e9
"""Some 8 of the 56 layouts of 9 layers on 4 ranks fit without recompute, more with it."""
WHOLE = {"recompute": ("none", "full"), "partial_recompute": False}

CASES = {
    "1f1b": piped(9, 4, 1, "1f1b"),
    "gpipe": piped(8, 3, 1, "gpipe"),
    "zb-h1": piped(9, 4, 1, "zb-h1"),
    "dualpipe": piped(9, 4, 1, "dualpipe"),
    "dualpipe, tight": piped(9, 4, 1, "dualpipe", hbm_bytes=TIGHT_BYTES),
    "dualpipe, tight, recomputing": piped(9, 4, 1, "dualpipe", hbm_bytes=TIGHT_BYTES, limits=WHOLE),
    "dualpipe with experts": piped(9, 4, 1, "dualpipe", is_moe=True),
    "dualpipe of two ranks": piped(7, 2, 1, "dualpipe"),
    "interleaved": piped(10, 2, 2, "interleaved"),
    "dense then experts": piped(8, 3, 1, "1f1b", is_moe=True),
}


@pytest.mark.parametrize("name", CASES)
def test_the_stage_model_finds_what_trying_all_layouts_finds(name: str) -> None:
    for price in settings(CASES[name])[:4]:
        known = fastest(price)
        if known == inf:
            continue
        found = refine(price, 2 * known)
        assert found.bound_s <= known * (1 + 1e-9)
        assert found.seconds == pytest.approx(known, rel=MEETS)
        assert found.bound_s == pytest.approx(known, rel=2 * MEETS)


def shares_of_layout(price: SettingPrice, layers: tuple[int, ...]) -> RankShares:
    return RankShares.of(np.array([layers]), tuple(price.order), price.schedule, price.request.model)


def test_dualpipe_recomputes_for_the_stages_of_both_directions() -> None:
    """Rank r also holds stage p-1-r, so what it recomputes has to make room for that stage too."""
    limits = {"recompute": ("none", "full"), "recompute_per_stage": True}
    layers = (1, 1, 4, 5)

    def tight(usable: float) -> SettingPrice:
        request = piped(11, 4, 1, "dualpipe", limits=limits, hbm_bytes=usable)
        return next(price for price in settings(request) if price.values["recompute"] == "full")

    roomy = tight(16e9)

    def recomputing(n: int) -> Layout:
        return Layout(layers, tuple(min(n, held) for held in layers))

    needs = [max(roomy.rank_bytes(recomputing(n))) for n in range(6)]
    assert needs == sorted(needs, reverse=True)
    for n in (1, 3, 5):
        price = tight((needs[n] + needs[n - 1]) / 2)
        _, closes = bounded(price.alike, shares_of_layout(price, layers), np.array([inf]), price.chains)
        assert closes[0] is not None
        found = tuple(closes[0].recomputed[0].tolist())
        assert max(price.rank_bytes(Layout(layers, found))) <= price.request.cluster.usable_hbm_bytes
        assert max(found) == n


@pytest.mark.parametrize("schedule", ["1f1b", "dualpipe"])
def test_no_setting_has_a_better_layout_than_the_answer(schedule: str) -> None:
    """Of 15 layers on 4 ranks there are 364 layouts: too many to list, so settings are put aside unpriced."""
    request = piped(15, 4, 1, schedule)
    pins = tuple(pin for pin in request.pins if pin.field != "micro_batch")
    request = request.model_copy(update={"pins": pins, "prefer_simple": False})
    answer = solve(request, top=1, workers=1)
    assert answer.status == "optimal"
    best_s = answer.plans[0].step_time_s
    for price in settings(request):
        assert every_share(price) is None
        assert refine(price, 2 * best_s).bound_s >= best_s * (1 - 2 * MEETS)

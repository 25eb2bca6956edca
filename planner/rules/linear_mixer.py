"""Layers that mix tokens with a state space or linear attention: their heads have to split evenly as well."""

from __future__ import annotations

from typing import Any

import numpy as np

from planner.cost.linear_mixer import projections, value_width
from planner.cost.words import LINEAR_MIXER_WORDS
from planner.rules.architecture import width_multiples
from planner.rules.rule import Column, divides, implies, rule
from planner.rules.words import over_ranks
from planner.spec.model import Model
from planner.spec.plan import Plan
from planner.spec.request import PlanRequest


def _mixer_words(model: Model) -> str:
    return LINEAR_MIXER_WORDS.get(model.linear_mixer, "linear-mixer")


def _heads_words(model: Model) -> str:
    values, keys = model.linear_value_heads, model.linear_key_heads
    if model.linear_mixer == "mamba2":
        return f"{values} Mamba-2 heads in {keys} group{'' if keys == 1 else 's'}"
    return f"{values} value and {keys} key heads of {_mixer_words(model)}"


def _mixer(plan: Plan, request: PlanRequest) -> dict[str, Any]:
    splits = request.framework.limits.linear_tensor_parallel
    return {
        "linear_heads": _heads_words(request.model),
        "mixer": _mixer_words(request.model),
        "over_tensor_ranks": over_ranks(tensor=plan.tensor_parallel if splits else 1),
    }


def _splits_over_tensor_ranks(request: PlanRequest) -> bool:
    return request.model.is_hybrid and request.framework.limits.linear_tensor_parallel


@rule(
    source="Megatron-LM ssm/mamba_mixer.py: heads, groups % tp; transformer_config.py: key and value heads",
    numbers=_mixer,
)
def linear_heads_divide_over_tensor_ranks(request: PlanRequest, tensor_parallel: Column) -> Column:
    """{linear_heads} do not split evenly over {tensor_parallel} tensor ranks."""
    model = request.model
    fits = divides(tensor_parallel, model.linear_key_heads)
    fits = np.logical_and(fits, divides(tensor_parallel, model.linear_value_heads))
    return implies(_splits_over_tensor_ranks(request), fits)


@rule(source="framework limit: has context parallelism for linear mixers or not", numbers=_mixer)
def linear_mixers_work_over_context_ranks(request: PlanRequest, context_parallel: Column) -> Column:
    """{request.framework.name} does not split the sequence of {mixer} layers, and the plan asks for
    {context_parallel} context ranks.
    """
    works = not request.model.is_hybrid or request.framework.limits.linear_context_parallel
    return np.logical_or(works, np.asarray(context_parallel) == 1)


@rule(
    source="Megatron-LM ssm/mamba_context_parallel.py (copies groups); ssm/gated_delta_net: heads % (tp cp)",
    numbers=_mixer,
)
def linear_heads_divide_over_context_ranks(
    request: PlanRequest, context_parallel: Column, tensor_parallel: Column
) -> Column:
    """{linear_heads}{over_tensor_ranks} do not split evenly over {context_parallel} context ranks, which
    trade tokens for heads.
    """
    model, c = request.model, np.asarray(context_parallel)
    ranks = np.asarray(tensor_parallel) if _splits_over_tensor_ranks(request) else 1
    keys = np.maximum(model.linear_key_heads // ranks, 1)
    keys_fit = divides(c, keys)
    if model.linear_mixer == "mamba2":
        keys_fit = np.logical_or(keys_fit, divides(keys, c))
    fits = np.logical_and(keys_fit, divides(c, model.linear_value_heads // ranks))
    return implies(np.logical_and(model.is_hybrid, c > 1), fits)


def _widths(plan: Plan, request: PlanRequest) -> dict[str, Any]:
    model, columns = request.model, width_multiples(request).get(plan.precision, 1)
    ranks = plan.tensor_parallel if _splits_over_tensor_ranks(request) else 1
    wrong = []
    if value_width(model) % (ranks * columns):
        wrong.append(f"{value_width(model)} inner columns{over_ranks(tensor=ranks)}")
    if projections(model)[0].columns % columns:
        wrong.append(f"{projections(model)[0].columns} columns of its first product")
    return {"columns": columns, "widths": " and ".join(wrong), "mixer": _mixer_words(model)}


@rule(
    source="Megatron-LM ssm/mamba_mixer.py: first product % 16 for FP8; Transformer Engine: widths % 16",
    field="tensor_parallel",
    numbers=_widths,
)
def low_precision_linear_widths_are_aligned(
    request: PlanRequest, precision: Column, tensor_parallel: Column
) -> Column:
    """{precision} products need multiples of {columns} columns on each rank, which do not come of {mixer}'s
    {widths}.
    """
    model = request.model
    made = projections(model)[0].columns if model.is_hybrid else 0
    ranks = np.asarray(tensor_parallel) if _splits_over_tensor_ranks(request) else 1
    aligned: Column = True
    for name, columns in width_multiples(request).items():
        fits = np.logical_and(divides(ranks * columns, value_width(model)), divides(columns, made))
        aligned = np.logical_and(aligned, implies(precision == name, fits))
    return aligned


LINEAR_MIXER_RULES = (
    linear_heads_divide_over_tensor_ranks,
    linear_mixers_work_over_context_ranks,
    linear_heads_divide_over_context_ranks,
    low_precision_linear_widths_are_aligned,
)

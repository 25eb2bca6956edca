"""Predicted against measured time of single parts: collectives, expert exchange, attention, one expert layer.

Prediction reads what was run and on what, never what was measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from planner.catalog import load_cluster
from planner.cost.collectives import (
    Group,
    all_gather_time,
    all_reduce_time,
    all_to_all_time,
    dispatch_time,
    reduce_scatter_time,
)
from planner.cost.flops import Gemm, layer_gemms
from planner.cost.kernels import (
    BACKWARD_FLOPS,
    FP32_SUM,
    attention_flop,
    attention_time,
    gemm_time,
    memory_bound_time,
)
from planner.cost.setting import Settings
from planner.errors import BadInput
from planner.spec.cluster import Accelerator, Cluster
from planner.spec.model import LayerKind, Model

Row = Mapping[str, Any]
Phases = dict[str, float]
"""Seconds by phase: ``time`` alone, or ``forward`` and ``backward``."""

PARTS = {"hopper": "h100-sxm-80gb", "blackwell": "b200-sxm-180gb", "h100-80gb": "h100-sxm-80gb"}
"""What sources call a part, beyond the catalog's names and aliases."""
COLLECTIVES = {
    "all_reduce": all_reduce_time,
    "all_gather": all_gather_time,
    "reduce_scatter": reduce_scatter_time,
    "all_to_all": all_to_all_time,
}
PRECISIONS = {"BF16": "bf16", "FP8 blockwise": "fp8_block", "FP8": "fp8", "MXFP8": "mxfp8"}
LATENT_HEADS, LATENT_QUERY_DIM, LATENT_VALUE_DIM = 128, 192, 128
"""Attention of DeepSeek-V3 (its config.json)."""
MAX_NODES = 4
"""Node-limited routing of DeepSeek-V3 (its technical report, section 2.1.2)."""
EXCHANGE_BYTES = 2.0
"""Tokens travel in 16 bits."""
FUSED_PERMUTE = ("hybridep",)
"""Dispatchers that sort tokens by expert on the way (HybridEP's description in Megatron-LM)."""


@dataclass(frozen=True)
class ComponentResult:
    """One phase of one row; ``skipped`` says why there is no prediction."""

    id: str
    kind: str
    phase: str = "time"
    predicted_s: float | None = None
    measured_s: float | None = None
    skipped: str | None = None

    @property
    def error_pct(self) -> float | None:
        """Signed error of the prediction. [per cent]."""
        if self.predicted_s is None or not self.measured_s:
            return None
        return 100.0 * (self.predicted_s / self.measured_s - 1.0)


def is_component(row: Row) -> bool:
    """Whether a row times a part rather than a training step."""
    return isinstance(row.get("kind"), str) and "cluster" not in row


def component_results(rows: Iterable[Row]) -> list[ComponentResult]:
    """Compare every phase of every row; none is dropped silently."""
    return [result for row in rows for result in _compare(row)]


def _compare(row: Row) -> list[ComponentResult]:
    name, kind = str(row.get("id", "?")), str(row.get("kind", "?"))
    if kind not in _PREDICT:
        return [ComponentResult(name, kind, skipped=f"unknown kind of component {kind!r}")]
    try:
        predicted = _PREDICT[kind]({key: value for key, value in row.items() if key not in _MEASURED})
        measured = _measured(row)
    except BadInput as problem:
        return [ComponentResult(name, kind, skipped=str(problem))]
    except (KeyError, TypeError, ValueError) as problem:
        return [ComponentResult(name, kind, skipped=f"a key is missing or is not a number: {problem}")]
    return [
        ComponentResult(name, kind, phase, seconds, measured.get(phase))
        for phase, seconds in predicted.items()
    ]


_MEASURED = (
    "out_of_place_us", "in_place_us", "algbw_gbps", "busbw_gbps", "time_us", "fwd_tflops", "bwd_tflops",
    "measured",
)  # fmt: skip


def _measured(row: Row) -> Phases:
    if "fwd_tflops" in row:
        flop = _latent_flop(row)
        return {
            "forward": flop / (row["fwd_tflops"] * 1e12),
            "backward": BACKWARD_FLOPS * flop / (row["bwd_tflops"] * 1e12),
        }
    if "measured" in row:
        return {phase: row["measured"][f"{phase}_ms"] * 1e-3 for phase in ("forward", "backward")}
    return {"time": row["out_of_place_us" if "out_of_place_us" in row else "time_us"] * 1e-6}


def _cluster(row: Row, num_gpus: int) -> Cluster:
    part = str(row["hardware"]["gpu"]).lower()
    return load_cluster(PARTS.get(part, part), num_gpus)


def _collective(row: Row) -> Phases:
    ranks = row["hardware"]["num_gpus"]
    if row["op"] not in COLLECTIVES:
        raise BadInput(f"unknown collective {row['op']!r}")
    return {"time": COLLECTIVES[row["op"]](row["bytes"], Group(ranks), _cluster(row, ranks))}


def _exchange(row: Row) -> Phases:
    seconds = _exchange_time(
        row["backend"], row["tokens_per_gpu"], row["hidden"], row["topk"], row["ep"], _cluster(row, row["ep"])
    )
    return {"time": seconds}


def _exchange_time(
    dispatcher: str, tokens: int, hidden_size: int, experts_per_token: int, ranks: int, cluster: Cluster
) -> float:
    """Dispatch or combine: k copies in an all-to-all, or one to each distinct destination. [s]."""
    if dispatcher in ("all-to-all", "a2a"):
        payload = tokens * experts_per_token * hidden_size * EXCHANGE_BYTES
        return float(all_to_all_time(payload, Group(ranks), cluster))
    group = Group(ranks)
    seconds = dispatch_time(tokens, hidden_size, experts_per_token, group, cluster, EXCHANGE_BYTES, MAX_NODES)
    return float(seconds)


def _latent_flop(row: Row) -> float:
    return float(attention_flop(row["seq_len"], LATENT_HEADS, LATENT_QUERY_DIM, 1, LATENT_VALUE_DIM))


def _attention(row: Row) -> Phases:
    accelerator = _burst(_cluster(row, 1).accelerator)
    tiles, head_dim = LATENT_HEADS * row["seq_len"] / 128, (LATENT_QUERY_DIM + LATENT_VALUE_DIM) / 2
    flop, length = _latent_flop(row), row["seq_len"]
    return {
        phase: attention_time(
            flop, length, tiles, accelerator, "cudnn", head_dim, backward=phase == "backward"
        )
        for phase in ("forward", "backward")
    }


def _burst(accelerator: Accelerator) -> Accelerator:
    """The part at the clock of a short benchmark."""
    change = {"sustained_fraction": 1.0}
    attention = {name: curve.model_copy(update=change) for name, curve in accelerator.attention.items()}
    gemm = {name: curve.model_copy(update=change) for name, curve in accelerator.gemm.items()}
    return accelerator.model_copy(update={"attention": attention, "gemm": gemm})


def _expert_layer(row: Row) -> Phases:
    """One expert layer without attention: products, permutation, activation, dispatch and combine."""
    shape, config = row["model"], row["config"]
    cluster = _cluster(row, row["hardware"]["num_gpus"])
    if config["precision"] not in PRECISIONS:
        raise BadInput(f"unknown precision {config['precision']!r}")
    precision, part = PRECISIONS[config["precision"]], _burst(cluster.accelerator)
    tokens, k, h, f = shape["seq_len"] * shape["mbs"], shape["topk"], shape["hidden"], shape["moe_ffn"]
    gemms = _expert_gemms(shape, tokens, config["ep"])
    width = k * f + shape.get("shared_ffn", 0)
    permuted = memory_bound_time(2 * 4.0 * h * k * tokens, part, "permute", 4)
    if config["dispatcher"] in FUSED_PERMUTE:
        permuted = 0.0
    exchange = 2 * _exchange_time(config["dispatcher"], tokens, h, k, config["ep"], cluster)
    forward = sum(gemm_time(g.m, g.n, g.k, part, precision, g.count) for g in gemms)
    gradients = sum(gemm_time(g.m, g.k, g.n, part, precision, g.count) for g in gemms)
    gradients += sum(gemm_time(g.n, g.k, g.m, part, precision, g.count, sum_bytes=FP32_SUM) for g in gemms)
    return {
        "forward": float(forward + permuted + exchange + memory_bound_time(6.0 * width * tokens, part)),
        "backward": float(gradients + permuted + exchange + memory_bound_time(10.0 * width * tokens, part)),
    }


def _expert_gemms(shape: Row, tokens: int, expert_parallel: int) -> list[Gemm]:
    model = Model(
        name="layer", num_layers=1, hidden_size=shape["hidden"], num_heads=1, num_kv_heads=1, head_dim=128,
        ffn_hidden_size=shape["moe_ffn"], vocab_size=1, num_experts=shape["experts"],
        experts_per_token=shape["topk"], expert_ffn_hidden_size=shape["moe_ffn"],
        shared_expert_ffn_hidden_size=shape.get("shared_ffn", 0),
    )  # fmt: skip
    gemms = layer_gemms(model, LayerKind(moe=True), tokens, Settings(expert_parallel=expert_parallel))
    return [gemm for gemm in gemms if gemm.expert or gemm.name.startswith(("router", "shared"))]


_PREDICT: dict[str, Callable[[Row], Phases]] = {
    "collective": _collective,
    "moe token dispatch": _exchange,
    "moe token combine": _exchange,
    "attention kernel": _attention,
    "MoE layer fwd/bwd": _expert_layer,
}

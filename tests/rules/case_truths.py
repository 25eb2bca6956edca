"""What the planner has to say about each high-confidence case, read off the case's ``truth``.

A case has one ``Truth`` or several; together they restate its ``truth`` in the planner's words. Cases outside
the planner's reach, and those where it is known to disagree, are listed with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

OFFLOAD_HBM = "every_stage_fits_in_memory"
HOST = "offloaded_state_fits_in_host_memory"


@dataclass(frozen=True)
class Truth:
    """One statement about one configuration of a case.

    ``given`` completes the configuration where the case leaves a number open that the statement names.
    """

    entry: int = 0
    given: Mapping[str, Any] = field(default_factory=dict)
    limits: Mapping[str, Any] = field(default_factory=dict)
    breaks: tuple[str, ...] = ()
    """Rules that the plan must break."""
    is_legal: bool = False
    """No rule is broken, memory aside."""
    fits: bool | None = None
    is_tight: bool = False
    """Less than a tenth of the GPU's memory is left, or less than nothing."""
    matches_peak: bool = False
    """Predicted memory is within 10 % of the measured peak."""
    allowed: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Field to the exact values that the violations propose for it."""
    says: str = ""
    """Words of a violation."""
    longest: int | None = None
    """The longest sequence that fits, within 5 %. [token]"""
    peak_lies_between_losses: bool = False
    """The measured peak is above the memory with logits in chunks and below that with whole logits."""


def peaks(*numbers: int, **given: Any) -> list[Truth]:
    """The measured peaks of these configurations are met, and they fit."""
    return [
        Truth(entry=number, given=given, matches_peak=True, fits=True, is_legal=True) for number in numbers
    ]


def out_of_memory(*numbers: int, **given: Any) -> list[Truth]:
    """These configurations do not fit."""
    return [Truth(entry=number, given=given, fits=False, breaks=(OFFLOAD_HBM,)) for number in numbers]


EVEN = {"uneven_stages": "even"}
SHORT = 512
"""Stands for HellaSwag's samples, none of which is longer. [token]"""
HY3 = {
    "zero": 3, "mbs": 1, "seq_len": SHORT, "recompute": "full", "optimizer": "16-bit Adam",
}  # fmt: skip
"""The public recipe: weights in bf16, all layers recomputed, HellaSwag."""
QWEN35 = {"zero": 3, "mbs": 1, "seq_len": 2048, "mtp": 0}

TRUTHS: dict[str, list[Truth]] = {
    "colossal-3043-12heads-tp8": [
        Truth(breaks=("attention_heads_divide_over_tensor_ranks",), allowed={"tensor_parallel": (1, 2, 4)})
    ],
    "cosmos-117-40heads-tp64": [
        Truth(breaks=("attention_heads_divide_over_tensor_ranks", "tensor_ranks_stay_inside_the_fast_domain"),
              allowed={"tensor_parallel": (1, 2, 4, 8)}, says="40 attention heads"),
        # across nodes, every divisor of 40
        Truth(given={"lift_domain": True, "num_gpus": 320},
              breaks=("attention_heads_divide_over_tensor_ranks",),
              allowed={"tensor_parallel": (1, 2, 4, 5, 8, 10, 20, 40)}),
    ],
    "cosmos-117-gbs1-dp2": [
        Truth(breaks=("replicas_divide_the_global_batch",), says="(nearest batch: 2)"),
        Truth(given={"gbs": 2}, is_legal=True),
    ],
    "ds-3634-52heads-tp8": [
        Truth(breaks=("attention_heads_divide_over_tensor_ranks",), allowed={"tensor_parallel": (1, 2, 4)}),
        Truth(given={"num_gpus": 104, "lift_domain": True},
              breaks=("attention_heads_divide_over_tensor_ranks",),
              allowed={"tensor_parallel": (1, 2, 4, 13, 26, 52)}),
    ],
    "mbridge-1549-dsv3-pp16-layout": [
        Truth(entry=0, given={"pp_layers": [4] * 15 + [1]}, is_legal=True),
        Truth(entry=1, given={"chunks": [[4, 4]] * 7 + [[4, 1]]}, is_legal=True),
        Truth(entry=2, given={"chunks": [[4, 4, 4, 4]] * 3 + [[4, 4, 4, 1]]}, is_legal=True),
        *[Truth(entry=entry, limits=EVEN, breaks=("layers_divide_over_stages",)) for entry in range(3)],
    ],
    "mbridge-5551-glm45": [
        Truth(limits=EVEN, breaks=("layers_divide_over_stages",)),
        Truth(given={"pp_layers": [10, 12, 12, 12, 12, 12, 12, 10]}, is_legal=True),
    ],
    "mbridge-5832-qwen35vl-mbs4": [
        Truth(given={"gbs": 72, "dp": 8, "grad_accum": 9}, allowed={"micro_batch": (1, 3, 9)},
              breaks=("micro_batch_divides_the_replica_batch",)),
        Truth(given={"gbs": 16, "dp": 8, "grad_accum": 2}, allowed={"micro_batch": (1, 2)},
              breaks=("micro_batch_divides_the_replica_batch",)),
        Truth(entry=1, given={"gbs": 72, "dp": 8, "grad_accum": 9}, is_legal=True),
    ],
    "miles-1102-dsr1-pp4": [
        Truth(is_legal=True, given={"cp": 1}),
        Truth(is_legal=True, given={"pp_layers": [16, 15, 15, 15]}),
        Truth(limits=EVEN, breaks=("layers_divide_over_stages",)),
    ],
    "nanotron-347-pp8-m1": [
        Truth(breaks=("microbatches_cover_the_pipeline",), given={"num_microbatches": 1}, says="7 or more"),
        Truth(given={"num_microbatches": 7}, is_legal=True),
    ],
    "nemo-14288-pp6-m3": [
        Truth(breaks=("microbatches_fill_interleaved_rounds",)),
        Truth(given={"num_microbatches": 6}, is_legal=True),
    ],
    "nemorl-1551-fp8-sp": [
        Truth(given={"seq_len": 16368}, breaks=("low_precision_rows_are_aligned",),
              says="fp8 products need (nearest sequence: 16352 and 16384)"),
        Truth(given={"seq_len": 16384}, is_legal=True),
    ],
    "openrlhf-346-7gpus": [
        Truth(breaks=("micro_batch_divides_the_replica_batch",), says="(nearest batch: 252 and 266)"),
        Truth(given={"gbs": 252}, is_legal=True),
    ],
    "rocm-mlm-130-mxfp8-11008": [
        Truth(breaks=("low_precision_widths_are_aligned",), allowed={"tensor_parallel": (1, 2)}),
        Truth(given={"tp": 2}, is_legal=True),
    ],
    "swift-5737-glm45air-pp4": [
        Truth(limits=EVEN, given={"num_gpus": 64}, breaks=("layers_divide_over_stages",),
              allowed={"pipeline_parallel": (1, 2, 23, 46)}),
        Truth(given={"num_gpus": 64, "pp_layers": [11, 12, 12, 11]}, is_legal=True),
        Truth(given={"num_gpus": 512}, breaks=("micro_batch_divides_the_replica_batch",)),
        Truth(given={"num_gpus": 256, "pp_layers": [11, 12, 12, 11]}, is_legal=True),
    ],
    "swift-9723-mxfp8-sp": [
        Truth(given={"seq_len": 31936}, breaks=("low_precision_rows_are_aligned",),
              says="mxfp8 products need (nearest sequence: 31872 and 32000)"),
        Truth(given={"seq_len": 32000}, is_legal=True),
    ],
    "titan-1306-seq-tp": [
        Truth(given={"seq_len": 8191}, breaks=("sequence_divides_over_sequence_ranks",),
              says="nearest sequence: 8190 and 8192"),
        Truth(given={"seq_len": 8191, "cp": 2, "tp": 1}, breaks=("sequence_divides_over_context_ranks",)),
        Truth(given={"seq_len": 8192}, is_legal=True),
    ],
    "titan-2577-kv2-tp": [
        Truth(breaks=("kv_heads_divide_over_tensor_ranks",), allowed={"tensor_parallel": (1, 2)}),
        Truth(given={"framework": "megatron"}, is_legal=True),
    ],
    "titan-4258-ep-div": [
        Truth(breaks=("experts_divide_over_expert_ranks", "expert_ranks_divide_the_replicas")),
        Truth(given={"ep": 8}, is_legal=True),
    ],
    "accel-3798-tp-only-fsdp": [
        Truth(breaks=("sharding_has_more_than_one_rank",)),
        Truth(given={"tp": 1, "dp_shard": 2}, is_legal=True),
    ],
    "axolotl-2989-ddp-tp": [
        Truth(breaks=("plain_replicas_stand_alone",)),
        Truth(given={"dp_replicate": 1, "dp_shard": 2, "fsdp": True}, is_legal=True),
    ],
    "ds-823-pp-zero2": [
        Truth(given={"pp": 2}, breaks=("zero_stage_goes_with_the_pipeline",), allowed={"zero_stage": (0, 1)}),
        Truth(given={"pp": 2, "zero": 1}, is_legal=True),
    ],
    "mbridge-world-size-folding": [
        *[Truth(entry=entry, given={"num_gpus": gpus}, is_legal=True)
          for entry, gpus in enumerate((8, 8, 8, 16, 8))],
        *[Truth(entry=entry, given={"num_gpus": gpus}, breaks=("expert_ranks_divide_the_replicas",))
          for entry, gpus in ((0, 4), (1, 4), (3, 8), (4, 4))],
    ],
    "mlm-1459-cp-ep": [Truth(is_legal=True, given={"num_gpus": 8})],
    "slime-2077-ep8-pp2-8gpu": [
        Truth(breaks=("expert_ranks_divide_the_replicas",)),
        Truth(given={"ep": 4}, is_legal=True),
    ],
    "titan-1184-cp8-dp8": [
        Truth(breaks=("ranks_fill_the_cluster",), allowed={"data_parallel": (1,)}),
        Truth(given={"dp_shard": 1}, is_legal=True),
    ],
    "touchnet-10-tied-pp": [
        Truth(breaks=("tied_embeddings_go_with_the_pipeline",), allowed={"pipeline_parallel": (1,)}),
        Truth(given={"tied_embeddings": False}, is_legal=True),
    ],
    "axolotl-1439-70b-1tb-ram": [
        Truth(breaks=(HOST,)),
        *out_of_memory(0, offload=None),
    ],
    # it ran in 750 to 800 GB of host memory; DeepSpeed's estimator, as the planner, asks for 877: 18 x 1.5
    "ds-3448-llama33b-8xa100-40": [
        Truth(breaks=(HOST,), fits=True),
        Truth(given={"host_ram_gb": 800}, is_legal=True, fits=True),
    ],
    # 4-bit weights of 46.7 B parameters fill the card; sharded over the four they fit
    "axolotl-1554-mixtral-qlora-a10": [
        *out_of_memory(0, seq_len=512),
        Truth(given={"zero": 3, "seq_len": 512, "framework": "accelerate"}, fits=True, is_legal=True),
    ],
    # the logits alone overflow; a fused loss fits
    "lf-5545-8b-qlora-52k": [*out_of_memory(0), Truth(given={"loss": "fused"}, fits=True)],
    "easylm-33-13b-v3-8": [*out_of_memory(0), Truth(entry=1, fits=True, is_legal=True)],
    "lf-2959-72b-16gpu": out_of_memory(0),
    "lf-5553-72b-4gpu": out_of_memory(0),
    "lf-5977-8b-8x3090": [*out_of_memory(0), Truth(entry=1, fits=True, is_legal=True)],
    "neox-606-20b-2xa100-40": out_of_memory(0),
    "openrlhf-851-70b-zero2": [
        *out_of_memory(0),
        *out_of_memory(0, num_gpus=4096, dp=4096),
        Truth(entry=1, fits=True, is_legal=True),
    ],
    # "use ZeRO-3 or ep": DeepSpeed shards whole experts like any other layer
    "qwenvl-2053-30ba3b-zero2": [
        *out_of_memory(0),
        Truth(entry=1, is_tight=True),
        Truth(given={"zero": 3}, fits=True, is_legal=True),
    ],
    "swift-8084-qwen3vl30b-8xa100": [Truth(is_tight=True)],
    "xtuner-842-70b-16gpu": out_of_memory(0),
    "automodel-2394-gptoss120b-gb200": [
        *peaks(0, 1, 2, 5),
        *out_of_memory(3),
        Truth(entry=4, fits=True, is_legal=True, matches_peak=True),
    ],
    # the recipe for 8 H100 keeps bf16 moments (precision-aware optimizer)
    "mbridge-moonlight-recompute": peaks(0, 1, 2, 3, 4, moments="bf16"),
    "neox-707-20b-24xa100-40": [
        Truth(fits=True, is_legal=True),
        Truth(limits=EVEN, breaks=("layers_divide_over_stages",)),
        Truth(given={"pp_layers": [8, 8, 7, 7, 7, 7]}, fits=True, is_legal=True),
    ],
    "titan-1610-dsv3-16b-lbs8": [*peaks(0, 1), Truth(given={"gpu": "H100-80GB-SXM"}, fits=False)],
    "titan-1690-qwen3-32b-grid": [
        *peaks(0, 2, 3, 8, 10, 11, 12),
        Truth(entry=1, matches_peak=True, is_tight=True, is_legal=True),
        *out_of_memory(4, 5, 6, 7, 9, 13),
        Truth(entry=14, is_tight=True),
        *[Truth(entry=entry, given={"gpu": "H100-80GB-SXM"}, fits=False) for entry in (0, 1, 2)],
    ],
    "titan-2107-dsv3-671b-512h100": [
        Truth(entry=entry, given={"mbs": 1}, fits=True, is_legal=True, matches_peak=True) for entry in (0, 1)
    ],
    "trl-6845-qwen3-8b-1m": [*peaks(0, peak_gb=56.2), *out_of_memory(0, recompute="full")],
    # the run had its parameters on the host as well (the guide of PR 6846: "for 30B and more")
    "trl-6845-qwen3-32b-1m": [
        Truth(given={"offload": "params cpu"}, fits=True, is_legal=True),
        *out_of_memory(0),
        *out_of_memory(0, offload="params cpu", recompute="full"),
    ],
    "titan-822-reshard": peaks(0, 1, 2),
    "pai-658-qwen3-235b-256h800": [
        *[Truth(entry=entry, is_legal=True, fits=True) for entry in range(4)],
        *[Truth(entry=entry, given={"vpp": 4}, breaks=("every_stage_holds_something",)) for entry in (0, 1)],
    ],
    # the public recipe: weights in bf16, all layers recomputed
    "automodel-3273-gemma4-31b-frag": peaks(0, recompute="full", optimizer="16-bit Adam", peak_gib=65.67),
    # the public recipe: micro-batch 1, samples of up to 2048 tokens; AutoModel trains no next-token module
    "automodel-2600-qwen35-35b-ac": [
        Truth(entry=0, given=QWEN35, is_tight=True),
        Truth(entry=1, given={**QWEN35, "peak_gib": 56.3}, fits=True, is_legal=True, matches_peak=True),
        Truth(entry=2, given={**QWEN35, "peak_gib": 48}, fits=True, matches_peak=True),
    ],
    "s1-13-32b-8vs16": [
        *out_of_memory(0, 2, 3),
        Truth(entry=1, fits=True, is_legal=True),
    ],
    "automodel-2673-70b-attempts": [
        *out_of_memory(0, 1, 2, 3, 5),
        Truth(entry=4, fits=True, is_legal=True),
        Truth(entry=6, fits=True, is_legal=True),
    ],
    "verl-dsv3-96gpu-pp12": [Truth(is_legal=True), Truth(limits=EVEN, breaks=("layers_divide_over_stages",))],
    "verl-qwen3-235b-32gpu": [
        Truth(given={"pp_layers": [11, 12, 12, 12, 12, 12, 12, 11]}, is_legal=True),
        Truth(limits=EVEN, breaks=("layers_divide_over_stages",)),
    ],
}  # fmt: skip


@dataclass(frozen=True)
class Disagreement:
    """What the planner says where a case says something else, and why."""

    reason: str
    verdict: Truth


def cap(entry: int, longest: int) -> Disagreement:
    """The case gives the length at which samples are cut; the planner says how long they can be."""
    reason = "The length is the cap of a sample; the batches that ran were shorter (the planner says how long"
    return Disagreement(
        f"{reason} they can be: {longest} tokens).", Truth(entry=entry, is_legal=True, longest=longest)
    )


QWEN35_STATES = (
    "fp32 weights, gradients and two moments of all 34.7 B parameters are 64.6 GiB on each of 8 GPUs; the "
    "runs peaked below that, so part of their states had fewer bytes (12 to 14 a parameter would do)."
)
DISAGREE: dict[tuple[str, int], Disagreement] = {
    ("openrlhf-851-70b-zero2", 1): cap(1, 1728),
    ("s1-13-32b-8vs16", 1): cap(1, 14_400),
    ("automodel-2394-gptoss120b-gb200", 4): Disagreement(
        "Twice the micro-batch of another row and no more memory: its loss was cheaper than whole logits "
        "(221 GB) and dearer than logits in chunks (95 GB); the case does not say which it was.",
        Truth(entry=4, peak_lies_between_losses=True),
    ),
    ("automodel-2600-qwen35-35b-ac", 1): Disagreement(
        QWEN35_STATES, Truth(entry=1, given=QWEN35, fits=True, is_legal=True)
    ),
    ("automodel-2600-qwen35-35b-ac", 2): Disagreement(
        QWEN35_STATES, Truth(entry=2, given={**QWEN35, "peak_gib": 48}, fits=False)
    ),
    ("automodel-2546-hy3-64gpu-pp8", 0): Disagreement(
        "The run kept the experts whole on every expert rank (more replicas do not shard them, says the "
        "recipe); ZeRO-3 here shards them over the replicas as well.",
        Truth(given={**HY3, "dp": 16}, fits=True, is_legal=True),
    ),
}
"""Case and configuration where the planner says something else than the case."""

OUT_OF_REACH: dict[str, str] = {}
"""High-confidence cases that the planner does not model."""

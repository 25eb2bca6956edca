"""Medium-confidence cases: statements that their inputs carry, and why the rest is left out or disagrees."""

from __future__ import annotations

from case_truths import HOST, HY3, SHORT, Truth, out_of_memory

THREE_RANKS = {"tp": 3, "heads": 24, "ffn": 12288, "lift_domain": True}
SEQUENCE = "sequence_divides_over_sequence_ranks"

MEDIUM_TRUTHS: dict[str, list[Truth]] = {
    "isee-91-qwen35-kv2-tp4": [
        Truth(is_legal=True),
        Truth(given={"framework": "torchtitan"}, breaks=("kv_heads_divide_over_tensor_ranks",)),
    ],
    # the sequence is a multiple of cp lcm(2, tp): 8 for cp 2 tp 4, 16 for cp 4 tp 4, 12 for cp 2 tp 3
    "nemorl-3563-cp-tp-lcm": [
        Truth(given={"seq_len": 4104}, is_legal=True),
        Truth(given={"seq_len": 4100}, breaks=(SEQUENCE,)),
        Truth(given={"seq_len": 4112, "cp": 4}, is_legal=True),
        Truth(given={"seq_len": 4104, "cp": 4}, breaks=(SEQUENCE,)),
        Truth(given={"seq_len": 4104, **THREE_RANKS}, is_legal=True),
        Truth(given={"seq_len": 4098, **THREE_RANKS},
              breaks=("sequence_divides_over_context_ranks",)),
    ],
    "sglang-2591-tp14": [
        Truth(breaks=("attention_heads_divide_over_tensor_ranks",
                      "tensor_ranks_stay_inside_the_fast_domain")),
        Truth(given={"tp": 2, "pp": 7, "etp": 1}, is_legal=True),
    ],
    "titan-775-mb-lt-pp": [
        Truth(given={"pp": 4, "num_microbatches": 2}, breaks=("microbatches_cover_the_pipeline",)),
        Truth(given={"pp": 4, "num_microbatches": 4}, is_legal=True),
    ],
    "mbridge-hcp-8kv-128k": [
        Truth(entry=0, given={"cp_comm": "a2a"}, breaks=("heads_divide_over_all_to_all_ranks",)),
        Truth(entry=1, is_legal=True),
        Truth(entry=2, is_legal=True),
    ],
    "verl-dsv3-256h100": [Truth(is_legal=True)],
    "titan-481-405b-128h100": [Truth(is_legal=True, fits=True)],
    "linly-83-7b-offload-init": [Truth(given={"num_gpus": 8}, breaks=(HOST,))],
    # 14 GB a card, of which the planner sees 8: adapters and their state are left out
    "axolotl-1428-70b-qlora-fsdp": [Truth(fits=True, is_legal=True)],
    "nnscaler-7-70b-32a40": out_of_memory(0, zero=3, dp=32),
    "mbridge-minimax-ep": out_of_memory(0, 1),
    "colossal-5139-70b-32gpu": [Truth(given={"recompute": "full"}, fits=True)],
    # experts gathered and kept through the forward pass are ZeRO-2's, resharded ones ZeRO-3's
    "automodel-2577-nano-v3-epshard": [
        *out_of_memory(0, zero=2, mbs=1, seq_len=SHORT),
        Truth(entry=1, given={"zero": 3, "mbs": 1, "seq_len": SHORT}, fits=True, is_legal=True),
    ],
    "automodel-2546-hy3-32gpu": [
        Truth(given={**HY3, "dp": 8, "peak_gib": 74.7}, is_tight=True, matches_peak=True),
    ],
    "automodel-2546-hy3-64gpu-pp8": [
        Truth(entry=0, given={**HY3, "dp": 16}, fits=False),
        Truth(entry=1, given={**HY3, "dp": 16}, fits=True),
        Truth(entry=2, given={**HY3, "dp": 8, "peak_gib": 41.8}, fits=True, is_legal=True, matches_peak=True),
    ],
    "mbridge-5508-qwen35vl-fsdp": [Truth(entry=1, given={"ep": 2}, fits=True, is_legal=True)],
    "ds-912-100b-zero2-offload": [
        Truth(given={"host_ram_gb": 250, "lift_domain": True}, breaks=(HOST,)),
    ],
}  # fmt: skip

COMPRESSED = "DeepSeek-V4's attention compresses and selects tokens, which no model here can say."

MEDIUM_OUT_OF_REACH: dict[str, str] = {
    "automodel-2603-qwen35-9b-logits": (
        "The lengths of its samples, which decide between 38 GiB and more than 77, are not stated."
    ),
    "automodel-3962-dsv41-flash-h100": COMPRESSED,
    "mbridge-dsv4-h100-32": COMPRESSED,
    "ds-5484-lora13b-v100": "The length of its sequences is not stated.",
    "torchtune-389-7b-16gb": "Fused-in-backward and paged optimizers; SGD's state is tested by itself.",
    "lcb-100-7b-8x3090-init": "Memory while loading, before the first step.",
    "slime-1851-30ba3b-ram": "Reinforcement learning: the rollout engine shares the host.",
    "mlm-1757-mixed-3080-4090": "Mixed cards in one cluster.",
    "mlm-5728-qwen3-moe-refs": "Throughput references without a plan.",
    "rocmte-79-l3-8b-fp8": "A stack that caches FP8 weights and transposes beside the 16-bit ones.",
}
"""Medium-confidence cases that the planner does not model."""

MEDIUM_REASONS: dict[str | tuple[str, int], str] = {
    "mbridge-5508-qwen35vl-fsdp": (
        "Megatron-FSDP's double-buffered pools, fp32 gradients on the wire and the vision tower are not in "
        "the planner's figure."
    ),
    ("titan-1789-dsv3-16b", 2): (
        "The run filled 96 % of its memory (82 GB); the planner is 13 % above, for all experts on every GPU."
    ),
    "automodel-2609-qwen3-logits": "The sequence length is not stated; the model's own was assumed.",
    "titan-1789-dsv3-16b": "The lowered micro-batch is not stated (7 would meet the peak); 4 was assumed.",
    "mbridge-offload-30ba3b": "Neither GPUs, batch nor sequence are stated.",
    "titan-820-fp8-ac-abs": "The run had a defect that saved copies of the weights, as the case says.",
    "mlm-1031-70b-128h100": "Neither recompute nor sequence length are stated for this row.",
    "colossal-5139-70b-32gpu": "The cards are not stated; the case concludes that 80 GB would do.",
    "neox-892-20b-8xa100-80": "Recompute is not stated; the planner's figure is without.",
}
"""Why the planner disagrees with a medium-confidence case, or with one configuration of it."""

"""Words for settings and cost terms, shared by tables and sentences."""

from __future__ import annotations

from planner.spec import Plan
from planner.spec.plan import DEFAULT_ORDER

TIME_WORDS = {
    "gemm_s": "matrix products",
    "attention_s": "attention",
    "scan_s": "scan of linear mixers",
    "elementwise_s": "elementwise kernels",
    "embedding_and_loss_s": "embedding and loss",
    "recompute_s": "recomputation",
    "tensor_comm_s": "tensor-parallel communication",
    "context_comm_s": "context-parallel communication",
    "expert_comm_s": "expert all-to-all",
    "pipeline_comm_s": "pipeline sends",
    "bubble_s": "pipeline bubble",
    "data_comm_s": "gradient and weight synchronisation",
    "optimizer_s": "optimizer step",
    "offload_s": "offload traffic",
    "host_s": "host and launch overhead",
    "straggler_s": "stragglers",
}

MEMORY_WORDS = {
    "weights_bytes": "weights",
    "gradients_bytes": "gradients",
    "optimizer_bytes": "optimizer state",
    "activations_bytes": "activations",
    "loss_bytes": "logits and loss",
    "transient_bytes": "transient buffers",
    "framework_bytes": "framework buffers",
    "fragmentation_bytes": "fragmentation",
    "context_bytes": "CUDA context and communicators",
}

LINEAR_MIXER_WORDS = {
    "mamba2": "Mamba-2",
    "gated_delta": "gated delta net",
    "kimi_delta": "Kimi delta attention",
}

LETTERS = {
    "tensor_parallel": "t",
    "pipeline_parallel": "p",
    "virtual_stages": "v",
    "data_parallel": "d",
    "context_parallel": "c",
    "expert_parallel": "e",
    "expert_tensor_parallel": "etp",
    "zero_stage": "zero",
    "shard_group_size": "shard",
    "micro_batch": "b",
    "num_microbatches": "m",
}


def time_words(term: str) -> str:
    """Name of a time term in words."""
    return TIME_WORDS.get(term, term.removesuffix("_s").replace("_", " "))


def memory_words(term: str) -> str:
    """Name of a memory term in words."""
    return MEMORY_WORDS.get(term, term.removesuffix("_bytes").replace("_", " "))


def setting_words(field: str, value: object) -> str:
    """One setting as people write it: ``t=8``, ``schedule 1f1b``, ``sequence parallel on``."""
    if field in LETTERS:
        return f"{LETTERS[field]}={value}"
    if isinstance(value, bool):
        return f"{field.replace('_', ' ')} {'on' if value else 'off'}"
    return f"{field.replace('_', ' ')} {value}"


def plan_words(plan: Plan) -> str:
    """One line that names a plan: the degrees above one, batch split, schedule and recompute."""
    words = [f"t={plan.tensor_parallel}", f"p={plan.pipeline_parallel}"]
    if plan.virtual_stages > 1:
        words.append(f"v={plan.virtual_stages}")
    words.append(f"d={plan.data_parallel}")
    words += [
        f"{LETTERS[field]}={getattr(plan, field)}"
        for field in ("context_parallel", "expert_parallel", "expert_tensor_parallel")
        if getattr(plan, field) > 1
    ]
    words += [f"ZeRO-{plan.zero_stage}", f"b={plan.micro_batch}", f"m={plan.num_microbatches}"]
    if plan.pipeline_parallel > 1:
        words.append(plan.schedule)
    if plan.recompute != "none":
        words.append(f"{plan.recompute} recompute")
    if plan.offload != "none":
        words.append(f"{plan.offload} offload")
    if plan.precision != "bf16":
        words.append(plan.precision)
    if plan.rank_order != DEFAULT_ORDER:
        words.append(plan.rank_order)
    return " ".join(words)

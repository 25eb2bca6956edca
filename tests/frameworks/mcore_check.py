"""Run megatron-core's own checks on an emitted argument file, without GPUs: config, groups, batch, model.

Norms and core attention are replaced by identities because Transformer Engine is not there; everything that
megatron-core decides about shapes, splits and groups stays its own.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from planner.frameworks.shell import read_flags
from planner.spec import Plan
from planner.spec.ranks import groups

CONFIG_NAMES = {
    "num_experts": "num_moe_experts",
    "num_virtual_stages_per_pipeline_rank": "virtual_pipeline_model_parallel_size",
}
WHOLE = {
    "tensor_model_parallel_size", "pipeline_model_parallel_size",
    "virtual_pipeline_model_parallel_size", "context_parallel_size", "expert_model_parallel_size",
    "expert_tensor_parallel_size", "num_layers", "hidden_size", "ffn_hidden_size",
    "num_attention_heads", "num_query_groups", "kv_channels", "num_moe_experts", "moe_router_topk",
    "moe_ffn_hidden_size", "moe_shared_expert_intermediate_size", "q_lora_rank", "kv_lora_rank",
    "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim", "mtp_num_layers", "recompute_num_layers",
}  # fmt: skip
WORDS = {
    "cp_comm_type", "pipeline_model_parallel_layout", "recompute_granularity", "recompute_method",
    "moe_token_dispatcher_type", "normalization",
}  # fmt: skip
FLAGS = {"sequence_parallel", "bf16", "fp16", "moe_grouped_gemm"}


def arguments(source: str) -> dict[str, Any]:
    """The emitted flags as parser names and values."""
    return {
        entry.key.removeprefix("--").replace("-", "_"): entry.value for entry in read_flags(source, "args.sh")
    }


def config_fields(said: dict[str, Any]) -> dict[str, Any]:
    """Fields of TransformerConfig from parser names."""
    fields: dict[str, Any] = {}
    for name, value in said.items():
        field = CONFIG_NAMES.get(name, name)
        if field in WHOLE:
            fields[field] = int(value)
        elif field in WORDS:
            fields[field] = value
        elif field in FLAGS:
            fields[field] = True
    if "recompute_modules" in said:
        value = said["recompute_modules"]
        fields["recompute_modules"] = value if isinstance(value, list) else [value]
    fields["moe_layer_freq"] = _pattern(said.get("moe_layer_freq", "1"))
    fields |= {
        "add_bias_linear": False,
        "gated_linear_unit": "swiglu" in said,
        "use_cpu_initialization": True,
    }
    fields |= {
        "perform_initialization": False,
        "gradient_accumulation_fusion": False,
        "persist_layer_norm": False,
    }
    fields |= {"bias_dropout_fusion": False, "apply_rope_fusion": False, "hidden_dropout": 0.0}
    return fields


def _pattern(word: str) -> Any:
    """As the parser reads it: a number, or a Python expression of lists."""
    return eval(word, {"__builtins__": {}})  # our own output; the real parser does the same


def verdict(source: str, world: int, ranks: list[int] | None = None, plan: Plan | None = None) -> str | None:
    """Return None when megatron-core accepts the arguments, else its complaint.

    With ``plan``, the process groups have to be those of the rank map.
    """
    said = arguments(source)
    try:
        with without_cuda():
            _check(said, world, ranks, plan)
    except (AssertionError, ValueError, RuntimeError, ZeroDivisionError, TypeError) as error:
        return f"{type(error).__name__}: {error}"
    finally:
        _close()
    return None


@contextmanager
def without_cuda() -> Iterator[None]:
    """Stand-ins for what megatron-core asks of CUDA while it builds a model."""
    import torch
    from megatron.core.transformer import multi_latent_attention

    linear = type("TELinear", (), {})
    with (
        mock.patch.object(multi_latent_attention, "TELinear", linear),
        mock.patch.object(torch.Tensor, "cuda", lambda tensor, *_: tensor),
        mock.patch.object(torch.cuda, "current_device", lambda: "cpu"),
        mock.patch.object(torch.cuda, "Stream", type("Stream", (), {})),
    ):
        yield


def _check(said: dict[str, Any], world: int, ranks: list[int] | None, plan: Plan | None) -> None:
    import torch
    from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig

    fields = config_fields(said)
    if fields.get("pipeline_model_parallel_size", 1) > 1:
        fields["pipeline_dtype"] = torch.bfloat16
    if fields.get("bf16"):
        fields["params_dtype"] = torch.bfloat16
    kind = MLATransformerConfig if "multi_latent_attention" in said else TransformerConfig
    if kind is MLATransformerConfig:
        fields |= {"multi_latent_attention": True, "rope_type": "rope"}
    else:
        for name in ("q_lora_rank", "kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim"):
            fields.pop(name, None)
    config = kind(**fields)
    config.moe_grouped_gemm = False  # its own checks are done; the kernels' package needs CUDA
    p = config.pipeline_model_parallel_size
    stages = sorted({0, p // 2, p - 1}) if ranks is None else ranks
    for stage in stages:
        _one_rank(said, copy.deepcopy(config), world, stage, plan)


def _one_rank(said: dict[str, Any], config: Any, world: int, stage: int, plan: Plan | None) -> None:
    """Groups, batch and model chunks of one pipeline rank."""
    import torch.distributed as dist
    from megatron.core import parallel_state
    from megatron.core.num_microbatches_calculator import init_num_microbatches_calculator
    from torch.testing._internal.distributed.fake_pg import FakeStore

    _close()
    far = "use_tp_pp_dp_mapping" in said
    near = config.tensor_model_parallel_size * config.context_parallel_size
    rank = stage * (near if far else world // config.pipeline_model_parallel_size)
    dist.init_process_group("fake", store=FakeStore(), rank=min(rank, world - 1), world_size=world)
    parallel_state.initialize_model_parallel(
        config.tensor_model_parallel_size,
        config.pipeline_model_parallel_size,
        config.virtual_pipeline_model_parallel_size,
        context_parallel_size=config.context_parallel_size,
        expert_model_parallel_size=config.expert_model_parallel_size,
        expert_tensor_parallel_size=config.expert_tensor_parallel_size,
        order="tp-cp-ep-pp-dp" if far else "tp-cp-ep-dp-pp",
        num_distributed_optimizer_instances=int(said.get("num_distributed_optimizer_instances", 1)),
        create_gloo_process_groups=False,
    )
    replicas = parallel_state.get_data_parallel_world_size()
    batch, micro = int(said["global_batch_size"]), int(said["micro_batch_size"])
    init_num_microbatches_calculator(0, None, batch, micro, replicas)
    if plan is not None:
        compare_groups(plan, rank, "num_experts" in said)
    build_chunks(said, config)


def compare_groups(plan: Plan, rank: int, has_experts: bool) -> None:
    """The groups of a rank are those of the rank map.

    Raises
    ------
    RuntimeError
        Two groups differ.
    """
    import torch.distributed as dist
    from megatron.core import parallel_state

    theirs = {
        "tensor": parallel_state.get_tensor_model_parallel_group(),
        "context": parallel_state.get_context_parallel_group(),
        "data": parallel_state.get_data_parallel_group(),
        "pipeline": parallel_state.get_pipeline_model_parallel_group(),
    }
    if has_experts:
        theirs["expert"] = parallel_state.get_expert_model_parallel_group()
        theirs["expert_tensor"] = parallel_state.get_expert_tensor_parallel_group()
        theirs["expert_data"] = parallel_state.get_expert_data_parallel_group()
    for name, group in theirs.items():
        ours = next(members for members in groups(plan, name) if rank in members)
        if dist.get_process_group_ranks(group) != ours:
            raise RuntimeError(f"{name}: {dist.get_process_group_ranks(group)} here, {ours} in the rank map")


def build_chunks(said: dict[str, Any], config: Any) -> None:
    """Build every model chunk of this rank on the meta device."""
    import torch
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec, get_gpt_mtp_block_spec
    from megatron.core.transformer.identity_op import IdentityOp

    t = config.tensor_model_parallel_size
    vocab = -(-int(said["vocab_size"]) // (128 * t)) * 128 * t
    virtual = config.virtual_pipeline_model_parallel_size
    stages = range(virtual) if virtual else [None]
    for vp_stage in stages:
        block = get_gpt_decoder_block_spec(config, use_transformer_engine=False, vp_stage=vp_stage)
        block.layer_norm = IdentityOp
        # layers of one kind are the same module: one of each is enough to see its shapes refused
        block.layer_specs = list({layer.submodules.mlp.module: layer for layer in block.layer_specs}.values())
        for layer in block.layer_specs:
            parts = layer.submodules
            parts.input_layernorm = parts.pre_mlp_layernorm = IdentityOp
            parts.self_attention.submodules.core_attention = IdentityOp
        mtp = None
        if config.mtp_num_layers and block.layer_specs:
            mtp = get_gpt_mtp_block_spec(config, block, use_transformer_engine=False, vp_stage=vp_stage)
        for layer in mtp.layer_specs if mtp else ():
            parts = layer.submodules
            parts.enorm = parts.hnorm = parts.layer_norm = IdentityOp
        first, last = _ends(vp_stage)
        with torch.device("meta"):
            GPTModel(
                config,
                block,
                vocab,
                int(said["max_position_embeddings"]),
                pre_process=first,
                post_process=last,
                share_embeddings_and_output_weights="untie_embeddings_and_output_weights" not in said,
                position_embedding_type="rope",
                mtp_block_spec=mtp,
                vp_stage=vp_stage,
            )


def _ends(vp_stage: int | None) -> tuple[bool, bool]:
    from megatron.core import parallel_state

    first = parallel_state.is_pipeline_first_stage(ignore_virtual=False, vp_stage=vp_stage)
    return first, parallel_state.is_pipeline_last_stage(ignore_virtual=False, vp_stage=vp_stage)


def _close() -> None:
    """Leave the fake world, whatever state the last check left it in."""
    import torch.distributed as dist
    from megatron.core import parallel_state
    from megatron.core.num_microbatches_calculator import unset_num_microbatches_calculator

    unset_num_microbatches_calculator()
    parallel_state.destroy_model_parallel()
    if dist.is_initialized():
        dist.destroy_process_group()

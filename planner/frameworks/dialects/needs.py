"""What the settings of trainers around Accelerate and DeepSpeed need of each other: their own checks.

References: axolotl src/axolotl/utils/schemas/{validation,peft,config}.py and utils/distributed.py;
LLaMA-Factory src/llamafactory/hparams/{parser,finetuning_args}.py and model/model_utils/quantization.py;
NeMo-RL models/policy/lm_policy.py, models/automodel/{setup,data}.py, models/megatron/setup.py;
transformers ``Trainer.create_accelerator_and_postprocess``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from planner.errors import BadInput
from planner.frameworks.deepspeed.read import sharding_of
from planner.frameworks.launch import Found, LaunchFile
from planner.frameworks.needs import Need

_BNB_8BIT = ("optimizer=adamw_8bit", "optimizer=adamw_bnb_8bit")
_FSDP2 = ("fsdp_version=2", "fsdp_config.fsdp_version=2")
_OFFLOADED = ("fsdp_config.offload_params", "fsdp_config.fsdp_offload_params")
_QUANTIZED = ("load_in_8bit", "load_in_4bit")
_FLASH = (
    "flash_attention",
    "attn_implementation=flash_attention_2",
    "attn_implementation=flash_attention_3",
    "attn_implementation=kernels-community/flash-attn2",
    "attn_implementation=kernels-community/flash-attn3",
    "use_glm_dsa_kernels",
)

_AXOLOTL: tuple[Need, ...] = (
    Need("dp_shard_size>1", needs=("fsdp_config", "fsdp")),
    Need("deepspeed", excludes=("fsdp",)),
    Need("load_in_4bit", needs=("adapter",)),
    Need("load_in_8bit", needs=("adapter",)),
    Need("adapter=qlora", needs=("load_in_4bit",)),
    Need("tensor_parallel_size>1", excludes=("optimizer=paged_adamw_8bit", *_BNB_8BIT)),
    *(Need(optimizer, excludes=_FSDP2, when=("fsdp_config",)) for optimizer in _BNB_8BIT),
    *(
        Need(offloaded, needs=_FSDP2, when=(f"optimizer={name}",))
        for offloaded in _OFFLOADED
        for name in ("adamw_8bit", "adamw_bnb_8bit", "paged_adamw_8bit", "adamw_torch_8bit")
    ),
    *(
        need
        for split in ("context_parallel_size>1", "sequence_parallel_degree>1")
        for need in (
            Need(split, needs=_FLASH),
            Need(split, excludes=("micro_batch_size>1",), when=("sample_packing",)),
        )
    ),
    *(Need(_FSDP2[0], excludes=_QUANTIZED, when=(f"rl={loss}",)) for loss in ("dpo", "kto", "orpo", "ipo")),
    Need("sample_packing", excludes=("rl",)),
    Need("activation_offloading", needs=("gradient_checkpointing",)),
    Need("optimizer=muon", excludes=("deepspeed",)),
    Need("optimizer=muon", needs=_FSDP2, when=("fsdp_config",)),
)
_LLAMA_FACTORY: tuple[Need, ...] = (
    Need("quantization_bit>0", excludes=("finetuning_type=full", "finetuning_type=freeze")),
    Need("quantization_bit=8", excludes=("zero_stage=3", "fsdp")),
    Need("quantization_bit>0", excludes=("zero_stage=3",), when=("quantization_method=hqq",)),
    Need("pure_bf16", excludes=("zero_stage=3",)),
    Need("use_unsloth", excludes=("zero_stage=3",)),
    Need("predict_with_generate", excludes=("zero_stage=3",)),
    Need("use_galore", excludes=("deepspeed", "finetuning_type=lora")),
    Need("use_apollo", excludes=("deepspeed", "finetuning_type=lora")),
    Need("use_badam", excludes=("finetuning_type=lora",)),
    Need("fp8", excludes=("quantization_bit>0",)),
    *(Need("neat_packing", excludes=(f"stage={stage}",)) for stage in ("pt", "rm", "ppo", "dpo", "kto")),
)
_TRAINER: tuple[Need, ...] = (
    Need(
        "gradient_checkpointing",
        excludes=("fsdp_config.activation_checkpointing", "fsdp_config.fsdp_activation_checkpointing"),
    ),
    Need("fsdp", excludes=("deepspeed",)),
)


_D, _M = "policy.dtensor_cfg.", "policy.megatron_cfg."
_PACKED = "policy.sequence_packing.enabled"
NEMO_RL: tuple[Need, ...] = (
    Need(_D + "context_parallel_size>1", excludes=(_PACKED,), when=(_D + "enabled",)),
    Need(
        _D + "context_parallel_size>1",
        excludes=(_D + "sequence_parallel",),
        when=(_D + "enabled", _D + "tensor_parallel_size>1"),
    ),
    Need(
        _M + "context_parallel_size>1",
        excludes=(_M + "use_fused_linear_logprobs",),
        when=(_M + "enabled",),
    ),
    Need(_M + "enabled", excludes=(_D + "enabled",)),
    Need(
        "policy.dynamic_batching.enabled",
        excludes=(_M + "pipeline_model_parallel_size>1",),
        when=(_M + "enabled",),
    ),
    Need("policy.dynamic_batching.enabled", excludes=(_PACKED,)),
)
"""By whole names: the recipe says everything, its ``defaults`` included."""


def _of(trainer: str, needs: tuple[Need, ...]) -> tuple[Need, ...]:
    """Needs of a trainer that is known by one of its settings."""
    return tuple(replace(need, within=trainer) for need in needs)


TRAINERS: tuple[Need, ...] = (
    *_of("base_model", _AXOLOTL),
    *_of("model_name_or_path", _LLAMA_FACTORY),
    *_of("per_device_train_batch_size", _TRAINER),
)


def implied(launch: LaunchFile) -> Iterator[tuple[str, Found]]:
    """Yield what the settings say together: sections that are there, and the ZeRO stage, named by a file."""
    for entry in launch.found:
        section, dot, _ = entry.key.partition(".")
        if dot and entry.value is not None:
            yield section, Found(section, True, entry.path, entry.line)
    named = launch.fields.get("config_path")
    if launch.framework == "deepspeed" and named is not None:
        try:
            stage = sharding_of(launch)[0]
        except BadInput:  # in a file that is not there
            return
        yield "zero_stage", Found(named.key, stage, named.path, named.line)

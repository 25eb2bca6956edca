"""Write a plan for Megatron-Bridge: dotted overrides, a recipe that applies them to any model."""

from __future__ import annotations

import json
from typing import Any

from planner.frameworks.bundle import common_files
from planner.frameworks.expressible import refuse
from planner.frameworks.megatron.arguments import all_arguments
from planner.frameworks.megatron.write import environment
from planner.frameworks.megatron.write import inexpressible as megatron_inexpressible
from planner.frameworks.megatron_bridge.profile import PROFILE
from planner.frameworks.scripts import Launch, bash_header
from planner.spec.plan import Plan
from planner.spec.request import PlanRequest

RENAMED = {
    "num_virtual_stages_per_pipeline_rank": "model.virtual_pipeline_model_parallel_size",
    "use_distributed_optimizer": "ddp.use_distributed_optimizer",
    "overlap_grad_reduce": "ddp.overlap_grad_reduce",
    "overlap_param_gather": "ddp.overlap_param_gather",
    "use_megatron_fsdp": "ddp.use_megatron_fsdp",
    "data_parallel_sharding_strategy": "ddp.data_parallel_sharding_strategy",
    "num_distributed_optimizer_instances": "ddp.num_distributed_optimizer_instances",
    "ckpt_format": "checkpoint.ckpt_format",
    "optimizer_cpu_offload": "optimizer.optimizer_cpu_offload",
    "use_precision_aware_optimizer": "optimizer.use_precision_aware_optimizer",
    "micro_batch_size": "train.micro_batch_size",
    "global_batch_size": "train.global_batch_size",
    "num_experts": "model.num_moe_experts",
    "ffn_hidden_size": "model.ffn_hidden_size",
}
"""Parser's name to Bridge's place, where it is not ``model.<same name>``."""

CONSTANTS: dict[str, tuple[tuple[str, Any], ...]] = {
    "no_gradient_accumulation_fusion": (("model.gradient_accumulation_fusion", False),),
    "swiglu": (("model.gated_linear_unit", True),),
    "disable_bias_linear": (("model.add_bias_linear", False),),
    "untie_embeddings_and_output_weights": (("model.share_embeddings_and_output_weights", False),),
    "group_query_attention": (),
    "squared_relu": (),
    "max_position_embeddings": (),
    "vocab_size": (),
    "bf16": (),
    "fp16": (),
    "fp8_format": (),
    "fp8_recipe": (),
    "fp4_format": (),
}
"""Flags that Bridge says otherwise, or that the model provider and mixed_precision already say."""

MIXED_PRECISION = {
    "bf16": "bf16_mixed",
    "fp16": "fp16_mixed",
    "fp8": "bf16_with_fp8_current_scaling_mixed",
    "mxfp8": "bf16_with_mxfp8_mixed",
    "nvfp4": "bf16_with_nvfp4_mixed",
}
"""Names of Bridge's mixed-precision recipes."""


def inexpressible(plan: Plan, request: PlanRequest) -> list[str]:
    """Return, in words, everything of the plan that Bridge has no field for."""
    problems = megatron_inexpressible(plan, request, PROFILE)
    if plan.precision not in MIXED_PRECISION:
        problems.append(f"Bridge has no mixed-precision recipe for {plan.precision}")
    return problems


def overrides(plan: Plan, request: PlanRequest) -> dict[str, Any]:
    """Return Bridge's dotted fields and their values."""
    fields: dict[str, Any] = {}
    groups = all_arguments(plan, request)
    for arguments in groups.values():
        for name, value in arguments.items():
            if name in CONSTANTS:
                fields |= dict(CONSTANTS[name])
            else:
                fields[RENAMED.get(name, f"model.{name}")] = value
    if "model.moe_layer_freq" in fields:
        fields["model.moe_layer_freq"] = [int(kind.moe) for kind in request.model.layer_kinds]
    fields["dataset.sequence_length"] = request.workload.seq_length
    if plan.precision in MIXED_PRECISION:
        fields["mixed_precision"] = MIXED_PRECISION[plan.precision]
    if plan.pipeline_parallel > 1:
        fields["model.pipeline_dtype"] = "fp16" if plan.precision == "fp16" else "bf16"
    fields["model.vocab_size"] = request.model.vocab_size
    return fields


def write(plan: Plan, request: PlanRequest) -> dict[str, str]:
    """Return file names and contents that start the plan with Megatron-Bridge.

    Raises
    ------
    BadInput
        Something in the plan has no field.
    """
    refuse(PROFILE.name, inexpressible(plan, request))
    launch = Launch(
        version=PROFILE.version,
        command='"$HERE/train.py" "$@"',
        environment=environment(plan, request),
    )
    steps = [
        "Install megatron-bridge with its containers' dependencies (Transformer Engine).",
        "`train.py` builds the model from `overrides.txt`; a recipe takes the same lines as CLI overrides.",
    ]
    notes = ["Parameters of the optimizer and the data set are placeholders: set them in `train.py`."]
    return {
        "overrides.txt": overrides_file(plan, request),
        "train.py": _TRAIN,
        **common_files(plan, request, launch, steps, notes),
    }


def overrides_file(plan: Plan, request: PlanRequest) -> str:
    """Return one ``section.field=value`` a line, values as JSON."""
    lines = [f"{name}={json.dumps(value)}" for name, value in overrides(plan, request).items()]
    return bash_header(plan, request, PROFILE.version) + "\n".join([*lines, ""])


_TRAIN = '''"""Train the plan in overrides.txt with Megatron-Bridge. Written by plan-parallel."""

import json
from pathlib import Path

import torch
import torch.nn.functional as F

from megatron.bridge.models.gpt_provider import GPTModelProvider
from megatron.bridge.recipes.utils.optimizer_utils import distributed_fused_adam_with_cosine_annealing
from megatron.bridge.training.config import (
    CheckpointConfig,
    ConfigContainer,
    DistributedDataParallelConfig,
    LoggerConfig,
    MockGPTDatasetConfig,
    RNGConfig,
    TokenizerConfig,
    TrainingConfig,
)
from megatron.bridge.training.gpt_step import forward_step
from megatron.bridge.training.pretrain import pretrain

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def overrides() -> dict:
    """Read section.field=value lines into {section: {field: value}}."""
    found: dict = {}
    for line in Path(__file__).with_name("overrides.txt").read_text().splitlines():
        if "=" in line and not line.startswith("#"):
            name, _, value = line.partition("=")
            section, _, field = name.rpartition(".")
            found.setdefault(section, {})[field] = json.loads(value)
    return found


def config() -> ConfigContainer:
    """The run's configuration."""
    said = overrides()
    model = dict(said["model"])
    if "pipeline_dtype" in model:
        model["pipeline_dtype"] = DTYPES[model["pipeline_dtype"]]
    if model.get("gated_linear_unit"):
        model["activation_func"] = F.silu
    optimizer, scheduler = distributed_fused_adam_with_cosine_annealing(max_lr=3e-4, min_lr=3e-5)
    for name, value in said.get("optimizer", {}).items():
        setattr(optimizer, name, value)
    length = said["dataset"]["sequence_length"]
    return ConfigContainer(
        model=GPTModelProvider(**model),
        train=TrainingConfig(train_iters=100, **said["train"]),
        optimizer=optimizer,
        scheduler=scheduler,
        ddp=DistributedDataParallelConfig(**said.get("ddp", {})),
        dataset=MockGPTDatasetConfig(
            random_seed=1234,
            sequence_length=length,
            reset_position_ids=False,
            reset_attention_mask=False,
            eod_mask_loss=False,
            num_workers=1,
        ),
        logger=LoggerConfig(log_interval=1),
        tokenizer=TokenizerConfig(tokenizer_type="NullTokenizer", vocab_size=model["vocab_size"]),
        checkpoint=CheckpointConfig(**said.get("checkpoint", {})),
        rng=RNGConfig(seed=1234),
        mixed_precision=said[""]["mixed_precision"],
    )


if __name__ == "__main__":
    pretrain(config=config(), forward_step_func=forward_step)
'''

"""Write a plan for Megatron-Bridge: dotted overrides, a recipe that applies them to any model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from planner.frameworks.bundle import common_files
from planner.frameworks.expressible import refuse
from planner.frameworks.launch import has_even_stages, with_stages
from planner.frameworks.megatron.arguments import all_arguments
from planner.frameworks.megatron.hybrid import has_blocks, linear_layers
from planner.frameworks.megatron.write import environment
from planner.frameworks.megatron.write import inexpressible as megatron_inexpressible
from planner.frameworks.megatron_bridge.profile import PROFILE
from planner.frameworks.scripts import Launch, bash_header
from planner.spec.model import Model
from planner.spec.plan import Plan
from planner.spec.request import PlanRequest

RENAMED = {
    "num_virtual_stages_per_pipeline_rank": "model.virtual_pipeline_model_parallel_size",
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
    "use_tp_pp_dp_mapping": "dist.use_tp_pp_dp_mapping",
    "num_experts": "model.num_moe_experts",
    "ffn_hidden_size": "model.ffn_hidden_size",
    "hybrid_layer_pattern": "model.hybrid_override_pattern",
}
"""Parser's name to Bridge's place, where it is not ``model.<same name>``."""

CONSTANTS: dict[str, tuple[tuple[str, Any], ...]] = {
    "no_gradient_accumulation_fusion": (("model.gradient_accumulation_fusion", False),),
    "swiglu": (("model.gated_linear_unit", True),),
    "disable_bias_linear": (("model.add_bias_linear", False),),
    "untie_embeddings_and_output_weights": (("model.share_embeddings_and_output_weights", False),),
    "group_query_attention": (),
    "squared_relu": (),
    "use_distributed_optimizer": (),
    "max_position_embeddings": (),
    "vocab_size": (),
    "spec": (),
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

ACTIVATIONS = {
    "swiglu": "silu",
    "geglu": "gelu",
    "gelu": "gelu",
    "relu": "relu",
    "squared_relu": "squared_relu",
}
"""The model's activation to the function of that name in ``train.py``."""

PLACEHOLDER = 'ACTIVATION = "silu"'


LOW_PRECISION: dict[str, dict[str, Any]] = {
    "fp8": {
        "fp8_param_gather": False,
        "first_last_layers_bf16": False,
        "num_layers_at_start_in_bf16": 0,
        "num_layers_at_end_in_bf16": 0,
    },
    "mxfp8": {"fp8_param_gather": False, "reuse_grad_buf_for_mxfp8_param_ag": False},
    "nvfp4": {"fp8_param_gather": False},
}
"""What the recipe of a number format would do beyond the products: 16-bit weights are stored, and every
layer is in the format."""


def inexpressible(plan: Plan, request: PlanRequest) -> list[str]:
    """Return, in words, everything of the plan that Bridge has no field for."""
    problems = megatron_inexpressible(plan, request, PROFILE)
    if plan.precision not in MIXED_PRECISION:
        problems.append(f"Bridge has no mixed-precision recipe for {plan.precision}")
    return problems + _hybrid_problems(plan, request.model)


def _hybrid_problems(plan: Plan, model: Model) -> list[str]:
    """Say what Bridge 0.3.1 (megatron-core 0.16) cannot of a hybrid model that Megatron-LM can."""
    problems = []
    if model.linear_mixer == "gated_delta" and plan.context_parallel > 1:
        problems.append("Bridge's gated delta net has no context parallelism")
    if not has_blocks(model):
        return problems
    if plan.virtual_stages > 1 or not has_even_stages(with_stages(plan, model)):
        problems.append("Bridge splits the layers of a hybrid model evenly, one chunk a rank")
    if plan.recompute == "full":
        problems.append("Bridge's hybrid model recomputes no whole layers")
    if model.mtp_depth:
        problems.append("Bridge trains no next-token modules of a hybrid model")
    if model.linear_mixer == "gated_delta":
        problems.append("Bridge's hybrid model has Mamba-2 and no gated delta net")
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
    fields |= _layer_lists(fields, request.model)
    fields["dataset.sequence_length"] = request.workload.seq_length
    if plan.precision in MIXED_PRECISION:
        fields["mixed_precision"] = MIXED_PRECISION[plan.precision]
    if plan.pipeline_parallel > 1:
        fields["model.pipeline_dtype"] = "fp16" if plan.precision == "fp16" else "bf16"
    fields["model.vocab_size"] = request.model.vocab_size
    fields["model.should_pad_vocab"] = True
    return fields | _state(plan, request)


def _layer_lists(fields: dict[str, Any], model: Model) -> dict[str, Any]:
    """What Megatron's flags say of the layers as text, as Bridge's fields hold it."""
    lists: dict[str, Any] = {}
    if "model.moe_layer_freq" in fields:
        lists["model.moe_layer_freq"] = [int(kind.moe) for kind in model.layer_kinds]
    if "model.window_size" in fields:
        lists["model.window_size"] = [int(side) for side in fields["model.window_size"].split(",")]
    if isinstance(fields.get("model.window_attn_skip_freq"), str):
        lists["model.window_attn_skip_freq"] = [int(kind.window is not None) for kind in model.layer_kinds]
    if isinstance(fields.get("model.linear_attention_freq"), str):
        lists["model.linear_attention_freq"] = linear_layers(model)
    if "model.hybrid_override_pattern" in fields:
        lists["model.hybrid_override_pattern"] = fields["model.hybrid_override_pattern"].replace("|", "")
        lists["model.apply_rope_fusion"] = False  # its default, though it has no rotary positions
    return lists


def _state(plan: Plan, request: PlanRequest) -> dict[str, Any]:
    """How state is kept: sharded or not, gradients in 16 bits, weights as the profile counts them.

    Bridge's Adam shards by itself, and its recipes reduce in fp32 and store FP8 weights unless told.
    """
    sharded = plan.zero_stage > 0
    fields: dict[str, Any] = {
        "ddp.use_distributed_optimizer": sharded,
        "optimizer.use_distributed_optimizer": sharded,
        "mixed_precision.grad_reduce_in_fp32": False,
    }
    stores_fp8 = request.framework.memory.fp8_weight_bytes is not None  # NeMo's recipes: the profile says so
    if plan.precision in LOW_PRECISION and not stores_fp8:
        fields |= {f"mixed_precision.{name}": value for name, value in LOW_PRECISION[plan.precision].items()}
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
        "`train.py` builds the model from `overrides.txt`; a recipe takes the same lines as CLI overrides",
        "(but `mixed_precision.*`, which belongs to the object that `train.py` makes of the recipe's name).",
    ]
    notes = ["Parameters of the optimizer and the data set are placeholders: set them in `train.py`."]
    return {
        "overrides.txt": overrides_file(plan, request),
        "train.py": script(plan, request),
        **common_files(plan, request, launch, steps, notes),
    }


def overrides_file(plan: Plan, request: PlanRequest) -> str:
    """Return one ``section.field=value`` a line, values as JSON."""
    lines = [f"{name}={json.dumps(value)}" for name, value in overrides(plan, request).items()]
    return bash_header(plan, request, PROFILE.version) + "\n".join([*lines, ""])


def script(plan: Plan, request: PlanRequest) -> str:
    """Return ``train.py``: the template with this model's activation."""
    source = Path(__file__).with_name("train.py.in").read_text(encoding="utf-8")
    named = ACTIVATIONS[request.model.activation]
    header = bash_header(plan, request, PROFILE.version)
    return header + source.replace(PLACEHOLDER, f'ACTIVATION = "{named}"')

"""Write a plan for MaxText: one YAML of overrides over ``base.yml``."""

from __future__ import annotations

from typing import Any

import yaml

from planner.frameworks.bundle import common_files
from planner.frameworks.expressible import head_problems, limit_problems, mixer_problems, refuse
from planner.frameworks.maxtext.profile import PROFILE
from planner.frameworks.scripts import Launch, bash_header
from planner.spec.model import Model
from planner.spec.plan import Plan
from planner.spec.request import PlanRequest

STRATEGIES = {"all_gather": "all_gather", "ring": "ring", "all_to_all": "ulysses"}
REMAT = {"none": "none", "selective": "minimal", "full": "full"}
"""``remat_policy``: keep everything, keep the products' outputs, keep only the layer's input."""


_TRAIN = 'python3 -m maxtext.trainers.pre_train.train "$HERE/maxtext.yml" "$@"'
_GPU_PROCESSES = (
    "# MaxText joins the nodes of GPUs by these (max_utils.py, initialize_jax_for_gpu): one process a node.\n"
    'export NNODES NODE_RANK JAX_COORDINATOR_IP="$MASTER_ADDR" JAX_COORDINATOR_PORT="$MASTER_PORT"\n'
)


def axes(plan: Plan) -> dict[str, int]:
    """Return the mesh axes that are more than 1 under any plan; the rest of MaxText's axes stay 1.

    MaxText spreads weights over fsdp, context and expert ranks alike, and sequences over data, fsdp and
    expert ranks; the data axis is what is left.
    """
    replicas = plan.data_parallel * plan.context_parallel
    data = replicas // plan.shard_group_size if plan.zero_stage == 3 else plan.data_parallel
    return {
        "data": data,
        "fsdp": plan.data_parallel // (data * plan.expert_parallel),
        "context": plan.context_parallel,
        "tensor": plan.tensor_parallel,
        "expert": plan.expert_parallel,
        "pipeline": plan.pipeline_parallel,
    }


def slices(plan: Plan, request: PlanRequest) -> int:
    """Return the slices (fast domains) that the plan fills."""
    return -(-plan.num_gpus // request.cluster.nvlink_domain)


def inexpressible(plan: Plan, request: PlanRequest) -> list[str]:
    """Return, in words, everything of the plan that MaxText has no key for."""
    whose = "the emitted MaxText decoder"
    problems = limit_problems(plan, request, PROFILE)
    problems += mixer_problems(request.model, whose) + head_problems(request.model, whose)
    if plan.zero_stage == 3 and plan.shard_group_size == 1:
        problems.append("one replica has nothing to shard: say ZeRO-0")
    if plan.zero_stage == 1 and plan.shard_group_size != plan.data_parallel:
        problems.append("shard_optimizer_over_data shards over all replicas, not over some")
    product = 1
    for size in axes(plan).values():
        product *= size
    if product != plan.num_gpus:
        problems.append(
            "the expert axis is one of the replicas: data x fsdp x expert has to be the data degree"
        )
    count = slices(plan, request)
    if count > 1 and (plan.num_gpus % count or axes(plan)["data"] % count):
        problems.append(f"{count} slices have to divide the replicated data axis ({axes(plan)['data']})")
    problems += _context_problems(plan, request)
    if plan.precision == "fp8" and plan.pipeline_parallel == 1 and plan.num_microbatches > 1:
        problems.append("FP8 does not go with gradient accumulation: one micro-batch a step, or a pipeline")
    if request.model.activation == "squared_relu":
        problems.append("JAX has no squared ReLU under a name that the file could say")
    if plan.recompute_modules:
        problems.append(f"remat policies have no modules {plan.recompute_modules}")
    return problems


def write(plan: Plan, request: PlanRequest) -> dict[str, str]:
    """Return file names and contents that start the plan with MaxText.

    Raises
    ------
    BadInput
        Something in the plan has no key.
    """
    refuse(PROFILE.name, inexpressible(plan, request))
    on_tpu = request.cluster.links[0].is_torus
    launch = Launch(
        version=PROFILE.version,
        command="",
        starter=_TRAIN if on_tpu else _GPU_PROCESSES + _TRAIN,
        environment={"LIBTPU_INIT_ARGS": ""} if on_tpu else {},
    )
    steps = [
        f"Copy `maxtext.yml` to every {'TPU VM' if on_tpu else 'node'}; `base_config` has to point at "
        "MaxText's `base.yml`.",
        "On each: `bash torchrun.sh run_name=<name> base_output_directory=<folder or gs://bucket>`.",
    ]
    notes = [
        "JAX places devices on the torus itself; the rank map gives the logical order of the mesh.",
        "The vocabulary, normalisation and activation follow `decoder_block`; compare with your checkpoint.",
    ]
    if any(kind.window is not None for kind in request.model.layer_kinds):
        notes.append(
            "This model's layers have sliding windows, which `decoder_block` here has not: take MaxText's "
            "own block for it (gemma2, gemma3, gpt_oss, ...)."
        )
    files = common_files(plan, request, launch, steps, notes)
    body = yaml.safe_dump(config(plan, request), sort_keys=False)
    return {"maxtext.yml": bash_header(plan, request, PROFILE.version) + body, **files}


def config(plan: Plan, request: PlanRequest) -> dict[str, Any]:
    """Return the YAML as a dictionary."""
    count = slices(plan, request)
    sizes = axes(plan)
    step = plan.num_microbatches if plan.pipeline_parallel > 1 else 1
    settings: dict[str, Any] = {
        "base_config": "base.yml",
        "hardware": "tpu" if request.cluster.links[0].is_torus else "gpu",
        "per_device_batch_size": plan.data_parallel * plan.micro_batch * step / plan.num_gpus,
        "gradient_accumulation_steps": plan.num_microbatches // step,
        "max_target_length": request.workload.seq_length,
        "remat_policy": REMAT[plan.recompute] if plan.offload != "activations" else "custom",
        "shard_optimizer_over_data": plan.zero_stage == 1,
        "steps": 100,
        "dataset_type": "synthetic",
    }
    for name, size in sizes.items():
        over_network = count if name == "data" else 1
        settings[f"ici_{name}_parallelism"] = size // over_network
        settings[f"dcn_{name}_parallelism"] = over_network
    if plan.context_parallel > 1:
        settings["context_parallel_strategy"] = STRATEGIES[plan.context_parallel_kind]
        settings |= context_settings(plan)
    if plan.pipeline_parallel > 1:
        stages = plan.pipeline_parallel * plan.virtual_stages
        settings["num_pipeline_microbatches"] = plan.num_microbatches
        settings["num_pipeline_repeats"] = plan.virtual_stages
        settings["num_layers_per_pipeline_stage"] = request.model.num_layers // stages
    if plan.offload == "optimizer":
        settings["optimizer_memory_host_offload"] = True
    if plan.offload == "activations":
        settings["decoder_layer_input"] = "offload"
    if plan.precision == "fp8":
        settings["quantization"] = "fp8"
    settings["dtype"] = "float32" if plan.precision == "fp32" else "bfloat16"
    return settings | model_config(request.model)


def context_settings(plan: Plan) -> dict[str, Any]:
    """Return what ring and Ulysses ask for in ``types.py``: Tokamax's kernel, order, no packing."""
    if plan.context_parallel_kind == "all_gather":
        return {}
    balanced = plan.context_parallel_kind == "ring" and plan.context_parallel % 2 == 0
    return {
        "attention": "flash",
        "use_tokamax_splash": True,
        "packing": False,
        "context_parallel_load_balance": balanced,
    }


def _context_problems(plan: Plan, request: PlanRequest) -> list[str]:
    """What MaxText's context strategies refuse."""
    torus = request.cluster.links[0].is_torus
    ranks, length = plan.context_parallel, request.workload.seq_length
    if ranks == 1:
        return []
    problems = []
    if plan.context_parallel_kind == "all_to_all" and not torus:
        problems.append("Ulysses runs on TPU only")
    if plan.context_parallel_kind == "all_to_all" and request.model.is_mla:
        problems.append("Ulysses does not go with latent attention")
    if plan.context_parallel_kind == "ring" and torus and length % ranks**2:
        problems.append(f"the TPU ring wants a sequence that {ranks}^2 divides, not {length} tokens")
    return problems


def mlp_activations(model: Model) -> list[str]:
    """Return the activation's name, and ``linear`` beside it for a gate."""
    name = {"swiglu": "silu", "geglu": "gelu"}.get(model.activation, model.activation)
    return [name, "linear"] if model.gated_mlp else [name]


def model_config(model: Model) -> dict[str, Any]:
    """Return the architecture under MaxText's names."""
    settings: dict[str, Any] = {
        "decoder_block": "deepseek" if model.is_mla else "mixtral" if model.is_moe else "llama2",
        "base_num_decoder_layers": model.num_layers,
        "base_emb_dim": model.hidden_size,
        "base_mlp_dim": model.ffn_hidden_size,
        "base_num_query_heads": model.num_heads,
        "base_num_kv_heads": model.num_kv_heads,
        "head_dim": model.head_dim,
        "vocab_size": model.vocab_size,
        "logits_via_embedding": model.tied_embeddings,
        "mlp_activations": mlp_activations(model),
    }
    if model.is_moe:
        settings |= {
            "num_experts": model.num_experts,
            "num_experts_per_tok": model.experts_per_token,
            "base_moe_mlp_dim": model.expert_ffn_hidden_size,
        }
        if not model.num_dense_layers:  # MaxText refuses two widths where every layer has experts
            settings["base_mlp_dim"] = model.expert_ffn_hidden_size
    if model.is_mla:
        settings |= {
            "attention_type": "mla",
            "q_lora_rank": model.q_lora_rank,
            "kv_lora_rank": model.kv_lora_rank,
            "qk_nope_head_dim": model.qk_nope_head_dim,
            "qk_rope_head_dim": model.qk_rope_head_dim,
            "v_head_dim": model.v_head_dim,
            "first_num_dense_layers": model.num_dense_layers,
        }
    return settings

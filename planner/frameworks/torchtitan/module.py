"""Source text of the Python modules that torchtitan imports: configuration (0.3) and model code."""

from __future__ import annotations

from pprint import pformat

from planner.frameworks.scripts import HEADER, plan_sentence
from planner.frameworks.torchtitan.settings import family, flavor, parallelism, training
from planner.spec.model import Model
from planner.spec.plan import Plan
from planner.spec.request import PlanRequest

_IMPORTS = """from torchtitan.components.loss import ChunkedLossWrapper, CrossEntropyLoss
from torchtitan.components.metrics import MetricsProcessor
from torchtitan.components.optimizer import LRSchedulersContainer, default_adamw
from torchtitan.config import ParallelismConfig, TrainingConfig
from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC
from torchtitan.hf_datasets.text_datasets import HuggingFaceTextDataLoader
from torchtitan.models.common.config_utils import decoder_vocab_size
from torchtitan.trainer import Trainer
"""

_PLAN = '''
CHECKPOINTING = {"none": lambda: None, "selective": SelectiveAC.Config, "full": FullAC.Config}


def plan() -> Trainer.Config:
    """Configuration of the run: python -m torchtitan.train --module plan_cfg --config plan."""
    spec = model_spec()
    return Trainer.Config(
        loss=ChunkedLossWrapper.Config(
            loss_fn=CrossEntropyLoss.Config(global_vocab_size=decoder_vocab_size(spec))
        ),
        hf_assets_path="./assets/hf",
        model_spec=spec,
        optimizer=default_adamw(lr=3e-4),
        lr_scheduler=LRSchedulersContainer.Config(warmup_steps=10),
        training=TrainingConfig(**TRAINING),
        dataloader=HuggingFaceTextDataLoader.Config(dataset="c4"),
        metrics=MetricsProcessor.Config(log_freq=1),
        parallelism=ParallelismConfig(**PARALLELISM),
        activation_checkpoint=CHECKPOINTING[ACTIVATION_CHECKPOINT](),
    )
'''

_LLAMA = '''
def model_spec():
    """Model of the plan, built by torchtitan's Llama code."""
    from torchtitan.models import llama3
    from torchtitan.models.common import ComplexRoPE, Embedding, Linear, RMSNorm

    dim, vocab = MODEL["dim"], MODEL["vocab_size"]
    spec = llama3.model_registry("debugmodel")
    config = llama3.Llama3Model.Config(
        dim=dim,
        vocab_size=vocab,
        tok_embeddings=Embedding.Config(
            num_embeddings=vocab, embedding_dim=dim, param_init=llama3._EMBEDDING_INIT
        ),
        norm=RMSNorm.Config(normalized_shape=dim, param_init=llama3._NORM_INIT),
        lm_head=Linear.Config(
            in_features=dim, out_features=vocab, param_init=llama3._output_linear_init(dim)
        ),
        layers=llama3._build_llama3_layers(
            n_layers=MODEL["n_layers"],
            dim=dim,
            n_heads=MODEL["n_heads"],
            n_kv_heads=MODEL["n_kv_heads"],
            hidden_dim=MODEL["hidden_dim"],
            rope=ComplexRoPE.Config(
                dim=MODEL["head_dim"], max_seq_len=MODEL["max_seq_len"], theta=500000, scaling="llama"
            ),
            attn_backend="flex",
        ),
    )
    return finish(spec, config)
'''

_QWEN = '''
def model_spec():
    """Model of the plan, built by torchtitan's Qwen3 mixture-of-experts code."""
    from torchtitan.models import qwen3
    from torchtitan.models.common import CosSinRoPE, Embedding, Linear

    dim, vocab = MODEL["dim"], MODEL["vocab_size"]
    spec = qwen3.model_registry("debugmodel_moe", moe_comm_backend="standard")
    config = qwen3.Qwen3Model.Config(
        dim=dim,
        vocab_size=vocab,
        norm=qwen3._qwen3_norm(dim),
        tok_embeddings=Embedding.Config(
            num_embeddings=vocab, embedding_dim=dim, param_init=qwen3._EMBEDDING_INIT
        ),
        lm_head=Linear.Config(in_features=dim, out_features=vocab, param_init=qwen3._LINEAR_INIT),
        layers=qwen3._build_qwen3_moe_layers(
            n_layers=MODEL["n_layers"],
            dim=dim,
            n_heads=MODEL["n_heads"],
            n_kv_heads=MODEL["n_kv_heads"],
            head_dim=MODEL["head_dim"],
            moe_hidden_dim=MODEL["moe_hidden_dim"],
            num_experts=MODEL["num_experts"],
            top_k=MODEL["top_k"],
            attn_backend="flex",
            moe_comm_backend="standard",
            rope=CosSinRoPE.Config(
                dim=MODEL["head_dim"], max_seq_len=MODEL["max_seq_len"], theta=1000000.0
            ),
        ),
    )
    return finish(spec, config)
'''

_FINISH = '''
def finish(spec, config):
    """The spec with the plan's own model, its low-precision layers converted."""
    for converter in converters() or []:
        config = converter.build().convert(config)
    return dataclasses.replace(spec, flavor="plan", model=config)
'''

_NAMED = '''
def model_spec():
    """Model of the plan as torchtitan itself defines it."""
    from torchtitan.models.{module} import model_registry

    return model_registry("{flavor}", converters=converters())
'''

_CONVERTERS = '''
def converters():
    """Layers in {words}."""
    from torchtitan.components.quantization import {names}

    return [{made}]
'''
CONVERTERS = {
    "fp8": ("Float8LinearConverter", "Float8GroupedExpertsConverter"),
    "mxfp8": ("MXFP8LinearConverter", "MXFP8GroupedExpertsConverter"),
}
"""What turns linear layers, and grouped products of experts, into a number format."""

_NO_CONVERTERS = '''
def converters():
    """No low-precision layers."""
    return None
'''


def module_source(plan: Plan, request: PlanRequest) -> str:
    """Return ``plan_cfg.py``: settings as literals, then the functions that torchtitan calls."""
    named = flavor(request.model)
    constants = {
        "PARALLELISM": parallelism(plan, request, "0.3.0"),
        "TRAINING": training(plan, request) | ({"disable_cuda_graphs": True} if _no_graphs(plan) else {}),
        "ACTIVATION_CHECKPOINT": plan.recompute,
        "PRECISION": plan.precision,
        "MODEL": model_numbers(request.model, request.workload.seq_length),
    }
    literals = [
        f"{name} = {pformat(value, width=100, sort_dicts=False)}" for name, value in constants.items()
    ]
    spec = _builder(request.model) + "\n" + _FINISH
    if named:
        spec = _NAMED.format(module=named[0], flavor=named[1])
    title = f'"""{HEADER.format(version="torchtitan 0.3.0")}\n\n{_docstring(plan, request)}\n"""\n'
    parts = [
        title,
        "import dataclasses\n\n" + _IMPORTS,
        "\n".join(literals) + "\n",
        _converters(plan, request.model),
        spec,
        _PLAN,
    ]
    return "\n".join(parts)


def _converters(plan: Plan, model: Model) -> str:
    """The function that names what is converted: linear layers, and experts where there are any."""
    if plan.precision not in CONVERTERS:
        return _NO_CONVERTERS
    names = CONVERTERS[plan.precision][: 2 if model.is_moe else 1]
    made = ", ".join(f"{name}.Config(model_compile_enabled=False)" for name in names)
    return _CONVERTERS.format(words=plan.precision.upper(), names=", ".join(names), made=made)


def _docstring(plan: Plan, request: PlanRequest) -> str:
    """The plan in words, without anything that could end a docstring."""
    return plan_sentence(plan, request).replace("\\", "/").replace('"', "'")


def _no_graphs(plan: Plan) -> bool:
    """0.3 refuses CUDA graphs with a pipeline or experts."""
    return plan.pipeline_parallel > 1 or plan.expert_parallel > 1


def _builder(model: Model) -> str:
    return _LLAMA if family(model) == "llama3" else _QWEN


def model_numbers(model: Model, seq_length: int) -> dict[str, int | str]:
    """Architecture under torchtitan's names."""
    numbers: dict[str, int | str] = {
        "n_layers": model.num_layers,
        "dim": model.hidden_size,
        "n_heads": model.num_heads,
        "n_kv_heads": model.num_kv_heads,
        "head_dim": model.head_dim,
        "hidden_dim": model.ffn_hidden_size,
        "vocab_size": model.vocab_size,
        "max_seq_len": max(seq_length, model.seq_length),
    }
    if model.is_moe:
        numbers |= {
            "num_experts": model.num_experts,
            "top_k": model.experts_per_token,
            "moe_hidden_dim": model.expert_ffn_hidden_size,
        }
    return numbers


def old_model_source(model: Model) -> str:
    """Return ``plan_model.py`` for 0.2.2: registers the model as flavour ``plan``.

    The old code makes the MLP width ``multiple_of * ceil(int(multiplier * int(8 dim / 3)) / multiple_of)``;
    the multiplier is chosen half a unit above, so that the rounding lands on the width exactly.
    """
    base = int(8 * model.hidden_size / 3)
    shared = [
        f"dim={model.hidden_size}",
        f"n_layers={model.num_layers}",
        f"n_heads={model.num_heads}",
        f"n_kv_heads={model.num_kv_heads}",
        f"vocab_size={model.vocab_size}",
    ]
    if family(model) == "llama3":
        where, arguments, table = "llama3", "TransformerModelArgs", "llama3_args"
        shared += ["multiple_of=1", f"ffn_dim_multiplier={(model.ffn_hidden_size + 0.5) / base!r}"]
    else:
        where, arguments, table = "qwen3", "Qwen3ModelArgs", "qwen3_args"
        shared += [
            f"head_dim={model.head_dim}",
            f"hidden_dim={model.ffn_hidden_size}",
            "qk_norm=True",
            "moe_enabled=True",
            f"moe_inter_dim={model.expert_ffn_hidden_size}",
            f"moe_args=MoEArgs(num_experts={model.num_experts}, num_shared_experts=0, "
            f'top_k={model.experts_per_token}, score_func="softmax", route_norm=True, '
            "score_before_experts=False)",
        ]
    imports = f"from torchtitan.models.{where} import {arguments}, {table}\n"
    imports += "from torchtitan.models.moe import MoEArgs\n" if where == "qwen3" else ""
    body = ",\n    ".join(shared)
    header = HEADER.format(version="torchtitan 0.2.2")
    return f'"""{header}"""\n\n{imports}\n{table}["plan"] = {arguments}(\n    {body},\n)\n'

"""What is trained, and how, by the names that people use: optimizers, losses, adapters.

Each name changes a few figures of a framework's memory habits or of the workload; nothing else in the planner
knows the names.
"""

from __future__ import annotations

from planner.errors import BadInput, did_you_mean
from planner.spec import FrameworkProfile, Workload

MASTER_BYTES = 4.0
MOMENTS_BYTES = {
    "adam": 8.0, "adamw": 8.0, "adam-bf16": 4.0, "adam-8bit": 2.0, "lion": 4.0, "sgd-momentum": 4.0,
    "sgd": 0.0,
}  # fmt: skip
"""Optimizer state beside the fp32 master copy. [byte per parameter]

Two fp32 moments (Adam), two of 16 bits (precision-aware Adam, DeepSeek-V3), two quantised ones
(bitsandbytes), one fp32 moment (Lion, momentum), none.
"""
PURE_MOMENTS_BYTES = {
    f"pure-{name}": moments if name == "adam-8bit" else moments / 2
    for name, moments in MOMENTS_BYTES.items()
    if name not in ("adamw", "adam-bf16")
} | {"pure-adam-fp32": MOMENTS_BYTES["adam"]}
"""The same without a master copy: weights loaded in bf16 and trained as they are (torchtune's ``dtype``,
LLaMA-Factory's ``pure_bf16``). Gradients, and the moments of torch.optim, are in the format of the weights;
bitsandbytes' 32-bit Adam keeps fp32 moments beside them. [byte per parameter]"""
LOSSES = ("whole", "chunked")
FINE_TUNING = ("full", "lora", "qlora")
QUANTISED_BYTES = 0.52
"""NF4: 4 bits a parameter and 0.127 of doubly quantised block constants (QLoRA, arXiv 2305.14314). [byte]"""


def with_optimizer(framework: FrameworkProfile, name: str) -> FrameworkProfile:
    """Return the framework with another optimizer's state.

    Raises
    ------
    BadInput
        The optimizer is unknown.
    """
    word = _known(name, (*MOMENTS_BYTES, *PURE_MOMENTS_BYTES), "--optimizer")
    habits, fp16 = framework.memory, framework.memory.fp16_optimizer_bytes
    if word in PURE_MOMENTS_BYTES:
        return framework.model_copy(update={"memory": habits.model_copy(update=_pure(word))})
    moments = MOMENTS_BYTES[word]
    changes = {
        "optimizer_bytes": MASTER_BYTES + moments,
        "fp16_optimizer_bytes": None if fp16 is None else fp16 - MOMENTS_BYTES["adam"] + moments,
    }
    return framework.model_copy(update={"memory": habits.model_copy(update=changes)})


def without_master(name: str) -> str:
    """Return the optimizer's name for weights that are trained in 16 bits as they are."""
    return f"pure-{name}" if f"pure-{name}" in PURE_MOMENTS_BYTES else name


def _pure(name: str) -> dict[str, float | bool | None]:
    """Memory habits of weights trained in 16 bits without a master copy."""
    return {
        "optimizer_bytes": PURE_MOMENTS_BYTES[name],
        "fp16_optimizer_bytes": None,
        "fp16_gradient_bytes": None,
        "gradient_bytes": 2.0,
        "reduced_gradient_bytes": 2.0,
        "host_gradient_bytes": 2.0,
        "sharded_weights_are_master": False,
    }


def with_loss(framework: FrameworkProfile, name: str) -> FrameworkProfile:
    """Return the framework with a loss that holds all logits of a micro-batch, or a few at a time.

    A loss fused with the head's product (Liger, cut cross-entropy, chunked losses) never holds them all.

    Raises
    ------
    BadInput
        The kind of loss is unknown.
    """
    if _known(name, LOSSES, "--loss") == "whole":
        return framework
    changes = {
        "loss_saved_bytes": 0.0, "loss_peak_bytes": 0.0, "parallel_loss_bytes": 0.0, "eager_loss_bytes": None,
        "compiled_loss_bytes": None,
    }  # fmt: skip
    return framework.model_copy(update={"memory": framework.memory.model_copy(update=changes)})


def with_unfused_attention(framework: FrameworkProfile) -> FrameworkProfile:
    """Return the framework with attention in plain products, which keep the s x s scores."""
    memory = framework.memory.model_copy(update={"fused_attention": False})
    time = framework.time.model_copy(update={"attention_kernel": "unfused"})
    return framework.model_copy(update={"memory": memory, "time": time})


def with_fine_tuning(workload: Workload, name: str) -> Workload:
    """Return the workload that trains all weights, or adapters beside frozen ones.

    Raises
    ------
    BadInput
        The kind of fine-tuning is unknown.
    """
    kind = _known(name, FINE_TUNING, "--finetune")
    quantised = QUANTISED_BYTES if kind == "qlora" else None
    return workload.model_copy(update={"frozen_weights": kind != "full", "frozen_weight_bytes": quantised})


def training_sentence(optimizer: str | None, loss: str | None, finetune: str | None) -> str | None:
    """What is assumed about adapters and a chunked loss, None where nothing is."""
    said = []
    if finetune in ("lora", "qlora"):
        said.append("the adapters' own weights and state are left out")
    if loss == "chunked":
        said.append("no micro-batch's logits are held whole")
    if optimizer == "adam-8bit":
        said.append("8-bit moments without their block constants")
    return None if not said else f"{', '.join(said).capitalize()}."


def _known(name: str, known: tuple[str, ...], option: str) -> str:
    word = name.strip().lower()
    if word not in known:
        raise BadInput(f"{option} {name!r} is not one of {', '.join(known)}{did_you_mean(word, known)}")
    return word

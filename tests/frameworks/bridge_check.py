"""Run Megatron-Bridge's own configuration code on emitted folders; a program of its own, not a test.

Reads JSON lines ``{"folder": path, "world": n}`` and prints one JSON line each: ``{"complaint": ...}`` when
it is refused, else what the validated configuration holds. ``train.py`` is imported and its ``config()``
goes through what ``pretrain`` does before it touches a GPU: number format, replicas, ``validate()``.

Bridge imports packages that need CUDA to build or to import. They are replaced by names without content,
after megatron-core has looked for Transformer Engine itself and not found it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
from typing import Any

from child import serve
from stand_ins import stand_in

ABSENT = (
    "transformer_engine", "mamba_ssm", "causal_conv1d", "fla", "timm", "open_clip", "qwen_vl_utils", "mlflow",
    "wandb", "nvidia_resiliency_ext", "modelopt", "nemo_run", "tensorboard", "megatron.energon",
    "torch.utils.tensorboard",
)  # fmt: skip
"""What Bridge imports for images, logs, quantisation and kernels, none of which a configuration needs."""
HELD = (
    "tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size",
    "virtual_pipeline_model_parallel_size", "expert_model_parallel_size", "expert_tensor_parallel_size",
    "sequence_parallel", "num_layers", "recompute_granularity", "bf16", "fp16", "fp8",
    "fp8_recipe", "fp8_param", "fp4", "window_size",
)  # fmt: skip


def prepare() -> None:
    """Import megatron-core as it is, then Bridge over the stand-ins."""
    import megatron.core.models.gpt.gpt_layer_specs

    assert megatron.core
    stand_in(ABSENT)
    import megatron.bridge.training.pretrain

    assert megatron.bridge


def held(folder: str, world: int) -> dict[str, Any]:
    """Validate the configuration of a folder and return what it holds."""
    from megatron.bridge.training.config import runtime_config_update

    os.environ.update(WORLD_SIZE=str(world), RANK="0", LOCAL_RANK="0")
    spec = importlib.util.spec_from_file_location("emitted_train", os.path.join(folder, "train.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    config = module.config()
    runtime_config_update(config)
    found = {name: getattr(config.model, name) for name in HELD}
    return found | {
        "data_parallel_size": config.data_parallel_size,
        "micro_batch_size": config.train.micro_batch_size,
        "global_batch_size": config.train.global_batch_size,
        "use_distributed_optimizer": config.ddp.use_distributed_optimizer,
        "grad_reduce_in_fp32": config.ddp.grad_reduce_in_fp32,
        "use_megatron_fsdp": config.ddp.use_megatron_fsdp,
        "seq_length": config.model.seq_length,
    }


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """What Bridge says of a folder's files."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            return held(request["folder"], request["world"])
    except Exception as error:
        return {"complaint": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    serve(answer, prepare)

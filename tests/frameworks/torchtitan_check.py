"""Run torchtitan's own configuration code (0.3 or 0.2.2) on emitted files; a program of its own, not a test.

Reads JSON lines ``{"folder": path, "world": n}`` and prints one JSON line each: null when accepted, else the
complaint. The only stand-in is the device: torchtitan asks for CUDA when it is imported.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import sys
from types import SimpleNamespace
from typing import Any

from child import serve


def prepare() -> None:
    """Make the CPU the device, one that has every number format."""
    import torch

    torch._utils._get_available_device_type = lambda: "cpu"
    for name in ("set_device", "empty_cache", "reset_peak_memory_stats", "memory_stats", "get_device_name"):
        if not hasattr(torch.cpu, name):
            setattr(torch.cpu, name, lambda *_, **__: None)
    from torchtitan.components.quantization import float8, mx

    float8.has_cuda_capability = mx.has_cuda_capability = lambda *_: True


def check_new(folder: str, world: int) -> None:
    """0.3: registry module through the configuration manager, degrees, model, stage split, schedule."""
    from torchtitan.config.manager import ConfigManager
    from torchtitan.distributed import ParallelDims

    sys.path.insert(0, folder)
    sys.modules.pop("plan_cfg", None)
    importlib.invalidate_caches()
    try:
        config = ConfigManager().parse_args(["--module", "plan_cfg", "--config", "plan"])
        said = config.parallelism
        dims = ParallelDims(
            dp_shard=said.data_parallel_shard_degree,
            dp_replicate=said.data_parallel_replicate_degree,
            cp=said.context_parallel_degree,
            tp=said.tensor_parallel_degree,
            pp=said.pipeline_parallel_degree,
            ep=said.expert_parallel_degree,
            world_size=world,
        )
        config.model_spec.model.update_from_config(config=config)
        common(config.training, said, dims, len(config.model_spec.model.layers), "lm_head")
    finally:
        sys.path.remove(folder)


def check_old(folder: str, world: int) -> None:
    """0.2.2: TOML through the configuration manager, degrees, model, stage split, schedule."""
    from torchtitan.config import ConfigManager
    from torchtitan.distributed import ParallelDims
    from torchtitan.protocols.model_converter import build_model_converters
    from torchtitan.protocols.train_spec import get_train_spec

    sys.path.insert(0, folder)
    sys.modules.pop("plan_model", None)
    importlib.invalidate_caches()
    try:
        config = ConfigManager().parse_args([f"--job.config_file={folder}/train.toml"])
        if config.experimental.custom_import:
            importlib.import_module(config.experimental.custom_import)
        said = config.parallelism
        dims = ParallelDims(
            dp_shard=said.data_parallel_shard_degree,
            dp_replicate=said.data_parallel_replicate_degree,
            cp=said.context_parallel_degree,
            tp=said.tensor_parallel_degree,
            pp=said.pipeline_parallel_degree,
            ep=said.expert_parallel_degree,
            etp=said.expert_tensor_parallel_degree,
            world_size=world,
        )
        model = get_train_spec(config.model.name).model_args[config.model.flavor]
        model.update_from_config(config)
        build_model_converters(config, dims)
        if config.training.seq_len % dims.seq_len_divisor:
            raise ValueError(f"seq_len {config.training.seq_len} is no multiple of {dims.seq_len_divisor}")
        common(config.training, said, dims, model.n_layers, "output")
    finally:
        sys.path.remove(folder)


def common(training: Any, said: Any, dims: Any, layers: int, head: str) -> None:
    """What the trainer does with batch and pipeline, with PyTorch's own schedule classes."""
    make_mesh(dims)
    replicas = dims.dp_replicate * dims.dp_shard
    if training.global_batch_size % (training.local_batch_size * replicas):
        raise ValueError(
            "global batch size must be a multiple of local batch size times data-parallel degree"
        )
    if dims.pp == 1:
        return
    parts = said.module_fqns_per_model_part
    names = [name for part in parts for name in part]
    expected = ["tok_embeddings", *(f"layers.{index}" for index in range(layers)), "norm", head]
    if names != expected or len(parts) % dims.pp:
        raise ValueError(f"model parts {parts} are not the model's modules")
    schedule(said, training, len(parts) // dims.pp, dims.pp)


def make_mesh(dims: Any) -> None:
    """Lay out all ranks and their groups, without other processes."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=dims.world_size - 1, world_size=dims.world_size)
    try:
        dims.build_mesh()
    finally:
        dist.destroy_process_group()


def schedule(said: Any, training: Any, local_stages: int, ranks: int) -> None:
    """Make the schedule of rank 0 over stand-in stages; its constructor has the checks."""
    from torch.distributed.pipelining.schedules import PipelineScheduleMulti, get_schedule_class

    count, rest = divmod(training.local_batch_size, said.pipeline_parallel_microbatch_size)
    if rest:
        raise ValueError("local batch size must be a multiple of the micro-batch size")
    kind = get_schedule_class(said.pipeline_parallel_schedule)
    stages = [
        SimpleNamespace(
            num_stages=ranks * local_stages, group_size=ranks, group_rank=0, stage_index=index * ranks,
            is_first=True, is_last=False, has_backward=True, group=None, device="cpu",
            stage_index_to_group_rank={}, submod=None, _stage_meta=None,
        )
        for index in range(local_stages)
    ]  # fmt: skip
    multi = issubclass(kind, PipelineScheduleMulti)
    if multi == (local_stages == 1):
        raise ValueError(f"{kind.__name__} does not take {local_stages} stages a rank")
    kind(stages if multi else stages[0], count, loss_fn=lambda *_: None)


def complaint(request: dict[str, Any]) -> str | None:
    """What torchtitan says against a folder's files."""
    world = request["world"]
    os.environ.update(LOCAL_RANK="0", RANK="0", WORLD_SIZE=str(world), NGPU=str(world))
    check = check_new if importlib.util.find_spec("torchtitan.config.override") else check_old
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            check(request["folder"], world)
    except SystemExit:
        return said.getvalue()[-500:]
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


if __name__ == "__main__":
    serve(complaint, prepare)

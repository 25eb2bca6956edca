"""DeepSpeed, Accelerate and PyTorch accept what we write and refuse what we refuse."""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from launch_plans import broken, candidates, legal_plans

from planner.frameworks.accelerate.write import config_file
from planner.frameworks.deepspeed.write import config as deepspeed_config
from planner.frameworks.files import inexpressible, write
from planner.frameworks.pytorch.write import script, settings
from planner.spec import Plan, PlanRequest
from planner.spec.ranks import groups

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
REFUSALS = (AssertionError, ValueError, TypeError, KeyError, RuntimeError)


def needs(package: str) -> pytest.MarkDecorator:
    missing = importlib.util.find_spec(package) is None
    return pytest.mark.skipif(missing, reason=f"{package} is not installed (.ci/frameworks)")


def verdict(check: Callable[..., None], *arguments: Any) -> str | None:
    """None when the framework accepts, else its complaint."""
    try:
        check(*arguments)
    except REFUSALS as error:
        return f"{type(error).__name__}: {error}"
    return None


# ---- DeepSpeed 0.19: the whole JSON through DeepSpeedConfig


def deepspeed_reads(settings: dict[str, Any], replicas: int) -> None:
    from deepspeed.runtime import config as module

    size = SimpleNamespace(get_data_parallel_world_size=lambda: replicas)
    with (
        mock.patch.object(module.dist, "get_rank", lambda *_: 0),
        mock.patch.object(module.dist, "get_world_size", lambda *_: replicas),
    ):
        module.DeepSpeedConfig(settings, mpu=size)


@needs("deepspeed")
def test_deepspeed_accepts_every_plan_that_we_write() -> None:
    complaints = []
    for plan, request in legal_plans("deepspeed", 220):
        settings = json.loads(write(plan, request)["ds_config.json"])
        complaint = verdict(deepspeed_reads, settings, plan.data_parallel)
        if complaint:
            complaints.append((complaint, plan))
    assert not complaints, complaints[:3]


@needs("deepspeed")
def test_deepspeed_refuses_the_batches_that_we_refuse() -> None:
    """Its one check of numbers before the engine: batch = micro-batch x accumulation x replicas."""
    compared = refused = 0
    for plan, request in itertools.islice(candidates("deepspeed", 3), 400):
        if inexpressible(plan, request):
            continue
        wrong = plan.num_microbatches + compared % 2
        settings = deepspeed_config(plan, request) | {"gradient_accumulation_steps": wrong}
        complaint = verdict(deepspeed_reads, settings, plan.data_parallel)
        ours = broken(plan.model_copy(update={"num_microbatches": wrong}), request)
        assert ("microbatches_make_up_the_global_batch" in ours) == (complaint is not None)
        compared, refused = compared + 1, refused + (complaint is not None)
    assert compared > 50
    assert refused > 20


# ---- Accelerate 1.15: YAML file -> launcher -> environment -> ParallelismConfig and FSDP plugin


@contextmanager
def accelerate_environment(path: Path) -> Iterator[Any]:
    """The environment that ``accelerate launch`` gives its ranks."""
    from accelerate.commands import launch
    from accelerate.utils.launch import prepare_multi_gpu_env

    arguments = launch.launch_command_parser().parse_args(["--config_file", str(path), "script.py"])
    arguments, _, _ = launch._validate_launch_command(arguments)
    with mock.patch.dict(os.environ, prepare_multi_gpu_env(arguments)):
        yield arguments


def accelerate_reads(text: str, plan: Plan, path: Path) -> None:
    from accelerate.parallelism_config import ParallelismConfig
    from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin

    path.write_text(text)
    with accelerate_environment(path) as arguments:
        sharded = bool(arguments.use_fsdp)
        if sharded:
            FullyShardedDataParallelPlugin()
        if "parallelism_config" in text:
            ParallelismConfig()._validate_accelerator(
                SimpleNamespace(
                    multi_device=plan.num_gpus > 1,
                    num_processes=plan.num_gpus,
                    is_fsdp2=sharded,
                    distributed_type=DistributedType.FSDP if sharded else DistributedType.MULTI_GPU,
                )
            )


@needs("accelerate")
def test_accelerate_accepts_every_plan_that_we_write(tmp_path: Path) -> None:
    compared, complaints = 0, []
    for plan, request in legal_plans("accelerate", 230):
        compared += 1
        complaint = verdict(
            accelerate_reads, write(plan, request)["accelerate.yaml"], plan, tmp_path / "a.yaml"
        )
        if complaint:
            complaints.append((complaint, plan))
    assert not complaints, complaints[:3]
    assert compared >= 200


ACCELERATE_CAUSES = {
    "no dimension for FSDP to shard across": "sharding_has_more_than_one_rank",
    "cannot be used with pure data parallelism": "replicas beside tensor or context ranks",
}
"""Words of a complaint, and our rule or our words on the same."""


@needs("accelerate")
def test_accelerate_refuses_the_degrees_that_we_refuse(tmp_path: Path) -> None:
    """Random degrees: its verdict on them is ours. It knows nothing of heads, sequences and batches."""
    sees = {
        "plain_replicas_stand_alone",
        "sharding_has_more_than_one_rank",
        "shard_group_divides_the_replicas",
    }
    compared = refused = 0
    for plan, request in itertools.islice(candidates("accelerate", 5), 600):
        unseen = plan.num_gpus == 1 or not plan.zero_stage
        if unseen or plan.shard_group_size % plan.context_parallel:
            continue  # one process alone is not looked at
        problems = set(broken(plan, request)) & sees or _unwritable(plan, request)
        complaint = verdict(accelerate_reads, config_file(plan, request), plan, tmp_path / "a.yaml")
        assert bool(problems) == (complaint is not None), (problems, complaint, plan)
        if complaint:
            cause = next(ours for theirs, ours in ACCELERATE_CAUSES.items() if theirs in complaint)
            assert cause in " ".join([*broken(plan, request), *inexpressible(plan, request)])
        compared, refused = compared + 1, refused + (complaint is not None)
    assert compared >= 200
    assert refused >= 10


def _unwritable(plan: Plan, request: PlanRequest) -> list[str]:
    return [said for said in inexpressible(plan, request) if "dp_shard" in said]


# ---- Megatron-Bridge 0.3: its model fields are megatron-core's


PROVIDER_FIELDS = {
    "vocab_size",
    "should_pad_vocab",
    "seq_length",
    "share_embeddings_and_output_weights",
    "position_embedding_type",
}
"""Fields that Bridge's GPTModelProvider adds to megatron-core's configuration."""


def bridge_model_fields(text: str) -> dict[str, Any]:
    import torch

    pairs = [line.partition("=") for line in text.splitlines() if line.startswith("model.")]
    fields = {name.removeprefix("model."): json.loads(value) for name, _, value in pairs}
    if "pipeline_dtype" in fields:
        fields["pipeline_dtype"] = {"bf16": torch.bfloat16, "fp16": torch.float16}[fields["pipeline_dtype"]]
    if "window_size" in fields:
        fields["window_size"] = tuple(fields["window_size"])
    return {name: value for name, value in fields.items() if name not in PROVIDER_FIELDS}


def bridge_reads(text: str) -> None:
    from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig

    fields = bridge_model_fields(text)
    (MLATransformerConfig if fields.get("multi_latent_attention") else TransformerConfig)(**fields)


@needs("megatron")
def test_bridge_overrides_are_fields_of_megatron_core() -> None:
    complaints = []
    for plan, request in legal_plans("megatron-bridge", 220):
        complaint = verdict(bridge_reads, write(plan, request)["overrides.txt"])
        if complaint:
            complaints.append((complaint, plan))
    assert not complaints, complaints[:3]


# ---- PyTorch 2.13: the emitted script's mesh in a fake world


@needs("torch")
def test_the_mesh_of_the_script_is_the_rank_map() -> None:
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    orders = set()
    made: dict[str, Any] = {"__name__": "script"}
    exec(compile(script(*legal_plans("pytorch", 200)[0]), "train.py", "exec"), made)
    for plan, request in legal_plans("pytorch", 200):
        rank = plan.num_gpus - 1
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=plan.num_gpus)
        try:
            mesh = made["make_mesh"]("cpu", settings(plan, request)["plan"])
            for name in ("pipeline", "tensor"):
                ours = next(members for members in groups(plan, name) if rank in members)
                assert dist.get_process_group_ranks(mesh[name].get_group()) == ours
            replicas = next(members for members in groups(plan, "data") if rank in members)
            assert sorted(mesh["replicate", "shard"].mesh.flatten().tolist()) == replicas
        finally:
            dist.destroy_process_group()
        orders.add(plan.rank_order)
    assert len(orders) == 2

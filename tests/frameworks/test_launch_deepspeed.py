"""Batches, sharding groups, buckets and experts that files of DeepSpeed and its relatives name."""

from __future__ import annotations

import json

import pytest

from planner.api import question
from planner.frameworks.files import read_text, to_plan
from planner.frameworks.lint import lint, model_of, review


def messages_of(settings: dict[str, object], gpus: int = 16) -> list[str]:
    request = question({"model": "llama-3-8b", "gpus": gpus, "framework": "deepspeed"})
    return [entry.message for entry in lint(read_text(json.dumps(settings), "ds.json"), request)]


def test_a_wrong_batch_of_deepspeed_names_the_accumulation_that_makes_it_up() -> None:
    """AutoTP halves the replicas: what was right for 16 is twice too much (runtime/config.py)."""
    said = {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 1}
    (message,) = messages_of({**said, "bf16": {"enabled": True}, "tensor_parallel": {"autotp_size": 2}})
    assert message == (
        "train_batch_size 64 is not micro-batch 4 x accumulation 1 x 8 replicas = 32 "
        "(accumulation 2 makes it up)"
    )
    (message,) = messages_of({**said, "train_batch_size": 100})
    assert message.endswith("(nearest batch: 64 and 128)")


def zero_3(**more: object) -> dict[str, object]:
    return {
        "train_micro_batch_size_per_gpu": 1,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 3, **more},
    }


def test_mics_shards_within_groups() -> None:
    """zero/mics_utils.py: replicas % mics_shard_size, each group with all of the state."""
    request = question({"model": "llama-3-8b", "gpus": 16, "framework": "deepspeed"})
    launch = read_text(json.dumps(zero_3(mics_shard_size=4)), "ds.json")
    result = review(launch, request, search_s=0)
    assert result.plan is not None
    assert result.plan.shard_group_size == 4
    assert not any("shard group" in entry.message for entry in result.findings)
    assert any("shard group of 5" in entry for entry in messages_of(zero_3(mics_shard_size=5)))
    everyone = review(read_text(json.dumps(zero_3(mics_shard_size=-1)), "ds.json"), request, search_s=0)
    assert everyone.plan is not None
    assert everyone.plan.shard_group_size == 16
    moved = zero_3(mics_shard_size=4, offload_optimizer={"device": "cpu"})
    assert (
        "zero_optimization.mics_shard_size 4 does not go with "
        "zero_optimization.offload_optimizer.device cpu" in messages_of(moved)
    )


def test_the_second_copy_of_zero_plus_plus_divides_the_gpus_and_takes_room() -> None:
    """groups.py: world % zero_hpz_partition_size; 2 bytes a parameter over those ranks."""
    said = messages_of(zero_3(zero_hpz_partition_size=3))
    assert "zero_optimization.zero_hpz_partition_size 3 does not divide 16 GPUs (nearest: 2)" in said
    (told_of,) = [entry for entry in messages_of(zero_3(zero_hpz_partition_size=8)) if "hpz" in entry]
    assert "2.0 GB on each GPU" in told_of
    stage_2 = {**zero_3(), "zero_optimization": {"stage": 2, "zero_hpz_partition_size": 8}}
    assert any("needs zero_optimization.stage 3" in entry for entry in messages_of(stage_2))


def memory_of(source: str, path: str, framework: str, **asked: object) -> float:
    launch = read_text(source, path, framework)
    question_of = {"model": "llama-3-8b", "gpus": 8, "framework": launch.framework, **asked}
    result = review(launch, question(question_of), search_s=0)
    assert result.estimate is not None
    return float(result.estimate.peak_memory_bytes)


def test_formats_of_gradients_and_moments_change_the_memory() -> None:
    """optimizer_config.py; 8 GPUs shard the optimizer, gradients are whole: bytes a parameter."""
    base = "torchrun pretrain_gpt.py --bf16 --seq-length 1024 --max-position-embeddings 1024 "
    base += "--micro-batch-size 1 --global-batch-size 8 --use-distributed-optimizer {flags}\n"

    def per_parameter(flags: str) -> float:
        changed = memory_of(base.format(flags=flags), "run.sh", "megatron")
        plain = memory_of(base.format(flags=""), "run.sh", "megatron")
        return (plain - changed) / 8.03e9

    margin = 1.04  # fragmentation is a share of what is allocated
    assert per_parameter("--grad-reduce-in-bf16") == pytest.approx(2.0 * margin, rel=0.02)
    aware = "--use-precision-aware-optimizer "
    assert per_parameter(aware) == pytest.approx(2.0 / 8 * margin, rel=0.02)
    both = aware + "--exp-avg-dtype bf16 --exp-avg-sq-dtype bf16"
    assert per_parameter(both) == pytest.approx(6.0 / 8 * margin, rel=0.02)
    assert per_parameter(aware + "--main-grads-dtype bf16") == pytest.approx(2.25 * margin, rel=0.02)


def test_buckets_of_deepspeed_are_those_that_the_file_names() -> None:
    """Two buffers of 16-bit elements each; ``auto`` is the hidden size squared."""
    sizes = {
        name: memory_of(json.dumps(zero_3(**said)), "ds.json", "deepspeed", seq_length=1024)
        for name, said in {
            "plain": {},
            "same": {"reduce_bucket_size": 5e8, "stage3_max_live_parameters": 1e9},
            "auto": {"reduce_bucket_size": "auto"},
            "less": {"reduce_bucket_size": 1e8},
        }.items()
    }
    assert sizes["same"] == sizes["plain"]
    margin = 1.1
    assert sizes["plain"] - sizes["less"] == pytest.approx(4 * 4e8 * margin, rel=0.01)
    assert sizes["plain"] - sizes["auto"] == pytest.approx(4 * (5e8 - 4096**2) * margin, rel=0.01)


def test_neox_offloads_and_sizes_its_buckets_as_deepspeed_does() -> None:
    """gpt-neox passes ``zero_optimization`` on to DeepSpeed."""
    source = """
"pipe_parallel_size": 0
"num_layers": 40
"hidden_size": 5120
"num_attention_heads": 40
"seq_length": 2048
"train_iters": 320000
"global_num_gpus": 4
"train_micro_batch_size_per_gpu": 1
"fp16": {"enabled": true}
"checkpoint_activations": true
"zero_optimization": {"stage": 3, "reduce_bucket_size": %s, "offload_optimizer": {"device": "%s"}}
"""
    asked = {"model": "llama-2-13b", "gpus": 4}
    on_gpu, offloaded, small = (
        memory_of(source % said, "13B.yml", "gpt-neox", **asked)
        for said in (("500000000", "none"), ("500000000", "cpu"), ("100000000", "cpu"))
    )
    assert on_gpu - offloaded > 30e9
    assert offloaded - small == pytest.approx(4 * 4e8 * 1.03, rel=0.01)


def test_swift_passes_tensor_ranks_and_second_copies_on_to_deepspeed() -> None:
    """ms-swift ``deepspeed_autotp_size`` and ``zero_hpz_partition_size`` (swift/arguments)."""
    script = "NPROC_PER_NODE=8 swift sft --model Qwen/Qwen2-7B-Instruct --deepspeed zero3 "
    script += "--deepspeed_autotp_size 2 --zero_hpz_partition_size 4 --per_device_train_batch_size 1\n"
    request = question({"model": "qwen2.5-7b", "gpus": 8, "framework": "deepspeed"})
    result = review(read_text(script, "run.sh"), request, search_s=0)
    assert result.plan is not None
    assert (result.plan.tensor_parallel, result.plan.data_parallel) == (2, 4)
    assert any("second copy of the weights, 3.8 GB" in entry.message for entry in result.findings)


def test_experts_and_recompute_of_megatron_deepspeed_are_read() -> None:
    """Megatron-DeepSpeed's examples of mixtures: experts by --num-experts, their ranks beside."""
    script = "deepspeed --num_gpus 8 --num_nodes 2 pretrain_gpt.py --num-experts 64 "
    script += "--moe-expert-parallel-size 16 --topk 1 --num-layers 24 --hidden-size 1024 --seq-length 2048 "
    script += "--num-attention-heads 16 --micro-batch-size 4 --global-batch-size 256 --fp16 --deepspeed "
    script += "--recompute-granularity full --recompute-method uniform --zero-stage 1\n"
    launch = read_text(script, "run.sh")
    assert launch.framework == "megatron-deepspeed"
    model = model_of(launch)
    assert model is not None
    assert (model.num_experts, model.experts_per_token) == (64, 1)
    request = question({"model": "qwen3-30b-a3b", "gpus": 16, "framework": "megatron-deepspeed"})
    plan = to_plan(launch, request.model_copy(update={"model": model}))
    assert (plan.expert_parallel, plan.expert_tensor_parallel, plan.recompute) == (16, 1, "full")

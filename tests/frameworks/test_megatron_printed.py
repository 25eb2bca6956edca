"""The arguments that Megatron prints when it starts, as people paste them from a log."""

from __future__ import annotations

import pytest

from planner.api import question
from planner.frameworks.detect import detect
from planner.frameworks.files import read_text, to_plan
from planner.frameworks.lint import gpus_of, lint, model_of

PRINTED = """using torch.float32 for parameters ...
------------------------ arguments ------------------------
  accumulate_allreduce_grads_in_fp32 .............. False
  add_bias_linear ................................. False
  bf16 ............................................ False
  context_parallel_size ........................... 1
  cp_comm_type .................................... ['p2p']
  data_parallel_sharding_strategy ................. no_shard
  encoder_tensor_model_parallel_size .............. 0
  ffn_hidden_size ................................. 28672
  fp16 ............................................ False
  fp8 ............................................. None
  global_batch_size ............................... 8
  gradient_accumulation_fusion .................... True
  group_query_attention ........................... True
  hidden_size ..................................... 8192
  kv_channels ..................................... 128
  kv_lora_rank .................................... 32
  max_position_embeddings ......................... 8192
  micro_batch_size ................................ 1
  moe_router_topk ................................. 2
  num_attention_heads ............................. 64
  num_experts ..................................... None
  num_layers ...................................... 80
  num_query_groups ................................ 8
  pipeline_model_parallel_size .................... 2
  recompute_granularity ........................... None
  seq_length ...................................... 8192
  sequence_parallel ............................... True
  swiglu .......................................... True
  tensor_model_parallel_size ...................... 8
  untie_embeddings_and_output_weights ............. True
  use_distributed_optimizer ....................... True
  virtual_pipeline_model_parallel_size ............ 4
  world_size ...................................... 16
-------------------- end of arguments ---------------------
"""


@pytest.mark.parametrize("front", ["", "0: ", "[default0]:", "2024-08-26 12:00:00.123 [rank0] "])
def test_printed_arguments_make_the_plan_of_the_run(front: str) -> None:
    source = "\n".join(front + line for line in PRINTED.splitlines())
    assert detect(source, "log.txt") == "megatron"
    launch = read_text(source, "log.txt")
    assert gpus_of(launch) == 16
    assert not launch.unknown
    assert not launch.deprecated
    model = model_of(launch)
    assert model is not None
    assert (model.num_kv_heads, model.kv_lora_rank, model.is_moe) == (8, 0, False)
    request = question({"model": "llama-3-70b", "gpus": 16, "framework": "megatron"})
    plan = to_plan(launch, request)
    assert (plan.tensor_parallel, plan.pipeline_parallel, plan.virtual_stages) == (8, 2, 4)
    assert (plan.zero_stage, plan.sequence_parallel, plan.precision) == (1, True, "fp32")


def test_a_run_in_fp32_by_mistake_is_told() -> None:
    """What a slow run's log showed: neither --bf16 nor --fp16."""
    request = question({"model": "llama-3-70b", "gpus": 16, "framework": "megatron"})
    rules = {entry.rule for entry in lint(read_text(PRINTED, "log.txt"), request)}
    assert "trains-in-fp32" in rules
    assert "settings-need-others" not in rules
    bf16 = PRINTED.replace("bf16 ............................................ False", "bf16 ...... True")
    assert "trains-in-fp32" not in {entry.rule for entry in lint(read_text(bf16, "log.txt"), request)}


def test_arguments_of_earlier_releases_mean_what_they_meant() -> None:
    """GPT-2 over 16 GPUs in 2020: two tensor ranks, eight sequences, every layer recomputed."""
    source = "python pretrain_gpt2.py --model-parallel-size 2 --num-layers 54 --hidden-size 1920 "
    source += "--num-attention-heads 20 --batch-size 8 --seq-length 1024 --max-position-embeddings 1024 "
    source += "--fp16 --checkpoint-activations\n"
    request = question({"model": "gpt-3.6b", "gpus": 16, "framework": "megatron"})
    launch = read_text(source, "run.sh", "megatron")
    plan = to_plan(launch, request)
    assert (plan.tensor_parallel, plan.micro_batch, plan.data_parallel) == (2, 8, 8)
    assert (plan.recompute, plan.precision) == ("full", "fp16")
    stale = {entry.found.key for entry in launch.deprecated}
    assert stale == {"--model-parallel-size", "--batch-size", "--checkpoint-activations"}


def test_the_switch_of_recomputed_experts_is_selective() -> None:
    source = "python pretrain_gpt.py --num-layers 48 --hidden-size 2048 --bf16 --moe-layer-recompute\n"
    request = question({"model": "qwen3-30b-a3b", "gpus": 8, "framework": "megatron"})
    plan = to_plan(read_text(source, "run.sh", "megatron"), request)
    assert (plan.recompute, plan.recompute_modules) == ("selective", ("moe",))

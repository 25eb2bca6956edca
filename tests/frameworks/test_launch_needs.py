"""Settings that need or exclude others, as the frameworks' own checks have it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from launch_plans import legal_plans

from planner.api import question
from planner.catalog.training import with_unfused_attention
from planner.errors import BadInput
from planner.frameworks.files import read_files, read_text, to_plan, write
from planner.frameworks.lint import lint, model_of, review
from planner.frameworks.lint.needs import NEEDS, need_findings
from planner.frameworks.megatron.needs import ARGUMENTS, CORE
from planner.frameworks.megatron.read import QUEUES, known_flags
from planner.frameworks.needs import names

SCRIPT = "torchrun pretrain_gpt.py --num-layers 8 --seq-length 4096 --max-position-embeddings 4096 {flags}\n"


def told(flags: str) -> list[str]:
    found = need_findings(read_text(SCRIPT.format(flags=flags), "run.sh"))
    return [entry.message for entry in found if "moe-grouped-gemm" not in entry.message]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            "--overlap-param-gather --use-distributed-optimizer",
            "--overlap-param-gather needs --overlap-grad-reduce",
        ),
        (
            "--overlap-param-gather --overlap-grad-reduce",
            "--overlap-param-gather needs --use-distributed-optimizer or --use-megatron-fsdp "
            "or --optimizer dist_muon",
        ),
        ("--tp-comm-overlap", "--tp-comm-overlap needs --sequence-parallel"),
        (
            "--recompute-granularity full --recompute-method uniform",
            "--recompute-granularity full needs --recompute-num-layers",
        ),
        (
            "--recompute-activations --recompute-method block",
            "--recompute-activations does not go with --recompute-method",
        ),
        ("--bf16 --fp16", "--bf16 does not go with --fp16"),
        ("--max-position-embeddings 2048", "--max-position-embeddings 2048 is less than --seq-length 4096"),
    ],
)
def test_a_setting_without_its_other_is_told(flags: str, message: str) -> None:
    assert told(flags) == [message]


@pytest.mark.parametrize(
    "flags",
    [
        "--overlap-param-gather --overlap-grad-reduce --use-distributed-optimizer",
        "--recompute-granularity selective --bf16",
        "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1",
        "--tp-comm-overlap --sequence-parallel",
    ],
)
def test_a_setting_beside_its_other_is_not_told(flags: str) -> None:
    assert not told(flags)


def test_interleaving_over_two_ranks_overlaps_its_sends() -> None:
    """Megatron-LM arguments.py: without overlapping sends the interleaved schedule takes more than two."""
    chunks = "--num-virtual-stages-per-pipeline-rank 2 --no-overlap-p2p-communication"
    two, four = (f"--pipeline-model-parallel-size {ranks} {chunks}" for ranks in (2, 4))
    assert any("does not go with --no-overlap-p2p-communication" in entry for entry in told(two))
    assert not told(four)
    assert not told(two.replace("--no-overlap-p2p-communication", ""))


def test_only_layers_that_cannot_be_priced_are_said_not_to_be() -> None:
    assert not told("--is-hybrid-model --hybrid-layer-pattern M-M*M-M*")
    (said,) = told("--is-hybrid-model")
    assert said.startswith("--is-hybrid-model: no --hybrid-layer-pattern says which layers")
    (said,) = told("--experimental-attention-variant dsa")
    assert said.endswith("restricts to some of the tokens is priced as attention to all of them")


def test_ends_that_leave_an_uneven_middle_are_told_by_their_numbers() -> None:
    """48 layers, 7 on the last of 8 stages: 41 are left for 7 (transformer_config.py)."""
    script = "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 48 --pipeline-model-parallel-size 8 "
    script += "--decoder-last-pipeline-num-layers 7 --micro-batch-size 1 --global-batch-size 16"
    request = question({"model": "qwen3-30b-a3b", "gpus": 8, "framework": "megatron"})
    with pytest.raises(BadInput) as refused:
        to_plan(read_text(script, "run.sh"), request)
    expected = "48 layers with 7 on the last stage leave 41, not a multiple of the 7 others"
    assert str(refused.value) == expected


def test_deepspeed_takes_one_half_precision() -> None:
    source = '{"zero_optimization": {"stage": 1}, "bf16": {"enabled": true}, "fp16": {"enabled": %s}}'
    both = list(need_findings(read_text(source % "true", "ds.json")))
    assert [entry.message for entry in both] == ["bf16.enabled does not go with fp16.enabled"]
    assert not list(need_findings(read_text(source % "false", "ds.json")))


def test_megatron_knows_every_flag_of_the_table() -> None:
    every = {name for need in NEEDS["megatron"] for name in names(need)} - {QUEUES.lower()}
    assert {f"--{name.replace('_', '-')}" for name in every} <= known_flags()


@pytest.mark.parametrize("framework", ["megatron", "megatron-bridge", "deepspeed"])
def test_written_files_lack_nothing(framework: str) -> None:
    for plan, request in legal_plans(framework, 40):
        assert not list(need_findings(read_files(write(plan, request))))


OVERLAP = "--num-experts 8 --disable-bias-linear --bf16 --moe-token-dispatcher-type alltoall "
OVERLAP += "--expert-model-parallel-size 8 --overlap-moe-expert-parallel-comm "


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            OVERLAP + "--moe-shared-expert-overlap",
            "--overlap-moe-expert-parallel-comm does not go with --moe-shared-expert-overlap",
        ),
        (
            OVERLAP + "--recompute-granularity selective --recompute-modules moe mlp",
            "--overlap-moe-expert-parallel-comm does not go with --recompute-modules with moe",
        ),
        (
            OVERLAP + "--mtp-num-layers 2",
            "--overlap-moe-expert-parallel-comm does not go with --mtp-num-layers above 1",
        ),
        ("--delay-wgrad-compute", "--delay-wgrad-compute needs --overlap-moe-expert-parallel-comm"),
        (
            "--num-experts 8 --tensor-model-parallel-size 2",
            "--num-experts 8 needs --disable-bias-linear or --expert-tensor-parallel-size 1 "
            "beside --tensor-model-parallel-size above 1",
        ),
        ("--use-megatron-fsdp", "--use-megatron-fsdp needs --ckpt-format fsdp_dtensor"),
        (
            "--use-torch-fsdp2 --untie-embeddings-and-output-weights --no-gradient-accumulation-fusion "
            "--pipeline-model-parallel-size 2",
            "--use-torch-fsdp2 does not go with --pipeline-model-parallel-size above 1",
        ),
        (
            "--cp-comm-type a2a+p2p --context-parallel-size 4",
            "--cp-comm-type a2a+p2p needs --hierarchical-context-parallel-sizes",
        ),
        (
            "--cuda-graph-impl transformer_engine --recompute-granularity full --recompute-method uniform "
            "--recompute-num-layers 1",
            "--cuda-graph-impl transformer_engine does not go with --recompute-granularity full",
        ),
        (
            "--cpu-offloading-num-layers 4 --pipeline-model-parallel-size 2",
            "--cpu-offloading-num-layers 4 does not go with --pipeline-model-parallel-size above 1",
        ),
        (
            "--fp8-format hybrid --fp8-recipe delayed --first-last-layers-bf16",
            "--first-last-layers-bf16 does not go with --fp8-recipe delayed",
        ),
        (
            "--decoder-first-pipeline-num-layers 3 --account-for-embedding-in-pipeline-split",
            "--decoder-first-pipeline-num-layers 3 does not go with "
            "--account-for-embedding-in-pipeline-split",
        ),
        (
            "--moe-router-topk 1",
            "--moe-router-topk 1 needs --moe-router-pre-softmax or --moe-router-score-function sigmoid or "
            "--moe-router-score-function sqrtsoftplus or --moe-router-load-balancing-type sinkhorn",
        ),
    ],
)
def test_what_megatron_core_refuses_is_told(flags: str, message: str) -> None:
    assert told(flags) == [message]


@pytest.mark.parametrize(
    "flags",
    [
        OVERLAP + "--delay-wgrad-compute",
        OVERLAP + "--pipeline-model-parallel-size 4 --num-virtual-stages-per-pipeline-rank 2",
        "--use-megatron-fsdp --ckpt-format fsdp_dtensor --data-parallel-sharding-strategy optim_grads",
        "--cuda-graph-impl local --cuda-graph-modules full_iteration --recompute-granularity full "
        "--recompute-method uniform --recompute-num-layers 1",
        "--num-experts 8 --tensor-model-parallel-size 2 --expert-tensor-parallel-size 1",
        "--num-experts 8 --moe-router-topk 2",
    ],
)
def test_what_megatron_core_accepts_is_not_told(flags: str) -> None:
    assert not told(flags)


def test_a_queue_of_its_own_for_communication_excludes_fsdp() -> None:
    """arguments.py: CUDA_DEVICE_MAX_CONNECTIONS=1 serialises the gathering of weights."""
    fsdp = SCRIPT.format(flags="--use-megatron-fsdp --ckpt-format fsdp_dtensor")
    (said,) = need_findings(read_text("export CUDA_DEVICE_MAX_CONNECTIONS=1\n" + fsdp, "run.sh"))
    assert said.message == "--use-megatron-fsdp does not go with CUDA_DEVICE_MAX_CONNECTIONS 1"
    assert not list(need_findings(read_text("export CUDA_DEVICE_MAX_CONNECTIONS=8\n" + fsdp, "run.sh")))


def test_branches_of_an_open_if_exclude_nothing() -> None:
    """Only one of them is taken: a conflict between two of them is none."""
    script = "if [ $1 = a ]; then P='--bf16 '\nelse P='--fp16 '\nfi\n" + SCRIPT.format(flags="$P")
    assert not list(need_findings(read_text(script, "run.sh")))


def test_a_recipe_below_may_fill_in_what_overrides_leave_out() -> None:
    """Overrides of Bridge stand on a recipe: a contradiction is told, what may be said below is not."""
    alone = "model.overlap_moe_expert_parallel_comm=true\nmodel.tensor_model_parallel_size=2\n"
    assert not list(need_findings(read_text(alone, "a.txt")))
    both = alone + "model.recompute_granularity=full\n"
    (said,) = need_findings(read_text(both, "a.txt"))
    assert said.message == (
        "model.overlap_moe_expert_parallel_comm does not go with recompute_granularity full"
    )


def test_settings_of_the_rollout_are_not_those_of_training() -> None:
    """verl: the actor's engine alone runs megatron-core's checks."""
    actor, rollout = "actor_rollout_ref.actor.megatron.", "actor_rollout_ref.rollout."
    override = actor + "override_transformer_config."
    script = f"python -m verl.trainer.main_ppo {actor}pipeline_model_parallel_size=1 "
    script += f"+{override}recompute_granularity=full +{override}recompute_method=uniform "
    script += f"+{override}recompute_num_layers=1 {rollout}overlap_moe_expert_parallel_comm=True\n"
    assert not list(need_findings(read_text(script, "run.sh")))
    moved = script.replace(rollout + "overlap", "+" + override + "overlap")
    assert "does not go with recompute_granularity full" in " ".join(
        entry.message for entry in need_findings(read_text(moved, "run.sh"))
    )


def test_sizes_of_a_hierarchy_make_up_the_context_ranks_and_divide_heads() -> None:
    """parallel_state.py: their product; the first is the group of the all-to-all."""
    request = question({"model": "llama-3-8b", "gpus": 16, "framework": "megatron"})
    flags = "--context-parallel-size 16 --cp-comm-type a2a+p2p --hierarchical-context-parallel-sizes "

    def messages(sizes: str) -> list[str]:
        launch = read_text(SCRIPT.format(flags=flags + sizes), "run.sh")
        return [entry.message for entry in need_findings(launch, request) if entry.severity == "error"]

    assert not messages("8 2")
    assert messages("4 2") == [
        "--hierarchical-context-parallel-sizes 4 x 2 is 8 ranks, context parallelism has 16"
    ]
    assert messages("16 1") == [
        "the all-to-all of --hierarchical-context-parallel-sizes splits 8 KV heads over 16 ranks"
    ]


def test_router_groups_divide_the_experts() -> None:
    assert told("--num-experts 128 --moe-router-num-groups 6") == [
        "--moe-router-num-groups 6 does not divide 128 experts (nearest: 4)"
    ]
    assert told("--num-experts 128 --moe-router-num-groups 4 --moe-router-group-topk 8") == [
        "--moe-router-group-topk 8 is more than --moe-router-num-groups 4"
    ]
    assert not told("--num-experts 128 --moe-router-num-groups 8 --moe-router-group-topk 4")


def test_a_list_of_exchanges_has_one_for_each_layer() -> None:
    assert told("--cp-comm-type p2p p2p allgather") == [
        "--cp-comm-type has 3 entries; it takes one, or one for each of the 8 layers"
    ]
    assert not told("--cp-comm-type " + "p2p " * 8)


def test_a_sharding_strategy_without_its_engine_is_said_to_do_nothing() -> None:
    said = told("--data-parallel-sharding-strategy optim_grads_params --use-distributed-optimizer")
    assert said == [
        "--data-parallel-sharding-strategy optim_grads_params does nothing without use_megatron_fsdp"
    ]


@pytest.mark.parametrize("stage", [2, 3])
def test_megatron_deepspeed_shards_gradients_only_outside_its_pipeline_engine(stage: int) -> None:
    script = "deepspeed pretrain_gpt.py --num-layers 24 --hidden-size 1024 --num-attention-heads 16 "
    script += f"--deepspeed --zero-stage {stage} --pipeline-model-parallel-size 1\n"
    (said,) = need_findings(read_text(script, "run.sh"))
    assert said.message.startswith(f"--zero-stage {stage} needs --no-pipeline-parallel")
    assert not list(need_findings(read_text(script.strip() + " --no-pipeline-parallel\n", "run.sh")))
    assert not list(need_findings(read_text(script.replace(f"stage {stage}", "stage 1"), "run.sh")))


def test_the_two_lists_of_megatron_say_nothing_twice() -> None:
    assert not set(CORE) & set(ARGUMENTS)


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


BATCHES = "torchrun pretrain_gpt.py --bf16 --seq-length 2048 --max-position-embeddings 2048 "
BATCHES += "--micro-batch-size 1 --global-batch-size 64 --use-distributed-optimizer {flags}\n"


def test_what_megatron_hides_only_when_told_is_priced_as_told() -> None:
    """arguments.py: neither the reduction of gradients nor the gathering of weights overlaps by itself."""
    request = question({"model": "llama-3-8b", "gpus": 64, "framework": "megatron"})
    both = "--overlap-grad-reduce --overlap-param-gather"
    results = {
        flags: review(read_text(BATCHES.format(flags=flags), "run.sh"), request, search_s=0)
        for flags in ("", "--overlap-grad-reduce", both)
    }
    exposed = []
    for result in results.values():
        assert result.estimate is not None
        exposed.append(float(result.estimate.time.data_comm_s))
    assert exposed[0] > exposed[1] > exposed[2]
    (said,) = [entry for entry in results[""].findings if entry.rule == "exposed-data-communication"]
    hint = "; the computation hides it with --overlap-grad-reduce and --overlap-param-gather"
    assert said.message.endswith(hint)
    assert not any(hint in entry.message for entry in results[both].findings)


def test_the_better_plan_is_priced_as_it_would_be_written() -> None:
    """Our files turn the overlap on, so the plan is not compared without it."""
    request = question({"model": "llama-3-8b", "gpus": 64, "framework": "megatron"})
    result = review(read_text(BATCHES.format(flags=""), "run.sh"), request, search_s=20)
    assert result.better is not None
    assert result.estimate is not None
    assert result.better.step_time_s < result.estimate.step_time_s
    assert result.better.time.data_comm_s < result.estimate.time.data_comm_s


def test_slow_defaults_for_experts_are_told() -> None:
    flags = "--num-experts 8 --disable-bias-linear --expert-model-parallel-size 4 "

    def all_told(flags: str) -> list[str]:
        return [entry.message for entry in need_findings(read_text(SCRIPT.format(flags=flags), "run.sh"))]

    gathered, one_by_one = all_told(flags)
    assert gathered.startswith("every token is gathered on all 4 expert ranks (dispatcher allgather")
    assert one_by_one.startswith("experts run one after another without --moe-grouped-gemm")
    assert not all_told(flags + "--moe-token-dispatcher-type alltoall --moe-grouped-gemm")
    whole = flags.replace("size 4", "size 8") + "--moe-token-dispatcher-type alltoall"
    assert not all_told(whole)  # one expert a rank


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


GRPO = """
policy:
  model_name: Qwen/Qwen3-8B
  train_micro_batch_size: 1
  make_sequence_length_divisible_by: {multiple}
  megatron_cfg: {{enabled: true, tensor_model_parallel_size: 2, pipeline_model_parallel_size: 2,
    context_parallel_size: 2, sequence_parallel: true}}
  dynamic_batching: {{enabled: {dynamic}}}
  sequence_packing: {{enabled: {packing}}}
cluster: {{gpus_per_node: 8, num_nodes: 1}}
grpo: {{num_prompts_per_step: 8}}
"""


def of_grpo(multiple: object, dynamic: str, packing: str) -> list[str]:
    text = GRPO.format(multiple=multiple, dynamic=dynamic, packing=packing)
    return [entry.message for entry in need_findings(read_text(text, "grpo.yaml"))]


def test_nemo_rl_packs_with_context_ranks() -> None:
    assert of_grpo(8, "false", "true") == []
    assert of_grpo("${policy.cluster}", "false", "true") == []
    assert of_grpo(4, "false", "true") == [
        "policy.make_sequence_length_divisible_by 4 is not a multiple of "
        "2 x 2 context ranks x 2 tensor ranks = 8 (nearest: 8)"
    ]
    assert of_grpo(8, "false", "false") == [
        "policy.megatron_cfg.context_parallel_size 2 needs sequence_packing.enabled: true "
        "(NeMo-RL on Megatron)"
    ]


def test_a_reference_of_a_base_means_the_setting_as_it_holds_in_the_end(tmp_path: Path) -> None:
    base = GRPO.format(
        multiple="${policy.megatron_cfg.tensor_model_parallel_size}", dynamic="false", packing="true"
    )
    (tmp_path / "base.yaml").write_text(
        base.replace("tensor_model_parallel_size: 2", "tensor_model_parallel_size: 1")
    )
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        "defaults: base.yaml\n"
        "policy: {megatron_cfg: {tensor_model_parallel_size: 2, context_parallel_size: 1}}\n"
    )
    assert list(need_findings(read_text(recipe.read_text(), str(recipe)))) == []


def test_packed_rows_are_micro_batches_and_their_samples_suit_the_context_ranks() -> None:
    ms_swift = "megatron sft --model Qwen/Qwen3-8B --context_parallel_size 4 --packing {packing}\n"
    notes = [entry.rule for entry in need_findings(read_text(ms_swift.format(packing="true"), "run.sh"))]
    assert notes == ["packed-samples-are-padded"]
    assert not list(need_findings(read_text(ms_swift.format(packing="false"), "run.sh")))
    bridge = """
cfg = llama3_8b_sft_config()
cfg.model.context_parallel_size = 2
cfg.train.micro_batch_size = 2
cfg.train.global_batch_size = 16
cfg.dataset.packed_sequence_specs.packed_sequence_size = 4096
cfg.dataset.packed_sequence_specs.pad_seq_to_mult = 6
"""
    launch = read_text(bridge, "run.py")
    assert launch.framework == "megatron-bridge"
    said = {entry.rule: entry.message for entry in need_findings(launch)}
    assert "rows of 2 x 4096" in said["settings-need-others"]
    assert "multiple of 4 tokens (2 x 2 context ranks); nearest: 8" in said["packed-samples-are-padded"]


GROUPS = (
    "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --ffn-hidden-size 11008 "
    "--num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096 --micro-batch-size 2 "
    "--global-batch-size 64 --swiglu --bf16 --use-distributed-optimizer --vocab-size 32000 {flags}\n"
)


def grouped(flags: str) -> tuple[float, float, list[str]]:
    """Saved activations and transient of a run [byte], and what is said of its groups."""
    launch = read_text(GROUPS.format(flags=flags), "run.sh")
    model = model_of(launch)
    assert model is not None
    asked = question({"model": model, "hardware": "h100-sxm-80gb", "gpus": 8, "global_batch": 64})
    result = review(launch, asked, search_s=0)
    assert result.estimate is not None
    stage = result.estimate.stages[0]
    said = [entry.message for entry in result.findings if "together" in entry.message]
    return float(stage.activations_bytes), float(stage.transient_bytes), said


def test_layers_that_are_recomputed_together_live_together() -> None:
    full = "--recompute-granularity full --recompute-method {method} --recompute-num-layers {layers}"
    none, _, _ = grouped("")
    saved_1, live_1, said = grouped(full.format(method="uniform", layers=1))
    assert said == []
    for layers in (2, 8, 32):
        saved, live, said = grouped(full.format(method="uniform", layers=layers))
        assert saved == pytest.approx(saved_1 / layers)  # one input a group
        assert live - live_1 == pytest.approx((layers - 1) * none / 32)  # the others' activations
        assert len(said) == 1
    assert "saves next to nothing" in said[0]
    assert (
        grouped(full.format(method="uniform", layers=64))[:2]
        == grouped(full.format(method="uniform", layers=32))[:2]
    )
    saved, live, said = grouped(full.format(method="block", layers=8))
    assert (live, said) == (live_1, [])
    assert saved == pytest.approx(none * 24 / 32 + saved_1 * 8 / 32)


def test_a_run_in_fp32_has_no_second_copy_and_twice_the_activations() -> None:
    base = GROUPS.replace("--bf16", "").replace("--use-distributed-optimizer", "")
    of = {}
    for flags in ("", "--bf16 --attention-backend unfused"):
        launch = read_text(base.format(flags=flags), "run.sh")
        model = model_of(launch)
        assert model is not None
        asked = question({"model": model, "hardware": "h100-sxm-80gb", "gpus": 8, "global_batch": 64})
        if flags:
            asked = asked.model_copy(update={"framework": with_unfused_attention(asked.framework)})
        result = review(launch, asked, search_s=0)
        assert result.estimate is not None
        of[flags] = result.estimate.stages[0]
    single, half = of.values()
    state = single.weights_bytes + single.gradients_bytes + single.optimizer_bytes
    assert float(single.weights_bytes) * 4 == pytest.approx(float(state))  # 4 + 4 + 8 bytes of 16
    assert float(single.weights_bytes) == pytest.approx(2 * float(half.weights_bytes))
    masks = 32 * 2 * (32 + 2) * 4096**2  # layers, sequences: the scores' of 32 heads, two of s x h
    assert float(single.activations_bytes) == pytest.approx(2 * float(half.activations_bytes) - masks)


@pytest.mark.parametrize(
    ("lines", "gradient", "told"),
    [
        ("cfg = llama3_8b_pretrain_config()", 4.0, False),
        ("cfg = llama3_8b_pretrain_config()\ncfg.ddp.grad_reduce_in_fp32 = False", 4.0, True),
        ("cfg = llama3_8b_pretrain_config()\ncfg.mixed_precision.grad_reduce_in_fp32 = False", 2.0, False),
        ("cfg = llama3_8b_pretrain_8gpu_h100_bf16_config()", 2.0, False),
        (
            "cfg = llama3_8b_pretrain_8gpu_h100_bf16_config()\n"
            "cfg.mixed_precision = 'bf16_with_fp8_current_scaling_mixed'",
            4.0,
            False,
        ),
    ],
)
def test_mixed_precision_recipes_of_bridge_keep_gradients_in_fp32(
    lines: str, gradient: float, told: bool
) -> None:
    source = f"{lines}\ncfg.train.micro_batch_size = 1\ncfg.train.global_batch_size = 64\n"
    launch = read_text(source, "run.py", "megatron-bridge")
    asked = question({"model": "llama-3-8b", "gpus": 8, "framework": "megatron-bridge", "global_batch": 64})
    result = review(launch, asked, search_s=0)
    assert result.estimate is not None
    framework = result.request.framework
    stage = result.estimate.stages[0]
    assert float(stage.gradients_bytes) == pytest.approx(
        float(stage.weights_bytes) * gradient / 2.0, rel=0.01
    )
    assert framework.time.gradient_reduce_bytes == gradient
    assert any("does not hold" in entry.message for entry in result.findings) == told


def test_dropouts_and_unfused_attention_keep_what_they_need_backwards() -> None:
    def saved(flags: str) -> float:
        return grouped(flags)[0]

    tokens, layers, heads = 2 * 4096, 32, 32
    plain = saved("--hidden-dropout 0 --attention-dropout 0.0")
    assert saved("--attention-dropout 0") - plain == pytest.approx(layers * 2 * tokens * 4096)  # two masks
    assert saved("--hidden-dropout 0") == plain  # a fused kernel draws its mask again
    unfused = "--hidden-dropout 0 --attention-backend unfused"
    scores = layers * heads * tokens * 4096
    assert saved(f"{unfused} --attention-dropout 0.0") - plain == pytest.approx(2 * scores)  # the softmax
    assert saved(unfused) - plain == pytest.approx(5 * scores)  # its mask, and what is left of it
    assert saved("--hidden-dropout 0 --attention-backend flash") == plain


def test_functional_tests_of_megatron_lm_peak_where_they_are_priced() -> None:
    # tests/functional_tests/test_cases, mem-max-allocated-bytes of the golden values on 8 H100
    shape = (
        "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --group-query-attention "
        "--num-query-groups 8 --untie-embeddings-and-output-weights --micro-batch-size 2 "
        "--global-batch-size 8 --seq-length 8192 --max-position-embeddings 8192 --vocab-size 131073 "
        "--transformer-impl transformer_engine --use-distributed-optimizer --overlap-grad-reduce "
        "--overlap-param-gather --no-gradient-accumulation-fusion --bf16"
    )
    for degrees, peak in (
        ("--tensor-model-parallel-size 4 --pipeline-model-parallel-size 1", 57.14e9),
        ("--tensor-model-parallel-size 1 --pipeline-model-parallel-size 4", 60.72e9),
    ):
        launch = read_text(f"torchrun pretrain_gpt.py {shape} {degrees}\n", "run.sh", "megatron")
        model = model_of(launch)
        assert model is not None
        asked = question({"model": model, "gpus": 8, "hardware": "h100-sxm-80gb", "global_batch": 8})
        result = review(launch, asked, search_s=0)
        assert result.estimate is not None
        parts = result.estimate.stages[0].as_dict()
        allocated = sum(float(size) for name, size in parts.items() if name not in OUTSIDE)
        assert allocated == pytest.approx(peak, rel=0.1)


OUTSIDE = {"fragmentation_bytes", "context_bytes"}
"""Memory that PyTorch has not allocated."""


@pytest.mark.parametrize(
    ("flags", "size"),
    [
        ("--vocab-file gpt2-vocab.json --merge-file gpt2-merges.txt", 50_257),
        ("--tokenizer-type GPT2BPETokenizer", 50_257),
        (
            "--tokenizer-type GPT2BPETokenizer --vocab-file bpe/vocab.json --merge-file bpe/merges.txt",
            128_256,
        ),
        ("--tokenizer-type Llama2Tokenizer --tokenizer-model tokenizer.model", 32_000),
        ("--tokenizer-type HuggingFaceTokenizer --tokenizer-model Qwen/Qwen3-8B", 151_936),
        ("--tokenizer-type HuggingFaceTokenizer --tokenizer-model /data/own", 128_256),
        ("--tokenizer-type GPT2BPETokenizer --vocab-size 64000", 64_000),
        ("", 128_256),
    ],
)
def test_a_tokenizer_says_the_vocabulary(flags: str, size: int) -> None:
    command = GROUPS.replace("--vocab-size 32000", "").format(flags=flags)
    model = model_of(read_text(command, "run.sh"))
    assert model is not None
    assert model.vocab_size == size
    assert ("assumed" in model.notes) == (size == 128_256)


def test_layers_of_megatron_itself_keep_the_scores_without_flash_attention() -> None:
    fused = grouped("--hidden-dropout 0")[0]
    assert grouped("--hidden-dropout 0 --transformer-impl local --use-flash-attn")[0] == fused
    assert grouped("--hidden-dropout 0 --transformer-impl local")[0] > 2 * fused

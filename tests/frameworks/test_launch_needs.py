"""Settings that need or exclude others, as the frameworks' own checks have it."""

from __future__ import annotations

import pytest
from launch_plans import legal_plans

from planner.api import question
from planner.errors import BadInput
from planner.frameworks.files import read_files, read_text, to_plan, write
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

"""What trainers mean beyond their names: files that build on others, pairs, engines, attention, lone ranks.

Every text is made up for the test; what it means is from the trainers' own code, named in their dialects.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from dialect_files import AXOLOTL, FACTORY, OPENRLHF, SWIFT_TRAINER, TORCHTUNE, VERL_FSDP

from planner.api import Question, question, review_files
from planner.errors import BadInput
from planner.frameworks.dialects import dialect_of
from planner.frameworks.dialects.nemo_rl import bases
from planner.frameworks.files import read_files, read_text, to_plan
from planner.frameworks.launch import LaunchFile
from planner.frameworks.lint import Finding, adopt, gpus_of, lint, model_of
from planner.spec import Plan, PlanRequest


def asked(launch: LaunchFile, gpus: int = 8, model: str = "llama-3-8b") -> PlanRequest:
    options = {"model": model, "gpus": gpus, "framework": launch.framework, "global_batch": 64}
    return adopt(launch, question(options))


def planned(launch: LaunchFile, gpus: int = 8, model: str = "llama-3-8b") -> Plan:
    return to_plan(launch, asked(launch, gpus, model))


def told(launch: LaunchFile, gpus: int = 8, model: str = "llama-3-8b") -> dict[str, Finding]:
    return {found.rule: found for found in lint(launch, asked(launch, gpus, model))}


RECIPE = """
defaults: ../../BASE.yaml
policy:
  model_name: Qwen/Qwen2.5-7B
  max_total_sequence_length: 8192
  SECTION
cluster:
  num_nodes: 2
"""


def recipe(base: str, section: str = "") -> str:
    return RECIPE.replace("BASE", base).replace("SECTION", section)


@pytest.mark.parametrize(
    ("base", "section", "framework", "micro_batch"),
    [
        ("grpo_math_1B", "", "automodel", 4),
        ("grpo_math_8B", "dtensor_cfg: {tensor_parallel_size: 2}", "automodel", 1),
        ("grpo_math_1B_megatron", "", "megatron", 4),
        ("sft", "train_micro_batch_size: 2", "automodel", 2),
        ("sft", "megatron_cfg: {enabled: true}", "megatron", 1),
    ],
)
def test_a_recipe_of_nemo_rl_keeps_what_it_does_not_say(
    base: str, section: str, framework: str, micro_batch: int
) -> None:
    launch = read_text(recipe(base, section), "recipe.yaml")
    assert launch.framework == framework
    assert launch.get("local_batch" if framework == "automodel" else "micro_batch") == micro_batch
    assert launch.get("seq_length") == 8192


def test_a_recipe_builds_on_the_file_that_lies_where_it_says(tmp_path: Path) -> None:
    (tmp_path / "below.yaml").write_text(recipe("dpo", "train_micro_batch_size: 3").replace("../../", "./"))
    source = "defaults: below.yaml\npolicy:\n  max_total_sequence_length: 4096\n"
    launch = read_text(source, str(tmp_path / "recipe.yaml"))
    assert (launch.get("local_batch"), launch.get("seq_length")) == (2 * 3, 4096)  # pairs
    assert launch.get("launcher.nodes") == 2


def test_a_recipe_without_the_file_below_it_says_where_to_check_it() -> None:
    with pytest.raises(BadInput, match=r"recipe\.yaml:2: builds on \.\./\.\./mine\.yaml, which is not there"):
        read_text(recipe("mine"), "recipe.yaml")


def test_recipes_that_build_on_each_other_end(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("defaults: a.yaml\npolicy: {model_name: x}\n")
    with pytest.raises(BadInput, match="builds on"):
        read_text((tmp_path / "a.yaml").read_text(), str(tmp_path / "a.yaml"))


def test_every_base_of_nemo_rl_makes_a_run() -> None:
    for name in bases():
        source = recipe(name, "train_global_batch_size: 512").replace("num_nodes: 2", "num_nodes: 8")
        launch = read_text(source, "recipe.yaml")
        gpus = gpus_of(launch)
        assert gpus is not None
        assert planned(launch, gpus).num_gpus == gpus


def test_overrides_of_a_command_win_over_its_configuration() -> None:
    source = (
        "uv run examples/run_sft.py --config examples/configs/sft_openmathinstruct2.yaml \\\n"
        "  ++policy.dtensor_cfg.enabled=False ++policy.megatron_cfg.enabled=True \\\n"
        "  policy.megatron_cfg.context_parallel_size=2 policy.train_micro_batch_size=1 cluster.num_nodes=4\n"
    )
    launch = read_text(source, "run.sh")
    assert launch.framework == "megatron"
    assert (launch.get("context_parallel"), launch.get("micro_batch"), gpus_of(launch)) == (2, 1, 32)
    assert launch.get("seq_length") == 4096


def test_the_log_probabilities_of_nemo_rl_hold_more_than_a_fused_loss() -> None:
    launch = read_text(recipe("sft", "megatron_cfg: {enabled: true}"), "recipe.yaml")
    fused = read_text(
        recipe("sft", "megatron_cfg: {enabled: true, use_fused_linear_logprobs: true}"), "recipe.yaml"
    )
    assert asked(launch).framework.memory.loss_peak_bytes == 16
    assert asked(fused).framework.memory.loss_peak_bytes == 0


PAIRS = {
    "sft.yaml": (FACTORY, FACTORY + "stage: dpo\n", True),
    "orpo.yaml": (FACTORY, FACTORY + "stage: dpo\npref_loss: orpo\n", False),
    "config.yml": (AXOLOTL, AXOLOTL + "rl: dpo\n", True),
    "run.sh": (OPENRLHF, OPENRLHF.replace("train_sft", "train_rm"), False),
    "swift.sh": (
        SWIFT_TRAINER + " --tuner_type full",
        SWIFT_TRAINER.replace("sft", "rlhf") + " --tuner_type full --rlhf_type dpo",
        True,
    ),
}
"""Files of single answers, the same with pairs, and whether a reference model is held."""


@pytest.mark.parametrize("path", PAIRS)
def test_a_sample_of_a_preference_loss_is_two_sequences(path: str) -> None:
    single, pairs, has_reference = PAIRS[path]
    one, two = (read_text(source, path) for source in (single, pairs))
    default = 1 if path == "swift.sh" else one.get("micro_batch")
    assert two.get("micro_batch", 2) == 2 * default
    assert two.get("reference") is has_reference


def test_the_weights_of_a_reference_are_told_unless_adapters_make_it() -> None:
    found = told(read_text(AXOLOTL + "rl: dpo\n", "config.yml"))
    assert "reference model is held beside the trained one: about" in found["setting-means-less"].message
    adapters = told(read_text(AXOLOTL + "rl: dpo\nadapter: lora\n", "config.yml"))
    assert "setting-means-less" not in adapters


TRL = """
model_name_or_path: Qwen/Qwen2.5-7B
per_device_train_batch_size: 2
gradient_accumulation_steps: 4
max_length: 2048
bf16: true
"""
FSDP = """
compute_environment: LOCAL_MACHINE
distributed_type: FSDP
fsdp_config:
  fsdp_version: 2
  fsdp_reshard_after_forward: true
mixed_precision: bf16
num_processes: 8
"""


@pytest.mark.parametrize("order", [("trl.yaml", "fsdp.yaml"), ("fsdp.yaml", "trl.yaml")])
def test_a_yaml_of_arguments_goes_with_the_engine_beside_it(order: tuple[str, ...]) -> None:
    sources = {"trl.yaml": TRL, "fsdp.yaml": FSDP}
    launch = read_files({name: sources[name] for name in order})
    plan = planned(launch)
    assert (plan.zero_stage, plan.micro_batch, plan.num_microbatches) == (3, 2, 4)
    assert launch.get("seq_length") == 2048
    model = model_of(launch)
    assert model is not None and model.name == "qwen2.5-7b"


def test_flags_of_a_script_name_model_and_length_in_either_way() -> None:
    flags = "--model_name=Qwen/Qwen2.5-7B --block_size=32768 --per_device_train_batch_size=1 --bf16=True"
    launch = read_text(f"torchrun --nproc-per-node 8 train/sft.py {flags} --fsdp='full_shard'", "run.sh")
    model = model_of(launch)
    assert model is not None and model.name == "qwen2.5-7b"
    assert (launch.get("seq_length"), planned(launch).zero_stage) == (32768, 3)


def test_trls_own_defaults_hold_where_nothing_is_said() -> None:
    launch = read_text("trainer = SFTTrainer(args=SFTConfig(per_device_train_batch_size=4))\n", "sft.py")
    plan = planned(launch)
    assert (launch.get("seq_length"), plan.recompute, plan.precision) == (1024, "full", "bf16")
    plain = planned(read_text("args = TrainingArguments(per_device_train_batch_size=4)\n", "sft.py"))
    assert (plain.recompute, plain.precision) == ("none", "fp32")


@pytest.mark.parametrize(
    ("source", "path"),
    [
        (AXOLOTL + "attn_implementation: eager\n", "config.yml"),
        (FACTORY + "flash_attn: disabled\n", "sft.yaml"),
        (TRL + "attn_implementation: eager\n", "trl.yaml"),
    ],
)
def test_attention_without_a_fused_kernel_keeps_its_scores(source: str, path: str) -> None:
    assert not asked(read_text(source, path)).framework.memory.fused_attention


def test_axolotl_splits_sequences_over_replicas_without_fsdp() -> None:
    base = AXOLOTL.replace("dp_shard_size: 4\ntensor_parallel_size: 2\nfsdp_version: 2\n", "")
    launch = read_text(
        base.partition("fsdp_config:")[0] + "context_parallel_size: 4\nflash_attention: true\n", "config.yml"
    )
    plan = planned(launch, model="llama-3.2-1b")
    assert (plan.zero_stage, plan.data_parallel, plan.context_parallel) == (0, 2, 4)
    assert not [found for found in told(launch, model="llama-3.2-1b").values() if found.severity == "error"]


def test_torchtune_shards_only_where_there_is_something_to_shard() -> None:
    launch = read_text(TORCHTUNE + "\ntensor_parallel_dim: 8\ndata_parallel_shard_dim: 1\n", "8b.yaml")
    assert planned(launch).zero_stage == 0
    assert "sharding_has_more_than_one_rank" not in told(launch)


def test_accelerates_fsdp_shards_nothing_on_one_gpu_and_refuses_it_beside_tensor_ranks() -> None:
    alone = read_text(FSDP.replace("num_processes: 8", "num_processes: 1"), "fsdp.yaml")
    assert planned(alone, gpus=1).zero_stage == 0
    tensor = FSDP + "parallelism_config: {parallelism_config_tp_size: 8}\n"
    assert "sharding_has_more_than_one_rank" in told(read_text(tensor, "fsdp.yaml"))


def test_processes_that_the_degrees_do_not_fill_name_the_degrees_that_do() -> None:
    short = FSDP + "parallelism_config: {parallelism_config_dp_shard_size: 4}\n"
    message = told(read_text(short, "fsdp.yaml"))["settings-make-a-run"].message
    assert message.endswith("is 4, not 8 processes; dp_replicate 2 or dp_shard 8 fills them")


def test_verls_ulysses_is_read_under_both_its_names() -> None:
    name = "actor.ulysses_sequence_parallel_size"
    new = VERL_FSDP.replace(name, "actor.fsdp_config.ulysses_sequence_parallel_size")
    for source in (VERL_FSDP, new):
        assert read_text(source, "run.sh").get("context_parallel") == 2


def test_a_dynamic_batch_of_verl_is_one_row_whatever_else_is_said() -> None:
    dynamic = VERL_FSDP + " actor_rollout_ref.actor.use_dynamic_bsz=True"
    tokens = dynamic + " actor_rollout_ref.actor.ppo_max_token_len_per_gpu=16384"
    launch = read_text(tokens.replace("micro_batch_size_per_gpu=1", "micro_batch_size_per_gpu=4"), "run.sh")
    assert (launch.get("micro_batch"), launch.get("seq_length")) == (1, 2 * 16384)


def test_an_entropy_in_verls_loss_keeps_its_probabilities() -> None:
    entropy = VERL_FSDP + " actor_rollout_ref.actor.entropy_coeff=0.001"
    saved = [
        asked(read_text(source, "run.sh")).framework.memory.loss_saved_bytes
        for source in (VERL_FSDP, entropy, VERL_FSDP + " actor_rollout_ref.model.use_fused_kernels=True")
    ]
    assert saved == [4.0, 6.0, 0.0]


def test_a_plain_list_of_defaults_is_no_recipe() -> None:
    assert dialect_of("defaults:\n  - _self_\nmodel: {dim: 4}\n") is None
    assert dialect_of(recipe("sft")) == "nemo-rl"


def test_values_that_are_no_settings_are_refused_in_a_sentence() -> None:
    values: list[Any] = ["3", "[1]", "{a: 1}", "null"]
    for value in values:
        source = f"defaults: {value}.yaml\npolicy: {{dtensor_cfg: {{enabled: 7}}}}\n"
        with pytest.raises(BadInput):
            read_text(source, "recipe.yaml")


@pytest.mark.parametrize(
    ("said", "zero", "group"),
    [
        ("fsdp_reshard_after_forward: FULL_SHARD", 3, 32),
        ("fsdp_reshard_after_forward: SHARD_GRAD_OP", 2, 32),
        ("fsdp_sharding_strategy: HYBRID_SHARD", 3, 8),
        ("fsdp_sharding_strategy: 5", 2, 8),
        ("fsdp_sharding_strategy: 1", 3, 32),
    ],
)
def test_the_strategies_of_fsdp_1_shard_over_all_or_inside_a_node(said: str, zero: int, group: int) -> None:
    engine = FSDP.replace("fsdp_reshard_after_forward: true", said).replace("version: 2", "version: 1")
    plan = planned(read_text(engine.replace("num_processes: 8", "num_processes: 32"), "fsdp.yaml"), 32)
    assert (plan.zero_stage, plan.shard_group_size, plan.data_parallel) == (zero, group, 32)


def test_what_a_file_assumes_gives_way_to_what_another_says() -> None:
    args = "per_device_train_batch_size: 2\nmax_length: 1024\n"
    stage = '{"zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": 5}'
    program = "TrainingArguments(deepspeed='settings.json')\n"  # 8 sequences where nothing is said
    for order in (("a.py", "settings.json"), ("settings.json", "a.py")):
        sources = {"a.py": program, "settings.json": stage}
        assert read_files({name: sources[name] for name in order}).get("micro_batch") == 5
    assert read_text(args, "trl.yaml").get("micro_batch") == 2


def test_a_batch_that_litgpts_gpus_do_not_divide_leaves_the_rest_out_of_a_step() -> None:
    source = "model_name: llama-3-8b\ndevices: 4\ntrain: {global_batch_size: 125, micro_batch_size: 5}\n"
    block = source.replace("train: {", "train:\n  ").replace(", micro", "\n  micro").replace("}", "")
    plan = planned(read_text(block, "pretrain.yaml"), 4)
    assert (plan.micro_batch, plan.num_microbatches) == (5, 6)


def test_a_default_in_a_default_is_read() -> None:
    source = 'HOME=/root\nMODEL_PATH=${MODEL_PATH:-"${HOME}/models/Qwen2.5-7B"}\n' + VERL_FSDP.replace(
        "model.path=Qwen/Qwen2.5-7B", "model.path=${MODEL_PATH}"
    )
    model = model_of(read_text(source, "run.sh"))
    assert model is not None and model.name == "qwen2.5-7b"


def test_a_dynamic_batch_of_openrlhf_is_one_row_of_tokens() -> None:
    dotted = "--train.dynamic_batch_enable --train.max_tokens_per_gpu 32768 --data.max_len 9216"
    source = f"python3 -m openrlhf.cli.train_ppo_ray --train.batch_size 1024 {dotted} --ds.zero_stage 3\n"
    launch = read_text(source, "run.sh")
    assert (launch.get("micro_batch"), launch.get("seq_length"), launch.get("global_batch")) == (
        1,
        32768,
        1024,
    )
    unsaid = read_text(source.replace(" --train.max_tokens_per_gpu 32768", ""), "run.sh")
    assert unsaid.get("seq_length") == 16_192


@pytest.mark.parametrize(("program", "micro_batch"), [("sft", 8), ("ppo_ray", 1), ("rm", 2)])
def test_openrlhfs_programs_have_their_own_micro_batch(program: str, micro_batch: int) -> None:
    launch = read_text(f"deepspeed --module openrlhf.cli.train_{program} --bf16\n", "run.sh")
    assert launch.get("micro_batch") == micro_batch  # a reward model's samples are pairs


def test_gpus_lie_on_the_nodes_that_a_launcher_starts(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    nodes = "--actor_num_nodes 4 --actor_num_gpus_per_node 2"
    script.write_text(f"python3 -m openrlhf.cli.train_ppo_ray {nodes} --pretrain Qwen/Qwen2.5-1.5B --bf16\n")
    cluster = review_files([str(script)], Question(), 0.0).request.cluster
    assert (cluster.num_gpus, cluster.gpus_per_node) == (8, 2)
    asked_for = review_files([str(script)], Question(gpus=8), 0.0).request.cluster
    assert asked_for.gpus_per_node == 8

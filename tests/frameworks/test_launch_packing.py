"""Packed samples: what NeMo-RL and Bridge ask of their lengths, and how they are priced."""

from __future__ import annotations

from pathlib import Path

from planner.frameworks.files import read_text
from planner.frameworks.lint.needs import need_findings

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

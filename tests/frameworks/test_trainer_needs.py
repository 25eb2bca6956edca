"""Settings of trainers that go only with others: refused before the run is started, as the trainers do."""

from __future__ import annotations

import pytest

from planner.frameworks.files import read_files, read_text
from planner.frameworks.lint.needs import need_findings

AXOLOTL = "base_model: Qwen/Qwen2.5-7B\nsequence_len: 4096\nmicro_batch_size: 2\nbf16: true\n"
FSDP2 = "fsdp_version: 2\nfsdp_config:\n  offload_params: false\n"
FACTORY = (
    "model_name_or_path: meta-llama/Meta-Llama-3-8B\nstage: sft\nfinetuning_type: {kind}\ncutoff_len: 2048\n"
)


def refused(*sources: str) -> list[str]:
    """What is refused in YAML files of one run."""
    files = {f"{index}.yaml": source for index, source in enumerate(sources)}
    launch = read_files(files) if len(files) > 1 else read_text(sources[0], "0.yaml")
    return [entry.message for entry in need_findings(launch) if entry.severity == "error"]


@pytest.mark.parametrize(
    ("settings", "message", "instead"),
    [
        ("dp_shard_size: 8", "dp_shard_size 8 needs fsdp_config or fsdp", f"dp_shard_size: 8\n{FSDP2}"),
        ("adapter: qlora", "adapter qlora needs load_in_4bit", "adapter: qlora\nload_in_4bit: true"),
        ("load_in_8bit: true", "load_in_8bit needs adapter", "load_in_8bit: true\nadapter: lora"),
        (
            f"optimizer: adamw_bnb_8bit\n{FSDP2}",
            "optimizer adamw_bnb_8bit does not go with fsdp_version 2",
            f"optimizer: adamw_torch_8bit\n{FSDP2}",
        ),
        (
            "tensor_parallel_size: 2\noptimizer: adamw_8bit",
            "tensor_parallel_size 2 does not go with optimizer adamw_8bit",
            "tensor_parallel_size: 2\noptimizer: adamw_torch",
        ),
        (
            "context_parallel_size: 2\nflash_attention: true\nsample_packing: true",
            "context_parallel_size 2 does not go with micro_batch_size above 1",
            "context_parallel_size: 2\nflash_attention: true",
        ),
        (
            "context_parallel_size: 2\nsdp_attention: true",
            "context_parallel_size 2 needs flash_attention",
            "context_parallel_size: 2\nattn_implementation: flash_attention_2",
        ),
        (
            "optimizer: paged_adamw_8bit\nfsdp_config:\n  offload_params: true",
            "fsdp_config.offload_params needs fsdp_version 2",
            "optimizer: paged_adamw_8bit\nfsdp_version: 2\nfsdp_config:\n  offload_params: true",
        ),
    ],
)
def test_what_axolotl_refuses(settings: str, message: str, instead: str) -> None:
    assert any(said.startswith(message) for said in refused(f"{AXOLOTL}{settings}\n"))
    assert refused(f"{AXOLOTL}{instead}\n") == []


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        ("full", "pure_bf16: true\ndeepspeed: ds_z3_config.json", "pure_bf16 does not go with zero_stage 3"),
        (
            "lora",
            "use_unsloth: true\ndeepspeed: ds_z3_config.json",
            "use_unsloth does not go with zero_stage 3",
        ),
        ("full", "quantization_bit: 4", "quantization_bit 4 does not go with finetuning_type full"),
        (
            "full",
            "use_galore: true\ndeepspeed: ds_z2_config.json",
            "use_galore does not go with deepspeed",
        ),
    ],
)
def test_what_llama_factory_refuses(kind: str, settings: str, message: str) -> None:
    assert refused(FACTORY.format(kind=kind) + settings) == [message]
    lawful = settings.replace("z3", "z2").replace("use_galore: true\n", "")
    assert refused(FACTORY.format(kind="lora") + lawful) == []


TRAINER = (
    "model_name_or_path: Qwen/Qwen2.5-7B\nper_device_train_batch_size: 1\ngradient_checkpointing: {on}\n"
)
SHARDED = (
    "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nnum_processes: 8\nmixed_precision: bf16\n"
    "fsdp_config:\n  fsdp_version: 2\n  fsdp_activation_checkpointing: true\n"
)


def test_activations_are_checkpointed_by_the_trainer_or_by_fsdp() -> None:
    said = refused(TRAINER.format(on="true"), SHARDED)
    assert said == ["gradient_checkpointing does not go with fsdp_config.fsdp_activation_checkpointing"]
    assert refused(TRAINER.format(on="false"), SHARDED) == []


@pytest.mark.parametrize(
    ("settings", "message", "instead"),
    [
        (
            "dtensor_cfg.context_parallel_size=2 sequence_packing.enabled=true",
            "policy.dtensor_cfg.context_parallel_size 2 does not go with policy.sequence_packing.enabled",
            "dtensor_cfg.context_parallel_size=2 sequence_packing.enabled=false",
        ),
        (
            "dtensor_cfg.context_parallel_size=2 dtensor_cfg.tensor_parallel_size=2 "
            "dtensor_cfg.sequence_parallel=true sequence_packing.enabled=false",
            "context_parallel_size 2 does not go with policy.dtensor_cfg.sequence_parallel",
            "dtensor_cfg.tensor_parallel_size=2 dtensor_cfg.sequence_parallel=true",
        ),
        (
            "dtensor_cfg.enabled=true megatron_cfg.enabled=true",
            "policy.megatron_cfg.enabled does not go with policy.dtensor_cfg.enabled",
            "dtensor_cfg.enabled=false megatron_cfg.enabled=true",
        ),
        (
            "dtensor_cfg.enabled=true sequence_packing.enabled=true dynamic_batching.enabled=true",
            "policy.dynamic_batching.enabled does not go with policy.sequence_packing.enabled",
            "dtensor_cfg.enabled=true sequence_packing.enabled=false dynamic_batching.enabled=true",
        ),
    ],
)
def test_what_nemo_rl_refuses(settings: str, message: str, instead: str) -> None:
    def said(overrides: str) -> list[str]:
        words = " ".join(f"policy.{word}" for word in overrides.split())
        launch = read_text(f"uv run examples/run_sft.py {words}\n", "run.sh")
        return [entry.message for entry in need_findings(launch) if entry.severity == "error"]

    assert any(message in words for words in said(settings))
    assert said(instead) == []

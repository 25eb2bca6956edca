"""What lives on the host: read from every kind of file, written, and read again."""

from __future__ import annotations

import json

import pytest
from dialect_files import AXOLOTL, FACTORY, FOUNDRY, PROGRAM, TORCHTUNE
from test_dialects import asked

from planner.api import complete
from planner.frameworks.files import read_files, read_text, to_plan, write
from planner.frameworks.lint import lint


def test_weights_that_leave_without_their_optimizer_are_said_not_to_be_priced() -> None:
    source = '{"zero_optimization": {"stage": 3,\n "offload_param": {"device": "cpu"}},\n'
    source += ' "train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true}}'
    request = asked("llama-3-8b", 8, "deepspeed", 8)
    launch = read_text(source, "ds.json")
    (said,) = [entry for entry in lint(launch, request) if entry.rule == "unpriced-value"]
    assert (said.line, to_plan(launch, request).offload) == (2, "none")
    assert "priced together with the optimizer only" in said.message
    both = source.replace('"offload_param"', '"offload_optimizer": {"device": "cpu"}, "offload_param"')
    launch = read_text(both, "ds.json")
    assert to_plan(launch, request).offload == "parameters"
    assert "unpriced-value" not in {entry.rule for entry in lint(launch, request)}


def test_parameters_on_the_host_below_zero_3_are_an_error_of_deepspeed() -> None:
    away = '"offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}'
    source = '{"zero_optimization": {"stage": 2, AWAY}, "train_micro_batch_size_per_gpu": 1}'
    launch = read_text(source.replace("AWAY", away), "ds.json")
    found = lint(launch, asked("llama-3-8b", 8, "deepspeed", 8))
    (said,) = [entry for entry in found if entry.rule == "parameter_offload_needs_sharded_weights"]
    assert said.severity == "error"
    assert "not under ZeRO-2" in said.message


AWAY = {
    "accelerate.yaml": ("""
distributed_type: FSDP
num_processes: 8
mixed_precision: bf16
fsdp_config: {fsdp_version: 2, fsdp_offload_params: true}
""", "parameters"),
    "zero3.yaml": ("""
distributed_type: DEEPSPEED
num_processes: 8
deepspeed_config: {zero_stage: 3, offload_optimizer_device: cpu, offload_param_device: cpu}
""", "parameters"),
    "fsdp.yaml": (AXOLOTL.replace("{reshard", "{offload_params: true, reshard"), "parameters"),
    "checkpoints.yaml": (AXOLOTL + "activation_offloading: true\n", "activations"),
    "named.yaml": (AXOLOTL.replace("gradient_checkpointing: true", "gradient_checkpointing: offload"),
                   "activations"),
    "lora.yaml": (FACTORY.replace("deepspeed:", "fsdp: full_shard auto_wrap offload\nunused:")
                  + "use_unsloth_gc: true\n", "parameters+activations"),
    "recipe.yaml": (TORCHTUNE + "fsdp_cpu_offload: true\nenable_activation_offloading: true\n",
                    "parameters+activations"),
    "sft.py": (PROGRAM.replace("bf16=True", 'bf16=True, gradient_checkpointing_kwargs={"offload": True}'),
               "activations"),
    "mpt.yaml": (FOUNDRY.replace("activation_checkpointing: true", "cpu_offload: true"), "parameters"),
}  # fmt: skip


@pytest.mark.parametrize("path", AWAY)
def test_what_lives_on_the_host_is_read_from_every_dialect(path: str) -> None:
    source, expected = AWAY[path]
    launch = read_text(source, path)
    framework = launch.framework
    plan = to_plan(launch, asked("llama-3-8b", 16, framework, 64))
    assert plan.offload == expected


WRITTEN = {
    ("deepspeed", "parameters"): ("ds_config.json", ('"offload_param"', '"offload_optimizer"')),
    ("accelerate", "parameters"): ("accelerate.yaml", ("fsdp_offload_params: true",)),
    ("accelerate", "activations"): ("hf_arguments.json", ('"offload": true',)),
    ("accelerate", "parameters+activations"): ("accelerate.yaml", ("fsdp_offload_params: true",)),
    ("torchtitan", "parameters"): ("train.toml", ("enable_cpu_offload = true",)),
    ("pytorch", "parameters"): ("train.py", ("'offload': 'parameters'",)),
    ("maxtext", "activations"): ("maxtext.yml", ("decoder_layer_input: offload", "remat_policy: custom")),
}


@pytest.mark.parametrize(("framework", "offload"), WRITTEN)
def test_what_lives_on_the_host_is_written_and_read_again(framework: str, offload: str) -> None:
    request = asked("llama-3-8b", 8, framework, 64)
    unused = request.framework.limits.context_parallel_kinds[0]
    said = {"zero_stage": 3, "recompute": "full", "offload": offload, "context_parallel_kind": unused}
    plan = complete({"data_parallel": 8, **said}, request)
    files = write(plan, request)
    name, words = WRITTEN[framework, offload]
    assert all(word in files[name] for word in words)
    assert to_plan(read_files(files), request) == plan


def test_checkpoints_on_the_host_are_the_trainers_and_not_fsdps() -> None:
    """FSDP2's own checkpointing keeps its inputs on the GPU."""
    request = asked("llama-3-8b", 8, "accelerate", 64)
    plan = complete({"zero_stage": 3, "recompute": "full", "offload": "activations"}, request)
    files = write(plan, request)
    arguments = json.loads(files["hf_arguments.json"])
    assert arguments["gradient_checkpointing"]
    assert "fsdp_activation_checkpointing: false" in files["accelerate.yaml"]
    assert "transformers 5.16" in files["README.md"]

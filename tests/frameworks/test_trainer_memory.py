"""What trainers hold in memory unlike the frameworks below: paged state, 16-bit weights, no gradients.

Every text is made up for the test; what it means is from the trainers' own code, named in their dialects.
"""

from __future__ import annotations

import pytest
from dialect_files import AUTOMODEL, TORCHTUNE
from test_trainer_kinds import FSDP, TRL, asked, planned, told

from planner.frameworks.files import read_files, read_text
from planner.frameworks.lint import batch_of, lint
from planner.solver.evaluate import evaluate

PAGED = "optimizer: {_component_: bitsandbytes.optim.NAME}\n"


def test_a_paged_optimizer_leaves_the_gpu_before_anything_else_fails() -> None:
    base = TORCHTUNE.partition("optimizer:")[0] + "\nenable_activation_checkpointing: true\n"
    paged = read_text(base + PAGED.replace("NAME", "PagedAdamW"), "70b.yaml")
    request = asked(paged, 8, "llama-3-70b")
    assert request.framework.memory.optimizer_bytes == 8.0
    found = told(paged, 8, "llama-3-70b")
    assert "out-of-memory" not in found
    assert "moves" in found["optimizer-is-paged-out"].message
    kept = read_text(base + PAGED.replace("NAME", "AdamW"), "70b.yaml")
    assert "out-of-memory" in told(kept, 8, "llama-3-70b")


ACCUMULATING = TRL.replace("gradient_accumulation_steps: 4", "gradient_accumulation_steps: STEPS")


def test_checkpointing_that_the_trainer_asks_for_is_not_undone_by_its_engine() -> None:
    trainer = TRL + "gradient_checkpointing: true\n"
    engine = FSDP.replace(
        "  fsdp_version: 2\n", "  fsdp_version: 2\n  fsdp_activation_checkpointing: false\n"
    )
    for names in (("a.yaml", "b.yaml"), ("b.yaml", "a.yaml")):
        sources = {"a.yaml": trainer, "b.yaml": engine}
        assert planned(read_files({name: sources[name] for name in names})).recompute == "full"


def test_whole_gradients_of_accumulation_are_told_with_the_setting_that_shards_them() -> None:
    said = {}
    for steps in ("1", "8"):
        sources = {"trl.yaml": ACCUMULATING.replace("STEPS", steps), "fsdp.yaml": FSDP}
        launch = read_files(sources).without("seq_length")
        said[steps] = told(launch, 8, "qwen2.5-32b")["out-of-memory"].message
    assert "gradients stay whole while micro-batches add up (" in said["8"]
    assert "sync_each_batch shards them)" in said["8"]
    assert "stay whole" not in said["1"]


@pytest.mark.parametrize(
    ("sources", "model"),
    [
        (
            {
                "trl.yaml": TRL
                + "accelerator_config: {gradient_accumulation_kwargs: {sync_each_batch: true}}\n",
                "fsdp.yaml": FSDP,
            },
            "qwen2.5-7b",
        ),
        (
            {"recipe.yaml": AUTOMODEL.replace("tp_size: 1", "tp_size: 1, defer_fsdp_grad_sync: false")},
            "llama-3-8b",
        ),
    ],
)
def test_gradients_that_are_reduced_in_every_step_stay_sharded(sources: dict[str, str], model: str) -> None:
    assert asked(read_files(sources), 8, model).framework.memory.defers_reduction == "never"


def test_an_optimizer_in_the_backward_pass_keeps_no_gradients() -> None:
    habits = asked(read_text(TORCHTUNE + "optimizer_in_bwd: true\n", "7b.yaml")).framework.memory
    assert (habits.gradient_bytes, habits.reduced_gradient_bytes, habits.optimizer_bytes) == (0.0, 0.0, 2.0)


@pytest.mark.parametrize("loss", ["CEWithChunkedOutputLoss", "LinearCrossEntropyLoss"])
def test_torchtunes_chunks_keep_their_log_softmax(loss: str) -> None:
    launch = read_text(TORCHTUNE + f"loss: {{_component_: torchtune.modules.loss.{loss}}}\n", "70b.yaml")
    habits = asked(launch).framework.memory
    assert (habits.loss_saved_bytes, habits.loss_peak_bytes) == (4.0, 6.0)


@pytest.mark.parametrize(
    ("sources", "optimizer_bytes"),
    [
        ({"config.yml": "base_model: x\nbf16: auto\n"}, 4.0),
        ({"config.yml": "base_model: x\nbf16: auto\noptimizer: adamw_bnb_8bit\n"}, 2.0),
        (
            {"config.yml": "base_model: x\nbf16: auto\nfsdp_config: {fsdp_version: 2}\n"},
            12.0,
        ),
        ({"trl.yaml": TRL}, 12.0),
        ({"trl.yaml": TRL + "torch_dtype: bfloat16\n"}, 4.0),
        ({"trl.yaml": TRL + "torch_dtype: bfloat16\n", "fsdp.yaml": FSDP}, 12.0),
        ({"sft.py": "model = load(x, torch_dtype=torch.bfloat16)\nTrainingArguments(bf16=True)\n"}, 4.0),
    ],
)
def test_weights_loaded_in_16_bits_have_no_master_copy_unless_fsdp_makes_one(
    sources: dict[str, str], optimizer_bytes: float
) -> None:
    assert asked(read_files(sources)).framework.memory.optimizer_bytes == optimizer_bytes


def test_little_room_is_told() -> None:
    launch = read_text(TRL + "torch_dtype: bfloat16\n", "trl.yaml")
    request = asked(launch, 8, "qwen2.5-7b")
    full = planned(launch, 8, "qwen2.5-7b")
    need = evaluate(full, request).peak_memory_bytes
    memory = request.cluster.accelerator.memory.model_copy(update={"hbm_bytes": need * 1.05})
    accelerator = request.cluster.accelerator.model_copy(update={"memory": memory})
    tight = request.model_copy(
        update={"cluster": request.cluster.model_copy(update={"accelerator": accelerator})}
    )
    (note,) = [found for found in lint(launch, tight) if found.rule == "memory-is-tight"]
    assert note.severity == "note" and note.message.startswith("Memory is tight")


def test_an_engine_file_of_accelerate_alone_means_one_sequence_a_micro_batch() -> None:
    source = "distributed_type: DEEPSPEED\nnum_processes: 8\ndeepspeed_config: {zero_stage: 2}\n"
    launch = read_text(source, "zero2.yaml")
    assert batch_of(launch, 8) == 8

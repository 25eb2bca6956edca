"""Rows of measured runs: what is read, what is filled in, what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from planner.cost.layer import UNFUSED
from planner.errors import BadInput
from planner.validate.compare import validate_file
from planner.validate.measured import read_model, read_rows, to_case


def row(**changes: Any) -> dict[str, Any]:
    """Llama 3 8B on 8 H100, as a table states it; changes go into the table that has the key."""
    tables: dict[str, dict[str, Any]] = {
        "model": {"name": "Llama-3-8B", "num_layers": 32, "hidden_size": 4096, "num_heads": 32},
        "cluster": {"accelerator": "h100-sxm-80gb", "num_gpus": 8, "gpus_per_node": 8, "network": None},
        "config": {"tensor_parallel": 2, "data_parallel": 4, "micro_batch": 1, "global_batch": 32,
                   "seq_length": 8192, "recompute": "none", "precision": "bf16"},
    }  # fmt: skip
    data = {
        "id": "one",
        "source": "a paper",
        "framework": "megatron",
        **tables,
        "measured": {"step_time_s": 1.0},
    }
    for key, value in changes.items():
        place = next((table for table in tables.values() if key in table), None)
        if key in ("framework", "source", "notes", "measured"):
            data[key] = value
        elif place is None:
            tables["config"][key] = value
        else:
            place[key] = value
    return data


def test_missing_shape_comes_from_the_catalog() -> None:
    model = to_case(row()).request.model
    assert (model.num_kv_heads, model.ffn_hidden_size, model.vocab_size) == (8, 14336, 128256)
    assert model.gated_mlp
    assert not model.tied_embeddings


def test_the_rows_own_keys_win() -> None:
    model = read_model({"name": "Llama-3-8B", "hidden_size": 4096, "num_layers": 4, "num_kv_heads": 4})
    assert (model.num_layers, model.num_kv_heads) == (4, 4)


def test_another_head_count_means_another_head_dim() -> None:
    # the catalog's BLOOM has 112 heads of 128; the same hidden size over 64 heads makes 224
    said = {
        "name": "BLOOM candidate",
        "num_layers": 72,
        "hidden_size": 14336,
        "num_heads": 64,
        "num_kv_heads": 64,
    }
    assert read_model(said).head_dim == 224


def test_an_unknown_name_gets_the_plain_gpt_shape() -> None:
    said = {"name": "GPT-of-mine", "num_layers": 22, "hidden_size": 2304, "num_heads": 24}
    model = read_model(said)
    assert (model.ffn_hidden_size, model.head_dim, model.vocab_size) == (9216, 96, 50257)
    assert not model.gated_mlp
    assert model.tied_embeddings


def test_a_catalog_entry_of_another_size_is_not_used() -> None:
    said = {"name": "Llama-3-8B mini", "num_layers": 4, "hidden_size": 512, "num_heads": 8}
    assert read_model(said).vocab_size == 50257


def test_latent_attention_from_its_description() -> None:
    said = {
        "name": "mine", "num_layers": 2, "hidden_size": 2048, "num_heads": 16,
        "attention": "MLA kv_lora 512, qk_nope 128, qk_rope 64, v 128",
    }  # fmt: skip
    model = read_model(said)
    assert (model.kv_lora_rank, model.qk_nope_head_dim, model.v_head_dim, model.q_lora_rank) == (
        512,
        128,
        128,
        0,
    )


def test_shared_experts_by_count() -> None:
    said = {
        "name": "mine", "num_layers": 2, "hidden_size": 512, "num_heads": 8, "num_experts": 8,
        "experts_per_token": 2, "expert_ffn_hidden_size": 256, "num_shared_experts": 2,
    }  # fmt: skip
    assert read_model(said).shared_expert_ffn_hidden_size == 512


def test_a_hybrid_model_is_read_from_the_catalog() -> None:
    said = {"name": "Nemotron-H 56B", "hidden_size": 8192, "num_layers": 118, "num_heads": 64,
            "attention": "hybrid: 54 Mamba-2, 54 MLP, 10 attention layers"}  # fmt: skip
    assert sum(kind.has_linear for kind in read_model(said).layer_kinds) == 54


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ({"name": "x", "attention": "hybrid Mamba-2"}, "known of catalog models alone"),
        ({"name": "no such model"}, "model.num_layers is missing"),
        (
            {"name": "x", "num_layers": 2, "hidden_size": 64, "num_heads": 8, "num_kv_heads": 3},
            "num_kv_heads 3",
        ),
    ],
)
def test_models_that_cannot_be_read(said: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        read_model(said)


@pytest.mark.parametrize(
    ("text", "p", "v", "schedule"),
    [
        (None, 1, 1, "none"), ("1F1B", 4, 1, "1f1b"), ("interleaved 1f1b", 4, 2, "interleaved"),
        ("ZB-1p", 4, 1, "zb-h1"), ("ZB-2p", 4, 1, "zb-h2"), ("AFAB", 4, 1, "gpipe"),
        (None, 4, 2, "interleaved"),
        ("DualPipe", 4, 1, "dualpipe"), ("1F1B (DeepSpeed)", 4, 1, "1f1b"),
    ],
)  # fmt: skip
def test_schedules_by_any_name(text: str | None, p: int, v: int, schedule: str) -> None:
    case = to_case(
        row(tensor_parallel=1, data_parallel=8 // p, pipeline_parallel=p, virtual_stages=v, schedule=text)
    )
    assert case.plan.schedule == schedule
    assert sum(stage.layers for stage in case.plan.stages) == 32


@pytest.mark.parametrize(
    ("text", "recompute", "modules", "layers"),
    [
        ("none", "none", (), 0), ("full", "full", (), 32), ("selective op", "selective", ("op",), 32),
        ("selective:mlp,core_attn", "selective", ("mlp", "core_attn"), 32),
        ("selective (attention core)", "selective", ("core_attn",), 32), ("selective layer", "full", (), 16),
        ("minimal", "selective", ("elementwise",), 32),
    ],
)  # fmt: skip
def test_recompute_by_any_name(text: str, recompute: str, modules: tuple[str, ...], layers: int) -> None:
    plan = to_case(row(recompute=text)).plan
    assert (plan.recompute, plan.recompute_modules) == (recompute, modules)
    assert sum(stage.recompute_layers for stage in plan.stages) == layers


def test_batch_and_state_are_filled_in() -> None:
    plan = to_case(row()).plan
    assert (plan.num_microbatches, plan.zero_stage, plan.shard_group_size, plan.sequence_parallel) == (
        8,
        1,
        4,
        True,
    )


def test_data_parallel_follows_from_the_gpus() -> None:
    data = row()
    del data["config"]["data_parallel"]
    assert to_case(data).plan.data_parallel == 4


def test_switches_change_the_habits() -> None:
    plain = to_case(row(framework="torchtitan")).request.framework.time
    compiled = to_case(row(framework="torchtitan", compile=True)).request.framework.time
    graphs = to_case(row(framework="torchtitan", cuda_graph=True)).request.framework.time
    overlapped = to_case(row(framework="torchtitan", async_tp=True)).request.framework.time
    assert compiled.elementwise_factor <= plain.elementwise_factor
    assert compiled.kernels_per_layer < plain.kernels_per_layer
    assert graphs.launch_factor < plain.launch_factor
    assert overlapped.tensor_comm_hidden_fraction > plain.tensor_comm_hidden_fraction


def test_words_about_multi_token_prediction() -> None:
    shape = {"name": "DeepSeek-V3", "num_layers": 61, "hidden_size": 7168, "num_heads": 128}

    def depth(notes: str) -> int:
        return to_case(row(notes=notes) | {"model": shape}).request.model.mtp_depth

    assert depth("page label: w/o MTP.") == depth("No MTP layer in the layout") == 0
    assert depth("with MTP") == depth("") == 1


def test_a_stated_release_brings_its_own_habits() -> None:
    def of(source: str) -> float | None:
        case = to_case(row(framework="megatron-bridge", source=source))
        return case.request.framework.time.block_scaled_expert_efficiency

    assert of("performance summary, NeMo container 26.04.01") is None
    assert of("performance summary, NeMo container 26.06") == of("a paper") is not None


def test_fp16_megatron_is_from_before_fused_attention() -> None:
    assert to_case(row(precision="fp16")).request.framework.time.attention_kernel == UNFUSED
    assert to_case(row()).request.framework.time.attention_kernel != UNFUSED


def test_a_gated_model_on_a100_is_recognised_by_its_catalog_entry() -> None:
    """The row says neither the activation nor whether the MLP is gated; the catalog does."""
    gated = to_case(row(accelerator="a100-sxm-80gb"))
    assert gated.request.framework.time.attention_kernel != UNFUSED
    plain = to_case(row(accelerator="a100-sxm-80gb", name="Some GPT"))
    assert plain.request.framework.time.attention_kernel == UNFUSED


@pytest.mark.parametrize(
    "changes", [{"name": "Llama2-70B LoRA"}, {"finetune": "lora"}, {"notes": "LORA run"}]
)
def test_adapters_are_recognised(changes: dict[str, Any]) -> None:
    assert to_case(row(**changes, num_layers=4)).request.workload.frozen_weights
    assert not to_case(row(notes="q_lora_rank 1536")).request.workload.frozen_weights


@pytest.mark.parametrize(
    ("source", "accelerator", "name"),
    [
        ("JAX-Toolbox", "h100-sxm-80gb", "maxtext"),
        ("x", "tpu-v5p", "maxtext"),
        ("x", "h100-sxm-80gb", "megatron"),
    ],
)
def test_frameworks_of_rows_that_state_none(source: str, accelerator: str, name: str) -> None:
    case = to_case(row(framework=None, source=source, accelerator=accelerator, gpus_per_node=None))
    assert case.request.framework.name == name


def test_the_network_is_read() -> None:
    slow = to_case(
        row(num_gpus=16, data_parallel=8, network="4x 100 Gb/s Omni-Path per node")
    ).request.cluster
    assert slow.links[-1].bytes_per_s == pytest.approx(6.25e9)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"accelerator": "abacus"}, "abacus"),
        ({"precision": "int3"}, "precision 'int3'"), ({"global_batch": None}, "global_batch is missing"),
        ({"tensor_parallel": 1.5}, "tensor_parallel must be a positive whole number"),
        ({"num_gpus": "eight"}, "num_gpus must be"), ({"zero_stage": 7}, "config:"),
    ],
)  # fmt: skip
def test_rows_that_cannot_be_run_say_why(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        to_case(row(**changes))


def test_what_was_measured_never_reaches_the_case() -> None:
    one, other = (
        row(measured={"step_time_s": 1.0}),
        row(measured={"step_time_s": 99.0, "peak_memory_gb": 3.0}),
    )
    assert to_case(one) == to_case(other)


def test_damaged_lines_stay_rows(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row()) + "\n\n{broken\n[1, 2]\n")
    rows = read_rows(path)
    assert [entry["id"] for entry in rows] == ["one", "line 3", "line 4"]
    with pytest.raises(BadInput, match="not JSON"):
        to_case(rows[1])
    with pytest.raises(BadInput, match="no model table"):
        to_case({"id": "empty"})


def test_an_unreadable_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"missing\.jsonl"):
        read_rows(tmp_path / "missing.jsonl")


def test_a_file_without_a_line_of_json_is_refused_and_one_with_some_is_not(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text("#!/bin/sh\necho 1\n")
    with pytest.raises(BadInput, match="no line is JSON"):
        validate_file(script)
    script.write_text('#!/bin/sh\n{"id": "a"}\n')
    assert [row["skipped"] is not None for row in validate_file(script)["rows"]] == [True, True]

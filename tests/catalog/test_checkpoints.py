"""Checkpoints under names of their own have the shape of the model that they were trained from."""

from __future__ import annotations

import pytest

from planner.catalog import load_model
from planner.cost.parameters import total_parameters
from planner.errors import BadInput


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("deepseek-ai/DeepSeek-R1-Distill-Llama-70B", "llama-3-70b"),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", "qwen2.5-7b"),
        ("Qwen/Qwen2.5-Coder-32B-Instruct", "qwen2.5-32b"),
        ("Qwen/QwQ-32B-Preview", "qwen2.5-32b"),
        ("nvidia/Llama-3.1-Nemotron-70B-Instruct-HF", "llama-3-70b"),
        ("lmsys/vicuna-13b-v1.5-16k", "llama-13b"),
        ("HuggingFaceH4/zephyr-7b-beta", "mistral-7b"),
        ("NousResearch/Hermes-3-Llama-3.1-8B", "llama-3-8b"),
        ("NousResearch/Nous-Hermes-2-Mixtral-8x7B-DPO", "mixtral-8x7b"),
        ("OpenRLHF/Llama-3-8b-sft-mixture", "llama-3-8b"),
        ("casperhansen/llama-3-70b-fp16", "llama-3-70b"),
    ],
)
def test_a_checkpoint_has_the_shape_of_its_base(name: str, shape: str) -> None:
    model = load_model(name)
    assert model.name == shape
    assert f"has the shape of {shape}." in model.notes


def test_the_smallest_distilled_qwen_has_a_head_of_its_own() -> None:
    model, base = load_model("DeepSeek-R1-Distill-Qwen-1.5B"), load_model("qwen2.5-1.5b")
    assert total_parameters(model) == pytest.approx(1.777e9, rel=0.002)  # its model card
    assert total_parameters(model) - total_parameters(base) == base.vocab_size * base.hidden_size


@pytest.mark.parametrize(
    "name",
    [
        "Qwen/Qwen2.5-VL-7B-Instruct",
        "microsoft/Phi-4-mini-instruct",
        "nvidia/Llama-3.1-Minitron-4B-Width-Base",
        "meta-llama/Llama-3.2-11B-Vision-Instruct",
        "Owl-7X-Base",
    ],
)
def test_other_shapes_are_not_taken_for_the_family_in_their_name(name: str) -> None:
    with pytest.raises(BadInput, match="unknown model"):
        load_model(name)

"""Optimizers, losses and adapters by name: the state that they leave, in bytes a parameter."""

from __future__ import annotations

import pytest
from pytest import approx

from planner.api import estimate
from planner.catalog.training import MOMENTS_BYTES, with_fine_tuning, with_loss, with_optimizer
from planner.errors import BadInput
from planner.frameworks import load_framework
from planner.spec import Workload

ONE_GPU = {"model": "llama-3-8b", "gpus": 1, "global_batch": 1, "recompute": "full", "framework": "pytorch"}
PARAMETERS = 8_030_261_248


@pytest.mark.parametrize("name", MOMENTS_BYTES)
def test_the_state_is_master_gradient_and_moments(name: str) -> None:
    # FSDP2 without replicas: fp32 weights and gradients, 4 + 4, and the moments.
    (stage,) = estimate(**ONE_GPU, optimizer=name).stages
    state = stage.weights_bytes + stage.gradients_bytes + stage.optimizer_bytes
    assert state == approx((8 + MOMENTS_BYTES[name]) * PARAMETERS)


@pytest.mark.parametrize(
    ("name", "bytes_per_parameter"), [("pure-adam", 8.0), ("pure-adam-8bit", 6.0), ("pure-sgd", 4.0)]
)
def test_without_a_master_copy_all_state_is_of_16_bits(name: str, bytes_per_parameter: float) -> None:
    # 2 + 2 of weights and gradients, and two moments of 2 bytes, two of one, or none.
    for framework in ("pytorch", "deepspeed"):
        (stage,) = estimate(**{**ONE_GPU, "framework": framework}, optimizer=name).stages
        state = stage.weights_bytes + stage.gradients_bytes + stage.optimizer_bytes
        assert state == approx(bytes_per_parameter * PARAMETERS)


def test_half_precision_state_changes_by_the_moments_alone() -> None:
    megatron = load_framework("megatron")  # fp16: 16 bytes, of which 8 are moments
    assert with_optimizer(megatron, "lion").memory.fp16_optimizer_bytes == 12
    assert with_optimizer(load_framework("torchtitan"), "lion").memory.fp16_optimizer_bytes is None


def test_a_chunked_loss_holds_no_logits() -> None:
    whole, chunked = (estimate(**ONE_GPU, loss=loss).stages[0].loss_bytes for loss in ("whole", "chunked"))
    # What is left of the loss is the head's gathered input and its gradient, 2 x 2h bytes a token.
    assert chunked == approx(4 * 4096 * 8192)
    assert whole - chunked == approx(12 * 128256 * 8192)
    same = load_framework("torchtitan")
    assert with_loss(same, "whole") is same


@pytest.mark.parametrize(
    ("finetune", "framework", "zero", "bytes_per_parameter"),
    [
        ("lora", "pytorch", 0, 2.0),
        ("qlora", "pytorch", 0, 0.52),
        ("lora", "accelerate", 3, 2.0 / 8),
        ("qlora", "accelerate", 3, 0.52 / 8),
        ("qlora", "accelerate", 2, 0.52 / 8 + 0.52),  # a whole copy stays between the passes
        ("qlora", "deepspeed", 2, 0.52),
        ("qlora", "deepspeed", 3, 0.52 / 8),
        ("lora", "megatron", 1, 2.0),
    ],
)
def test_frozen_weights_are_all_the_state(
    finetune: str, framework: str, zero: int, bytes_per_parameter: float
) -> None:
    asked = {"model": "llama-3-8b", "gpus": 8, "global_batch": 8, "framework": framework, "zero": zero}
    (stage,) = estimate(**asked, finetune=finetune).stages
    assert stage.weights_bytes == approx(bytes_per_parameter * PARAMETERS, rel=1e-3)  # Megatron pads rows
    assert stage.gradients_bytes == stage.optimizer_bytes == 0


def test_full_training_is_the_default() -> None:
    workload = Workload(global_batch=8, seq_length=4096)
    assert with_fine_tuning(workload, "full") == workload


@pytest.mark.parametrize("option", ["optimizer", "loss", "finetune"])
def test_unknown_names_are_refused_with_the_known_ones(option: str) -> None:
    with pytest.raises(BadInput, match=f"--{option} 'adm' is not one of"):
        estimate(**{**ONE_GPU, option: "adm"})

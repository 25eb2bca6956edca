"""Requests small enough to hold in the head. Variants: ``request.model_copy(update=...)``, or ``vary``."""

from __future__ import annotations

from typing import Any

from planner.spec import Accelerator, Cluster, FrameworkProfile, GemmCurve, Link, Model, PlanRequest, Workload
from planner.spec.cluster import AttentionCurve, Compute, HighBandwidthMemory, Host

TOY = {"source": "round numbers for tests", "origin": "assumed"}


def toy_accelerator(gpus_per_node: int = 4, hbm_bytes: float = 16e9) -> Accelerator:
    """100 TFLOP/s, 1 TB/s, NVLink 100 GB/s inside a node and 10 GB/s outside."""
    return Accelerator(
        name="toy",
        vendor="tests",
        gpus_per_node=gpus_per_node,
        compute=Compute(peak_flop_per_s={"bf16": 100e12, "fp8": 200e12}, **TOY),
        memory=HighBandwidthMemory(
            hbm_bytes=hbm_bytes, vendor_hbm_bytes=hbm_bytes, hbm_bytes_per_s=1e12, **TOY
        ),
        gemm={
            "bf16": GemmCurve(rate_flop_per_s=80e12, launch_s=5e-6, **TOY),
            "fp8": GemmCurve(rate_flop_per_s=150e12, launch_s=5e-6, **TOY),
        },
        attention={
            "fa2": AttentionCurve(
                seq_lengths=(1024, 16384),
                forward_flop_per_s=(40e12, 50e12),
                backward_flop_per_s=(30e12, 40e12),
                **TOY,
            )
        },
        links=(
            Link(name="nvlink", group_gpus=gpus_per_node, bytes_per_s=100e9, latency_s=2e-6, **TOY),
            Link(name="network", group_gpus=1_000_000, bytes_per_s=10e9, latency_s=10e-6, **TOY),
        ),
        host=Host(**TOY),
    )


def toy_cluster(num_gpus: int, gpus_per_node: int = 4, hbm_bytes: float = 16e9) -> Cluster:
    accelerator = toy_accelerator(gpus_per_node, hbm_bytes)
    return Cluster(
        accelerator=accelerator, num_gpus=num_gpus, gpus_per_node=gpus_per_node, links=accelerator.links
    )


def tiny_dense() -> PlanRequest:
    """4 layers, hidden 64, 8 heads, on 8 GPUs in nodes of 4; batch 16 of 128 tokens."""
    model = Model(
        name="tiny-dense",
        num_layers=4,
        hidden_size=64,
        num_heads=8,
        num_kv_heads=4,
        head_dim=8,
        ffn_hidden_size=256,
        vocab_size=512,
        seq_length=128,
    )
    return PlanRequest(
        model=model,
        cluster=toy_cluster(8),
        workload=Workload(global_batch=16, seq_length=128),
        framework=FrameworkProfile(name="toy-framework"),
    )


def tiny_moe() -> PlanRequest:
    """``tiny_dense`` with one dense layer and three of 8 experts, 2 a token."""
    request = tiny_dense()
    moe = {
        "name": "tiny-moe",
        "num_experts": 8,
        "experts_per_token": 2,
        "expert_ffn_hidden_size": 128,
        "num_dense_layers": 1,
    }
    return request.model_copy(update={"model": request.model.model_copy(update=moe)})


def tiny_hybrid() -> PlanRequest:
    """``tiny_dense`` with Mamba-2: layers of it and an MLP, attention alone, an MLP alone, and all three."""
    request = tiny_dense()
    hybrid = {
        "name": "tiny-hybrid",
        "layer_pattern": "L*-P",
        "linear_mixer": "mamba2",
        "linear_key_heads": 4,
        "linear_value_heads": 8,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "linear_conv_bias": True,
    }
    return request.model_copy(update={"model": request.model.model_copy(update=hybrid)})


def vary(request: PlanRequest, **parts: Any) -> PlanRequest:
    """Copy with changes: ``vary(request, model={"num_layers": 5}, limits={...}, allow_idle=True)``."""
    limits = parts.pop("limits", None)
    if limits:
        framework = request.framework
        parts["framework"] = {"limits": framework.limits.model_copy(update=limits)}
    updates = {
        name: getattr(request, name).model_copy(update=value) if isinstance(value, dict) else value
        for name, value in parts.items()
    }
    return request.model_copy(update=updates)

"""Fixtures for all tests: a tiny dense model, a tiny mixture of experts, and one real system."""

from __future__ import annotations

import pytest
from toys import tiny_dense as make_tiny_dense
from toys import tiny_moe as make_tiny_moe

from planner.spec import PlanRequest, Workload


@pytest.fixture
def tiny_dense() -> PlanRequest:
    """4 layers, hidden 64, 8 heads, on 8 toy GPUs in nodes of 4."""
    return make_tiny_dense()


@pytest.fixture
def tiny_moe() -> PlanRequest:
    """The same with 8 experts in three of the four layers."""
    return make_tiny_moe()


@pytest.fixture(scope="session")
def llama3_8b_on_h100() -> PlanRequest:
    """Llama 3 8B on 8 H100 with Megatron, batch 128 of 8192 tokens."""
    from planner.catalog import load_cluster, load_model
    from planner.frameworks import load_framework

    return PlanRequest(
        model=load_model("llama-3-8b"),
        cluster=load_cluster("h100-sxm-80gb", 8),
        workload=Workload(global_batch=128, seq_length=8192),
        framework=load_framework("megatron"),
    )

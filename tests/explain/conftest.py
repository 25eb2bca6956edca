"""The plan that explanations are asked about."""

from __future__ import annotations

import pytest

from planner.api import complete
from planner.spec import Plan, PlanRequest


@pytest.fixture
def plan(tiny_dense: PlanRequest) -> Plan:
    """t=2 p=2 d=2 on 8 GPUs, batch 16 as 8 micro-batches of 1."""
    return complete({"tensor_parallel": 2, "pipeline_parallel": 2}, tiny_dense)

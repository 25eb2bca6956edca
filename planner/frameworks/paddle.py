"""PaddleNLP / PaddlePaddle Fleet (profile only).

Sources: PaddleNLP pre-training documentation: tensor, pipeline and sharding stages 1 to 3.
"""

from __future__ import annotations

from planner.spec.framework import FrameworkProfile, Limits, MemoryHabits, TimeHabits

TIME = TimeHabits()

MEMORY = MemoryHabits()

LIMITS = Limits(
    schedules=("none", "1f1b", "interleaved"),
    zero_stages=(0, 1, 2, 3),
    zero_stages_with_pipeline=(0, 1, 2),
    hybrid_sharding=True,
    vocab_multiple=128,
    uneven_stages="any",
    recompute=("none", "selective", "full"),
    moe_tensor_needs_sequence_parallel=False,
)

PROFILE = FrameworkProfile(
    name="paddle",
    version="PaddlePaddle 3",
    aliases=("paddlenlp", "paddlepaddle"),
    limits=LIMITS,
    memory=MEMORY,
    time=TIME,
)

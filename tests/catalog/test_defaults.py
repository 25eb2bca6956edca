"""What is filled in for the user."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.catalog.defaults import default_global_batch


@pytest.mark.parametrize(
    ("num_gpus", "seq_length", "expected"),
    [
        (512, 4096, 1024),  # 2^22 tokens / 4096
        (8, 8192, 512),  # 2^22 / 8192
        (16384, 8192, 2048),  # 1024 tokens x 16384 GPUs = 2^24, / 8192: Llama 3's batch
        (6, 4096, 768),  # odd part 3: 1024 / 3 = 341 = 2^8.4 -> 3 x 2^8
        (56, 4096, 896),  # odd part 7: 1024 / 7 = 146 = 2^7.2 -> 7 x 2^7
        (1, 131072, 32),  # 2^22 / 2^17
    ],
)
def test_default_batch(num_gpus: int, seq_length: int, expected: int) -> None:
    assert default_global_batch(num_gpus, seq_length) == expected


@settings(deadline=None)
@given(st.integers(1, 20_000), st.integers(1, 1_000_000))
def test_default_batch_is_a_multiple_of_the_odd_part(num_gpus: int, seq_length: int) -> None:
    batch = default_global_batch(num_gpus, seq_length)
    odd = num_gpus
    while odd % 2 == 0:
        odd //= 2
    assert batch >= 1
    assert batch % odd == 0

"""How the layers and the recomputed layers of a rank fall on its chunks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.cost.stage import spread_recomputed


@pytest.mark.parametrize(
    ("chunk_layers", "recomputed", "spread"),
    [
        ((4,), 3, (3,)),
        ((4, 4), 4, (2, 2)),  # Megatron's --recompute-num-layers 2
        ((4, 4), 5, (3, 2)),  # the left-over goes to the earlier chunk
        ((5, 1, 4), 7, (3, 1, 3)),  # a short chunk recomputes all it has
        ((0, 3), 2, (0, 2)),
        ((2, 3), 5, (2, 3)),
        ((2, 3), 0, (0, 0)),
    ],
)
def test_recomputed_layers_are_spread_over_the_chunks(
    chunk_layers: tuple[int, ...], recomputed: int, spread: tuple[int, ...]
) -> None:
    assert spread_recomputed(chunk_layers, recomputed) == spread


@given(st.lists(st.integers(0, 12), min_size=1, max_size=5), st.integers(0, 12))
def test_the_first_n_layers_of_every_chunk_are_a_spread(chunk_layers: list[int], first: int) -> None:
    """What Megatron recomputes with n layers a chunk is what its total is spread to."""
    expected = tuple(min(first, layers) for layers in chunk_layers)
    assert spread_recomputed(tuple(chunk_layers), sum(expected)) == expected


@given(st.lists(st.integers(0, 12), min_size=1, max_size=5), st.data())
def test_a_spread_is_whole_and_even(chunk_layers: list[int], data: st.DataObject) -> None:
    recomputed = data.draw(st.integers(0, sum(chunk_layers)))
    spread = spread_recomputed(tuple(chunk_layers), recomputed)
    assert sum(spread) == recomputed
    open_chunks = [n for n, layers in zip(spread, chunk_layers, strict=True) if n < layers]
    assert all(max(spread) - n <= 1 for n in open_chunks)

"""A bare size ("33b") becomes a documented Llama-like shape."""

from __future__ import annotations

import math
import re

from planner.errors import BadInput
from planner.spec.model import Model

_SIZE = re.compile(r"^(\d{1,6}(?:\.\d{1,6})?)(m|b|t)$")
_UNITS = {"m": 1e6, "b": 1e9, "t": 1e12}
MIN_PARAMETERS, MAX_PARAMETERS = 10e6, 100e12

ASPECT = 128
"""Hidden width over layers: 128 for Llama 7B, 13B and 8B, 102-130 for 65B, 70B and 405B."""
MLP_RATIO = 8 / 3
"""MLP width over hidden width of Llama (arXiv:2302.13971, section 2.2)."""


def parse_size(text: str) -> float | None:
    """Parameters that a bare size names (``33b``, ``1.5t``, ``350m``), or None if it is no size."""
    match = _SIZE.match(text.strip().lower())
    return float(match.group(1)) * _UNITS[match.group(2)] if match else None


def sized_model(text: str, parameters: float) -> Model:
    """Return a Llama-shaped model of about ``parameters`` parameters.

    Notes
    -----
    SwiGLU, rotary positions, no biases, head dim 128 (64 below 1 B), 8 KV heads where the heads divide by 8;
    hidden width on a grid of 1024 and layers in fours (128 and one below 1 B), both as near as they can be to
    ``hidden / layers = 128`` and ``mlp = 8/3 hidden``; the MLP width, a multiple of 256 as in Llama's code
    (64 below 1 B), takes up the rest.
    Vocabulary 128,256 (Llama 3) untied; tied below 3 B; 32,000 below 1 B. Sequence 8,192 (4,096 below 1 B).
    """
    if not MIN_PARAMETERS <= parameters <= MAX_PARAMETERS:
        raise BadInput(f"model size {text!r} is outside 10m to 100t parameters")
    vocab_size = 128_256 if parameters >= 1e9 else 32_000
    tied = parameters < 3e9
    layers, hidden, mlp = _shape(parameters, vocab_size * (1 if tied else 2))
    head_dim = 128 if parameters >= 1e9 else 64
    heads = hidden // head_dim
    return Model(
        name=text,
        source=f"default Llama-like shape for {text}",
        notes=f"{text} is no catalog name: a Llama-like shape was assumed ({layers} layers, hidden {hidden}, "
        f"{heads} heads, MLP {mlp}, vocabulary {vocab_size}); a config.json or TOML file gives the real one.",
        num_layers=layers,
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=8 if heads % 8 == 0 else heads,
        head_dim=head_dim,
        ffn_hidden_size=mlp,
        vocab_size=vocab_size,
        seq_length=8192 if parameters >= 1e9 else 4096,
        tied_embeddings=tied,
    )


def _shape(parameters: float, table_rows: int) -> tuple[int, int, int]:
    """Layers, hidden width and MLP width nearest to Llama's proportions that add up to ``parameters``."""
    large = parameters >= 1e9
    width_grid, mlp_grid, layer_grid, head_dim = (1024, 256, 4, 128) if large else (128, 64, 1, 64)
    middle = (parameters * ASPECT / 10) ** (1 / 3)
    best: tuple[float, tuple[int, int, int]] | None = None
    for hidden in range(width_grid, int(2 * middle) + 2 * width_grid, width_grid):
        heads = hidden // head_dim
        kv_width = head_dim * (8 if heads % 8 == 0 else heads)
        attention = 2 * hidden * hidden + 2 * hidden * kv_width
        layers = max(1, round(hidden / ASPECT / layer_grid)) * layer_grid
        for count in range(max(layer_grid, layers // 2 // layer_grid * layer_grid), 2 * layers, layer_grid):
            rest = parameters - table_rows * hidden - count * attention
            mlp = round(rest / (3 * hidden * count) / mlp_grid) * mlp_grid
            if mlp <= 0:
                continue
            error = abs(3 * hidden * count * mlp - rest) / parameters
            shape_misfit = abs(math.log(hidden / count / ASPECT)) + abs(math.log(mlp / hidden / MLP_RATIO))
            misfit = shape_misfit + 20 * error
            if best is None or misfit < best[0]:
                best = (misfit, (count, hidden, mlp))
    if best is None:
        raise BadInput(f"no Llama-like shape has {parameters:.3g} parameters")
    return best[1]

"""The architecture of a language model: the numbers that decide its weights, FLOPs and legality."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Activation = Literal["gelu", "swiglu", "geglu", "relu", "squared_relu", "silu"]


@dataclass(frozen=True, slots=True)
class LayerKind:
    """What makes one transformer layer cost more or less than another.

    ``moe``: the MLP is a mixture of experts. ``window``: tokens that attention looks back (None = all).
    """

    moe: bool = False
    window: int | None = None


class Model(BaseModel):
    """One decoder-only transformer. Counts are plain numbers; widths are elements, not bytes.

    Mixture of experts is on when ``num_experts > 0``; multi-head latent attention when
    ``kv_lora_rank > 0``. ``source`` says where the numbers come from.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", ignored_types=(cached_property,))

    name: str
    source: str = ""
    aliases: tuple[str, ...] = ()
    notes: str = ""
    """Anything a reader should be told, shown with the plan (for example: a default shape was assumed)."""

    num_layers: int = Field(gt=0)
    hidden_size: int = Field(gt=0)
    num_heads: int = Field(gt=0)
    num_kv_heads: int = Field(gt=0)
    head_dim: int = Field(gt=0)
    ffn_hidden_size: int = Field(gt=0)
    vocab_size: int = Field(gt=0)
    seq_length: int = Field(default=4096, gt=0)
    """Training sequence length assumed when the user gives none. [token]"""
    activation: Activation = "swiglu"
    gated_mlp: bool = True
    tied_embeddings: bool = False

    sliding_window: int | None = None
    """Look-back of windowed layers. [token]"""
    window_pattern: int = 1
    """One full-attention layer in every ``window_pattern`` layers when a window is set (0 = none is full)."""

    num_experts: int = 0
    experts_per_token: int = 0
    expert_ffn_hidden_size: int = 0
    shared_expert_ffn_hidden_size: int = 0
    """Total width of the always-active experts of one layer (0 = none)."""
    num_dense_layers: int = 0
    """Leading layers whose MLP is dense in a mixture-of-experts model."""
    moe_layer_freq: int = 1
    """Every ``moe_layer_freq``-th layer after the dense ones is a mixture of experts."""

    q_lora_rank: int = 0
    kv_lora_rank: int = 0
    qk_nope_head_dim: int = 0
    qk_rope_head_dim: int = 0
    v_head_dim: int = 0
    mtp_depth: int = 0

    @property
    def is_moe(self) -> bool:
        """Whether any layer is a mixture of experts."""
        return self.num_experts > 0

    @property
    def is_mla(self) -> bool:
        """Whether attention is multi-head latent attention."""
        return self.kv_lora_rank > 0

    @cached_property
    def layer_kinds(self) -> tuple[LayerKind, ...]:
        """The kind of every layer, first to last."""
        return tuple(LayerKind(self._is_moe_layer(i), self._window(i)) for i in range(self.num_layers))

    def _is_moe_layer(self, index: int) -> bool:
        if not self.is_moe or index < self.num_dense_layers:
            return False
        return (index - self.num_dense_layers + 1) % self.moe_layer_freq == 0

    def _window(self, index: int) -> int | None:
        if self.sliding_window is None:
            return None
        is_full = self.window_pattern > 0 and (index + 1) % self.window_pattern == 0
        return None if is_full else self.sliding_window

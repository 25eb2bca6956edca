"""The architecture of a language model: the numbers that decide its weights, FLOPs and legality."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Activation = Literal["gelu", "swiglu", "geglu", "relu", "squared_relu", "silu"]
GATED_ACTIVATIONS = ("swiglu", "geglu")
Norm = Literal["rms", "layer"]
QueryKeyNorm = Literal["none", "head", "full"]
Mixer = Literal["attention", "linear", "attention+linear", "none"]
"""What mixes the tokens of a layer: attention, a linear mixer (state space or linear attention), or both side
by side. Without one the layer is a feed-forward part alone."""
LinearMixer = Literal["", "mamba2", "gated_delta", "kimi_delta"]
"""Mamba-2 (arXiv:2405.21060), gated delta net (arXiv:2412.06464), Kimi delta attention (arXiv:2510.26692)."""

MAX_LAYERS = 10_000
MAX_WIDTH = 10_000_000
"""Bounds far above any published model: they keep absurd input from becoming absurd work."""

Width = Annotated[int, Field(gt=0, le=MAX_WIDTH)]
OptionalWidth = Annotated[int, Field(ge=0, le=MAX_WIDTH)]


@dataclass(frozen=True, slots=True)
class LayerKind:
    """What makes one layer cost more or less than another.

    ``moe``: the MLP is a mixture of experts. ``window``: tokens that attention looks back (None = all).
    ``mixer``: what mixes tokens. ``mlp``: whether a feed-forward part (dense or experts) follows.
    """

    moe: bool = False
    window: int | None = None
    mixer: Mixer = "attention"
    mlp: bool = True

    @property
    def has_attention(self) -> bool:
        """Whether attention is one of the layer's mixers."""
        return self.mixer in ("attention", "attention+linear")

    @property
    def has_linear(self) -> bool:
        """Whether a linear mixer is one of the layer's mixers."""
        return self.mixer in ("linear", "attention+linear")

    @property
    def is_single_block(self) -> bool:
        """Whether the layer is a mixer or a feed-forward part alone."""
        return self.mixer == "none" or not self.mlp


LAYER_LETTERS: Mapping[str, LayerKind] = {
    "A": LayerKind(),
    "L": LayerKind(mixer="linear"),
    "P": LayerKind(mixer="attention+linear"),
    "M": LayerKind(mixer="linear", mlp=False),
    "*": LayerKind(mlp=False),
    "-": LayerKind(mixer="none"),
    "E": LayerKind(moe=True, mixer="none"),
}
"""Letters of ``layer_pattern``: attention, linear mixer or both in parallel, each with an MLP; and Megatron's
letters of single-block layers: linear mixer, attention, dense MLP, experts."""
LETTERS_WITH_MLP = "ALP"
"""Letters whose MLP is dense or of experts as ``num_dense_layers`` and its companions say."""


class Model(BaseModel):
    """One decoder-only transformer. Counts are plain numbers; widths are elements, not bytes.

    Mixture of experts is on when ``num_experts > 0``; multi-head latent attention when
    ``kv_lora_rank > 0``; ``layer_pattern`` mixes in layers with a linear mixer. ``source`` says where the
    numbers come from.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, ignored_types=(cached_property,)
    )

    name: str
    source: str = ""
    aliases: tuple[str, ...] = ()
    notes: str = ""
    """Anything a reader should be told, shown with the plan (for example: a default shape was assumed)."""

    num_layers: int = Field(gt=0, le=MAX_LAYERS)
    hidden_size: Width
    num_heads: Width
    num_kv_heads: Width
    head_dim: Width
    ffn_hidden_size: Width
    vocab_size: Width
    seq_length: Width = 4096
    """Sequence length of pre-training; used when the user gives none. [token]"""
    activation: Activation = "swiglu"
    gated_mlp: bool = True
    """The MLP has two input matrices; follows from ``activation`` when absent, and the other way round."""
    tied_embeddings: bool = False
    published_parameters: float | None = Field(default=None, gt=0)
    """Parameter count stated for the published model, to check the numbers below against."""

    sliding_window: int | None = Field(default=None, gt=0)
    """Look-back of windowed layers. [token]"""
    window_pattern: int = Field(default=1, ge=0)
    """One full-attention layer in every ``window_pattern`` layers when a window is set (0 = none is full)."""
    full_attention_layers: tuple[int, ...] | None = None
    """Indices of the full-attention layers where no pattern describes them (replaces ``window_pattern``)."""
    full_head_dim: OptionalWidth = 0
    """Head width of full-attention layers, where windowed ones have ``head_dim`` (0: the same; Gemma 4)."""
    full_kv_heads: OptionalWidth = 0
    """KV heads of full-attention layers, where windowed ones have ``num_kv_heads`` (0: the same)."""
    full_keys_are_values: bool = False
    """Full-attention layers among windowed ones have no projection of values."""
    keys_are_values: bool = False
    """No layer projects values: they are the keys before rotation."""

    layer_pattern: str = ""
    """One letter a layer (``LAYER_LETTERS``), or a unit that repeats to ``num_layers``; empty: all ``A``."""
    linear_mixer: LinearMixer = ""
    """What the linear layers of the pattern are."""
    linear_key_heads: OptionalWidth = 0
    """Heads of queries and keys (Mamba-2: groups that share B and C)."""
    linear_value_heads: OptionalWidth = 0
    """Heads of values (Mamba-2: heads)."""
    linear_key_head_dim: OptionalWidth = 0
    """Width of a query and key head (Mamba-2: size of the state)."""
    linear_value_head_dim: OptionalWidth = 0
    """Width of a value head (Mamba-2: head dim)."""
    linear_conv_kernel: int = Field(default=4, gt=0, le=64)
    """Tokens that the short convolution before the scan covers."""
    linear_conv_bias: bool = False
    """The short convolution has a bias (most Mamba-2 models)."""
    linear_output_norm: bool = True
    """A gated norm follows the scan (some Falcon-H1 models only gate)."""
    attention_gate: bool = False
    """The query projection also makes a gate of the attention output (Qwen3-Next)."""

    num_experts: OptionalWidth = 0
    experts_per_token: OptionalWidth = 0
    expert_ffn_hidden_size: OptionalWidth = 0
    expert_latent_size: OptionalWidth = 0
    """Width at which tokens reach the routed experts and return (0: the hidden size; Nemotron 3 Super)."""
    shared_expert_ffn_hidden_size: OptionalWidth = 0
    """Total width of the always-active experts of one layer (0 = none)."""
    num_dense_layers: OptionalWidth = 0
    """Leading layers whose MLP is dense in a mixture-of-experts model."""
    moe_layer_freq: int = Field(default=1, gt=0)
    """Every ``moe_layer_freq``-th layer after the dense ones is a mixture of experts."""
    dense_layers: tuple[int, ...] = ()
    """Indices of further layers whose MLP is dense."""
    router_groups: tuple[int, int] | None = None
    """Equal groups of experts, and how many of them one token may use (DeepSeek-V3: 8 and 4; None: all)."""
    router_bias: bool = False
    """The router adds one number per expert (a bias, or DeepSeek-V3's correction)."""
    shared_expert_gate: bool = False
    """One h -> 1 projection weighs the shared expert (Qwen2-MoE)."""

    q_lora_rank: OptionalWidth = 0
    kv_lora_rank: OptionalWidth = 0
    qk_nope_head_dim: OptionalWidth = 0
    qk_rope_head_dim: OptionalWidth = 0
    v_head_dim: OptionalWidth = 0
    mtp_depth: int = Field(default=0, ge=0, le=64)

    norm: Norm = "rms"
    norm_vectors: int = Field(default=1, ge=0, le=2)
    """Vectors of one norm: 1 = scale, 2 = scale and shift, 0 = no parameters (OLMo)."""
    norms_per_layer: int = Field(default=2, ge=0, le=8)
    """Norms over the hidden width in one layer (Gemma 2: 4; Cohere: 1)."""
    query_key_norm: QueryKeyNorm = "none"
    """Norm of queries and keys: one scale for all heads (Qwen3), or one per channel of all heads (OLMo 2)."""
    parallel_block: bool = False
    """Attention and MLP read the same input and are added together."""
    qkv_bias: bool = False
    attention_output_bias: bool = False
    mlp_bias: bool = False
    """Biases of the MLP's matrices, experts included."""
    attention_sinks: bool = False
    """One learned logit per query head (gpt-oss)."""
    learned_positions: OptionalWidth = 0
    """Rows of a learned position table (0 = rotary, ALiBi or none)."""
    embedding_norm: bool = False
    """A norm follows the token embedding (BLOOM)."""

    @model_validator(mode="before")
    @classmethod
    def _complete_mlp(cls, data: Any) -> Any:
        """Where only one of ``activation`` and ``gated_mlp`` is given, the other follows."""
        if not isinstance(data, dict):
            return data
        if "gated_mlp" not in data and "activation" in data:
            return {**data, "gated_mlp": data["activation"] in GATED_ACTIVATIONS}
        if data.get("gated_mlp") is False and "activation" not in data:
            return {**data, "activation": "gelu"}
        return data

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if not self.gated_mlp and self.activation in GATED_ACTIVATIONS:
            raise ValueError(f"activation {self.activation} needs a gated MLP, and gated_mlp is false")
        if not self.is_mla and self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads {self.num_heads} is not a multiple of num_kv_heads {self.num_kv_heads}"
            )
        more, fewer = sorted((self.num_kv_heads, self.full_kv_heads or self.num_kv_heads), reverse=True)
        if more % fewer or self.num_heads % more:
            raise ValueError(
                f"full_kv_heads {self.full_kv_heads} and num_kv_heads {self.num_kv_heads} must divide one "
                f"another and num_heads {self.num_heads}"
            )
        if self.is_moe and not 0 < self.experts_per_token <= self.num_experts:
            raise ValueError(f"experts_per_token {self.experts_per_token} is not in 1..{self.num_experts}")
        if self.router_groups is not None and not 0 < self.router_groups[1] <= self.router_groups[0]:
            raise ValueError(
                f"router_groups {self.router_groups} must be the number of groups and how many a token uses"
            )
        if self.is_moe and not self.expert_ffn_hidden_size:
            raise ValueError("expert_ffn_hidden_size is missing for a mixture of experts")
        if self.is_mla and not (self.qk_nope_head_dim and self.v_head_dim):
            raise ValueError("multi-head latent attention needs qk_nope_head_dim and v_head_dim")
        return self

    @model_validator(mode="after")
    def _pattern_is_consistent(self) -> Self:
        problem = self._pattern_problem() or self._linear_problem()
        if problem:
            raise ValueError(problem)
        return self

    def _pattern_problem(self) -> str | None:
        pattern = self.layer_pattern
        unknown = sorted(set(pattern) - set(LAYER_LETTERS))
        if unknown:
            return f"layer_pattern has {unknown[0]!r}; its letters are {' '.join(LAYER_LETTERS)}"
        if pattern and self.num_layers % len(pattern):
            size = len(pattern)
            return f"layer_pattern of {size} letters does not repeat evenly to num_layers {self.num_layers}"
        if "E" in pattern and not self.is_moe:
            return "layer_pattern has experts (E), and num_experts is missing"
        if self.attention_gate and self.is_mla:
            return "attention_gate is not known for multi-head latent attention"
        return None

    def _linear_problem(self) -> str | None:
        """What is wrong with the linear mixer's own numbers."""
        used = any(LAYER_LETTERS[letter].has_linear for letter in set(self.layer_pattern))
        if not self.linear_mixer:
            return "layer_pattern has linear layers, and linear_mixer is missing" if used else None
        if not used:
            return f"linear_mixer {self.linear_mixer} needs a layer_pattern with linear layers (L, P or M)"
        sizes = (
            "linear_key_heads", "linear_value_heads", "linear_key_head_dim", "linear_value_head_dim",
        )  # fmt: skip
        missing = [name for name in sizes if not getattr(self, name)]
        if missing:
            return f"linear_mixer {self.linear_mixer} needs {' and '.join(missing)}"
        if self.linear_value_heads % self.linear_key_heads:
            return (
                f"linear_value_heads {self.linear_value_heads} is not a multiple of linear_key_heads "
                f"{self.linear_key_heads}"
            )
        return None

    @property
    def full_attention(self) -> Model:
        """The same model with the heads of its full-attention layers in place of the windowed ones'."""
        if self.sliding_window is None or not (
            self.full_head_dim or self.full_kv_heads or self.full_keys_are_values
        ):
            return self
        return self.model_copy(
            update={
                "head_dim": self.full_head_dim or self.head_dim,
                "num_kv_heads": self.full_kv_heads or self.num_kv_heads,
                "keys_are_values": self.keys_are_values or self.full_keys_are_values,
            }
        )

    def seen_by(self, kind: LayerKind) -> Model:
        """Return the model whose heads are those of this kind of layer."""
        return self if kind.window is not None else self.full_attention

    @property
    def kv_projections(self) -> int:
        """Matrices of a layer that make keys and values."""
        return 1 if self.keys_are_values else 2

    @property
    def fewest_kv_heads(self) -> int:
        """KV heads of the layers that have the fewest."""
        return min(self.num_kv_heads, self.full_attention.num_kv_heads)

    @property
    def is_hybrid(self) -> bool:
        """Whether any layer has a linear mixer (state space or linear attention)."""
        return bool(self.linear_mixer)

    @property
    def is_moe(self) -> bool:
        """Whether any layer is a mixture of experts."""
        return self.num_experts > 0

    @property
    def expert_input_size(self) -> int:
        """Width of what a routed expert reads and makes."""
        return self.expert_latent_size or self.hidden_size

    @property
    def is_mla(self) -> bool:
        """Whether attention is multi-head latent attention."""
        return self.kv_lora_rank > 0

    @cached_property
    def layer_kinds(self) -> tuple[LayerKind, ...]:
        """The kind of every layer, first to last."""
        dense, full = self._dense_layers(), self._full_attention_layers()
        pattern = self.layer_pattern or "A"
        kinds = []
        for i in range(self.num_layers):
            letter = pattern[i % len(pattern)]
            kind = LAYER_LETTERS[letter]
            moe = self.is_moe and i not in dense if letter in LETTERS_WITH_MLP else kind.moe
            window = None if i in full or not kind.has_attention else self.sliding_window
            kinds.append(replace(kind, moe=moe, window=window))
        return tuple(kinds)

    @cached_property
    def mtp_kind(self) -> LayerKind:
        """The kind of a multi-token-prediction module's layer: the last one's, in a hybrid full attention."""
        last = self.layer_kinds[-1]
        return LayerKind(moe=self.is_moe) if self.layer_pattern else last

    @cached_property
    def kind_counts(self) -> Mapping[LayerKind, int]:
        """Layers of each kind, in the order in which the kinds come first."""
        return dict(Counter(self.layer_kinds))

    def _dense_layers(self) -> frozenset[int]:
        """Layers whose MLP is dense in a mixture of experts."""
        first, freq = self.num_dense_layers, self.moe_layer_freq
        skipped = (i for i in range(first, self.num_layers) if (i - first + 1) % freq)
        return (
            frozenset(range(min(first, self.num_layers))) | frozenset(skipped) | frozenset(self.dense_layers)
        )

    def _full_attention_layers(self) -> frozenset[int]:
        """Layers that look all the way back where others have a window."""
        if self.full_attention_layers is not None:
            return frozenset(self.full_attention_layers)
        pattern = self.window_pattern
        return frozenset(range(pattern - 1, self.num_layers, pattern) if pattern else ())

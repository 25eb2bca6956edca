"""How many parameters a model has: exact counts, by layer kind and by owner.

Letters: h hidden, a query heads, g KV heads, d head dim, f MLP width, E experts, k experts per token;
with latent attention q and k are the ranks of queries and of keys and values, d_n and d_r the head dims
without and with rotary positions, d_v the head dim of values.
Counts follow the weights of a checkpoint, biases and norms included (physics: exact parameter counts).
Buffers that are not weights (rotary tables, masks) do not count; DeepSeek-V3's router correction does,
because its checkpoints store it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from planner.cost.linear_mixer import mixer_parameters
from planner.cost.terms import Terms
from planner.spec.model import LayerKind, Model


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerParameters(Terms):
    """Parameters of one transformer layer, by owner."""

    attention: int = 0
    """Projections, their biases and sinks; with latent attention also the down-projections."""
    linear_mixer: int = 0
    """Projections, convolution, decay and norm of a state space or linear attention."""
    dense_mlp: int = 0
    routed_experts: int = 0
    """All experts of the layer together."""
    shared_experts: int = 0
    router: int = 0
    """With the projections to the experts' own width and back, where there are any."""
    norms: int = 0
    """Norms over the hidden width, of queries and keys, and of latent vectors."""


def layer_parameters(model: Model, kind: LayerKind) -> LayerParameters:
    """Parameters of one layer of the given kind.

    Notes
    -----
    GQA: ``h a d + 2 h g d + a d h``;
    MLA: ``h q + q a (d_n + d_r) + h (k + d_r) + k a (d_n + d_v) + a d_v h``;
    MLP: ``(3 if gated else 2) h f``; router: ``h E``, and ``2 h l`` where tokens reach the experts at a width
    of l. Windows change no parameter. A gated attention output adds ``h a d``; linear mixers:
    ``cost.linear_mixer``.
    """
    model = model.seen_by(kind)
    mixers = LayerParameters(norms=_norms(model, kind))
    if kind.has_attention:
        mixers += LayerParameters(attention=_latent_attention(model) if model.is_mla else _attention(model))
    if kind.has_linear:
        mixers += LayerParameters(linear_mixer=mixer_parameters(model))
    if not kind.mlp:
        return mixers
    if not kind.moe:
        return mixers + LayerParameters(dense_mlp=_mlp(model, model.ffn_hidden_size))
    h, num_experts = model.hidden_size, model.num_experts
    shared = _mlp(model, model.shared_expert_ffn_hidden_size) if model.shared_expert_ffn_hidden_size else 0
    return mixers + LayerParameters(
        routed_experts=num_experts * _expert(model),
        shared_experts=shared + (h if model.shared_expert_gate else 0),
        router=h * num_experts + (num_experts if model.router_bias else 0) + 2 * h * model.expert_latent_size,
    )


def norms_of_layer(model: Model, kind: LayerKind) -> float:
    """Norms over the hidden width in one layer; one that is a mixer or an MLP alone has half of them."""
    return model.norms_per_layer / 2 if kind.is_single_block else model.norms_per_layer


def embedding_parameters(model: Model) -> int:
    """Parameters of the input stage: token table, learned positions, the norm after them."""
    rows = model.vocab_size + model.learned_positions
    return rows * model.hidden_size + (_norm(model) if model.embedding_norm else 0)


def head_parameters(model: Model) -> int:
    """Parameters of the output stage: final norm and LM head.

    A tied head is counted here too: a pipeline of several stages holds the matrix on its first and its last
    stage. ``total_parameters`` counts it once.
    """
    return model.vocab_size * model.hidden_size + _norm(model)


def mtp_parameters(model: Model) -> int:
    """Parameters of all multi-token-prediction modules.

    Each is one more layer like the last, a ``2h -> h`` projection and three norms (of the hidden state, of
    the embedding, and before the head); table and head are the main model's (arXiv:2412.19437, section 2.2).
    """
    h = model.hidden_size
    layer = layer_parameters(model, model.mtp_kind).total
    return model.mtp_depth * int(layer + 2 * h * h + 3 * _norm(model))


def total_parameters(model: Model, include_mtp: bool = False) -> int:
    """Parameters of the whole model, tied matrices once.

    Parameters
    ----------
    model
        The architecture.
    include_mtp
        Add the multi-token-prediction modules, which published sizes leave out.
    """
    layers = sum(
        layer_parameters(model, kind).total * count for kind, count in Counter(model.layer_kinds).items()
    )
    tied = model.vocab_size * model.hidden_size if model.tied_embeddings else 0
    ends = embedding_parameters(model) + head_parameters(model) - tied
    return int(layers + ends + (mtp_parameters(model) if include_mtp else 0))


def active_parameters(model: Model) -> int:
    """Parameters that one token meets: ``k`` of the ``E`` routed experts of each layer, everything else.

    The whole token table counts, as in most published "active" sizes; MTP does not.
    """
    idle_experts = model.num_experts - model.experts_per_token
    moe_layers = sum(kind.moe for kind in model.layer_kinds)
    idle = moe_layers * idle_experts * _expert(model) if model.is_moe else 0
    return total_parameters(model) - idle


def _attention(model: Model) -> int:
    h, a, g, d = model.hidden_size, model.num_heads, model.num_kv_heads, model.head_dim
    made = (a * (2 if model.attention_gate else 1) + model.kv_projections * g) * d
    weights = h * made + a * d * h
    biases = made * model.qkv_bias + h * model.attention_output_bias
    return weights + biases + a * model.attention_sinks


def _latent_attention(model: Model) -> int:
    h, a, q, k = model.hidden_size, model.num_heads, model.q_lora_rank, model.kv_lora_rank
    d_nope, d_rope, d_value = model.qk_nope_head_dim, model.qk_rope_head_dim, model.v_head_dim
    query = h * q + q * a * (d_nope + d_rope) if q else h * a * (d_nope + d_rope)
    key_value = h * (k + d_rope) + k * a * (d_nope + d_value)
    biases = (q + k + d_rope) * model.qkv_bias + h * model.attention_output_bias
    return query + key_value + a * d_value * h + biases


def _mlp(model: Model, width: int) -> int:
    h, inputs = model.hidden_size, 2 if model.gated_mlp else 1
    return (inputs + 1) * h * width + (inputs * width + h) * model.mlp_bias


def _expert(model: Model) -> int:
    """One routed expert."""
    h, inputs, width = model.expert_input_size, 2 if model.gated_mlp else 1, model.expert_ffn_hidden_size
    return (inputs + 1) * h * width + (inputs * width + h) * model.mlp_bias


def _norm(model: Model) -> int:
    return model.norm_vectors * model.hidden_size


def _norms(model: Model, kind: LayerKind) -> int:
    norms = int(norms_of_layer(model, kind) * _norm(model))
    if not kind.has_attention:
        return norms
    if model.is_mla:
        return norms + model.q_lora_rank + model.kv_lora_rank
    heads = {"none": 0, "head": 2, "full": model.num_heads + model.num_kv_heads}[model.query_key_norm]
    return norms + heads * model.head_dim

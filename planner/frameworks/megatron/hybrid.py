"""Megatron's two ways to say a hybrid: a letter for every block, and a gated delta net in place of attention.

``--hybrid-layer-pattern``: ``M`` Mamba-2, ``G`` gated delta net, ``*`` attention (``+`` latent), ``-`` MLP,
``E`` experts; ``|`` ends a pipeline stage (flow order), ``/`` precedes the pattern of each next-token module
(megatron-core 0.19 ``hybrid_layer_allocation.py``). ``--experimental-attention-variant gated_delta_net``
keeps GPT's layers and swaps the attention of those that ``--linear-attention-freq`` names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from planner.frameworks.megatron.layout import list_text
from planner.spec.model import Model

LINEAR_LETTERS = {"mamba2": "M", "gated_delta": "G"}
"""Megatron's letter of a linear mixer alone; ours is ``M`` for all."""
STACK = ["megatron.core.models.hybrid.hybrid_layer_specs", "hybrid_stack_spec"]
"""What ``--spec`` needs: ``pretrain_hybrid.py`` refuses to start without."""
LARGEST = 100_000
"""Letters that a pattern may have: more is a mistake, not a model."""


@dataclass(frozen=True, slots=True)
class HybridPattern:
    """A pattern as read: our letters, layers of every stage where it names them, and what follows ``/``."""

    letters: str
    counts: tuple[int, ...]
    """Empty: the pattern has no ``|``."""
    mtp_depth: int
    mixer: str


def has_blocks(model: Model) -> bool:
    """Whether every layer is one block (a mixer or an MLP), as in Megatron's hybrid model."""
    return all(kind.is_single_block for kind in model.layer_kinds)


def pattern_text(model: Model, counts: list[int]) -> str:
    """Write a model's blocks and its stages (layers in flow order) as a pattern."""
    own = {"M": LINEAR_LETTERS.get(model.linear_mixer, "M"), "*": "+" if model.is_mla else "*"}
    letters = "".join(own.get(letter, letter) for letter in _all_letters(model))
    stages, start = [], 0
    for count in counts:
        stages.append(letters[start : start + count])
        start += count
    return "|".join(stages) + ("/" + own["*"] + ("E" if model.is_moe else "-")) * model.mtp_depth


def read_pattern(value: Any) -> HybridPattern:
    """Read ``--hybrid-layer-pattern``.

    Raises
    ------
    ValueError
        A letter is unknown, or the pattern has none or mixes two kinds of linear layers.
    """
    main, *modules = str(value).strip().split("/")
    if len(main) > LARGEST:
        raise ValueError(f"has more than {LARGEST} letters")
    unknown = sorted(set(main + "".join(modules)) - set("MG*+-E|"))
    if unknown == ["D"]:
        raise ValueError("has D: attention that an indexer restricts to some tokens is not priced")
    if unknown:
        raise ValueError(f"has {unknown[0]!r}; its letters are M, G, *, +, -, E, | and /")
    if {"M", "G"} <= set(main):
        raise ValueError("has M and G: only one kind of linear layers is priced")
    letters = main.replace("|", "").replace("G", "M").replace("+", "*")
    if not letters:
        raise ValueError("has no layers")
    mixer = "gated_delta" if "G" in main else "mamba2" if "M" in main else ""
    counts = tuple(len(stage) for stage in main.split("|")) if "|" in main else ()
    return HybridPattern(letters, counts, sum(1 for module in modules if module), mixer)


def hybrid_arguments(model: Model) -> dict[str, Any]:
    """The linear mixers, and where a pattern of blocks says the layers, what that needs instead."""
    arguments: dict[str, Any] = {"attention_output_gate": True} if model.attention_gate else {}
    if has_blocks(model):
        arguments |= {"spec": STACK, "position_embedding_type": "none"}
    elif model.is_hybrid:
        arguments |= {
            "experimental_attention_variant": "gated_delta_net",
            "linear_attention_freq": _frequency(model),
        }
    if not model.is_hybrid:
        return arguments
    return arguments | (_mamba_arguments if model.linear_mixer == "mamba2" else _delta_arguments)(model)


def _mamba_arguments(model: Model) -> dict[str, Any]:
    return {
        "mamba_num_heads": model.linear_value_heads,
        "mamba_head_dim": model.linear_value_head_dim,
        "mamba_state_dim": model.linear_key_head_dim,
        "mamba_num_groups": model.linear_key_heads,
    }


def _delta_arguments(model: Model) -> dict[str, Any]:
    return {
        "linear_num_key_heads": model.linear_key_heads,
        "linear_num_value_heads": model.linear_value_heads,
        "linear_key_head_dim": model.linear_key_head_dim,
        "linear_value_head_dim": model.linear_value_head_dim,
        "linear_conv_kernel_dim": model.linear_conv_kernel,
    }


def linear_layers(model: Model) -> list[int]:
    """1 for every layer with a linear mixer, 0 for the others."""
    return [int(kind.has_linear) for kind in model.layer_kinds]


def _frequency(model: Model) -> int | str:
    """N where every N-th layer is attention, else the list that the parser evaluates."""
    linear = linear_layers(model)
    step = linear.index(0) + 1 if 0 in linear else 0
    if step and linear == [int(bool((layer + 1) % step)) for layer in range(len(linear))]:
        return step
    return list_text(linear)


def hybrid_problems(model: Model) -> list[str]:
    """Say what of a hybrid model Megatron has no words for."""
    if not model.is_hybrid:
        return []
    if model.linear_mixer == "kimi_delta":
        return ["Megatron has no Kimi delta attention"]
    if any(kind.mixer == "attention+linear" for kind in model.layer_kinds):
        return ["Megatron has no layer with attention and a linear mixer side by side"]
    problems = []
    if not has_blocks(model) and (model.linear_mixer == "mamba2" or _has_mixed_blocks(model)):
        problems.append(
            "Megatron counts a Mamba-2 mixer and the MLP behind it as two layers: a model whose layers hold "
            "both has other stages there (write its layer_pattern with M, *, - and E)"
        )
    if model.linear_mixer == "mamba2" and not (model.linear_conv_bias and model.linear_output_norm):
        problems.append("Megatron's Mamba-2 always has a bias in its convolution and a norm after its scan")
    return problems


def _has_mixed_blocks(model: Model) -> bool:
    """Whether some layers are one block and others hold a mixer and an MLP."""
    return any(kind.is_single_block for kind in model.layer_kinds)


def _all_letters(model: Model) -> str:
    return model.layer_pattern * (model.num_layers // len(model.layer_pattern))

"""Read verl's Hydra overrides: the actor's training engine, Megatron or FSDP; the rollout's settings pass.

Names and defaults: verl trainer/config (actor/megatron_actor.yaml, actor/dp_actor.yaml). The optimizer's
offload is for the time of the rollout, so it saves nothing while training.
"""

from __future__ import annotations

import re
from dataclasses import replace

from planner.frameworks.dialects.common import chunked, gathered, given, padded, product, summed, value_of
from planner.frameworks.launch import Found, Key, LaunchFile, positive, text, whole, yes
from planner.frameworks.megatron.read import KEYS as MEGATRON
from planner.frameworks.shell import read_pairs

_ACTOR = "actor_rollout_ref.actor."
_MEGATRON = _ACTOR + "megatron."
_BRIDGE_NAMES = {
    "num_layers_in_first_pipeline_stage": "decoder_first_pipeline_num_layers",
    "num_layers_in_last_pipeline_stage": "decoder_last_pipeline_num_layers",
    "account_for_embedding_in_pipeline_split": "account_for_embedding_in_pipeline_split",
    "account_for_loss_in_pipeline_split": "account_for_loss_in_pipeline_split",
    "virtual_pipeline_model_parallel_size": "num_virtual_stages_per_pipeline_rank",
}
_ULYSSES = (
    _ACTOR + "ulysses_sequence_parallel_size",
    _ACTOR + "fsdp_config.ulysses_sequence_parallel_size",
)
"""Older and newer name."""


def _adapters(value: object) -> str:
    return "full" if whole(value) == 0 else "lora"


KEYS: dict[str, Key] = {
    "actor_rollout_ref.model.path": Key("named_model", text),
    _ACTOR + "ppo_micro_batch_size_per_gpu": Key("micro_batch", positive),
    "trainer.nnodes": Key("launcher.nodes", positive),
    "trainer.n_gpus_per_node": Key("launcher.processes_per_node", positive),
}
MEGATRON_KEYS: dict[str, Key] = {
    **KEYS,
    **{_MEGATRON + name: key for name, key in MEGATRON.items()},
    **{
        prefix + spelling: MEGATRON[name]
        for spelling, name in _BRIDGE_NAMES.items()
        for prefix in (_MEGATRON, _MEGATRON + "override_transformer_config.")
    },
    **{
        f"{_MEGATRON}override_transformer_config.{name}": MEGATRON[name]
        for name in (
            "recompute_granularity",
            "recompute_method",
            "recompute_num_layers",
            "recompute_modules",
            "pipeline_model_parallel_layout",
        )
    },
}
FSDP_KEYS: dict[str, Key] = {
    **KEYS,
    **{name: Key("context_parallel", positive) for name in _ULYSSES},
    "actor_rollout_ref.model.enable_gradient_checkpointing": Key("checkpointing", yes),
    "actor_rollout_ref.model.use_fused_kernels": Key("loss", chunked),
    "actor_rollout_ref.model.lora_rank": Key("finetune", _adapters),
}


def read(source: str, path: str) -> LaunchFile:
    """Read a command. A step is one mini-batch of every prompt's answers; dynamic batches are rows of tokens.

    FSDP is read as ZeRO-3: both hold 16 bytes a parameter over all GPUs, and verl's sequence parallelism is
    Ulysses.
    """
    pairs = read_pairs(source, path, r"(?:actor_rollout_ref|trainer|data)\.[\w.]+")
    found = [replace(entry, value=_plain(entry.value)) for entry in pairs]
    megatron = _is_megatron(source, found)
    batch = product(found, _ACTOR + "ppo_mini_batch_size", "actor_rollout_ref.rollout.n")
    batch = batch or product(found, _ACTOR + "ppo_mini_batch_size")
    said = given(
        global_batch=batch,
        seq_length=_row(found, megatron),
        micro_batch=1 if _is_dynamic(found) else _share(found),
    )
    if megatron:
        defaults = {"distributed_optimizer": True, "sequence_parallel": True, "bf16": True, **said}
        return padded(gathered("megatron", found, _without_size(MEGATRON_KEYS, found), path, defaults), 2)
    own = {"zero_stage": 3, "bf16": True, "checkpointing": True, "memory": _loss_habits(found)}
    said |= given(shard_group_size=_shard_group(found))
    return padded(gathered("deepspeed", found, _without_size(FSDP_KEYS, found), path, {**own, **said}))


def _without_size(keys: dict[str, Key], found: list[Found]) -> dict[str, Key]:
    """The keys, without the number of sequences where a micro-batch is a row of tokens."""
    return {name: key for name, key in keys.items() if not _is_dynamic(found) or key.field != "micro_batch"}


def _loss_habits(found: list[Found]) -> dict[str, float]:
    """Bytes per logit of the FSDP engine (workers/engine/fsdp), saved and at most.

    16-bit logits, those divided by the temperature, and gradients in place of the latter; an entropy in the
    loss adds its probabilities and their gradient.
    """
    has_entropy = str(value_of(found, _ACTOR + "entropy_coeff", "0")) not in {"0", "0.0"}
    saved, most = (6.0, 10.0) if has_entropy else (4.0, 6.0)
    return {"loss_saved_bytes": saved, "loss_peak_bytes": most}


def _plain(value: object) -> str | None:
    """A value without the quotes that variables carry; ``null`` says nothing."""
    word = str(value).strip("\"'")
    return None if word.lower() in {"", "null", "none"} else word


def _is_megatron(source: str, found: list[Found]) -> bool:
    strategy = value_of(found, _ACTOR + "strategy")
    if strategy is not None:
        return str(strategy) == "megatron"
    return bool(re.search(r"config-name[= ]+\S*megatron", source)) or any(
        entry.key.startswith(_MEGATRON) for entry in found
    )


def _is_dynamic(found: list[Found]) -> bool:
    """Whether a micro-batch is one row of as many tokens as each GPU may hold."""
    return str(value_of(found, _ACTOR + "use_dynamic_bsz", "false")).lower() == "true"


def _gpus(found: list[Found]) -> int | None:
    names = ("trainer.n_gpus_per_node", "trainer.nnodes")
    return product(found, *names) or product(found, *names[:1])


def _share(found: list[Found]) -> int | None:
    """A replica's part of a micro-batch that is said for all of them (``ppo_micro_batch_size``)."""
    whole_batch, gpus = product(found, _ACTOR + "ppo_micro_batch_size"), _gpus(found)
    if whole_batch is None or gpus is None:
        return None
    ranks = next((n for name in _ULYSSES if (n := product(found, name))), 1)
    return max(whole_batch * ranks // gpus, 1)


def _shard_group(found: list[Found]) -> int | None:
    """Ranks that shard one copy of the weights, where they are fewer than all (utils/fsdp_utils.py)."""
    ranks = product(found, _ACTOR + "fsdp_config.fsdp_size")
    gpus = _gpus(found)
    return ranks if ranks and gpus and ranks < gpus else None


def _row(found: list[Found], megatron: bool) -> int | Found | None:
    """Tokens of one row of a micro-batch."""
    names = (_MEGATRON + "context_parallel_size",) if megatron else _ULYSSES
    if _is_dynamic(found):
        most = _ACTOR + "ppo_max_token_len_per_gpu"
        rows = (product(found, most, *ranks) for ranks in [*((name,) for name in names), ()])
        return next((row for row in rows if row is not None), None)
    return summed(found, "data.max_prompt_length", "data.max_response_length")

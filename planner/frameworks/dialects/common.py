"""What the dialects share: flags by plain names, defaults that files leave out, names of checkpoints."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from planner.frameworks.launch import Found, Key, LaunchFile, collect, positive, text, yes
from planner.frameworks.launcher_keys import LAUNCHER_KEYS
from planner.frameworks.shell import read_flags, read_script


def adapter(value: Any) -> str | None:
    """Read what is trained: ``full``, ``lora`` or ``qlora``; None for other kinds."""
    word = str(value).strip().lower()
    return word if word in {"full", "lora", "qlora"} else "full" if word in {"none", "", "freeze"} else None


def optimizer(value: Any) -> str | None:
    """Read an optimizer's name: those of ``--optimizer`` that differ from Adam in fp32; else None."""
    word = str(value).lower()
    if re.search(r"8[-_]?bit|adamw8", word):
        return "adam-8bit"
    return next((known for known in ("lion", "sgd") if known in word), None)


def chunked(value: Any) -> str | None:
    """Read a switch of a loss fused with the head (Liger, cut cross-entropy)."""
    return "chunked" if yes(value) else None


def fused(value: Any) -> bool:
    """Read an attention's name: all but ``eager`` keep no scores."""
    return str(value).lower() not in {"eager", "disabled", "off"}


def loaded_in_half(value: Any) -> bool:
    """Read the format in which weights are loaded; checkpoints (``auto``) are in 16 bits."""
    return str(value).rpartition(".")[2].strip("\"'") in {"auto", "bfloat16", "float16", "bf16", "fp16"}


def synchronised(value: Any) -> dict[str, str] | None:
    """Read whether gradients are reduced in every step of accumulation."""
    return {"defers_reduction": "never"} if yes(value) else None


def half(value: Any) -> bool | None:
    """Read a switch of a number format; ``auto`` is left to the trainer, which takes bf16."""
    return None if str(value).lower() in {"auto", "full"} else yes(value)


TRAINER: dict[str, Key] = {
    "model_name_or_path": Key("named_model", text),
    "per_device_train_batch_size": Key("micro_batch", positive),
    "gradient_accumulation_steps": Key("num_microbatches", positive),
    "max_seq_length": Key("seq_length", positive),
    "max_length": Key("seq_length", positive),
    "bf16": Key("bf16", half),
    "fp16": Key("fp16", half),
    "dtype": Key("half_weights", loaded_in_half),
    "torch_dtype": Key("half_weights", loaded_in_half),
    "optim": Key("optimizer", optimizer),
    "use_liger_kernel": Key("loss", chunked),
    "attn_implementation": Key("fused_attention", fused),
    "gradient_checkpointing": Key("checkpointing", yes),
    "gradient_checkpointing_kwargs.offload": Key("activation_offload", yes),
    "activation_offloading": Key("activation_offload", yes),
    "fsdp_config.offload_params": Key("offload", yes),
    "deepspeed": Key("config_path", text),
    **{
        f"{prefix}gradient_accumulation_kwargs.sync_each_batch": Key("memory", synchronised)
        for prefix in ("", "accelerator_config.")
    },
}
"""Settings of Hugging Face's Trainer, by the names that all its wrappers keep."""

LAUNCHERS: dict[str, Key] = {
    name.removeprefix("--").replace("-", "_"): key for name, key in LAUNCHER_KEYS.items()
}


def flags(source: str, path: str) -> list[Found]:
    """Return a script's flags by their plain names (``max_length``), and variables that size the world."""
    found = [_plain(entry) for entry in read_flags(source, path)]
    said = {entry.key for entry in found}
    sizes = {"NPROC_PER_NODE": "nproc_per_node", "NNODES": "nnodes"}
    expand = read_script(source).expand
    first = {name: re.search(rf"(?m)^[^#\n]*\b{name}=(\S+)", source) for name in sizes}
    return found + [
        Found(
            sizes[name], expand(match.group(1).strip("\"'")), path, source.count("\n", 0, match.start(1)) + 1
        )
        for name, match in first.items()
        if match is not None and sizes[name] not in said
    ]


def checkpoints(source: str, path: str) -> list[Found]:
    """Return the checkpoints that a program loads with Hugging Face's classes, as ``model_name_or_path``."""
    loaded = re.finditer(r"\bAutoModel\w*\.from_pretrained\(\s*[\"']([^\"']+)[\"']", source)
    return [
        Found("model_name_or_path", match.group(1), path, source.count("\n", 0, match.start()) + 1)
        for match in loaded
    ]


def _plain(entry: Found) -> Found:
    return replace(entry, key=entry.key.lstrip("-").replace("-", "_"))


def gathered(
    framework: str, found: Iterable[Found], keys: Mapping[str, Key], path: str, defaults: Mapping[str, Any]
) -> LaunchFile:
    """Sort settings into fields of ``framework``, and add the dialect's own defaults where none is said.

    Settings that are not in ``keys`` belong to the trainer around the framework and pass.
    """
    launch = collect(framework, found, keys, lambda key: True)
    return with_defaults(replace(launch, paths=launch.paths or (path,)), defaults)


def with_defaults(launch: LaunchFile, defaults: Mapping[str, Any]) -> LaunchFile:
    """Return the launch file with values for fields that it leaves out (bf16 only where fp16 is not said).

    A value may be a ``Found`` that says which settings it comes from.
    """
    path = launch.paths[0]
    left_out = {"bf16"} if launch.get("fp16", False) else set()
    assumed = {
        name: value if isinstance(value, Found) else Found(name, value, path, 1)
        for name, value in defaults.items()
        if name not in left_out
    }
    return replace(launch, fields={**assumed, **launch.fields})


def padded(launch: LaunchFile, pieces: int = 1) -> LaunchFile:
    """Return the run of a trainer that pads sequences: each context rank has so many whole pieces of one."""
    at, ranks = launch.place("seq_length"), int(launch.get("context_parallel", 1))
    if at is None or ranks == 1:
        return launch
    unit = ranks * pieces
    whole = replace(at, value=-(-int(at.value) // unit) * unit)
    return replace(launch, fields={**launch.fields, "seq_length": whole})


def paired(launch: LaunchFile, beside_reference: bool) -> LaunchFile:
    """Return the run of a preference loss, whose samples are two sequences, the chosen and the rejected one.

    Parameters
    ----------
    beside_reference
        A frozen copy of the model is held as well (DPO without adapters).
    """
    sizes = ("micro_batch", "local_batch", "global_batch")
    doubled = {name: replace(at, value=2 * at.value) for name, at in launch.fields.items() if name in sizes}
    path = launch.paths[0]
    at = Found("reference", beside_reference, path, 1)
    return replace(launch, fields={**launch.fields, **doubled, "reference": at})


def value_of(found: Iterable[Found], key: str, default: Any = None) -> Any:
    """The last value of a key, the default where it is not said."""
    return {entry.key: entry.value for entry in found if entry.value is not None}.get(key, default)


def total(found: Iterable[Found], *keys: str) -> int | None:
    """Sum of several whole numbers that files give apart, None unless all are there."""
    said = {entry.key: str(entry.value) for entry in found}
    numbers = [said[key] for key in keys if said.get(key, "").isdecimal()]
    return sum(map(int, numbers)) if len(numbers) == len(keys) else None


def summed(found: Iterable[Found], *keys: str) -> Found | None:
    """The same as a setting by the names of its parts, ``a + b``, in the place of the last."""
    said = list(found)
    value = total(said, *keys)
    last = next((entry for entry in reversed(said) if entry.key in keys), None)
    return None if value is None or last is None else replace(last, key=" + ".join(keys), value=value)


def product(found: Iterable[Found], *keys: str) -> int | None:
    """Product of several whole numbers, None unless all are there."""
    said = {entry.key: str(entry.value) for entry in found}
    numbers = [int(said[key]) for key in keys if said.get(key, "").isdecimal()]
    if len(numbers) != len(keys):
        return None
    result = 1
    for number in numbers:
        result *= number
    return result


def given(**values: Any) -> dict[str, Any]:
    """The values that are not None."""
    return {name: value for name, value in values.items() if value is not None}

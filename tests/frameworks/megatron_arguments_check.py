"""Run Megatron-LM 0.19's parser and ``validate_args`` on argument lists; a program of its own, not a test.

Reads JSON lines ``{"world": n, "environment": {...}, "arguments": [...]}`` and prints, for each, one JSON
line: null when accepted, else the complaint. The folder with megatron-core 0.19.2 stands in MEGATRON_019.
Python 3.11 and a machine without GPUs are made to do: three stand-ins, none of which touches a rule.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import types
import typing

from child import serve


def prepare() -> None:
    """Stand-ins for Python 3.12's typing, a Triton kernel module, the GPU, Transformer Engine's version."""
    import typing_extensions

    typing.override = typing_extensions.override
    stash = types.ModuleType("megatron.core.transformer.moe.ops.paged_stash")
    for name in ("GLOBAL_BLOCK_SIZE", "paged_stash_copy_kernel", "paged_stash_pop_kernel"):
        setattr(stash, name, None)
    sys.modules[stash.__name__] = stash
    sys.path.insert(0, os.environ["MEGATRON_019"])
    import torch
    from megatron.core import utils
    from packaging.version import Version

    utils._te_version = Version("2.10")
    torch.cuda.get_device_capability = lambda *_: (9, 0)
    torch.cuda.get_device_properties = lambda *_: types.SimpleNamespace(major=9, minor=0)


def complaint(request: dict[str, typing.Any]) -> str | None:
    """What the parser, the validation or the config object say against the arguments."""
    from megatron.training.argument_utils import core_transformer_config_from_args
    from megatron.training.arguments import parse_args, validate_args

    os.environ.pop("CUDA_DEVICE_MAX_CONNECTIONS", None)
    os.environ.update(request["environment"], WORLD_SIZE=str(request["world"]), RANK="0")
    sys.argv = ["pretrain_gpt.py", *request["arguments"], "--no-rope-fusion"]
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            arguments = parse_args()
            validate_args(arguments)
            core_transformer_config_from_args(arguments)
    except SystemExit:
        return said.getvalue().strip().splitlines()[-1]
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


if __name__ == "__main__":
    serve(complaint, prepare)

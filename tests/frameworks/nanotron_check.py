"""Run nanotron's own configuration code on emitted files; a program of its own, not a test.

Reads JSON lines ``{"file": path}`` and prints one JSON line each: ``{"complaint": ...}`` when the file is
refused, else what the configuration holds and how nanotron itself places layers on pipeline ranks
(``build_model`` over its Llama code, without building a block). Packages that need CUDA have stand-ins.
"""

from __future__ import annotations

import contextlib
import io
from types import SimpleNamespace
from typing import Any
from unittest import mock

from child import serve
from stand_ins import stand_in

ABSENT = ("flash_attn", "triton", "torchtyping", "grouped_gemm", "functorch.dim", "wandb", "datatrove")


def held(file: str) -> dict[str, Any]:
    """Load a file as ``run_train.py`` does and return what it holds."""
    from nanotron.config import get_config_from_file

    config = get_config_from_file(file)
    said, tokens = config.parallelism, config.tokens
    return {
        "tensor_parallel": said.tp,
        "pipeline_parallel": said.pp,
        "data_parallel": said.dp,
        "context_parallel": said.context_parallel_size,
        "engine": type(said.pp_engine).__name__,
        "mode": said.tp_mode.name,
        "recompute": said.recompute_layer,
        "zero_stage": config.optimizer.zero_stage,
        "micro_batch": tokens.micro_batch_size,
        "num_microbatches": tokens.batch_accumulation_per_replica,
        "global_batch": config.global_batch_size,
        "seq_length": tokens.sequence_length,
        "model": type(config.model.model_config).__name__,
        "layers": layers_per_rank(config),
    }


def layers_per_rank(config: Any) -> list[int]:
    """Decoder layers on every pipeline rank, by nanotron's own code."""
    from nanotron.models import base, llama

    groups = {
        name: SimpleNamespace(size=lambda count=count: count)
        for name, count in (
            ("pp_pg", config.parallelism.pp),
            ("tp_pg", config.parallelism.tp),
            ("world_pg", 1),
        )
    }
    context = SimpleNamespace(**groups)

    def remember(block: Any, rank: int) -> None:
        block.rank = rank

    with (
        mock.patch.object(base, "log_rank", lambda *_, **__: None),
        mock.patch.object(llama, "log_rank", lambda *_, **__: None),
        mock.patch.object(llama, "P2P", lambda *_, **__: None),
        mock.patch.object(llama.LlamaForTraining, "log_modules", lambda *_, **__: None),
        mock.patch.object(base.PipelineBlock, "build_and_set_rank", remember),
    ):
        model = base.build_model(
            lambda: llama.LlamaForTraining(config.model.model_config, context, config.parallelism),
            parallel_context=context,
            dtype=config.model.dtype,
            device="meta",
        )
    ranks = [block.rank for block in model.model.decoder]
    return [ranks.count(rank) for rank in range(config.parallelism.pp)]


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """What nanotron says of a file."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            return held(request["file"])
    except Exception as error:
        return {"complaint": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    serve(answer, lambda: stand_in(ABSENT))

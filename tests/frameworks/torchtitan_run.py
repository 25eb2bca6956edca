"""Train an emitted folder with torchtitan 0.2.2's own trainer on CPU processes; a program, not a test.

``torchrun torchtitan_run.py FOLDER OUT`` reads ``FOLDER/train.toml`` (and ``plan_model.py`` beside it), makes
a small data set and a tokenizer under ``OUT``, and writes ``OUT/rank-<n>.json``: the losses that the trainer
logs and the ranks of every group that it made.

What stands in: CPU for CUDA, gloo for NCCL (which cannot scale while it sums, so that FSDP has to sum
plainly), and weights drawn from each parameter's name, so that every layout starts from the same model.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import warnings
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torchtitan_check import prepare

DOCUMENTS = 64
OVERRIDES = (
    "--training.steps=2",
    "--training.dataset=c4_test",
    "--optimizer.implementation=for-loop",
    "--lr_scheduler.warmup_steps=0",
    "--debug.seed=7",
)


def patch() -> None:
    """Make CPU and gloo do."""
    import torch.distributed as dist
    from torch.distributed.fsdp import FSDPModule
    from torchtitan.components import metrics
    from torchtitan.distributed import utils

    plain = FSDPModule.set_gradient_divide_factor

    def summed(module: Any, factor: float) -> None:
        plain(module, factor)
        module.set_force_sum_reduction_for_comms(True)

    barrier = dist.barrier
    FSDPModule.set_gradient_divide_factor = summed
    dist.barrier = lambda group=None, async_op=False, device_ids=None: barrier(group, async_op)
    memory = SimpleNamespace(
        device_name="cpu",
        get_peak_stats=lambda: metrics.DeviceMemStats(0, 0, 0, 0, 0, 0),
        reset_peak_stats=lambda: None,
    )
    metrics.build_device_memory_monitor = lambda: memory
    utils.set_pg_timeouts = lambda *_, **__: None


def assets(folder: Path, length: int, vocabulary: int) -> None:
    """Documents of exactly one sequence each, so that packing does not depend on who reads which."""
    words = [f"w{index}" for index in range(vocabulary - 3)]
    vocab = {"<s>": 0, "</s>": 1, "[UNK]": 2} | {word: 3 + index for index, word in enumerate(words)}
    tokenizer = folder / "assets" / "hf"
    data = folder / "tests" / "assets" / "c4_test"
    tokenizer.mkdir(parents=True, exist_ok=True)
    data.mkdir(parents=True, exist_ok=True)
    (tokenizer / "vocab.json").write_text(json.dumps(vocab))
    special = {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True, "add_eos_token": True}
    (tokenizer / "tokenizer_config.json").write_text(json.dumps(special))
    chosen = torch.randint(
        len(words), (DOCUMENTS, length - 1), generator=torch.Generator().manual_seed(3)
    ).tolist()
    lines = [json.dumps({"text": " ".join(words[index] for index in row)}) for row in chosen]
    (data / "data.json").write_text("\n".join(lines))


def draw_weights(parts: list[Any]) -> None:
    """Give every parameter values that depend on its name alone."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

    options = StateDictOptions(full_state_dict=True, strict=False)
    for part in parts:
        whole = {}
        for name, parameter in part.named_parameters():
            name = name.replace("_checkpoint_wrapped_module.", "")
            seed = torch.Generator().manual_seed(zlib.crc32(name.encode()))
            values = torch.randn(tuple(parameter.shape), generator=seed) * 0.02
            whole[name] = values + 1 if parameter.ndim == 1 else values
        set_model_state_dict(part, whole, options=options)


def members(dims: Any, name: str) -> list[int]:
    """Ranks of this rank's group along one dimension."""
    import torch.distributed as dist

    mesh = dims.get_optional_mesh(name)
    return [dist.get_rank()] if mesh is None else mesh.mesh.flatten().tolist()


def main(folder: Path, out: Path) -> None:
    """Run the trainer and write down what it says."""
    from torchtitan.config import ConfigManager
    from torchtitan.train import Trainer

    sys.path.insert(0, str(folder))
    config = ConfigManager().parse_args([f"--job.config_file={folder}/train.toml", *OVERRIDES])
    own = out / os.environ["RANK"]
    assets(own, config.training.seq_len, vocabulary=256)
    os.chdir(own)
    trainer = Trainer(config)
    draw_weights(trainer.model_parts)
    losses: list[float] = []
    trainer.metrics_processor.log = lambda _, average, *__, **___: losses.append(float(average))
    trainer.train()
    seen = {
        name: members(trainer.parallel_dims, name) for name in ("tp", "pp", "fsdp", "dp_replicate", "batch")
    }
    (out / f"rank-{os.environ['RANK']}.json").write_text(json.dumps({"losses": losses, "groups": seen}))
    trainer.close()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    prepare()
    patch()
    main(Path(sys.argv[1]), Path(sys.argv[2]))

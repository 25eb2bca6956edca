"""Timing collectives between the GPUs of this node, one process a GPU."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

MESSAGES = tuple(2**power for power in range(14, 30))
"""16 KiB to 512 MiB, as the published tables."""
ELEMENT_BYTES = 2
REPEATS = 20


def group_sizes(num_gpus: int) -> list[int]:
    """Ranks to measure: powers of two, and all GPUs."""
    sizes = {2**power for power in range(1, 11) if 2**power <= num_gpus}
    return sorted(sizes | ({num_gpus} if num_gpus > 1 else set()))


def collective_points(
    num_gpus: int,
    device: str = "cuda",
    messages: Sequence[int] = MESSAGES,
    names: Sequence[str] | None = None,
) -> dict[tuple[str, int], list[tuple[float, float]]]:
    """Time every collective for every group size. By name and ranks: message bytes, seconds."""
    wanted = tuple(names or ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"))
    found: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for ranks in group_sizes(num_gpus):
        with tempfile.TemporaryDirectory() as folder:
            arguments = (ranks, folder, device, tuple(messages), wanted)
            torch.multiprocessing.spawn(_worker, args=arguments, nprocs=ranks, join=True)
            for name, points in json.loads((Path(folder) / "times.json").read_text()).items():
                found[name, ranks] = [(float(size), float(seconds)) for size, seconds in points]
    return found


def _worker(
    rank: int, ranks: int, folder: str, device: str, messages: tuple[int, ...], names: tuple[str, ...]
) -> None:
    place = f"cuda:{rank}" if device == "cuda" else "cpu"
    if device == "cuda":
        torch.cuda.set_device(rank)
    dist.init_process_group(
        "nccl" if device == "cuda" else "gloo", f"file://{folder}/store", rank=rank, world_size=ranks
    )
    times = {
        name: [(size, _seconds(_call(name, size, ranks, place), device)) for size in messages]
        for name in names
    }
    if rank == 0:
        (Path(folder) / "times.json").write_text(json.dumps(times))
    dist.destroy_process_group()


def _call(name: str, message_bytes: int, ranks: int, place: str) -> Callable[[], Any]:
    """One collective whose full buffer (for an all-to-all: one rank's) has ``message_bytes``."""
    share = max(1, message_bytes // ELEMENT_BYTES // ranks)
    full = torch.zeros(share * ranks, dtype=torch.bfloat16, device=place)
    part = torch.zeros(share, dtype=torch.bfloat16, device=place)
    other = torch.zeros_like(full)
    calls: dict[str, Callable[[], Any]] = {
        "all_reduce": lambda: dist.all_reduce(full),
        "all_gather": lambda: dist.all_gather_into_tensor(full, part),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, full),
        "all_to_all": lambda: dist.all_to_all_single(other, full),
    }
    return calls[name]


def _seconds(call: Callable[[], Any], device: str) -> float:
    for _ in range(5):
        call()
    _wait(device)
    start = time.perf_counter()
    for _ in range(REPEATS):
        call()
    _wait(device)
    return (time.perf_counter() - start) / REPEATS


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()
    dist.barrier()

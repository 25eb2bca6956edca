"""How long the solver takes: named problems and a scale curve, each in a process of its own.

Without a word: the named problems; with the word ``curve``: the scale curve. Both print rows of a
Markdown table (``tests/benchmarks/solver.md`` keeps the last ones).
"""

from __future__ import annotations

import json
import subprocess
import sys
import time

NAMED = {
    "100B on 512": ("100b", "h100-sxm-80gb", 512, 2048, 2048),
    "DeepSeek-V3 on 2,048": ("deepseek-v3", "h800", 2048, 15360, 4096),
    "405B on 16,384": ("llama-3.1-405b", "h100-sxm-80gb", 16384, 2048, 8192),
    "Kimi K2 (1T) on 131,072": ("kimi-k2", "h100-sxm-80gb", 131072, 131072, 4096),
}
"""Model, hardware, GPUs, global batch, sequence length."""
TWO_WAY = {"framework": "deepseek", "precision": "fp8", "recompute": "selective"}
"""With these options DeepSeek-V3's best plans run DualPipe, whose ranks hold two stages each."""
CURVE = tuple(8 * 4**power for power in range(8))
TIME_LIMIT_S = 20.0

PROBE = """
import json, resource, sys, time
from planner import plan
model, hardware, gpus, batch, length, top, limit, more = json.loads(sys.argv[1])
start = time.process_time()
found = plan(model=model, hardware=hardware, gpus=gpus, global_batch=batch, seq_length=length, top=top,
             time_limit_s=limit, **more)
print(json.dumps([found.status, found.gap_pct, found.num_settings, found.solve_s, time.process_time() - start,
                  resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
                  found.plans[0].step_time_s if found.plans else None]))
"""


def measured(problem: tuple[str, str, int, int, int], top: int, more: dict[str, str] | None = None) -> str:
    """One row: status, gap, settings, seconds of search and command, CPU seconds, memory, step time."""
    start = time.monotonic()
    words = [sys.executable, "-c", PROBE, json.dumps([*problem, top, TIME_LIMIT_S, more or {}])]
    shown = subprocess.run(words, capture_output=True, text=True, check=True)
    whole_s = time.monotonic() - start
    status, gap, settings, solve_s, cpu_s, memory_gb, step_s = json.loads(shown.stdout)
    gap_word = "-" if gap is None else f"{gap:.1f} %"
    step_word = "-" if step_s is None else f"{step_s:.3f} s"
    return (
        f"{top} | {status} | {gap_word} | {settings:,} | {solve_s:.1f} | {whole_s:.1f} | {cpu_s:.1f} | "
        f"{memory_gb:.2f} GB | {step_word} |"
    )


def main() -> None:
    """Print the table asked for."""
    head = "| problem | top | status | gap | settings | search s | whole s | CPU s | memory | step |"
    print(f"{head}\n|---|---|---|---|---|---|---|---|---|---|")
    if sys.argv[1:] == ["curve"]:
        for gpus in CURVE:
            batch = max(128, gpus // 4)
            problem = ("llama-3-8b", "h100-sxm-80gb", gpus, batch, 8192)
            print(f"| Llama 3 8B on {gpus:,} | {measured(problem, 1)}", flush=True)
        return
    for name, problem in NAMED.items():
        for top in (1, 10):
            print(f"| {name} | {measured(problem, top)}", flush=True)
    name = "DeepSeek-V3 on 2,048"
    print(f"| {name}, fp8 with DualPipe | {measured(NAMED[name], 1, TWO_WAY)}", flush=True)


if __name__ == "__main__":
    main()

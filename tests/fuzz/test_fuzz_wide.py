"""Questions as wide as they get: memory stays below 1 GB, and the search ends near its time limit."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from fuzz_oracle import assert_figures

pytestmark = pytest.mark.slow

LIMIT_S = 3
MOST_BYTES = 1_000_000_000
MOST_CPU_S = 20.0
"""Of the whole command: half a second to load, the search, its last step, and the explanation of the plan."""
EXIT_CODES = {0, 3, 4}
WIDE = {
    "experts on a million GPUs, some idle": "--model mixtral-8x7b --gpus 1000000 --allow-idle",
    "256 experts, some GPUs idle": "--model deepseek-v3 --gpus 1000000 --allow-idle",
    "a prime number of GPUs, no framework": "--model deepseek-v3 --gpus 999983 --allow-idle --framework any",
    "many divisors, two formats": "--model deepseek-v3 --gpus 720720 --framework any --precision bf16,fp8 "
    "--global-batch 720720",
    "many divisors, idle": "--model deepseek-v3 --gpus 720720 --allow-idle --framework any "
    "--precision bf16,fp8",
    "a range of batches, idle": "--model 7b --gpus 1000000 --allow-idle --global-batch 1:2048",
    "a range by rate": "--model 7b --gpus 1000000 --allow-idle --global-batch 1:2048 --goal tokens-per-s",
    "a range with experts": "--model mixtral-8x7b --gpus 100000 --allow-idle --global-batch 1024:3000",
    "a range, no framework": "--model deepseek-v3 --gpus 4096 --framework any --global-batch 4096:6143 "
    "--precision bf16,fp8",
    "a target that nothing reaches": "--model mixtral-8x7b --gpus 100000 --allow-idle --step-time 1s",
    "a million tokens": "--model 7b --gpus 8192 --seq-length 1048576 --global-batch 64 --framework any",
    "a million tokens, idle": "--model deepseek-v3 --gpus 65536 --seq-length 1048576 --global-batch 5040 "
    "--allow-idle --framework any --precision bf16,fp8",
    "128k tokens with experts": "--model mixtral-8x7b --gpus 16384 --seq-length 131072 --global-batch 1024 "
    "--framework any --precision bf16,fp8",
    "a sequence of many divisors": "--model 7b --gpus 1000000 --seq-length 720720 --global-batch 720720 "
    "--allow-idle",
    "too little memory": "--model deepseek-v3 --gpus 1000000 --allow-idle --hbm 1GB",
    "least memory": "--model deepseek-v3 --gpus 100000 --allow-idle --goal memory",
    "robust": "--model mixtral-8x7b --gpus 100000 --allow-idle --robust --framework any",
    "cost": "--model mixtral-8x7b --gpus 100000 --allow-idle --goal cost --framework any",
}
WATCHED = (
    "import resource, sys; from planner.cli import main\n"
    "try:\n    main(sys.argv[1:])\n"
    "finally:\n    used = resource.getrusage(resource.RUSAGE_SELF)\n"
    "    sys.stderr.write('USED %d %f' % (used.ru_maxrss, used.ru_utime + used.ru_stime))\n"
)


@pytest.mark.parametrize("name", WIDE)
def test_wide_questions_stay_within_memory_and_time(name: str) -> None:
    words = [*WIDE[name].split(), "--time-limit", str(LIMIT_S), "--workers", "1", "--json"]
    ran = subprocess.run(
        [sys.executable, "-c", WATCHED, *words], capture_output=True, text=True, timeout=300, check=False
    )
    assert ran.returncode in EXIT_CODES, ran.stderr
    kilobytes, cpu_s = ran.stderr.rsplit("USED ", 1)[1].split()
    assert int(kilobytes) * 1024 < MOST_BYTES, f"{int(kilobytes) / 1e6:.2f} GB"
    assert float(cpu_s) < MOST_CPU_S, f"{float(cpu_s):.1f} s for a limit of {LIMIT_S} s"
    report = json.loads(ran.stdout)
    assert bool(report["plans"]) == (ran.returncode == 0)
    for plan in report["plans"]:
        assert_figures({name: value for name, value in plan.items() if name != "explanation"})

"""The files that every framework's output folder has beside its own."""

from __future__ import annotations

from collections.abc import Sequence

from planner.frameworks.rank_map import rank_map_csv
from planner.frameworks.scripts import Launch, environment_file, readme, slurm_script, torchrun_script
from planner.spec.plan import Plan
from planner.spec.request import PlanRequest

ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
}
"""Variables that matter under any PyTorch framework: no thread storm, less fragmentation, clean failure."""


def common_files(
    plan: Plan, request: PlanRequest, launch: Launch, steps: Sequence[str], notes: Sequence[str]
) -> dict[str, str]:
    """Return environment, torchrun and Slurm scripts, rank map and README."""
    return {
        "env.sh": environment_file(launch.environment),
        "torchrun.sh": torchrun_script(plan, request, launch),
        "slurm.sh": slurm_script(plan, request),
        "rank_map.csv": rank_map_csv(plan, request.cluster.gpus_per_node),
        "README.md": readme(plan, request, launch, steps, notes),
    }

"""Flags of torchrun, srun and deepspeed that stand in the same script as the framework's own."""

from __future__ import annotations

from typing import Any

from planner.frameworks.launch import Key, positive, text, yes

TORCHRUN_FLAGS = frozenset((
    "--nnodes", "--nproc-per-node", "--rdzv-backend", "--rdzv-endpoint", "--rdzv-id", "--rdzv-conf",
    "--standalone", "--max-restarts", "--monitor-interval", "--start-method", "--event-log-handler",
    "--role", "--module", "--no-python", "--run-path", "--log-dir", "--redirects", "--tee",
    "--local-ranks-filter", "--node-rank", "--master-addr", "--master-port", "--local-addr",
    "--logs-specs", "--numa-binding", "--signals-to-handle", "--virtual-local-rank", "--use-env",
    "--duplicate-stdout-filters", "--ntasks", "--ntasks-per-node", "--nodes", "--gpus-per-node",
    "--gres", "--container-image", "--container-mounts", "--output", "--error", "--job-name",
    "--partition", "--account", "--time", "--exclusive", "--kill-on-bad-exit", "--cpu-bind", "--mpi",
    "--export", "--hostfile", "--num-gpus", "--num-nodes", "--launcher", "--include", "--exclude", "-m",
    "--sample", "--cpuctxsw", "--trace", "--capture-range", "--capture-range-end", "--cuda-graph-trace",
    "--cuda-memory-usage", "--force-overwrite", "--stats", "--delay", "--duration",
    "-u", "-c", "-n", "-N", "-x",
))  # fmt: skip
"""torch.distributed.run, sbatch/srun, the deepspeed launcher and nsys; ``-`` and ``_`` are the same there."""


def is_launcher_flag(key: str) -> bool:
    """Whether the flag belongs to a launcher."""
    return key.replace("_", "-") in TORCHRUN_FLAGS or key in TORCHRUN_FLAGS


def _count(value: Any) -> int | None:
    """A count of processes or nodes, None where it depends on the environment (or is a range).

    Words without dashes that follow, as in ``--nnodes 4 -m train``, do not belong to it.
    """
    word = str(value[0] if isinstance(value, list) and value else value)
    return int(word) if word.isdigit() and int(word) > 0 else None


LAUNCHER_KEYS = {
    name: Key(field, convert)
    for field, convert, names in (
        (
            "launcher.processes_per_node",
            _count,
            ("--nproc_per_node", "--nproc-per-node", "--num_gpus", "--num-gpus"),
        ),
        ("launcher.nodes", _count, ("--nnodes", "--num_nodes", "--num-nodes")),
        ("named_model", text, ("--model_name_or_path", "--model-name-or-path")),
    )
    for name in names
}
"""What torchrun, or the deepspeed launcher, says about the size of the world; scripts name models alike."""

TRAINER_FLAGS = {
    spelling: key
    for name, key in {
        "--per_device_train_batch_size": Key("micro_batch", positive),
        "--gradient_accumulation_steps": Key("num_microbatches", positive),
        "--gradient_checkpointing": Key("checkpointing", yes),
        "--max_seq_length": Key("seq_length", positive),
        "--model_max_length": Key("seq_length", positive),
        "--max_length": Key("seq_length", positive),
        "--cutoff_len": Key("seq_length", positive),
    }.items()
    for spelling in (name, name.replace("_", "-"))
}
"""Flags of scripts around Hugging Face's Trainer."""

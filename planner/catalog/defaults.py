"""What the planner fills in when the user says nothing, each with the sentence that admits it."""

from __future__ import annotations

import math
from collections.abc import Callable

from planner.spec.cluster import Accelerator, Cluster
from planner.spec.framework import FrameworkProfile
from planner.spec.model import Model

DEFAULT_HARDWARE = "h100-sxm-80gb"
DEFAULT_FRAMEWORK = "megatron"
DEFAULT_FRAMEWORKS = {"google": "maxtext"}
"""Of vendors whose accelerators the usual framework does not run on."""
DEFAULT_PRECISION = "bf16"

STEP_TOKENS = 2**22
"""Tokens of one step: 4 M, the batch of Llama 2 (arXiv:2307.09288, table 1 and section 2.2)."""
TOKENS_PER_GPU = 2**10
"""Floor for very large clusters: Llama 3 405B, 16.8 M tokens a step on 16,384 GPUs (arXiv:2407.21783)."""

MOST_MICRO_BATCHES = 64
"""Micro-batches that are tried, the smallest: with every divisor of a round batch, or every size up to the
largest batch of a range, the table of layers to price would take gigabytes."""
MOST_SPREAD, NEAR_EVEN = 256, 32
"""Layers of a chunk up to which a framework that sets the ends of a pipeline apart may give them any number;
beyond, ranks hold at most so many more or fewer than they would evenly."""
MOST_CHUNKS = 256
"""Chunks of a rank that are tried; more than any known model has layers."""


def default_framework(accelerator: Accelerator) -> str:
    """Return the framework when the user names none: Megatron-LM, and MaxText on TPUs."""
    return DEFAULT_FRAMEWORKS.get(accelerator.vendor.lower(), DEFAULT_FRAMEWORK)


def default_global_batch(num_gpus: int, seq_length: int) -> int:
    """Return sequences per step when the user names none.

    About 4 M tokens, or 1,024 tokens per GPU if that is more; a power of two times the odd part of
    the GPU count, so that every data-parallel degree of the cluster can divide it.
    """
    tokens = max(STEP_TOKENS, TOKENS_PER_GPU * num_gpus)
    sequences = max(1.0, tokens / seq_length)
    odd = num_gpus // (num_gpus & -num_gpus)
    doublings = max(0, round(math.log2(sequences / odd)))
    return int(odd * 2**doublings)


def batch_sentence(global_batch: int, seq_length: int) -> str:
    """Say which batch was filled in."""
    tokens = global_batch * seq_length / 1e6
    return (
        f"Global batch {global_batch} sequences ({tokens:.1f} M tokens a step), chosen near 4 M tokens and "
        "1,024 tokens per GPU; change it with --global-batch."
    )


def divisors(number: int) -> list[int]:
    """Divisors of a positive number, ascending."""
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})


def micro_batches(low: int, high: int, admits: Callable[[int], bool] = lambda _: True) -> list[int]:
    """Micro-batches that are tried for batches of ``low`` to ``high`` sequences, of those that are admitted.

    With a range the divisors of its ends are among them, so that it is never slower than one of them alone.
    """
    if low == high:
        return [size for size in divisors(low) if admits(size)][:MOST_MICRO_BATCHES]
    ends = [size for end in (low, high) for size in divisors(end)[:MOST_MICRO_BATCHES] if admits(size)]
    small = [size for size in range(1, high + 1) if admits(size)][:MOST_MICRO_BATCHES]
    return sorted({*small, *ends})


def micro_batch_sentence(low: int, high: int) -> str | None:
    """Say which micro-batches are tried, where not all are."""
    tried = micro_batches(low, high)
    if len(tried) == (len(divisors(low)) if low == high else high):
        return None
    if low == high:
        return f"Micro-batches of up to {tried[-1]} sequences are tried; name others with --micro-batch."
    return (
        f"Micro-batches of up to {MOST_MICRO_BATCHES} sequences, and those that divide a batch of {low} or "
        f"{high}, are tried; name others with --micro-batch."
    )


def deep_sentence(num_layers: int, framework: FrameworkProfile) -> str | None:
    """Say which layouts of a very deep model are tried, where not all are."""
    if num_layers <= MOST_CHUNKS:
        return None
    near = f", ranks within {NEAR_EVEN} layers of even" if framework.limits.uneven_stages == "ends" else ""
    return f"Of a model of {num_layers} layers at most {MOST_CHUNKS} chunks a rank are tried{near}."


def cluster_sentence(cluster: Cluster, named: bool) -> str:
    """Say what the cluster is taken to be."""
    accelerator = cluster.accelerator
    outer = cluster.links[-1]
    network = f"{outer.bytes_per_s / 1e9:.0f} GB/s per GPU and direction over {outer.name}"
    which = "" if named else f"Hardware {accelerator.name} (--hardware). "
    usable = cluster.usable_hbm_bytes
    many = "" if cluster.gpus_per_node == 1 else "s"
    return (
        f"{which}{usable / 1e9:.1f} GB ({usable / 2**30:.1f} GiB) of HBM a GPU for the plan, "
        f"{cluster.gpus_per_node} GPU{many} a node, {network}; "
        "change it with --hbm, --gpus-per-node and --nic-bandwidth."
    )


def framework_sentence(framework: FrameworkProfile, named: bool) -> str:
    """Say which framework habits the memory and time follow."""
    habits = framework.memory
    verb = "Habits of" if named else "Framework"
    return (
        f"{verb} {framework.name}: {habits.gradient_bytes:g} bytes of gradient and "
        f"{habits.optimizer_bytes:g} bytes of optimizer state per parameter; change it with --framework."
    )


def sequence_sentence(model: Model) -> str:
    """Say where the sequence length comes from."""
    return f"Sequence length {model.seq_length}, the model's own; change it with --seq-length."


def bubble_sentence(max_bubble: float) -> str:
    """Say which bubble budget holds."""
    return (
        f"Pipeline bubble at most {100 * max_bubble:.0f} % of the ideal time; "
        "change it with --max-bubble (a fraction, or none)."
    )

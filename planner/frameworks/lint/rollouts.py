"""What verl and TRL check of batches and ranks around the training engine before a run starts."""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd, prod

from planner.frameworks.launch import Found, LaunchFile
from planner.frameworks.lint.findings import Finding, finding
from planner.spec.request import PlanRequest

_PARTS = "actor_rollout_ref."
_ACTOR, _ROLLOUT = _PARTS + "actor.", _PARTS + "rollout."
_SPLITS = (
    _ACTOR + "ulysses_sequence_parallel_size",
    _ACTOR + "fsdp_config.ulysses_sequence_parallel_size",
    _ACTOR + "megatron.context_parallel_size",
)
Said = dict[str, Found]


def rollout_findings(launch: LaunchFile, request: PlanRequest) -> Iterator[Finding]:
    """Yield a finding for every relation of verl's own that the settings break.

    References
    ----------
    verl utils/config.py ``validate_config``; workers/config/actor.py; workers/fsdp_workers.py
    ``_build_rollout``; utils/seqlen_balancing.py ``rearrange_micro_batches``.
    """
    said = {entry.key: entry for entry in launch.found if entry.value is not None}
    if not any(key.startswith(_PARTS) for key in said):
        return
    gpus = launch.get("num_gpus", request.cluster.num_gpus)
    if str(_value(said, _ACTOR + "use_dynamic_bsz", "false")).lower() == "true":
        yield from _longest_row(said)
    else:
        yield from _batches(said, *_least_batch(launch, gpus))
    yield from _generation(said, gpus)
    padding = said.get(_PARTS + "model.use_remove_padding")
    split = next((said[name] for name in _SPLITS[:2] if _whole(said, name, 1) > 1), None)
    if split is not None and padding is not None and str(padding.value).lower() == "false":
        message = f"{split.key} {split.value} needs {padding.key} True"
        yield finding(split, "error", "settings-need-others", message)


def generation_findings(launch: LaunchFile, request: PlanRequest) -> Iterator[Finding]:
    """Yield an error where the answers of a step are no whole groups of one prompt's.

    References
    ----------
    TRL trainer/grpo_config.py: ``generation_batch_size`` is a multiple of ``num_generations``.
    """
    said = {entry.key.lstrip("-").removeprefix("trl.").replace("-", "_"): entry for entry in launch.found}
    group, said_whole = said.get("num_generations"), said.get("generation_batch_size")
    b = launch.get("micro_batch")
    if group is None or not _is_whole(group) or b is None:
        return
    gpus = launch.get("num_gpus", request.cluster.num_gpus)
    steps = _whole(said, "steps_per_generation", launch.get("num_microbatches", 1))
    answers, words = b * gpus * steps, f"micro-batch {b} x {gpus} GPUs x {steps} steps = {b * gpus * steps}"
    if said_whole is not None and _is_whole(said_whole):
        answers, words = int(said_whole.value), f"{said_whole.key} {said_whole.value}"
    count = int(group.value)
    if answers % count:
        near = sorted(
            (n for n in range(2, answers + 1) if answers % n == 0), key=lambda n: (abs(n - count), n)
        )
        message = (
            f"{words} answers are not whole groups of {group.key} {count} "
            f"(nearest: {' or '.join(map(str, near[:2]))})"
        )
        is_sure = said_whole is not None or {"num_gpus", "launcher.processes_per_node"} & set(launch.fields)
        yield finding(group, "error" if is_sure else "warning", "settings-need-others", message)


def _least_batch(launch: LaunchFile, gpus: int) -> tuple[int, str]:
    """Answers that a step has a multiple of: all GPUs, or a micro-batch of Megatron's replicas."""
    if launch.framework != "megatron":
        return gpus, f"{gpus} GPUs"
    names = ("tensor_parallel", "pipeline_parallel", "context_parallel")
    ranks = prod(launch.get(name, 1) for name in names)
    replicas, b = max(gpus // ranks, 1), launch.get("micro_batch", 1)
    return replicas * b, f"{replicas} replicas x micro-batch {b}"


def _batches(said: Said, least: int, words: str) -> Iterator[Finding]:
    """Answers of a step over the GPUs, a mini-batch within it, and one way to say the micro-batch."""
    step, mini = said.get("data.train_batch_size"), said.get(_ACTOR + "ppo_mini_batch_size")
    answers = _whole(said, _ROLLOUT + "n", 1)
    prompts = _whole(said, "data.train_batch_size", 0)
    if step is not None and prompts * answers % least:
        unit = least // gcd(answers, least)
        near = sorted({prompts // unit * unit, -(-prompts // unit) * unit} - {0})
        message = (
            f"{step.key} {prompts} x {answers} answers are not a multiple of {words} "
            f"(nearest: {' or '.join(map(str, near))})"
        )
        yield finding(step, "error", "settings-need-others", message)
    if step is not None and mini is not None and _is_whole(mini) and 0 < prompts < int(mini.value):
        message = f"{mini.key} {mini.value} is more than {step.key} {prompts}"
        yield finding(mini, "error", "settings-need-others", message)
    both = [said.get(f"{_ACTOR}ppo_micro_batch_size{end}") for end in ("", "_per_gpu")]
    if both[0] is not None and both[1] is not None:
        message = f"{both[0].key} does not go with {both[1].key}"
        yield finding(both[0], "error", "settings-need-others", message)


def _longest_row(said: Said) -> Iterator[Finding]:
    """A row of tokens holds the longest sample."""
    most = said.get(_ACTOR + "ppo_max_token_len_per_gpu")
    ranks = max(_whole(said, name, 1) for name in _SPLITS)
    longest = [_whole(said, f"data.max_{part}_length", 0) for part in ("prompt", "response")]
    if most is None or not _is_whole(most) or not all(longest) or int(most.value) * ranks >= sum(longest):
        return
    message = (
        f"{most.key} {most.value} x {ranks} ranks hold no sample of {longest[0]} + {longest[1]} tokens: the "
        f"run stops at the first that is as long; {-(-sum(longest) // ranks)} holds it"
    )
    yield finding(most, "warning", "settings-need-others", message)


def _generation(said: Said, gpus: int) -> Iterator[Finding]:
    """Engines that generate fill the GPUs."""
    names = [f"{_ROLLOUT}{kind}_parallel_size" for kind in ("tensor_model", "data", "pipeline_model")]
    ranks = 1
    for name in names:
        ranks *= _whole(said, name, 1)
    at = next((said[name] for name in names if name in said), None)
    if at is not None and gpus % ranks:
        near = sorted((n for n in range(1, gpus + 1) if gpus % n == 0), key=lambda n: (abs(n - ranks), n))[:2]
        message = (
            f"{at.key} {at.value}: engines of {ranks} GPUs do not fill {gpus} "
            f"(nearest: {' or '.join(map(str, near))})"
        )
        yield finding(at, "error", "settings-need-others", message)


def _value(said: Said, name: str, default: str) -> object:
    entry = said.get(name)
    return default if entry is None else entry.value


def _is_whole(entry: Found) -> bool:
    return str(entry.value).isdigit() and int(entry.value) > 0


def _whole(said: Said, name: str, default: int) -> int:
    entry = said.get(name)
    return default if entry is None or not _is_whole(entry) else int(entry.value)

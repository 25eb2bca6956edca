"""Check one run's files: rules, memory, speed, stale keys, a better plan."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from planner.catalog.training import (
    with_fine_tuning,
    with_loss,
    with_optimizer,
    with_unfused_attention,
    without_master,
)
from planner.errors import BadInput, PlannerError
from planner.frameworks.deepspeed.read import weights_alone_away
from planner.frameworks.files import to_plan, write
from planner.frameworks.launch import LaunchFile, make_plan
from planner.frameworks.lint.bare_end import bare_end
from planner.frameworks.lint.findings import Finding, finding, place
from planner.frameworks.lint.habits import with_said_habits
from planner.frameworks.lint.memory import memory_findings
from planner.frameworks.lint.models import layers_differ, named_model
from planner.frameworks.lint.needs import need_findings
from planner.frameworks.lint.reference import reference_findings
from planner.frameworks.lint.rounds import ROUNDS, micro_batch_findings, says_rounds
from planner.frameworks.lint.silent import not_told
from planner.frameworks.lint.slow import slow_findings
from planner.frameworks.shell import unset_variable
from planner.rules import RULES, Violation, check
from planner.solver.evaluate import evaluate
from planner.solver.result import Estimate
from planner.spec.model import Model
from planner.spec.plan import Plan
from planner.spec.request import PlanRequest
from planner.spec.workload import Workload
from planner.units import format_seconds

OWN_WORDS = frozenset(
    {
        "every_stage_fits_in_memory",
        "bubble_stays_within_budget",
        "tensor_ranks_stay_inside_the_fast_domain",
        "precision_is_among_the_choices",
    }
)
"""Rules that the linter reports in its own words, or that only bind the planner."""
DEGREES = frozenset(
    {
        "tensor_parallel",
        "context_parallel",
        "context_parallel_kind",
        "expert_parallel",
        "expert_tensor_parallel",
        "sequence_parallel",
    }
)
"""Fields whose rules can be checked even when the rest makes no plan."""
WORTH_TELLING = 0.03
"""Gain of the planner's plan below which the file's own is called good."""
MOST_VALID = 8
SCOPES = {statement.name: statement.scope for statement in RULES}


@dataclass(frozen=True)
class Review:
    """Everything found. ``plan`` and ``estimate`` are None when the settings make no run."""

    findings: tuple[Finding, ...]
    request: PlanRequest
    plan: Plan | None = None
    estimate: Estimate | None = None
    better: Estimate | None = None

    @property
    def has_errors(self) -> bool:
        """Whether the run cannot work as written."""
        return any(entry.severity == "error" for entry in self.findings)


def gpus_of(launch: LaunchFile) -> int | None:
    """Return the ranks that the files start, None where they do not say it in numbers."""
    nodes, per_node = launch.get("launcher.nodes", 1), launch.get("launcher.processes_per_node")
    started = nodes * per_node if nodes and per_node else None
    said: int | None = launch.get("num_gpus", started)
    return said


ACCUMULATES_WHEN_TOLD = frozenset({"accelerate", "deepspeed", "megatron-deepspeed", "llm-foundry"})
"""Frameworks whose configuration means one micro-batch a step unless it names more."""
SAYS_MICRO_BATCH = frozenset({"deepspeed", "megatron-deepspeed", "llm-foundry"})
"""Of those, the ones whose own file says the micro-batch; where it does not, the batch stays open."""


def batch_of(launch: LaunchFile, num_gpus: int | None) -> int | None:
    """Return the sequences of a step by micro-batch and accumulation, None where files say neither.

    One sequence makes a micro-batch where only accumulation is said.
    """
    said = set(launch.fields)
    if num_gpus is None or "global_batch" in said or launch.framework not in ACCUMULATES_WHEN_TOLD:
        return None
    by_accelerate = any(entry.key == "distributed_type" for entry in launch.found)  # whose file says none
    unsaid = not {"micro_batch", "num_microbatches"} & said
    if launch.framework in SAYS_MICRO_BATCH and unsaid and not by_accelerate:
        return None
    ranks = int(
        launch.get("tensor_parallel", 1)
        * launch.get("context_parallel", 1)
        * launch.get("pipeline_parallel", 1)
    )
    steps = int(launch.get("num_microbatches", 1))
    return max(num_gpus // ranks, 1) * int(launch.get("micro_batch", 1)) * steps


def optimizer_of(launch: LaunchFile) -> str | None:
    """Return the optimizer that the files name; without a master copy where weights are loaded in 16 bits.

    FSDP under Accelerate takes an fp32 copy of them all the same, plain replicas do not.
    """
    said: str | None = launch.get("optimizer")
    sharded = launch.get("distributed_type", "FSDP" if "shard_degree" in launch.fields else "") == "FSDP"
    if launch.framework != "accelerate" or sharded or not launch.get("half_weights", False):
        return said
    return without_master(said or "adam")


def adopt(launch: LaunchFile, request: PlanRequest) -> PlanRequest:
    """Return the request with the file's batch, sequence length, optimizer, loss, adapters and habits."""
    workload = request.workload.model_copy(
        update={
            "global_batch": launch.get("global_batch", request.workload.global_batch),
            "global_batch_max": None
            if "global_batch" in launch.fields
            else request.workload.global_batch_max,
            "seq_length": launch.get("seq_length", request.workload.seq_length),
        }
    )
    framework = with_said_habits(request.framework, launch, request.model)
    if "finetune" in launch.fields:
        workload = with_fine_tuning(workload, launch.get("finetune"))
    optimizer = optimizer_of(launch)
    if optimizer is not None:
        framework = with_optimizer(framework, optimizer)
    for part in ("limits", "memory"):  # where the trainer differs from the framework below it
        changed = getattr(framework, part).model_copy(update=launch.get(part, {}))
        framework = framework.model_copy(update={part: changed})
    if not launch.get("fused_attention", True):
        framework = with_unfused_attention(framework)
    if "loss" in launch.fields:
        framework = with_loss(framework, launch.get("loss"))
    return request.model_copy(update={"workload": workload, "framework": framework})


def lint(launch: LaunchFile, request: PlanRequest) -> list[Finding]:
    """Return the findings about a launch file, without looking for a better plan.

    Parameters
    ----------
    launch
        What was read from the run's files.
    request
        Model and cluster; batch and sequence length of the file replace the request's.
    """
    return list(review(launch, request, search_s=0.0).findings)


def review(launch: LaunchFile, request: PlanRequest, search_s: float = 20.0) -> Review:
    """Check a launch file and look for a better plan.

    Parameters
    ----------
    search_s
        Time for the search of a better plan; 0 leaves it out. [s]
    """
    asked = adopt(launch, request)
    findings = [*_stale(launch), *_differences(launch, asked), *need_findings(launch, asked)]
    here = _on_the_cluster(launch)
    try:
        plan = to_plan(here, asked)
        if "global_batch" not in launch.fields:
            workload = asked.workload.model_copy(update={"global_batch": plan.global_batch})
            asked = asked.model_copy(update={"workload": workload})
        priced = asked.model_copy(update={"workload": _with_precision(asked, plan)})
        estimate = evaluate(plan, priced)
    except BadInput as error:
        at = place(launch, "pipeline_parallel", "tensor_parallel", "micro_batch")
        findings += [finding(at, "error", "settings-make-a-run", str(error)), *_degrees(launch, asked)]
        found = _search(_as_written(asked, request), search_s)
        return _done(launch, findings, Review((), asked, None, None, found))
    findings += [*_broken(launch, estimate, priced.model), *memory_findings(launch, priced, estimate)]
    findings += [*reference_findings(launch, priced, plan), *slow_findings(launch, priced, estimate)]
    better = _search(_as_written(priced, request), search_s)
    return _done(launch, findings, Review((), priced, plan, estimate, better))


def fix(result: Review) -> dict[str, str]:
    """Return the files of the better plan.

    Raises
    ------
    BadInput
        No better plan was found, or the framework cannot express it.
    """
    if result.better is None:
        raise BadInput("there is no better plan to write: none was found in the time given")
    return write(result.better.plan, result.request)


def _on_the_cluster(launch: LaunchFile) -> LaunchFile:
    """The file without its own word on the number of GPUs: the user's --gpus counts."""
    return launch.without("num_gpus")


def _with_precision(request: PlanRequest, plan: Plan) -> Workload:
    return request.workload.model_copy(update={"precisions": (plan.precision,)})


def _as_written(asked: PlanRequest, request: PlanRequest) -> PlanRequest:
    """The question with the habits that our own files have: they overlap, and recompute layers one by one."""
    memory = asked.framework.memory.model_copy(update={"recomputed_together": 1})
    framework = asked.framework.model_copy(update={"time": request.framework.time, "memory": memory})
    return asked.model_copy(update={"framework": framework})


def _search(request: PlanRequest, search_s: float) -> Estimate | None:
    if search_s <= 0:
        return None
    from planner.solver import solve

    try:
        return solve(request, top=1, time_limit_s=search_s).best
    except PlannerError:
        return None


def _done(launch: LaunchFile, findings: list[Finding], result: Review) -> Review:
    findings += _better(launch, result)
    order = {path: index for index, path in enumerate(launch.paths)}
    severity = {"error": 0, "warning": 1, "note": 2}
    findings.sort(key=lambda entry: (order.get(entry.path, 0), severity[entry.severity], entry.line))
    return replace(result, findings=tuple(findings))


def _stale(launch: LaunchFile) -> Iterator[Finding]:
    for old in launch.deprecated:
        message = f"{old.found.key} is gone or going in {launch.framework}; write {old.replacement}"
        yield finding(old.found, "warning", "deprecated-key", message)
    for setting in launch.unknown:
        yield finding(setting, "warning", "unknown-key", f"{launch.framework} does not know {setting.key}")
    alone = weights_alone_away(launch)
    if alone is not None:
        message = (
            f"{alone.key} {alone.value!r}: weights on the host are priced together with the optimizer only"
        )
        yield finding(alone, "warning", "unpriced-value", f"{message}; the check keeps both on the GPU")
    for problem in launch.unreadable:
        variable = unset_variable(problem.found.value)
        if variable is None:
            yield finding(problem.found, "warning", "unreadable-value", problem.sentence)
        else:
            message = f"{problem.found.key} reads ${variable}, which the files do not set; say it with --set"
            yield finding(problem.found, "error", "unset-variable", f"{message} {variable}=VALUE")


def _differences(launch: LaunchFile, request: PlanRequest) -> Iterator[Finding]:
    for name, setting in launch.fields.items():
        if name.startswith("model."):
            ours = getattr(request.model, name.removeprefix("model."), setting.value)
            if ours != setting.value:
                message = f"{setting.key} says {setting.value}, {request.model.name} has {ours}"
                yield finding(setting, "warning", "model-differs", message)
    layers = layers_differ(launch, request.model)
    if layers is not None:
        yield finding(layers[0], "warning", "model-differs", layers[1])
    named, at = named_model(launch), launch.place("named_model", "named_flavor")
    if named is not None and at is not None and named.name != request.model.name:
        message = f"the files train {named.name}, the question is about {request.model.name}"
        yield finding(at, "warning", "model-differs", message)
    if "num_gpus" in launch.fields and launch.get("num_gpus") != request.cluster.num_gpus:
        message = (
            f"the files start {launch.get('num_gpus')} ranks, the question says {request.cluster.num_gpus}"
        )
        yield finding(launch.fields["num_gpus"], "warning", "gpus-differ", message)


def _broken(launch: LaunchFile, estimate: Estimate, model: Model) -> Iterator[Finding]:
    for violation in estimate.violations:
        if violation.rule == "accelerator_has_the_precision" and estimate.plan.precision == "fp32":
            message = "no 16-bit format is asked for: the run trains in fp32, whose rate is not known here"
            yield finding(place(launch, "precision"), "warning", "trains-in-fp32", message)
        elif violation.rule == "inner_stages_hold_layers" and (
            said := bare_end(launch, estimate.plan, model)
        ):
            yield said
        elif violation.rule not in OWN_WORDS and not (violation.rule == ROUNDS and says_rounds(launch)):
            yield _violation(launch, violation)
    yield from micro_batch_findings(launch, estimate.plan)


def _degrees(launch: LaunchFile, request: PlanRequest) -> Iterator[Finding]:
    """What rules say about the degrees alone, for settings that make no complete plan."""
    said = {name: launch.get(name) for name in DEGREES if name in launch.fields}
    if said.get("tensor_parallel", 1) == 1:
        said.pop("sequence_parallel", None)  # every framework leaves it off then
    for violation in check(make_plan(**said), request):
        if violation.rule not in OWN_WORDS and set(SCOPES.get(violation.rule, ("",))) <= DEGREES:
            yield _violation(launch, violation)


def _violation(launch: LaunchFile, violation: Violation) -> Finding:
    at = place(launch, violation.field, *SCOPES.get(violation.rule, ()))
    message = str(violation).removesuffix(".") + not_told(launch.framework, violation.rule)
    return Finding(at.path, at.line, "error", violation.rule, message, violation.allowed[:MOST_VALID])


def _better(launch: LaunchFile, result: Review) -> Iterator[Finding]:
    best, now = result.better, result.estimate
    if best is None:
        return
    at = place(launch, "tensor_parallel", "pipeline_parallel")
    words = _words(best.plan)
    runs = now is not None and now.fits and not any(entry.rule not in OWN_WORDS for entry in now.violations)
    if now is None or not runs:
        message = f"the planner's plan runs, in {format_seconds(best.step_time_s)} a step: {words}"
        yield finding(at, "note", "better-plan", message)
        return
    gain = now.step_time_s / best.step_time_s - 1
    if gain > WORTH_TELLING:
        message = (
            f"the planner's plan takes {format_seconds(best.step_time_s)} instead of "
            f"{format_seconds(now.step_time_s)} a step ({100 * gain:.0f} % faster): {words}"
        )
        yield finding(at, "note", "better-plan", message)


def _words(plan: Plan) -> str:
    return (
        f"tensor {plan.tensor_parallel}, pipeline {plan.pipeline_parallel} x {plan.virtual_stages} "
        f"({plan.schedule}), data {plan.data_parallel}, context {plan.context_parallel}, "
        f"expert {plan.expert_parallel}, ZeRO-{plan.zero_stage}, micro-batch {plan.micro_batch} x "
        f"{plan.num_microbatches}, recompute {plan.recompute}"
    )

"""The commands as Python functions: same options, same objects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from planner.cost.split import default_stages
from planner.cost.stage import V_SHAPED, with_stages
from planner.errors import BadInput, NoPlan, did_you_mean
from planner.request import Question, pins_by_word, read_pins
from planner.spec import FrameworkProfile, Pin, Plan, PlanRequest
from planner.spec.problems import first_problem

if TYPE_CHECKING:
    from planner.frameworks.launch import LaunchFile
    from planner.frameworks.lint import Review
    from planner.solver.result import Estimate, PlanResult

MAX_TOP = 100
MOST_GPUS = 10**9
"""No number of GPUs from here on is one."""
UNRESTRICTED = "any"
"""The framework that stands for none."""


def question(options: Mapping[str, Any]) -> PlanRequest:
    """Build a request from keyword options; pins may stand beside the other options (``tp=8``).

    Raises
    ------
    BadInput
        An option is unknown, out of range or contradictory.
    """
    fields, words = Question.__dataclass_fields__, pins_by_word()
    for name in options:
        if name not in fields and name not in words:
            raise BadInput(f"unknown option {name!r}{did_you_mean(name, [*fields, *words])}")
    own = {name: value for name, value in options.items() if name in fields}
    pins = {name: str(value) for name, value in options.items() if name not in fields}
    own["pins"] = {**own.get("pins", {}), **pins}
    return Question(**own).request()


def plan(
    *, top: int = 5, time_limit_s: float = 60.0, workers: int | None = None, **options: Any
) -> PlanResult:
    """Find the best plans, best first.

    Parameters
    ----------
    top
        Plans to return, 1 to 100.
    time_limit_s
        Search time after which the best plans so far are returned. [s]
    workers
        Solver threads; all cores when None.
    options
        Fields of ``planner.request.Question`` (``model``, ``gpus``, ``hardware``, ``global_batch``, ...) and
        pins by their option word (``tp=8``, ``pp="1:8"``, ``schedule="!gpipe"``).

    Raises
    ------
    BadInput
        An option is unknown, out of range or contradictory.

    Examples
    --------
    >>> from planner import plan
    >>> best = plan(model="llama-3-8b", gpus=8, top=1).plans[0]  # doctest: +SKIP
    """
    from planner.explain.answer import find

    if not 1 <= top <= MAX_TOP:
        raise BadInput(f"top {top}: must be from 1 to {MAX_TOP}")
    if not time_limit_s > 0:
        raise BadInput(f"time_limit_s {time_limit_s}: must be more than zero")
    return find(question(options), top, time_limit_s, workers)


def estimate(given: Plan | None = None, **options: Any) -> Estimate:
    """Price one plan: seconds and bytes by cause, broken rules, whether it fits.

    Parameters
    ----------
    given
        The plan. Without it, the pins say it (``tp=8, pp=4``); fields not pinned take the plainest value,
        and the data-parallel degree and micro-batches fill the cluster and the batch.
    options
        As for ``plan``.
    """
    from planner.solver.evaluate import evaluate

    request = question(options)
    return evaluate(given or pinned_plan(request), request)


def known_frameworks() -> list[FrameworkProfile]:
    """Every real framework, for answers that look for one in which a plan exists."""
    from planner.frameworks import FRAMEWORKS, load_framework

    return [load_framework(name) for name in FRAMEWORKS if name != UNRESTRICTED]


def plans_from(
    words: Sequence[str], request: PlanRequest, *, time_limit_s: float = 60.0, workers: int | None = None
) -> list[Plan]:
    """Return the plans that words name: ranks of the answer, plan files, or launch files.

    Parameters
    ----------
    words
        ``2`` (the second best plan), ``plan.json`` or ``plan.json#2`` (printed by ``--json``), or a launch
        file of any known framework.
    """
    from planner.solver import solve, uninterrupted

    ranks = [int(word) for word in words if _is_rank(word)]
    if any(not 1 <= rank <= MAX_TOP for rank in ranks):
        raise BadInput(f"rank {max(ranks)}: must be from 1 to {MAX_TOP}")
    ranked: tuple[Estimate, ...] = ()
    if ranks:
        found = solve(request, top=max(ranks), time_limit_s=time_limit_s, workers=workers)
        ranked = uninterrupted(found).plans
        if len(ranked) < max(ranks):
            raise BadInput(f"there are only {len(ranked)} plans, so there is no plan {max(ranks)}")
    return [ranked[int(word) - 1].plan if _is_rank(word) else plan_file(word, request) for word in words]


def _is_rank(word: str) -> bool:
    return word.isascii() and word.isdigit() and len(word) < 10


def plan_file(word: str, request: PlanRequest) -> Plan:
    """Return the plan of a JSON file (``#2`` picks the second) or of a launch file."""
    from planner.catalog.files import read_text
    from planner.explain.files import is_plan_file, read_plan
    from planner.frameworks.files import read_files, to_plan

    path, _, rank = word.partition("#")
    if path.endswith(".json") and is_plan_file(path):
        if rank and not _is_rank(rank):
            raise BadInput(
                f"{word}: after # stands which plan of the file is meant, such as #2, not {rank!r}"
            )
        return with_stages(read_plan(path, int(rank or 1)), request.model)
    return to_plan(read_files({path: read_text(Path(path))}), request)


def ranked_plan(
    request: PlanRequest, rank: int = 1, time_limit_s: float = 60.0, workers: int | None = None
) -> Plan:
    """Return the plan of one rank.

    Raises
    ------
    NoPlan
        Nothing fits the request.
    BadInput
        There are fewer plans than that.
    """
    from planner.explain.answer import find
    from planner.solver import uninterrupted

    result = uninterrupted(find(request, rank, time_limit_s, workers))
    if not result.plans:
        raise NoPlan("no plan is legal and fits; the plan command says why and what would help")
    if len(result.plans) < rank:
        raise BadInput(f"there are only {len(result.plans)} plans, so there is no plan {rank}")
    return result.plans[rank - 1].plan


MOST_TRIED = 20
"""Plans of the ranking that are looked at for one that the framework can express."""


def expressible_plan(
    request: PlanRequest, rank: int = 1, time_limit_s: float = 60.0, workers: int | None = None
) -> tuple[Plan, list[str]]:
    """Return the plan of one rank, or the next one that the framework can express, and what differs.

    Where no plan of the ranking can be expressed, the one asked for is returned, so that writing it says why.

    Raises
    ------
    NoPlan
        Nothing fits the request.
    BadInput
        There are fewer plans than that.
    """
    from planner.explain.answer import find
    from planner.frameworks.files import as_run, inexpressible
    from planner.solver import evaluate, uninterrupted

    first = ranked_plan(request, rank, time_limit_s, workers)
    if first == as_run(first, request) and not inexpressible(first, request):
        return first, []
    ranking = uninterrupted(find(request, MOST_TRIED, time_limit_s, workers))
    plans = [one.plan for one in ranking.plans]
    for place, ranked in enumerate(plans[rank - 1 :], rank):
        plan = as_run(ranked, request)
        if not inexpressible(plan, request) and _is_legal(evaluate(plan, request)):
            return plan, _differs(request, rank, place, plan == ranked)
    return first, []


def _is_legal(found: Estimate) -> bool:
    return found.fits and not found.violations


def _differs(request: PlanRequest, rank: int, place: int, same: bool) -> list[str]:
    name = request.framework.name
    said = [] if place == rank else [f"Plan {place} of the ranking: {name} cannot express those before it."]
    return said if same else [*said, f"Layers stand on the stages where {name} itself places them."]


def launch_files(given: Plan, request: PlanRequest) -> dict[str, str]:
    """Return file names and contents that start a plan with the request's framework."""
    from planner.frameworks.files import write

    return write(given, request)


def review_files(
    paths: Sequence[str],
    asked: Question,
    search_s: float = 20.0,
    variables: Mapping[str, str] | None = None,
) -> Review:
    """Check the launch files of one run and look for a better plan.

    Parameters
    ----------
    asked
        What the user says about the run; the model, the GPUs and the framework may come from the files. A
        length that is said here wins over the files', which is often a cap that samples do not reach.
    variables
        Values of shell variables that the files leave open; they win over the scripts' own.
    """
    from planner.catalog.files import read_text
    from planner.frameworks.files import read_files
    from planner.frameworks.lint import review

    launch = read_files({path: read_text(Path(path)) for path in paths}, variables=variables)
    if asked.seq_length is not None:
        launch = launch.without("seq_length")
    return review(launch, _filled(asked, launch).request(), search_s)


def priced_file(path: str, asked: Question) -> tuple[Plan, PlanRequest]:
    """Return the plan of a file and the question that it belongs to.

    A launch file says what is left unsaid, as in ``review_files``: model, GPUs, batch, length, adapters,
    optimizer and framework.
    """
    from planner.catalog.files import read_text
    from planner.explain.files import is_plan_file
    from planner.frameworks.files import read_files, to_plan
    from planner.frameworks.lint import adopt

    name = path.partition("#")[0]
    if name.endswith(".json") and is_plan_file(name):
        request = asked.request()
        return plan_file(path, request), request
    launch = read_files({name: read_text(Path(name))})
    for field in ("seq_length", "global_batch"):
        launch = launch if getattr(asked, field) is None else launch.without(field)
    filled = _filled(asked, launch)
    read = adopt(launch, filled.request())
    plan = to_plan(launch, read)
    said = replace(filled, seq_length=read.workload.seq_length)
    if asked.global_batch is None:
        said = replace(said, global_batch=plan.global_batch)
    return plan, adopt(launch, said.request())


def _filled(asked: Question, launch: LaunchFile) -> Question:
    """The question with what the files say of the model, the GPUs, the framework and the batch."""
    from planner.frameworks.lint import batch_of, gpus_of, model_of, unknown_model

    said: dict[str, Any] = {}
    if asked.model is None:
        said["model"] = model_of(launch)
        if said["model"] is None and (sentence := unknown_model(launch)):
            raise BadInput(sentence)
    if asked.gpus is None:
        said["gpus"] = gpus_of(launch)
        if asked.gpus_per_node is None and launch.get("launcher.nodes", 1) > 1:
            said["gpus_per_node"] = launch.get("launcher.processes_per_node")
    if asked.framework is None:
        said["framework"] = launch.framework
    gpus = said.get("gpus", asked.gpus)
    if asked.global_batch is None:
        said["global_batch"] = batch_of(launch, _count(gpus))
    return replace(asked, **said)


def _count(gpus: Any) -> int | None:
    """Return a number of GPUs that could be one; anything else is refused later."""
    if isinstance(gpus, str):
        return int(gpus) if _is_rank(gpus) else None
    return gpus if isinstance(gpus, int) and 0 < gpus < MOST_GPUS else None


def pinned_plan(request: PlanRequest) -> Plan:
    """Return the one plan that single-valued pins describe, the rest filled in plainly.

    Raises
    ------
    BadInput
        A pin leaves more than one value, so that there is no single plan to price.
    """
    said = {pin.field: _single(pin) for pin in request.pins}
    return complete(said, request)


def _single(pin: Pin) -> int | str | bool:
    values = [value for value in pin.allowed or () if pin.admits(value)]
    if len(values) == 1:
        return values[0]
    if pin.minimum is not None and pin.minimum == pin.maximum:
        return pin.minimum
    raise BadInput(
        f"{pin.option}: one plan needs one value here (plan-parallel plan accepts lists and ranges)"
    )


TWO_CHUNKS = frozenset({"interleaved", *V_SHAPED})
"""Schedules that run two chunks a rank at least."""


def complete(said: Mapping[str, int | str | bool], request: PlanRequest) -> Plan:
    """Fill the unsaid fields: d from the GPU count, m from the batch, the rest as plain as possible.

    Layers are spread over the stages as the request's framework spreads them.
    """
    unknown = [name for name in said if name not in Plan.model_fields]
    if unknown:
        raise BadInput(f"unknown plan field {unknown[0]!r}{did_you_mean(unknown[0], Plan.model_fields)}")
    values: dict[str, Any] = dict(said)
    degree = {
        name: int(values.get(name, 1))
        for name in ("tensor_parallel", "pipeline_parallel", "context_parallel")
    }
    t, p, c = degree.values()
    d = int(values.setdefault("data_parallel", max(1, request.cluster.num_gpus // (t * p * c))))
    values.setdefault("virtual_stages", 2 if values.get("schedule") in TWO_CHUNKS else 1)
    values.setdefault("schedule", _plain_schedule(p, int(values["virtual_stages"])))
    values.setdefault("micro_batch", 1)
    replica = max(1, request.workload.global_batch // d)
    values.setdefault("num_microbatches", max(1, replica // int(values["micro_batch"])))
    values.setdefault("zero_stage", _usual_zero_stage(p, d * c, request))
    values.setdefault("shard_group_size", d * c if values["zero_stage"] else 1)
    values.setdefault("sequence_parallel", t > 1)
    values.setdefault("precision", request.workload.precisions[0])
    values.setdefault("expert_tensor_parallel", _usual_expert_tensor(values, t, request))
    plan, split = _valid_plan(values), request.framework.limits.default_split
    return plan.model_copy(update={"stages": default_stages(plan, request.model, split)})


def _usual_zero_stage(pipeline_parallel: int, replicas: int, request: PlanRequest) -> int:
    """ZeRO-1, or what a framework without it does unless told otherwise.

    FSDP gathers weights layer by layer (3); with a pipeline it keeps them between micro-batches (2).
    """
    limits = request.framework.limits
    stages = limits.zero_stages_with_pipeline if pipeline_parallel > 1 else limits.zero_stages
    sharded = [stage for stage in stages if stage > 0]
    if 1 in sharded:
        return 1
    if not sharded or replicas == 1:
        return 0
    return max(sharded) if pipeline_parallel == 1 else min(sharded)


def _usual_expert_tensor(values: Mapping[str, Any], t: int, request: PlanRequest) -> int:
    """Without expert parallelism, experts are split like dense layers where their width allows it."""
    is_split = request.model.is_moe and int(values.get("expert_parallel", 1)) == 1
    return t if is_split and request.model.expert_ffn_hidden_size % t == 0 else 1


def _valid_plan(values: Mapping[str, Any]) -> Plan:
    try:
        return Plan(**values)
    except ValidationError as error:
        raise BadInput(first_problem(error, Plan)) from error


def _plain_schedule(pipeline_parallel: int, virtual_stages: int) -> str:
    if pipeline_parallel == 1:
        return "none"
    return "interleaved" if virtual_stages > 1 else "1f1b"


__all__ = ["complete", "estimate", "pinned_plan", "plan", "question", "read_pins"]

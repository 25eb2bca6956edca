"""What a launch file says: every setting with its line, and the plan that the settings make together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import ValidationError

from planner.cost.stage import stage_order
from planner.errors import BadInput
from planner.spec.model import Model
from planner.spec.plan import Plan, StagePlan
from planner.spec.problems import first_problem
from planner.spec.request import PlanRequest


@dataclass(frozen=True, slots=True)
class Found:
    """One setting as it stands in a file; ``value`` is text, number, boolean or a list of them."""

    key: str
    value: Any
    path: str
    line: int
    branch: int = 0
    """Line of the branch of a script's ``if`` that it stands in where nothing decides the branch, else 0."""

    @property
    def place(self) -> str:
        """``file:line``."""
        return f"{self.path}:{self.line}"


@dataclass(frozen=True, slots=True)
class Key:
    """What one spelling of a framework means to us: our name for it, and how its value is read.

    ``field`` is a plan field, ``model.<field>``, ``seq_length``, ``global_batch``, ``num_gpus``, or a name
    that only the framework's own ``to_plan`` looks at.
    """

    field: str
    convert: Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Deprecated:
    """A key whose name has gone or is going, and what to write instead."""

    found: Found
    replacement: str


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A known key whose value makes no sense."""

    found: Found
    sentence: str


@dataclass(frozen=True)
class LaunchFile:
    """Everything read from one run's files.

    ``fields`` maps our names to the setting that gave them last, with the converted value.
    """

    framework: str
    paths: tuple[str, ...]
    found: tuple[Found, ...]
    fields: Mapping[str, Found] = field(default_factory=dict)
    unknown: tuple[Found, ...] = ()
    deprecated: tuple[Deprecated, ...] = ()
    unreadable: tuple[Unreadable, ...] = ()

    def get(self, name: str, default: Any = None) -> Any:
        """Return the converted value of a field, or the default."""
        return self.fields[name].value if name in self.fields else default

    def without(self, *names: str) -> LaunchFile:
        """Return the same without some fields: somebody else says them."""
        fields = {name: found for name, found in self.fields.items() if name not in names}
        return replace(self, fields=fields)

    def place(self, *names: str) -> Found | None:
        """Return the setting that gave the first of these fields, if any did."""
        return next((self.fields[name] for name in names if name in self.fields), None)


def collect(
    framework: str,
    found: Iterable[Found],
    keys: Mapping[str, Key],
    known: Callable[[str], bool],
    deprecated: Mapping[str, str] | None = None,
) -> LaunchFile:
    """Sort settings into fields, unknown, deprecated and unreadable ones.

    Parameters
    ----------
    keys
        Spellings that we understand.
    known
        Whether a spelling that we do not interpret exists in the framework.
    deprecated
        Spelling to replacement.
    """
    old = deprecated or {}
    settings = tuple(found)
    fields: dict[str, Found] = {}
    unknown, stale, unreadable = [], [], []
    for setting in settings:
        if setting.value is None:
            continue  # null: left to the framework
        if setting.key in old:
            stale.append(Deprecated(setting, old[setting.key]))
        if setting.key in keys:
            key = keys[setting.key]
            try:
                value = key.convert(setting.value)
            except (ValueError, TypeError) as error:
                unreadable.append(Unreadable(setting, f"{setting.key} {setting.value!r}: {error}"))
                continue
            if value is None and not key.field.startswith("launcher."):
                continue  # "auto": filled in by somebody else
            fields[key.field] = Found(setting.key, value, setting.path, setting.line)
        elif setting.key not in old and not known(setting.key):
            unknown.append(setting)
    paths = tuple(dict.fromkeys(setting.path for setting in settings))
    return LaunchFile(framework, paths, settings, fields, tuple(unknown), tuple(stale), tuple(unreadable))


def merge(files: Iterable[LaunchFile]) -> LaunchFile:
    """Return one launch file that holds everything; a later file's value of a field wins.

    What a file does not say, and its trainer assumes, gives way to what another says.
    """
    every = list(files)
    fields: dict[str, Found] = {}
    for file in every:
        said = {entry.key for entry in file.found}
        fields |= {name: at for name, at in file.fields.items() if name not in fields or at.key in said}
    return LaunchFile(
        framework=every[0].framework,
        paths=tuple(dict.fromkeys(path for file in every for path in file.paths)),
        found=tuple(entry for file in every for entry in file.found),
        fields=fields,
        unknown=tuple(entry for file in every for entry in file.unknown),
        deprecated=tuple(entry for file in every for entry in file.deprecated),
        unreadable=tuple(entry for file in every for entry in file.unreadable),
    )


def whole(value: Any) -> int:
    """Read a whole number written as number or text."""
    if isinstance(value, bool):
        raise ValueError("must be a whole number")
    try:
        number = int(value)
        if isinstance(value, float) and value != number:
            raise ValueError("must be a whole number")
        return number
    except (ValueError, TypeError, OverflowError) as error:
        raise ValueError("must be a whole number") from error


def offload_named(parameters: bool, activations: bool) -> str:
    """Return the plan's word for what a file sends to the host."""
    sent = {"parameters": parameters, "activations": activations}
    return "+".join(name for name, is_sent in sent.items() if is_sent) or "none"


def positive(value: Any) -> int:
    """Read a whole number of at least 1."""
    number = whole(value)
    if number < 1:
        raise ValueError("must be 1 or more")
    return number


def degree(value: Any) -> int:
    """Read a degree of parallelism: -1 for "what is left", or at least 1."""
    number = whole(value)
    if number != -1 and number < 1:
        raise ValueError("must be -1 (what is left) or 1 and more")
    return number


def yes(value: Any) -> bool:
    """Read a flag: present without value, or a boolean word."""
    if isinstance(value, bool):
        return value
    word = str(value).strip().lower()
    if word in {"", "true", "1", "yes", "on"}:
        return True
    if word in {"false", "0", "no", "off", "none"}:
        return False
    raise ValueError("must be true or false")


def one_of(*words: str) -> Callable[[Any], str]:
    """Return a reader that accepts only these words."""

    def convert(value: Any) -> str:
        word = str(value).strip().lower()
        if word not in words:
            raise ValueError(f"must be one of {', '.join(words)}")
        return word

    return convert


def fixed(value: Any) -> Callable[[Any], Any]:
    """Return a reader for a flag that stands for a value."""
    return lambda _given: value


def text(value: Any) -> str:
    """Read anything as one word."""
    return str(value)


def even_stages(model: Model, plan: Plan) -> tuple[StagePlan, ...]:
    """Return the stages of a plan that names none: layers as even as can be, recompute all or nothing."""
    order = stage_order(plan.schedule, plan.pipeline_parallel, plan.virtual_stages)
    base, extra = divmod(model.num_layers, len(order))
    return stages_of([base + (index < extra) for index in range(len(order))], plan)


def stages_of(
    counts: list[int], plan: Plan, recompute_layers: list[int] | None = None
) -> tuple[StagePlan, ...]:
    """Return one entry a rank from layer counts in the order in which data flows.

    Without ``recompute_layers`` (one number a rank) a recomputing plan recomputes every layer.
    """
    chunks = [[0] * plan.virtual_stages for _ in range(plan.pipeline_parallel)]
    order = stage_order(plan.schedule, plan.pipeline_parallel, plan.virtual_stages)
    for count, (rank, chunk) in zip(counts, order, strict=True):
        chunks[rank][chunk] = count
    stages = []
    for rank, layers in enumerate(chunks):
        again = sum(layers) if plan.recompute != "none" else 0
        if recompute_layers is not None:
            again = recompute_layers[rank]
        stages.append(_stage(tuple(layers), again))
    return tuple(stages)


def _stage(chunk_layers: tuple[int, ...], recompute_layers: int) -> StagePlan:
    try:
        return StagePlan(chunk_layers=chunk_layers, recompute_layers=recompute_layers)
    except ValidationError as error:
        raise BadInput(f"a pipeline rank's {first_problem(error, StagePlan)}") from error


def flow_counts(plan: Plan) -> list[int]:
    """Layers of every stage in the order in which data flows."""
    order = stage_order(plan.schedule, plan.pipeline_parallel, plan.virtual_stages)
    return [plan.stages[rank].chunk_layers[chunk] for rank, chunk in order]


def with_stages(plan: Plan, model: Model) -> Plan:
    """Return the plan with its stages spelled out."""
    return plan if plan.stages else plan.model_copy(update={"stages": even_stages(model, plan)})


def has_even_stages(plan: Plan) -> bool:
    """Whether every stage holds the same number of layers."""
    return len(set(flow_counts(plan))) == 1


def schedule_of(pipeline_parallel: int, virtual_stages: int) -> str:
    """Return the schedule that frameworks of Megatron's kind run without being told."""
    if pipeline_parallel == 1:
        return "none"
    return "interleaved" if virtual_stages > 1 else "1f1b"


MOST_STAGES = 10_000
"""More pipeline stages than any model has layers: a slip of the pen, refused before lists are made of it."""


def check_stages(pipeline_parallel: int, virtual_stages: int = 1) -> None:
    """Refuse absurd numbers of stages.

    Raises
    ------
    BadInput
        There are more than ``MOST_STAGES``.
    """
    if pipeline_parallel * virtual_stages > MOST_STAGES:
        raise BadInput(
            f"{pipeline_parallel} pipeline ranks x {virtual_stages} chunks are more than {MOST_STAGES} stages"
        )


def implied_expert_tensor(
    request: PlanRequest, expert_parallel: int, tensor_parallel: int, said: int = 1
) -> int:
    """Expert-tensor ranks where a framework splits experts like any layer unless there are expert ranks."""
    if expert_parallel > 1:
        return said
    return tensor_parallel if request.model.is_moe else 1


def make_plan(**fields: Any) -> Plan:
    """Return a plan of values that were read from files.

    Raises
    ------
    BadInput
        A value is outside what a plan can hold.
    """
    try:
        plan = Plan(**fields)
    except ValidationError as error:
        raise BadInput(first_problem(error, Plan)) from error
    check_stages(plan.pipeline_parallel, plan.virtual_stages)
    return plan


def replicas(launch: LaunchFile, request: PlanRequest, ranks_per_replica: int) -> int:
    """Return the data-parallel degree: GPUs over the ranks of one model replica.

    Raises
    ------
    BadInput
        The degrees do not divide the GPUs.
    """
    num_gpus = launch.get("num_gpus", request.cluster.num_gpus)
    if num_gpus % ranks_per_replica:
        raise BadInput(
            f"{num_gpus} GPUs are not a multiple of tensor x pipeline x context parallel "
            f"= {ranks_per_replica}"
        )
    return int(num_gpus // ranks_per_replica)


def microbatches(global_batch: int, data_parallel: int, micro_batch: int) -> int:
    """Return micro-batches per step.

    Raises
    ------
    BadInput
        The batch is not a multiple of replicas times micro-batch; the nearest ones are named.
    """
    unit = data_parallel * micro_batch
    if global_batch % unit:
        below, above = global_batch // unit * unit, -(-global_batch // unit) * unit
        nearest = f"{below} or {above}" if below else str(above)
        raise BadInput(
            f"a global batch of {global_batch} sequences is not a multiple of micro-batch {micro_batch} x "
            f"{data_parallel} replicas; nearest is {nearest}"
        )
    return global_batch // unit

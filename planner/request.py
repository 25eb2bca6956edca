"""From what a user says (names, numbers as text, pins) to a ``PlanRequest`` that lists its assumptions."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import get_args

from planner.catalog import defaults, training
from planner.catalog.hardware import ClusterOverrides, load_cluster
from planner.catalog.models import load_model
from planner.catalog.pins import OPTION_OF_FIELD, PIN_OPTIONS, PinOption, parse_pin
from planner.errors import BadInput, did_you_mean
from planner.frameworks import load_framework
from planner.spec import Accelerator, Cluster, FrameworkProfile, Model, Pin, PlanRequest, Workload
from planner.spec.plan import Precision
from planner.spec.request import Goal
from planner.units import parse_bytes, parse_count, parse_seconds

MAX_GPUS = 1_000_000
MAX_BATCH = 10_000_000
MAX_BATCHES = 2048
"""Batches of a range; twice as many take longer than a search should and more than 1 GB."""
MAX_SEQ_LENGTH = 100_000_000

Number = int | float | str | None

_TOKENS = re.compile(r"^(.*?)\s*tok(?:en)?s?$", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Question:
    """Everything a user may say about a planning problem; ``None`` means: fill in and tell.

    Numbers may be text with units (``80GB``, ``10s``, ``4Mtok``). ``pins`` maps plan fields (or their
    options without dashes, such as ``tp``) to words of the pin grammar (``planner.catalog.pins``).
    """

    model: str | Model | None = None
    gpus: Number = None
    hardware: str | Cluster | None = None
    gpus_per_node: Number = None
    domain_gpus: Number = None
    """GPUs of the fastest tier (NVLink, xGMI, ICI)."""
    domain_bandwidth: Number = None
    """Line rate of the fastest tier, one GPU and direction; GB/s without a unit."""
    nic_bandwidth: Number = None
    """Line rate of the network, one GPU and direction; GB/s without a unit."""
    oversubscription: Number = None
    pod_gpus: Number = None
    """GPUs below one spine connection."""
    global_batch: Number = None
    """Sequences (``1024``), a range (``1024:4096``), or tokens (``4Mtok``)."""
    seq_length: Number = None
    precision: str | None = None
    framework: str | FrameworkProfile | None = None
    finetune: str | None = None
    """``full``, ``lora`` or ``qlora``."""
    optimizer: str | None = None
    """What fills the optimizer state (``planner.catalog.training``)."""
    loss: str | None = None
    """``whole`` or ``chunked``."""
    pins: Mapping[str, str] = field(default_factory=dict)
    goal: str = "step-time"
    step_time: Number = None
    max_bubble: Number = 0.25
    """Fraction of the ideal time, or ``none``."""
    allow_tp_across_nodes: bool = False
    allow_idle: bool = False
    robust: bool = False
    hbm: Number = None
    """Pretend that each GPU has this much HBM."""
    hbm_reserve: Number = None

    def request(self) -> PlanRequest:
        """Resolve names, fill in defaults and record each of them.

        Raises
        ------
        BadInput
            Something said is unknown, out of range or contradictory.
        """
        self._check_types()
        model = self._model()
        cluster = self._cluster()
        framework = self._framework(cluster)
        workload = self._workload(model, cluster)
        return PlanRequest(
            model=model,
            cluster=cluster,
            workload=workload,
            framework=framework,
            pins=read_pins(self.pins),
            goal=_goal(self.goal),
            max_bubble=_bubble(self.max_bubble),
            allow_tensor_parallel_across_nodes=self.allow_tp_across_nodes,
            allow_idle=self.allow_idle,
            max_step_time_s=_step_time(self.step_time),
            robust=self.robust,
            assumptions=self._assumptions(model, cluster, framework, workload),
        )

    def _check_types(self) -> None:
        for name in ("precision", "goal", "finetune", "optimizer", "loss"):
            said = getattr(self, name)
            if said is not None and not isinstance(said, str):
                raise BadInput(f"{name} must be text, not {said!r}")
        for name, kind in (("model", Model), ("hardware", Cluster), ("framework", FrameworkProfile)):
            said = getattr(self, name)
            if said is not None and not isinstance(said, str | kind):
                raise BadInput(f"{name} must be a name, a file, or a {kind.__name__}, not {said!r}")

    def _model(self) -> Model:
        if self.model is None:
            raise BadInput(
                "say which model with --model, for example --model 100b (plan-parallel models lists them)"
            )
        return self.model if isinstance(self.model, Model) else load_model(self.model)

    def _framework(self, cluster: Cluster) -> FrameworkProfile:
        said = self.framework or defaults.default_framework(cluster.accelerator)
        framework = said if isinstance(said, FrameworkProfile) else load_framework(said)
        if self.optimizer is not None:
            framework = training.with_optimizer(framework, self.optimizer)
        return framework if self.loss is None else training.with_loss(framework, self.loss)

    def _cluster(self) -> Cluster:
        if isinstance(self.hardware, Cluster):
            return self._adjusted(self.hardware)
        hardware = self.hardware or defaults.DEFAULT_HARDWARE
        if self.gpus is None and not hardware.endswith(".toml"):
            raise BadInput("say how many GPUs with --gpus, for example --gpus 512")
        cluster = load_cluster(
            hardware,
            whole_number(self.gpus, "--gpus", MAX_GPUS),
            whole_number(self.gpus_per_node, "--gpus-per-node", MAX_GPUS),
            **self._overrides(),
        )
        return self._adjusted(cluster)

    def _overrides(self) -> ClusterOverrides:
        found = ClusterOverrides()
        if (domain := whole_number(self.domain_gpus, "--domain-gpus", MAX_GPUS)) is not None:
            found["domain_gpus"] = domain
        if (pod := whole_number(self.pod_gpus, "--pod-gpus", MAX_GPUS)) is not None:
            found["pod_gpus"] = pod
        if self.domain_bandwidth is not None:
            found["domain_bytes_per_s"] = _rate(self.domain_bandwidth, "--domain-bandwidth")
        if self.nic_bandwidth is not None:
            found["nic_bytes_per_s"] = _rate(self.nic_bandwidth, "--nic-bandwidth")
        if self.oversubscription is not None:
            factor = parse_count(str(self.oversubscription), "--oversubscription")
            if factor < 1:
                raise BadInput(f"--oversubscription {self.oversubscription}: must be 1 (none) or more")
            found["oversubscription"] = factor
        return found

    def _adjusted(self, cluster: Cluster) -> Cluster:
        if self.hbm is not None:
            size = _positive_bytes(self.hbm, "--hbm")
            memory = cluster.accelerator.memory.model_copy(update={"hbm_bytes": size, "origin": "assumed"})
            accelerator = cluster.accelerator.model_copy(update={"memory": memory})
            cluster = cluster.model_copy(update={"accelerator": accelerator})
        if self.hbm_reserve is not None:
            kept = parse_bytes(str(self.hbm_reserve), "--hbm-reserve")
            if not 0 <= kept < cluster.accelerator.memory.hbm_bytes:
                raise BadInput(
                    f"--hbm-reserve {self.hbm_reserve}: must leave some of the GPU's HBM free for the plan"
                )
            cluster = cluster.model_copy(update={"reserved_hbm_bytes": kept})
        return cluster

    def _workload(self, model: Model, cluster: Cluster) -> Workload:
        seq_length = whole_number(self.seq_length, "--seq-length", MAX_SEQ_LENGTH) or model.seq_length
        low, high = _batch(self.global_batch, seq_length)
        workload = Workload(
            global_batch=low or defaults.default_global_batch(cluster.num_gpus, seq_length),
            global_batch_max=high,
            seq_length=seq_length,
            precisions=_precisions(self.precision, cluster.accelerator),
        )
        return workload if self.finetune is None else training.with_fine_tuning(workload, self.finetune)

    def _assumptions(
        self, model: Model, cluster: Cluster, framework: FrameworkProfile, workload: Workload
    ) -> tuple[str, ...]:
        said = [model.notes] if model.notes else []
        if self.global_batch is None:
            said.append(defaults.batch_sentence(workload.global_batch, workload.seq_length))
        if self.seq_length is None:
            said.append(defaults.sequence_sentence(model))
        if not isinstance(self.hardware, Cluster):
            said.append(defaults.cluster_sentence(cluster, named=self.hardware is not None))
        said.append(defaults.framework_sentence(framework, named=self.framework is not None))
        if self.precision is None:
            said.append(
                f"Number format {workload.precisions[0]}; change it with --precision (bf16,fp8 lets the "
                "planner choose)."
            )
        deep = defaults.deep_sentence(model.num_layers, framework)
        said += [] if deep is None else [deep]
        low = workload.global_batch
        tried = defaults.micro_batch_sentence(low, workload.global_batch_max or low)
        said += [] if tried is None else [tried]
        trained = training.training_sentence(self.optimizer, self.loss, self.finetune)
        said += [] if trained is None else [trained]
        bubble = _bubble(self.max_bubble)
        if bubble is not None:
            said.append(defaults.bubble_sentence(bubble))
        return tuple(said)


def whole_number(value: Number, option: str, largest: int) -> int | None:
    """Read a positive whole number; ``None`` stays ``None``."""
    if value is None:
        return None
    number = parse_count(str(value), option)
    if number != int(number) or not 1 <= number <= largest:
        raise BadInput(f"{option} {value}: must be a whole number from 1 to {largest}")
    return int(number)


def pins_by_word() -> dict[str, PinOption]:
    """Pins by plan field (``tensor_parallel``) and by option word (``tp``)."""
    known = {option.field: option for option in PIN_OPTIONS}
    for option in PIN_OPTIONS:
        for word in (option.option, *option.aliases):
            known[word.removeprefix("--").replace("-", "_")] = option
    return known


def read_pins(pins: Mapping[str, str]) -> tuple[Pin, ...]:
    """Read pins keyed by plan field (``tensor_parallel``) or option word (``tp``)."""
    known, found = pins_by_word(), []
    for name, text in pins.items():
        key = name.removeprefix("--").replace("-", "_")
        if key not in known:
            raise BadInput(
                f"unknown pin {name!r}, pins are {', '.join(OPTION_OF_FIELD)}{did_you_mean(key, known)}"
            )
        found.append(parse_pin(known[key], str(text)))
    return tuple(found)


def _rate(value: int | float | str, option: str) -> float:
    return _positive_bytes(str(value).removesuffix("/s"), option)


def _positive_bytes(value: int | float | str, option: str) -> float:
    size = parse_bytes(str(value), option)
    if size <= 0:
        raise BadInput(f"{option} {value}: must be more than zero")
    return size


def _goal(text: str) -> Goal:
    goals: tuple[Goal, ...] = get_args(Goal)
    for goal in goals:
        if text == goal:
            return goal
    raise BadInput(f"--goal {text!r} is not one of {', '.join(goals)}{did_you_mean(text, goals)}")


def _bubble(value: Number) -> float | None:
    if value is None or str(value).strip().lower() == "none":
        return None
    bubble = parse_count(str(value), "--max-bubble")
    if not 0 < bubble <= 100:
        raise BadInput(
            f"--max-bubble {value}: must be a fraction of the ideal time above 0 (such as 0.25), or none"
        )
    return bubble


def _step_time(value: Number) -> float | None:
    if value is None:
        return None
    seconds = parse_seconds(str(value), "--step-time")
    if seconds <= 0:
        raise BadInput(f"--step-time {value}: must be more than zero")
    return seconds


def _batch(value: Number, seq_length: int) -> tuple[int | None, int | None]:
    if value is None:
        return None, None
    low, colon, high = str(value).partition(":")
    first = _sequences(low, seq_length)
    if not colon:
        return first, None
    last = _sequences(high, seq_length)
    if last < first:
        raise BadInput(f"--global-batch {value}: the range is empty because {first} is more than {last}")
    if last - first >= MAX_BATCHES:
        raise BadInput(
            f"--global-batch {value}: the range holds {last - first + 1} batches; at most {MAX_BATCHES} are "
            f"compared, such as {first}:{first + MAX_BATCHES - 1}"
        )
    return first, last


def _sequences(text: str, seq_length: int) -> int:
    match = _TOKENS.match(text.strip())
    if match is None:
        return whole_number(text, "--global-batch", MAX_BATCH) or 1
    tokens = parse_count(match.group(1), "--global-batch")
    if not math.isfinite(tokens) or tokens < seq_length:
        raise BadInput(f"--global-batch {text}: a step needs at least one sequence of {seq_length} tokens")
    return round(tokens / seq_length)


def _precisions(text: str | None, accelerator: Accelerator) -> tuple[Precision, ...]:
    known: tuple[Precision, ...] = get_args(Precision)
    has_default = defaults.DEFAULT_PRECISION in accelerator.compute.peak_flop_per_s
    usual = defaults.DEFAULT_PRECISION if has_default else "fp16"  # Volta's tensor cores know no other
    words = [word.strip().lower() for word in (text or usual).split(",")]
    chosen: list[Precision] = []
    for word in words:
        match = [precision for precision in known if precision == word]
        if not match:
            raise BadInput(
                f"--precision {word!r} is not one of {', '.join(known)}{did_you_mean(word, known)}"
            )
        if match[0] not in accelerator.compute.peak_flop_per_s:
            able = ", ".join(format for format in known if format in accelerator.compute.peak_flop_per_s)
            raise BadInput(f"--precision {word}: {accelerator.name} has no {word} products; it has {able}")
        chosen += [precision for precision in match if precision not in chosen]
    return tuple(chosen)
